"""The hub path of encoders, against a stand-in for the hub on loopback: nothing here reaches a network."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LOCATE = (
    "from harness.encoders import locate\n"
    "print(locate('me/tiny').encoder.resolved, locate('me/tiny', download=True).encoder.digest, locate('me/tiny').folder)"
)


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """(address, the folder that it serves as model me/tiny, the requests so far)."""
    folder = tiny.encoder_folder(tmp_path / "served", "bert")
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(False)

        def do_GET(self) -> None:
            self._answer(True)

        def _answer(self, body: bool) -> None:
            asked.append(f"{self.command} {self.path}")
            path = self.path.partition("?")[0]
            content, headers = b"", {}
            if path.startswith("/api/models/me/tiny"):
                names = [{"rfilename": each.name} for each in sorted(folder.iterdir())]
                content = json.dumps({"id": "me/tiny", "modelId": "me/tiny", "sha": COMMIT, "siblings": names}).encode()
                if "/tree/" in path:
                    content = json.dumps(
                        [
                            {"type": "file", "path": f.name, "size": f.stat().st_size, "oid": "0"}
                            for f in folder.iterdir()
                        ]
                    ).encode()
                headers["Content-Type"] = "application/json"
            elif "/resolve/" in path and (folder / path.rsplit("/", 1)[1]).exists():
                content = (folder / path.rsplit("/", 1)[1]).read_bytes()
                headers["ETag"] = f'"{hashlib.sha256(content).hexdigest()}"'
                headers["X-Repo-Commit"] = COMMIT
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound" if "nothere" in path else "EntryNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(200)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", folder, asked
    server.shutdown()
    server.server_close()


def elsewhere(code: str, home: Path, **variables: str) -> str:
    """What `code` prints in a fresh process with an empty hub cache of its own."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    environment |= {"HF_HOME": str(home / "hf"), "HF_HUB_DISABLE_XET": "1", **variables}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_model_of_the_hub_is_fetched_once_and_is_the_same_as_its_folder(
    stand_in: tuple[str, Path, list[str]], tmp_path: Path
) -> None:
    address, folder, asked = stand_in
    from harness.encoders import locate

    resolved, digest, where = elsewhere(LOCATE, tmp_path, HF_ENDPOINT=address).split()
    assert resolved == "False"
    assert digest == locate(str(folder)).encoder.digest
    assert COMMIT in where
    before = len([request for request in asked if request.startswith("GET") and "safetensors" in request])
    assert before == 1
    assert elsewhere(LOCATE, tmp_path, HF_HUB_OFFLINE="1").split() == ["True", digest, where]


def test_a_model_that_the_hub_does_not_have(stand_in: tuple[str, Path, list[str]], tmp_path: Path) -> None:
    code = (
        "from harness.encoders import locate\nfrom harness.errors import UserError\n"
        "try:\n    locate('me/nothere', download=True)\nexcept UserError as error:\n    print(error)"
    )
    assert "has no such model" in elsewhere(code, tmp_path, HF_ENDPOINT=stand_in[0])

"""A stand-in for the Hugging Face hub on loopback: no test reaches a network."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from ruamel.yaml import YAML

REPOSITORY = Path(__file__).resolve().parents[1]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
"""The commit of every repository."""

Answer = tuple[int, dict[str, str], bytes]


class StandIn:
    """Serves the repositories below `root`, as models/OWNER/NAME or datasets/OWNER/NAME.

    `gated`: ids that ask for consent. `commits`: those of repositories that are not at COMMIT. `asked`: the requests so far.
    """

    def __init__(self, root: Path, commits: Mapping[str, str]) -> None:
        self.root, self.commits, self.asked = root, commits, list[str]()
        self.gated: set[str] = set()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self._answer()

            do_GET = do_POST = do_HEAD  # noqa: N815 - the server's own names

            def _answer(self) -> None:
                outer.asked.append(f"{self.command} {self.path}")
                sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = unquote(urlsplit(self.path).path)
                status, headers, content = outer.answer(path, sent.decode())
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def log_message(self, *_: Any) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def folder(self, name: str, kind: str = "datasets") -> Path:
        return self.root / kind / name

    def got(self, ending: str = "") -> list[str]:
        """Files that were fetched, by their paths in their repositories."""
        fetched = [request for request in self.asked if request.startswith("GET") and "/resolve/" in request]
        names = [request.partition("/resolve/")[2].partition("/")[2] for request in fetched]
        return [name for name in names if name.endswith(ending)]

    def answer(self, path: str, sent: str = "") -> Answer:
        """(status, headers, body) for a path without its query; `sent` is the body of the request."""
        if path == "/":
            return 200, {}, b""
        parts = path.removeprefix("/api").strip("/").split("/")
        kind = parts.pop(0) if parts[0] in ("datasets", "models") else "models"
        name, rest = "/".join(parts[:2]), "/".join(parts[2:])
        folder, commit = self.folder(name, kind), self.commits.get(name, COMMIT)
        if not folder.is_dir():
            return 404, {"X-Error-Code": "RepoNotFound"}, b""
        verb, _, rest = rest.partition("/")
        if rest.startswith("nowhere"):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        if name in self.gated and verb not in ("", "revision"):
            return 403, {"X-Error-Code": "GatedRepo"}, b""
        files = {str(p.relative_to(folder)): p for p in sorted(folder.rglob("*")) if p.is_file()}
        if path.startswith("/api/"):
            body = self._api(name, commit, verb, files, sent)
            return 200, {"Content-Type": "application/json"}, json.dumps(body).encode()
        file = files.get(rest.partition("/")[2])
        if file is None:
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b""
        content = file.read_bytes()
        return 200, {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": commit}, content

    @staticmethod
    def _api(name: str, commit: str, verb: str, files: dict[str, Path], sent: str) -> Any:
        if verb in ("", "revision"):
            siblings = [{"rfilename": file} for file in files]
            front = files["README.md"].read_text().split("---")[1] if "README.md" in files else "{}"
            card = YAML(typ="safe", pure=True).load(front)
            return {"id": name, "modelId": name, "sha": commit, "siblings": siblings, "cardData": card}
        entries = [
            {"type": "file", "path": file, "size": path.stat().st_size, "oid": "0"} for file, path in files.items()
        ]
        folders = {str(parent) for file in files for parent in Path(file).parents} - {"."}
        entries += [{"type": "directory", "path": each, "size": 0, "oid": "0"} for each in sorted(folders)]
        if verb == "paths-info":
            wanted = parse_qs(sent).get("paths", []) or json.loads(sent or "{}").get("paths", [])
            return [entry for entry in entries if entry["path"] in wanted]
        return entries


@contextmanager
def stand_in(root: Path, commits: Mapping[str, str] = MappingProxyType({})) -> Iterator[StandIn]:
    made = StandIn(root, commits)
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()


@contextmanager
def hanging_up() -> Iterator[tuple[str, list[object]]]:
    """(address, calls so far) of a server that hangs up on everyone."""
    calls: list[object] = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            calls.append(self.client_address)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", calls
        finally:
            server.shutdown()


def elsewhere(code: str, home: Path, **variables: str) -> str:
    """What `code` prints in a fresh process with a hub cache of its own: the hub client reads its settings on import."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_HOME": str(home / "home"), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "*", **variables}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout

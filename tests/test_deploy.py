"""The files in deploy/ and the commands of all pages are valid for Ray, KubeRay, Docker and harness, as far as that can be
checked here.

Docker, AWS and Kubernetes are not at hand: the Dockerfile is not built, nothing is launched.
"""

from __future__ import annotations

import json
import re
import runpy
import shlex
import threading
import tomllib
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from harness.cli.parser import build_parser
from harness.errors import masked

REPOSITORY = Path(__file__).resolve().parent.parent
DEPLOY = REPOSITORY / "deploy"
PAGES = (REPOSITORY / "README.md", DEPLOY / "README.md")
DOCS = tuple(path for path in sorted((REPOSITORY / "docs").glob("*.md")) if path.name != "LOG.md")
PINS = dict(re.findall(r"^(\S+)==(\S+)$", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE))
COMMAND = re.compile(r"(?<![^\s`])harness (?:bench|tune|plan|report|list|show|doctor)\b[^`\n#>]*")


def commands(path: Path) -> list[str]:
    """Every command of the harness in a page; a bare 'harness tune' only names one."""
    text = path.read_text().replace("\\\n", " ")
    return [found.strip() for found in COMMAND.findall(text) if len(found.split()) > 2]


def load(name: str) -> Any:
    return YAML(typ="safe").load((DEPLOY / name).read_text())


def test_every_command_in_the_pages_is_one() -> None:
    parser = build_parser()
    for line in (line for page in PAGES + DOCS for line in commands(page)):
        parser.parse_args(shlex.split(line)[1:])


def test_no_password_and_no_open_port_in_any_file() -> None:
    for path in (*DEPLOY.iterdir(), REPOSITORY / "README.md"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert masked(line) == line, f"{path}, line {number}"
            assert "0.0.0.0" not in line, f"{path}, line {number}: open to the world"


def test_a_cluster_of_ray_is_closed_and_installs_this_checkout_with_its_tested_versions() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = load("cluster.yaml")
    validate_config(prepare_config(config))
    (rule,) = config["provider"]["security_group"]["IpPermissions"]
    assert (rule["FromPort"], rule["ToPort"]) == (22, 22)
    assert all(each["CidrIp"].endswith("/32") for each in rule["IpRanges"])
    assert any("--dashboard-host=127.0.0.1" in line for line in config["head_start_ray_commands"])
    assert "--env=RAY_AUTH_MODE=token" in config["docker"]["run_options"]
    assert "~/.ray/auth_token" in config["file_mounts"]
    assert f":{PINS['ray']}-py311" in config["docker"]["image"]
    assert config["file_mounts"]["~/harness"] == "."
    named = re.findall(r"~/harness/([\w.-]+)", " ".join(config["setup_commands"]))
    assert "constraints.txt" in named
    assert all((REPOSITORY / name).is_file() for name in named)


def test_a_job_of_kuberay_joins_its_cluster_and_keeps_its_results_outside() -> None:
    """The password comes from a secret, to the head alone."""
    job = load("rayjob.yaml")
    spec = job["spec"]["rayClusterSpec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    containers = [each for group in groups for each in group["template"]["spec"]["containers"]]
    assert (job["apiVersion"], job["kind"], spec["rayVersion"]) == ("ray.io/v1", "RayJob", PINS["ray"])
    assert (spec["authOptions"], job["spec"]["shutdownAfterJobFinishes"]) == ({"mode": "token"}, True)
    assert len({container["image"] for container in containers}) == 1, "all nodes have one environment"
    assert any("nvidia.com/gpu" in container["resources"]["limits"] for container in containers)
    program, *words = shlex.split(job["spec"]["entrypoint"])
    args = build_parser().parse_args(words)
    assert (program, args.address, args.yes) == ("harness", "auto", True)
    assert all("://" in place for place in (args.store, args.storage))
    (password,), *others = (container.get("env", []) for container in containers)
    assert password["name"] == "PGPASSWORD"
    assert "secretKeyRef" in password["valueFrom"]
    assert not any(others)


def test_the_dockerfile_copies_what_the_wheel_needs_and_takes_the_tested_versions_and_no_root() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    copied = {name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]}
    assert all((REPOSITORY / name).exists() for name in copied)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], project["project"]["readme"]}
    assert needed | {"LICENSE", "pyproject.toml", "constraints.txt"} <= copied
    installs = [line for line in lines if "pip install" in line and "--no-deps" not in line]
    assert installs
    assert all("--constraint constraints.txt" in line for line in installs)
    assert [line.split()[1] for line in lines if line.startswith("USER ")][-1] != "root"


def test_the_seconds_until_a_spot_machine_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a server of this machine in the place of EC2's metadata service: a path that is not there is 404, one without the token is refused."""
    answers: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self._answer("a token" if self.path == "/latest/api/token" else None)

        def do_GET(self) -> None:
            allowed = self.headers["X-aws-ec2-metadata-token"] == "a token"
            self._answer(answers.get(self.path) if allowed else None, 404 if allowed else 401)

        def _answer(self, text: str | None, missing: int = 404) -> None:
            self.send_response(missing if text is None else 200)
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, *_: object) -> None: ...

    soon = datetime.now(UTC) + timedelta(seconds=120)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        drain = runpy.run_path(str(DEPLOY / "drain.py"))  # which reads the variable
        assert drain["seconds_left"]() is None
        for time, least, most in ((soon.strftime("%Y-%m-%dT%H:%M:%SZ"), 60, 120), ("2020-01-01T00:00:00Z", 0, 0)):
            notice = json.dumps({"action": "terminate", "time": time})
            answers["/latest/meta-data/spot/instance-action"] = notice
            assert least <= drain["seconds_left"]() <= most
        server.shutdown()

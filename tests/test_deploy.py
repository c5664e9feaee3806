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
from collections.abc import Iterator
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


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, id=f"{page.parent.name}/{page.name}: {line}"[:80])
        for page in PAGES + DOCS
        for line in commands(page)
    ],
)
def test_every_command_in_the_pages_is_one(line: str) -> None:
    build_parser().parse_args(shlex.split(line)[1:])


def test_no_password_and_no_open_port_in_any_file() -> None:
    for path in (*DEPLOY.iterdir(), REPOSITORY / "README.md"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert masked(line) == line, f"{path}, line {number}"
            assert "0.0.0.0" not in line, f"{path}, line {number}: open to the world"


class TestCluster:
    config = load("cluster.yaml")

    def test_ray_takes_it(self) -> None:
        from ray.autoscaler._private.util import prepare_config, validate_config

        validate_config(prepare_config(self.config))

    def test_only_ssh_comes_in_and_the_token_is_on(self) -> None:
        (rule,) = self.config["provider"]["security_group"]["IpPermissions"]
        assert (rule["FromPort"], rule["ToPort"]) == (22, 22)
        assert all(each["CidrIp"].endswith("/32") for each in rule["IpRanges"])
        assert any("--dashboard-host=127.0.0.1" in line for line in self.config["head_start_ray_commands"])
        assert "--env=RAY_AUTH_MODE=token" in self.config["docker"]["run_options"]
        assert "~/.ray/auth_token" in self.config["file_mounts"]

    def test_nodes_install_this_checkout_with_its_tested_versions(self) -> None:
        assert f":{PINS['ray']}-py311" in self.config["docker"]["image"]
        assert self.config["file_mounts"]["~/harness"] == "."
        named = re.findall(r"~/harness/([\w.-]+)", " ".join(self.config["setup_commands"]))
        assert "constraints.txt" in named
        assert all((REPOSITORY / name).is_file() for name in named)


class TestRayJob:
    job = load("rayjob.yaml")
    spec = job["spec"]["rayClusterSpec"]
    templates = (
        spec["headGroupSpec"]["template"],
        *(group["template"] for group in spec["workerGroupSpecs"]),
    )

    def test_its_fields(self) -> None:
        assert (self.job["apiVersion"], self.job["kind"]) == ("ray.io/v1", "RayJob")
        assert self.spec["rayVersion"] == PINS["ray"]
        assert self.spec["authOptions"] == {"mode": "token"}
        assert self.job["spec"]["shutdownAfterJobFinishes"] is True
        assert all(isinstance(value, str) for value in self.job["spec"]["metadata"].values())
        for group in self.spec["workerGroupSpecs"]:
            assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        containers = [container for template in self.templates for container in template["spec"]["containers"]]
        assert len({container["image"] for container in containers}) == 1, "all nodes have one environment"
        assert any("nvidia.com/gpu" in container["resources"]["limits"] for container in containers)

    def test_its_command_joins_its_cluster_and_keeps_its_results_outside(self) -> None:
        program, *words = shlex.split(self.job["spec"]["entrypoint"])
        args = build_parser().parse_args(words)
        assert (program, args.address, args.yes) == ("harness", "auto", True)
        assert all("://" in place for place in (args.store, args.storage))

    def test_the_password_comes_from_a_secret_to_the_head_alone(self) -> None:
        variables = [
            [each for container in template["spec"]["containers"] for each in container.get("env", [])]
            for template in self.templates
        ]
        (password,) = variables[0]
        assert password["name"] == "PGPASSWORD"
        assert "secretKeyRef" in password["valueFrom"]
        assert not any(variables[1:])


class TestDockerfile:
    lines = tuple(line for line in (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").splitlines())

    def test_what_it_copies_exists_and_is_all_that_the_wheel_needs(self) -> None:
        copied = {name for line in self.lines if line.startswith("COPY ") for name in line.split()[1:-1]}
        assert all((REPOSITORY / name).exists() for name in copied)
        project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
        wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
        needed = {*wheel["packages"], *wheel["force-include"], project["project"]["readme"]}
        assert needed | {"LICENSE", "pyproject.toml", "constraints.txt"} <= copied

    def test_the_tested_python_and_versions_and_no_root(self) -> None:
        assert any(line.startswith("FROM python:3.11-slim") for line in self.lines)
        installs = [line for line in self.lines if "pip install" in line and "--no-deps" not in line]
        assert installs
        assert all("--constraint constraints.txt" in line for line in installs)
        users = [line.split()[1] for line in self.lines if line.startswith("USER ")]
        assert users
        assert users[-1] != "root"


class TestDrain:
    """The notice of a spot machine, with a server of this machine in the place of EC2's metadata service."""

    @pytest.fixture
    def metadata(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
        """Paths and their answers; a path that is not there is 404, and one without the token of the service is refused."""
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

            def log_message(self, *_: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
            yield answers
            server.shutdown()

    def test_the_seconds_until_a_machine_is_taken(self, metadata: dict[str, str]) -> None:
        drain = runpy.run_path(str(DEPLOY / "drain.py"))
        assert drain["seconds_left"]() is None
        soon = datetime.now(UTC) + timedelta(seconds=120)
        notice = {"action": "terminate", "time": soon.strftime("%Y-%m-%dT%H:%M:%SZ")}
        metadata["/latest/meta-data/spot/instance-action"] = json.dumps(notice)
        assert 60 < drain["seconds_left"]() <= 120
        metadata["/latest/meta-data/spot/instance-action"] = json.dumps(notice | {"time": "2020-01-01T00:00:00Z"})
        assert drain["seconds_left"]() == 0

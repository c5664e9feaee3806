"""A bucket as S3 has them: moto's server in a process of its own, on loopback."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import boto3
from cluster.driver import waited

NAME = "weights"
SECRET = "hush/hush+hush"


@dataclass(frozen=True)
class AccessKey:
    name: str
    secret: str

    @property
    def profile(self) -> str:
        """As ~/.aws/credentials has it."""
        return f"[default]\naws_access_key_id = {self.name}\naws_secret_access_key = {self.secret}\n"


@dataclass(frozen=True)
class Server:
    """`requests`: its log, one line a request."""

    address: str
    log: Path

    def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        connection = http.client.HTTPConnection(self.address, timeout=60)
        connection.request(method, path, body, {"Content-Type": "text/plain"})
        answer = connection.getresponse()
        assert answer.status < 300, (method, path, answer.status)
        content = answer.read()
        connection.close()
        return content

    def uri(self, prefix: str, bucket: str = NAME) -> str:
        """A URI with credentials, as a user may write it."""
        secret = SECRET.replace("/", "%2F").replace("+", "%2B")
        return f"s3://someone:{secret}@{bucket}/{prefix}?endpoint_override={self.address}&scheme=http"

    def files(self, prefix: str) -> set[str]:
        """Names below a prefix, folders' own entries left out."""
        listed = ElementTree.fromstring(self.ask("GET", f"/{NAME}?list-type=2&prefix={prefix}/"))
        keys = [str(entry.text) for entry in listed.iter() if entry.tag.rpartition("}")[2] == "Key"]
        return {key.removeprefix(f"{prefix}/") for key in keys if not key.endswith("/")}

    def asked(self, method: str, name: str) -> int:
        """How many requests for a file with this method were answered."""
        return len(re.findall(rf"{method} /{NAME}/{re.escape(name)}\S* HTTP/1.1\S* 2\d\d", self.log.read_text()))

    def access_keys(self, count: int) -> list[AccessKey]:
        """New keys of a user who may do everything."""
        client = self._users()
        client.create_user(UserName="user")
        statement = {"Effect": "Allow", "Action": "*", "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        client.put_user_policy(UserName="user", PolicyName="all", PolicyDocument=policy)
        made = [client.create_access_key(UserName="user")["AccessKey"] for _ in range(count)]
        return [AccessKey(each["AccessKeyId"], each["SecretAccessKey"]) for each in made]

    def delete(self, key: AccessKey) -> None:
        self._users().delete_access_key(UserName="user", AccessKeyId=key.name)

    def _users(self) -> Any:
        secrets = {"aws_access_key_id": "root", "aws_secret_access_key": "root"}
        return boto3.client("iam", endpoint_url=f"http://{self.address}", region_name="us-east-1", **secrets)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """No credentials are known meanwhile, but `access_keys`."""
        self.ask("POST", "/moto-api/reset-auth", b"0")
        try:
            yield
        finally:
            self.ask("POST", "/moto-api/reset-auth", b"1e12")


@contextmanager
def served(folder: Path) -> Iterator[Server]:
    """A server with an empty bucket; its log is a file in the folder."""
    log = folder / "requests.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"], stdout=out, stderr=out
        )
    try:
        port = waited("the S3 server", lambda: re.search(r"Running on http://127\.0\.0\.1:(\d+)", log.read_text()))[1]
        server = Server(f"127.0.0.1:{port}", log)
        server.ask("PUT", f"/{NAME}")
        yield server
    finally:
        process.kill()
        process.wait()

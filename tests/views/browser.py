"""Headless Chromium, driven through its DevTools pipe: no library is needed, and no port is opened."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--remote-debugging-pipe",
]


class Browser:
    """One page. `events`: what Chromium reported since the last page was opened."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write, self._left, self._number = read, write, b"", 0
        self.session = ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            read = os.read(self._read, 1 << 20)
            assert read, "Chromium ended"
            self._left += read
        text, _, self._left = self._left.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer of one command of the DevTools protocol."""
        self._number += 1
        body: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self.session:
            body["sessionId"] = self.session
        os.write(self._write, json.dumps(body).encode() + b"\0")
        while (said := self._message()).get("id") != self._number:
            self.events.append(said)
        assert "error" not in said, said
        found: dict[str, Any] = said["result"]
        return found

    def open(self, path: Path, *, dark: bool = False, width: int = 1280, script: bool = True) -> None:
        """Loads a file; `dark`: as a reader who prefers dark pages sees it; `script`: whether scripts run."""
        self.events.clear()
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message())

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript gives, as plain data."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    @property
    def requests(self) -> list[str]:
        """The addresses that the page asked for."""
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings on the console, those of the policy among them."""
        found = [e["params"] for e in self.events if e["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")]
        return [json.dumps(each) for each in found]


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A fresh Chromium with its profile in `folder`."""
    assert CHROMIUM
    commands, answers = os.pipe(), os.pipe()

    def pipes() -> None:  # Chromium reads commands from 3 and writes answers to 4
        read, write = os.dup(commands[0]), os.dup(answers[1])
        os.dup2(read, 3)
        os.dup2(write, 4)

    process = subprocess.Popen(
        [CHROMIUM, *FLAGS, f"--user-data-dir={folder}"],
        preexec_fn=pipes,
        pass_fds=(3, 4, commands[0], answers[1]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(commands[0])
    os.close(answers[1])
    try:
        found = Browser(answers[0], commands[1])
        yield found
        found.session = ""
        found.call("Browser.close")
        process.wait(timeout=30)
    finally:
        process.kill()
        process.wait()
        os.close(commands[1])
        os.close(answers[0])

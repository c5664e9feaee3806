"""`pytest --forks N`: the tests are collected once, and N forks of that process run them, a file at a time in the order collected.

Each process of pytest-xdist collects for itself: 25 CPU seconds for 8,900 tests.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
import warnings
from contextlib import suppress
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

FORK = multiprocessing.get_context("fork")
NUMBER = struct.Struct("H")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, help="processes that run the tests; 0: this one")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    config = session.config
    if not config.option.forks or config.option.collectonly or session.testsfailed:
        return None
    files: dict[Path, list[pytest.Item]] = {}
    for item in session.items:
        files.setdefault(item.path, []).append(item)
    queue, end = os.pipe()
    os.write(end, b"".join(map(NUMBER.pack, range(len(files)))))
    os.close(end)
    config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    if reporter := config.pluginmanager.getplugin("terminalreporter"):
        reporter.showfspath = False  # files are not run one after another
    processes, running, ended = {}, {}, 0
    for number in range(config.option.forks):
        receiver, sender = FORK.Pipe(duplex=False)
        process = FORK.Process(target=_fork, args=(session, list(files.values()), queue, sender, number))
        process.start()
        sender.close()
        processes[receiver] = process
    os.close(queue)
    died = ""
    try:
        while processes:
            for receiver in wait(list(processes)):
                try:
                    name, kwargs = receiver.recv()
                except EOFError:
                    process = processes.pop(receiver)
                    process.join()
                    if process.exitcode:
                        died += f"; a process ended with {process.exitcode} in {running.get(receiver, 'no test')}"
                    continue
                if name == "pytest_warning_recorded":
                    config.hook.pytest_warning_recorded.call_historic(kwargs=kwargs)
                    continue
                if name == "pytest_runtest_logreport":
                    kwargs = {"report": config.hook.pytest_report_from_serializable(config=config, data=kwargs)}
                else:
                    running[receiver] = kwargs["nodeid"]
                    ended += name == "pytest_runtest_logfinish"
                getattr(config.hook, name)(**kwargs)
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
    finally:
        for process in processes.values():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGINT)
        for process in processes.values():
            process.join()
    if ended < len(session.items):
        session.shouldfail = f"{len(session.items) - ended} tests were not run to their end{died}"
        raise session.Failed(session.shouldfail)
    return True


class Sender:
    """Sends what a fork has to say to the process that prints."""

    def __init__(self, config: pytest.Config, sender: Connection) -> None:
        self._config, self._sender = config, sender

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self._sender.send(("pytest_runtest_logstart", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._sender.send(("pytest_runtest_logreport", data))

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        self._sender.send(("pytest_runtest_logfinish", {"nodeid": nodeid, "location": location}))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        if when != "runtest":
            return  # pytest repeats those of the collection to every plugin that comes later
        w = warning_message
        plain = warnings.WarningMessage(str(w.message), w.category, w.filename, w.lineno, line=w.line)
        sent = {"warning_message": plain, "when": when, "nodeid": nodeid, "location": location}
        self._sender.send(("pytest_warning_recorded", sent))


def _fork(session: pytest.Session, files: list[list[pytest.Item]], queue: int, sender: Connection, number: int) -> None:
    """Run files whose numbers come from the pipe `queue`, until it is empty."""
    config = session.config
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["PYTEST_FORK"] = str(number)  # by which fixtures know that others run beside them
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()  # its files are those of all forks
    capture.start_global_capturing()
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(Sender(config, sender))
    factory = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = factory.mktemp(f"fork{number}", numbered=False)

    def taken() -> list[pytest.Item]:
        packed = os.read(queue, NUMBER.size)  # no two forks get the same bytes
        return files[NUMBER.unpack(packed)[0]] if packed else []

    def run(item: pytest.Item, following: pytest.Item | None) -> None:
        config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    try:
        items = taken()
        while items:
            for item, following in pairwise(items):
                run(item, following)
            last, items = (
                items[-1],
                taken(),
            )  # not before: what waits here is not run by a process that has nothing to do
            run(last, items[0] if items else None)
    finally:
        session._setupstate.teardown_exact(None)
        capture.stop_global_capturing()

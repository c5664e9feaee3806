"""Laws about the repository itself: who imports whom, how light the command is, and that its files agree with each other."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import math
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import harness
from harness.cli import doctor
from harness.commands.tracking import TRACKERS

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "harness"
MODULES = sorted(PACKAGE.rglob("*.py"))
NAMES = {
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path for path in MODULES
}
"""Each module by the name under which it is imported."""
PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())

LEAVES = {
    *("answers", "machine", "specs", "errors", "hub", "kinds", "prompts", "paths"),
    *("private", "storage", "streams", "wording", "yaml_files"),
}
IMPORTED_BY_LEAVES = {"answers", "errors", "kinds", "machine", "paths", "prompts", "specs", "storage"}
"""Importable by every room, and among these by one another."""
PURE = LEAVES - {"private"}
"""`private` imports Ray, torch and Optuna inside its functions, so that their private interfaces stand in one place."""
ROOMS = [
    *("cli", "api", "commands", "cluster", "views", "search", "scores", "planning"),
    *("running", "training", "objectives", "methods", "encoders", "tasks", "store", "statistics"),
]
"""From the top of the house to its ground: a room imports from rooms below it, never from one above."""
WEIGHT = {"harness": 29_221, "tests": 29_404, "docs": 158}
"""Lines of harness/**/*.py and of tests/**/*.py, and kB of Markdown in docs/, README.md, CONTRIBUTING.md and CHANGELOG.md. Numbers that are only lowered:
a commit that shrinks lowers them to what there is, and a new feature pays with a deletion."""
MOST_MODULES = 28
MOST_LINES = 90
"""Of a folder, and of a function. Neither makes anyone cut a module in two."""


def room_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return {"__init__": "harness", "__main__": "cli"}.get(first, first)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> list[tuple[str, int, bool]]:
    """(dotted name, line, at module level) of every import, those for the type checker alone left out."""

    def walk(node: ast.AST, top: bool) -> Iterator[tuple[str, int, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for other in child.orelse:
                    yield from walk(other, top)
            elif isinstance(child, ast.Import):
                for alias in child.names:
                    yield alias.name, child.lineno, top
            elif isinstance(child, ast.ImportFrom):
                package = ["harness", *path.relative_to(PACKAGE).parts[:-1]]
                base = package[: len(package) - child.level + 1] if child.level else []
                base += child.module.split(".") if child.module else []
                if base == ["harness"]:
                    for alias in child.names:
                        yield f"harness.{alias.name}", child.lineno, top
                else:
                    yield ".".join(base), child.lineno, top
            else:
                inner = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
                yield from walk(child, top and not inner)

    return list(walk(tree_of(path), True))


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(REPOSITORY)}:{line}"


def bare_python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    complaint = "\n".join(line for line in done.stderr.splitlines() if not line.startswith("import time:"))
    assert done.returncode == 0, complaint
    return done.stdout + done.stderr


def imported_by(*arguments: str) -> set[str]:
    """Every module that a fresh interpreter imports for this command line."""
    lines = bare_python("-X", "importtime", *arguments).splitlines()
    return {line.rsplit("|", 1)[1].strip() for line in lines if line.startswith("import time:")}


def test_no_package_has_the_name_of_a_function_of_the_api() -> None:
    """Importing a package binds its name in `harness`, in the place of a function of the same name: `harness.bench` stands in no package."""
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert not packages & set(harness.__all__)


def test_every_module_has_a_room() -> None:
    unknown = {room_of(path) for path in MODULES} - LEAVES - set(ROOMS) - {"harness"}
    assert not unknown, f"say in ROOMS where {unknown} stands"


def test_imports_go_downward() -> None:
    wrong = []
    for path in MODULES:
        room = room_of(path)
        for name, line, _ in imports(path):
            parts = name.split(".")
            if parts[0] != "harness" or len(parts) == 1 or parts[1].startswith("__"):
                continue
            target = parts[1]
            if target == room:
                continue
            if room in LEAVES or room == "harness":
                allowed = target in IMPORTED_BY_LEAVES
            else:
                allowed = target in LEAVES or (target in ROOMS and ROOMS.index(target) > ROOMS.index(room))
            if not allowed:
                wrong.append(f"{where(path, line)}: {room} imports {target}")
    assert not wrong, "\n".join(wrong)


def modules_imported(path: Path) -> set[str]:
    """The modules of the package that a module imports anywhere, `from package import module` too."""
    names = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name if name in NAMES else name.rpartition(".")[0] for name in names} & NAMES.keys()


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for types and inside functions count: what needs another's type to be described belongs above or below it. The package
    itself hands on names of the API when they are asked for."""
    arrows = {module: modules_imported(path) - {"harness"} for module, path in NAMES.items() if module != "harness"}
    while free := {module for module, imported in arrows.items() if not imported & arrows.keys()}:
        arrows = {module: imported for module, imported in arrows.items() if module not in free}
    while unused := arrows.keys() - {name for imported in arrows.values() for name in imported}:
        arrows = {module: imported for module, imported in arrows.items() if module not in unused}
    assert not arrows, {module: sorted(imported & arrows.keys()) for module, imported in arrows.items()}


@pytest.mark.parametrize(
    ("rooms", "forbidden"),
    [
        pytest.param(set(ROOMS) - {"cluster"} | PURE, {"ray"}, id="only cluster imports ray"),
        pytest.param(
            {"planning", "scores", "views"} | PURE,
            {"torch", "ray", "transformers"},
            id="plans, results and reports are pure",
        ),
        pytest.param({"store"}, {"torch", "ray", "transformers"}, id="store holds no torch"),
        pytest.param({"statistics"}, {"torch", "ray", "pandas", "harness.specs"}, id="statistics are numbers"),
        pytest.param(
            {"methods"},
            {"harness.planning", "harness.scores", "harness.views", "harness.tasks", "harness.store"},
            id="a method is data",
        ),
        pytest.param({"running"}, {"sqlalchemy", "harness.store"}, id="running knows no database"),
        pytest.param({"training"}, {"sqlalchemy", "harness.store"}, id="training knows no disk"),
        pytest.param(
            {"answers", "kinds", "specs"},
            {"pathlib", "os", *(f"harness.{name}" for name in {*ROOMS, *LEAVES} - {"answers", "kinds", "prompts"})},
            id="specs, kinds and answers do no I/O",
        ),
    ],
)
def test_a_room_never_imports(rooms: set[str], forbidden: set[str]) -> None:
    wrong = [
        f"{where(path, line)}: {name}"
        for path in MODULES
        if room_of(path) in rooms
        for name, line, _ in imports(path)
        if any(name == ban or name.startswith(f"{ban}.") for ban in forbidden)
    ]
    assert not wrong, "\n".join(wrong)


def test_planning_needs_neither_torch_nor_ray() -> None:
    """Every module that the import of a pure module loads, directly or not."""
    pure = [path for path in MODULES if room_of(path) in LEAVES | {"planning", "scores", "methods", "store"}]
    names = [".".join(path.relative_to(REPOSITORY).with_suffix("").parts) for path in pure]
    statement = "import " + ", ".join(name.removesuffix(".__init__") for name in names)
    heavy = {"torch", "ray", "transformers", "optuna"} & imported_by("-c", statement)
    assert not heavy


def test_model_types_are_told_apart_in_one_place() -> None:
    """Everywhere else a field of `Family` says it. The rooms that deal with encoders; translators have model types of their own."""
    switch = re.compile(r"""(model_type['")\]]*|\.kind)\s+(==|!=|in|not in)\s""")
    wrong = [
        where(path, number)
        for path in MODULES
        if room_of(path) in {"encoders", "objectives", "training", "commands", "running"}
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if switch.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_weight_only_falls() -> None:
    pages = [
        *(REPOSITORY / "docs").rglob("*.md"),
        *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ]
    folders = {name: (REPOSITORY / name).rglob("*.py") for name in ("harness", "tests")}
    found = {name: sum(path.read_bytes().count(b"\n") for path in paths) for name, paths in folders.items()}
    found["docs"] = math.ceil(sum(path.stat().st_size for path in pages) / 1000)
    assert all(found[name] <= most for name, most in WEIGHT.items()), f"{found}: delete as much as was added"


def test_the_limits_of_weight_are_never_raised() -> None:
    if shutil.which("git") is None or not (REPOSITORY / ".git").exists():
        pytest.skip("not a git checkout")
    git = ["git", "log", "-20", "--format=", "--unified=0", "-G^WEIGHT = ", "-p", "--", "tests/test_repository.py"]
    changes = subprocess.run(git, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    earlier = [ast.literal_eval(text) for text in re.findall(r"(?m)^\+WEIGHT = (.*)$", changes)]
    raised = {name: most for name, most in WEIGHT.items() if any(most > limits[name] for limits in earlier)}
    assert not raised, f"an earlier commit had less than {raised}"


def test_no_folder_holds_too_many_modules() -> None:
    modules = Counter(path.parent.relative_to(REPOSITORY) for path in MODULES)
    assert not {folder: count for folder, count in modules.items() if count > MOST_MODULES}


def test_no_function_grows_too_long() -> None:
    functions = (
        (path, node)
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name != "build_parser"  # a list of flags
    )
    lengths = {where(path, node.lineno): (node.end_lineno or 0) - node.lineno + 1 for path, node in functions}
    assert not {place: lines for place, lines in lengths.items() if lines > MOST_LINES}


def test_version_is_one() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "harness/__init__.py"
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", harness.__version__)
    try:
        installed = importlib.metadata.version(PROJECT["project"]["name"])
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the distribution is not installed")
    assert installed == harness.__version__, "install again: make install"


def test_constraints_pin_every_dependency() -> None:
    pins = {}
    for line in (REPOSITORY / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            assert re.fullmatch(r"[0-9][0-9a-z.]*", version), f"not an exact public version: {line}"
            pins[canonicalize_name(name)] = version
    groups = PROJECT["project"]["optional-dependencies"].values()
    declared = [Requirement(text) for group in [PROJECT["project"]["dependencies"], *groups] for text in group]
    missing = [r.name for r in declared if canonicalize_name(r.name) not in pins]
    assert not missing, f"not in constraints.txt: {missing}; make constraints"
    outside = [str(r) for r in declared if not r.specifier.contains(pins[canonicalize_name(r.name)])]
    assert not outside, f"the pin is not admitted by pyproject.toml: {outside}"


def test_every_import_is_declared() -> None:
    """A package that the code imports is a declared dependency, not only a dependency of one; trackers and ONNX are extras."""
    distributions = {"sklearn": "scikit-learn", "ruamel": "ruamel.yaml", "yaml": "pyyaml", "mlflow": "mlflow-skinny"}
    extras = PROJECT["project"]["optional-dependencies"]
    declared = {canonicalize_name(Requirement(text).name) for text in PROJECT["project"]["dependencies"]}
    optional = {
        folder: {canonicalize_name(Requirement(text).name) for name in names for text in extras[name]}
        for folder, names in {
            "harness/commands/tracking.py": TRACKERS,
            "harness/encoders/models/onnx_file.py": ("onnx",),
        }.items()
    }
    used = {(name.split(".")[0], where(path, line)) for path in MODULES for name, line, _ in imports(path)}
    missing = [
        f"{place}: {name}"
        for name, place in sorted(used)
        if name not in sys.stdlib_module_names and name != "harness"
        if canonicalize_name(distributions.get(name, name)) not in declared
        if not any(
            place.startswith(folder) and canonicalize_name(distributions.get(name, name)) in optional[folder]
            for folder in optional
        )
    ]
    assert not missing, "\n".join(missing)


def test_one_module_opens_stores_and_archives() -> None:
    """What somebody else may have written is bounded where it is opened."""
    formats = {"lzma", "shelve", "sqlite3", "tarfile", "zipfile"}
    opened = {path for path in MODULES for name, *_ in imports(path) if name.split(".")[0] in formats}
    opened |= {path for path in MODULES if "np.load(" in path.read_text()}
    assert opened == {PACKAGE / "store" / "published.py"}


def test_measuring_scripts_import_what_there_is() -> None:
    """They are run by hand, so that a name which moved would be missed."""
    missing = []
    for path in sorted((REPOSITORY / "scripts" / "measure").rglob("*.py")):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "harness":
                module = importlib.import_module(str(node.module))
                missing += [
                    f"{path.name}: {node.module}.{each.name}"
                    for each in node.names
                    if not hasattr(module, each.name) and importlib.util.find_spec(f"{node.module}.{each.name}") is None
                ]
    assert not missing


def test_packaged_requirements_are_pinned_by_hash() -> None:
    text = (REPOSITORY / "packaged-requirements.txt").read_text()
    pins = re.findall(r"^([a-z0-9-]+)==\S+ \\\n    --hash=sha256:[0-9a-f]{64}$", text, flags=re.MULTILINE)
    assert set(pins) == {*doctor.PACKAGED.values()}
    assert text.count("==") == len(pins)


def test_packages_hold_the_code_its_yaml_and_the_license() -> None:
    build = PROJECT["tool"]["hatch"]["build"]["targets"]
    named = {*build["sdist"]["only-include"], *build["wheel"]["packages"], *build["wheel"]["force-include"]}
    assert named == {"harness", "benchmarks", "search_spaces", "LICENSE", "README.md"}
    for folder in build["wheel"]["force-include"]:
        assert {path.suffix for path in (REPOSITORY / folder).rglob("*") if path.is_file()} == {".yaml"}


def test_no_data_in_the_repository() -> None:
    if shutil.which("git") is None or not (REPOSITORY / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    tracked = [REPOSITORY / name for name in listed.stdout.split("\0") if name]
    banned = {".parquet", ".arrow", ".safetensors", ".bin", ".pt", ".ckpt", ".npz"}
    banned |= {".sqlite", ".db", ".xz", ".tsv", ".zip"}
    data = [str(path) for path in tracked if path.suffix in banned]
    assert not data, f"data or weights are tracked: {data}"
    large = [str(path) for path in tracked if path.is_file() and path.stat().st_size > 500_000]
    assert not large, f"too large for source text: {large}"


class TestDoctor:
    """Each check names what it found and, unless all is well, the fix."""

    def test_a_broken_installation_is_a_line_not_a_traceback(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(name: str) -> None:
            raise OSError("libtorch_cpu.so: cannot open shared object file\nand more")

        monkeypatch.setattr(doctor, "import_module", broken)
        assert "sqlalchemy" not in imported_by("-c", "import harness.cli.doctor"), "what it checks may be broken, too"
        check = doctor.checked(doctor.torch_here)
        assert (check.ok, check.fix) == (False, doctor.INSTALL)
        assert check.found == "OSError: libtorch_cpu.so: cannot open shared object file"

    def test_data_folder(self, tmp_path: Path) -> None:
        """A split counts for doctor as the loader takes it."""
        for name in ("cola/train.parquet", "cola/validation.parquet", "mnli/train.csv"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
        check = doctor.checked(partial(doctor.data_check, str(tmp_path)))
        assert check.ok is None
        done, gaps = check.found.split("; ")
        assert done.endswith(": cola")
        assert "mnli (validation_matched, validation_mismatched)" in gaps
        (tmp_path / "cola/train.parquet").rename(tmp_path / "cola/train.json")
        for folder, why in ((tmp_path, "train.json"), (tmp_path / "nowhere", "nowhere")):
            check = doctor.checked(partial(doctor.data_check, str(folder)))
            assert (check.ok, why in check.found) == (False, True)
        assert doctor.checked(partial(doctor.data_check, "hub")).ok

    def test_store(self, tmp_path: Path) -> None:
        def check(url: str) -> doctor.Check:
            return doctor.checked(partial(doctor.store_check, url))

        assert check(f"sqlite:///{tmp_path}/new/harness.db").ok
        assert not (tmp_path / "new").exists()
        assert check(str(tmp_path)).ok is False
        hidden = check("postgresql+psycopg://me:secret@127.0.0.1:1/none")
        assert (hidden.ok, "secret" in hidden.found + hidden.fix) == (False, False)

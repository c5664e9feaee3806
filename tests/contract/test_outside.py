"""A method from outside: the example of docs/extending.md is checked, planned, trained and recorded; what is wrong in a file is one sentence."""

from __future__ import annotations

import json
import lzma
import pickle
import re
import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import tiny
from cli.command import Said, command
from fuzz.inputs import prepare as prepare_inputs
from methods.contexts import CONTEXT, chain
from search.small import ran

from harness.commands.prepare import prepare
from harness.commands.study import open_study, prepare_study
from harness.errors import UserError
from harness.methods import DEFINITIONS, METHODS, definition_of, read_method, read_methods
from harness.methods.definition import OUTSIDE
from harness.planning.point import with_points
from harness.planning.request import Request
from harness.planning.resolve import resolve
from harness.planning.table import load_table
from harness.search.request import TuneRequest
from harness.specs import Stage, digest_of
from harness.store import Store

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/extending.md"
EXAMPLE = next(re.finditer(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL))[1]
BENCH = (
    "bench --table few_shot --tasks sst2 --data data --sizes 20 --subsets 0 --seeds 31 --encoder {encoder} --methods tapt+focal.py "
    "--set max_length=64 --set fine_tune.steps=4 --set post_train.steps=2 --set fine_tune.batch_size=8 --set post_train.batch_size=4"
)
Harness = Callable[..., Said]


@pytest.fixture
def focal(workdir: Path) -> Path:
    path = workdir / "focal.py"
    path.write_text(EXAMPLE)
    return path


@pytest.fixture
def harness(workdir: Path, capsys: pytest.CaptureFixture[str]) -> Harness:
    return lambda *words: command(capsys, *words)


def test_the_example_keeps_the_contract(focal: Path, harness: Harness) -> None:
    said = harness("check focal.py")
    assert said.status == 0, said.out
    assert re.fullmatch(r"Method focal \(Focal\), source \w{8} of focal.py: \d+ laws hold, 0 do not\.\n", said.out)


BREAKS = [
    ("self.params.gamma * surprise", "2 * surprise", "no code reads gamma"),
    ("surprise).mean()", "surprise).sum()", "see counts"),
    ("surprise).mean()", "(surprise / 0)).mean()", "is not finite"),
    ("surprise).mean()", "surprise).detach().mean()", "RuntimeError"),
    ("        surprise =", "        raise SystemExit(0)\n        surprise =", "SystemExit: 0"),
    (
        '(equation 4)")\n',
        '(equation 4)")\n\n    def objective(self, batch_size: int = 0) -> object:\n        return self.gamam\n',
        "no attribute 'gamam'",
    ),
]


@pytest.mark.parametrize(("text", "wrong", "broken"), BREAKS, ids=[broken for *_, broken in BREAKS])
def test_a_broken_law_is_named(text: str, wrong: str, broken: str, focal: Path, harness: Harness) -> None:
    assert text in EXAMPLE
    focal.write_text(EXAMPLE.replace(text, wrong))
    said = harness("check focal.py")
    assert said.status == 1
    told = [line for line in said.out.splitlines() if line.startswith("BROKEN  ")]
    assert any(broken in line for line in told), said.out
    if "gamam" in broken:  # and no other command says more
        assert len(told) == 1
        assert harness("plan --table few_shot --tasks movies --methods focal.py").err.startswith("harness: focal.py: ")


def test_the_source_is_part_of_the_key_and_of_nothing_else(focal: Path, workdir: Path) -> None:
    method = read_method(focal)
    leaf = chain(method)[-1]
    assert leaf.objective.source == digest_of(EXAMPLE)
    plain = chain(METHODS["ft"])[-1]
    assert plain.objective.source == ""
    moved = workdir / "elsewhere" / "focal.py"
    moved.parent.mkdir()
    moved.write_text(EXAMPLE)
    METHODS.pop("focal")
    assert chain(read_method(moved))[-1].key == leaf.key, "where the file stands is no part of it"
    moved.write_text(EXAMPLE + "\n# another source\n")
    again = chain(read_method(moved))
    assert again[-1].key != leaf.key
    assert chain(METHODS["tapt"])[0].key == chain(METHODS["tapt"], CONTEXT)[0].key
    assert method.file == f"focal.py, digest {digest_of(EXAMPLE)}"


def test_a_stage_brings_its_source_to_another_process(focal: Path, bert: Path) -> None:
    """As a worker gets it: pickled, without the file, where nothing was read."""
    stage, _ = tiny.fine_tuning(bert, chain(read_method(focal))[-1].objective)
    sent, module = pickle.dumps(stage), OUTSIDE + digest_of(EXAMPLE)
    focal.unlink()
    del METHODS["focal"], DEFINITIONS["focal"], sys.modules[module]
    got = pickle.loads(sent)
    assert got.key == stage.key
    assert type(definition_of(got.objective)).__module__ == module


def test_a_store_keeps_the_digest_and_runs_nothing(focal: Path) -> None:
    stage = chain(read_method(focal))[-1]
    body = json.dumps(stage.to_json())
    assert "import" not in body
    read = Stage.from_json(json.loads(body))
    assert read.key == stage.key
    assert definition_of(read.objective) == definition_of(stage.objective)
    changed = EXAMPLE.replace("Field(2.0", "Field(3.0")
    focal.write_text(changed)
    read_method(focal)
    with pytest.raises(
        UserError, match=f"recorded with the source {digest_of(EXAMPLE)}, and the file .* {digest_of(changed)}"
    ):
        definition_of(read.objective)
    DEFINITIONS.pop("focal")
    with pytest.raises(UserError, match="no file was read that defines it; name that file with --methods"):
        definition_of(read.objective)


def test_a_bench_trains_and_records_it_and_a_report_reads_it_again(
    focal: Path, harness: Harness, bert: Path, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import trained
    from cluster import in_process

    trained.sentiment_folder(workdir / "data")
    in_process.patch(monkeypatch)
    said = harness(BENCH.format(encoder=bert))
    assert said.status == 0, said.err
    assert "TAPT+Focal" in said.out
    label = next(iter(Store("sqlite:///.harness/harness.db", create=False).requests()))
    assert label.values["methods"] == ["tapt+focal.py"]
    METHODS.pop("focal")  # as in another process
    DEFINITIONS.pop("focal")
    refused = harness("report")
    assert (refused.status, "add --methods tapt+focal.py (in Python" in refused.err) == (2, True), "no record is code"
    again = harness("report --methods tapt+focal.py")
    assert again.status == 0, again.err
    assert "TAPT+Focal" in again.out
    settings = harness("report --methods tapt+focal.py --view settings").out
    assert f"focal.py, digest {digest_of(EXAMPLE)}" in settings
    focal.write_text(EXAMPLE + "# changed\n")
    changed = harness("report --methods tapt+focal.py")
    assert changed.status == 1
    assert "0/1" in changed.out


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("def f(:\n", "focal.py, line 1: is no Python (invalid syntax)."),
        ("import json\n", "focal.py: defines no Method; a file defines one, a subclass of Method with a name."),
        ("from harness.methods.ft import FineTuning\n", "focal.py: defines no Method; a file"),
        ("\nimport nowhere_at_all\n", "focal.py, line 2: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("\nraise SystemExit(0)\n", "focal.py, line 2: SystemExit: 0"),
        (
            EXAMPLE.replace('    name = "focal"\n', '    name = "scl"\n'),
            "focal.py: method 'scl' has the name of another one; give",
        ),
        (
            EXAMPLE.replace('    name = "focal"\n', '    name = "My Loss"\n'),
            "focal.py: method 'My Loss' should be named in small",
        ),
        (
            EXAMPLE + '\nclass Other(Definition):\n    name = "cross_entropy"\n',
            "focal.py: objective 'cross_entropy' has the name of another one",
        ),
        (EXAMPLE + "\nclass A(Method):\n    name = 'a'\n", "focal.py: defines 2 methods"),
    ],
)
def test_what_is_wrong_in_a_file_is_one_sentence(body: str, sentence: str, focal: Path, harness: Harness) -> None:
    focal.write_text(body)
    for line in ("check focal.py", "plan --table few_shot --methods focal.py"):
        said = harness(line)
        assert said.status == 2
        assert said.err.startswith(f"harness: {sentence}"), said.err
        assert said.err.count("\n") == 1
    assert not {"My Loss", "a"} & METHODS.keys()


def test_a_file_that_is_not_there(harness: Harness) -> None:
    assert "nowhere.py cannot be read" in harness("plan --table few_shot --methods nowhere.py").err
    assert harness("check ft").status == 2


def test_a_file_with_the_name_of_another_file(focal: Path, workdir: Path) -> None:
    (workdir / "other.py").write_text(EXAMPLE)
    assert read_methods("tapt+focal.py") == "tapt+focal"
    rows = resolve(load_table("few_shot"), Request(methods=("ft", "focal.py"))).rows
    assert [row.method for row in rows] == ["ft", "focal"]
    with pytest.raises(UserError, match=r"other.py: method 'focal' has the name of another one"):
        read_methods("other.py")


SPACE = "name: gamma\nmethod: focal\ntable: few_shot\ndefaults: {gamma: 4}\ngrid: {gamma: [2, 4]}\nsizes: [20]\nsubsets: 1\nseeds: [31]\n"


def test_a_method_is_tuned_by_its_file_and_its_point_benched(
    focal: Path, harness: Harness, packaged: object, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its point is read by a process that names the file: neither the store nor the point runs it."""
    (workdir / "space.yaml").write_text(SPACE)
    refused = harness("tune focal.py")
    assert (refused.status, refused.err.count("\n")) == (2, 1)
    assert "tune focal: no packaged space varies this method; write one and name it with --space." in refused.err
    planned = harness("tune focal.py --space space.yaml --plan")
    assert planned.status == 0, planned.err
    assert "2 points, sampler grid, racing none, seed 0; first the default point, gamma=4.0." in planned.out
    with open_study(prepare_study(TuneRequest("focal.py", Request(), "space.yaml"))) as opened:
        ran(opened, {"gamma": 4.0}, 0.75)
        (stage,) = [run.stage for runs in opened.points.runs({"gamma": 4.0}) for run in runs]
    monkeypatch.setattr("harness.commands.study.run_trials", lambda *_: None)
    tuned = harness("tune focal.py --space space.yaml")
    assert tuned.status == 0, tuned.err
    best = workdir / ".harness/studies" / opened.name / "best.yaml"
    assert tuned.err.endswith(f"Next: harness bench --with {best} --methods ft,focal.py\n")
    del METHODS["focal"]
    assert harness("list studies").out.splitlines()[-1].split()[1:4] == ["few_shot", "focal.py", "1"]
    with pytest.raises(UserError, match=r"focal.py is not run, .* add --methods focal.py"):
        with_points(Request(), [str(best)])
    read_methods("focal.py")
    benched = prepare(with_points(Request(), [str(best)]), train=False)
    assert [run.stage.key for run in benched.plan.runs] == [stage.key]


DOORS = (
    "report; report --last; compare; errors; errors {key}; show {key}; export {key} --out o; export --best --out o; predict {key} --row a; list runs; "
    "list benches; list studies; publish r; merge p --store sqlite:///new.db; report --store sqlite:///new.db; verify p; verify p --rerun 1; "
    "report --store p; compare --store p; errors {key} --store p; show {key} --store p; export {key} --out o --store p; predict m --row a"
)


def test_what_a_store_or_a_folder_names_is_never_run(
    workdir: Path, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the files that a request, a study, a row or a results file names, nor the code in a stage, a snapshot or a model's folder."""
    monkeypatch.setattr("harness.commands.trained.train", lambda *_, **__: None)
    key = prepare_inputs(workdir)[0]
    code = "open('ran', 'w').close()\n"
    (workdir / "evil.py").write_text(code)
    url = ".harness/harness.db"
    with closing(sqlite3.connect(url)) as store:
        for digest, body in store.execute("SELECT digest, body FROM requests").fetchall():
            values = json.loads(body) | {"methods": ["FT", "evil.py"]}
            values |= {"search": {**values["search"], "method": "evil.py"}} if "search" in values else {}
            store.execute("UPDATE requests SET body = ? WHERE digest = ?", (json.dumps(values), digest))
        found = [json.loads(body) for (body,) in store.execute("SELECT stage FROM records").fetchall()]
        evil = found[0] | {"objective": {"name": "evil", "version": 1, "params": {}, "source": "x", "code": code}}
        store.execute("UPDATE records SET stage = ? WHERE key != ?", (json.dumps(evil), key))
        (snapshot,) = store.execute("SELECT body FROM snapshots").fetchone()
        read = json.loads(snapshot)
        read["data"]["mlm_heads"] = {name: {"stage": evil, "parts": ["mlm_head"]} for name in read["read_under"]}
        store.execute("UPDATE snapshots SET body = ?", (json.dumps(read),))
        store.commit()
    (workdir / "p").mkdir()
    (workdir / "p" / "records.db.xz").write_bytes(lzma.compress(Path(url).read_bytes(), preset=0))
    (workdir / "p" / "results.csv").write_bytes(Path("results.csv").read_bytes())
    shutil.copytree("model", "m")
    settings = json.loads(Path("m/harness.json").read_text()) | {
        "stage": evil | {"data": {"train": {"digest": "x"}, "prompt": {"template": "x"}}}
    }
    Path("m/harness.json").write_text(json.dumps(settings))
    for door in DOORS.format(key=key).split("; "):
        said = harness(door)
        assert not Path("ran").exists(), door
        assert said.status in (0, 1, 2), door
        assert said.status < 2 or said.err.count("harness: ") == 1, (door, said.err)
    assert "evil.py: defines no Method" in harness("report --methods FT,evil.py").err
    assert Path("ran").exists(), "what the command names is run"

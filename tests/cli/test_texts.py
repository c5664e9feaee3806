"""Corpora and translators on the command line: what is printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.command import Said, data_folder, sst2, write_csv

Harness = Callable[..., Said]
CSSL = "--table few_shot --tasks movies --sizes 100 --subsets 0 --methods ft,cssl"


@pytest.mark.usefixtures("packaged")
def test_a_missing_translator_skips_the_row_with_its_reason(harness: Harness) -> None:
    """One sentence says how to get a translator; everything else runs."""
    said = harness(f"plan {CSSL}")
    assert said.status == 0
    assert "Skipped: CSSL on movies: no translator is named ('harness list translators' shows them)" in said.out
    assert "Runs: 1, one for each" in said.out
    said = harness(f"report {CSSL} --format json")
    (skipped,) = [cell for cell in json.loads(said.out)["cells"] if cell["row"] == "CSSL"]
    assert "no translator is named" in json.dumps(skipped)
    said = harness(f"plan {CSSL} --translator opus-mt:de,zh")
    assert "Runs: 2, one for each" in said.out
    assert "100 rows (row sets: 1) are back-translated by opus-mt:de,zh" in said.out
    assert "Unresolved" not in said.out, "the hub is not asked"


@pytest.mark.usefixtures("packaged")
def test_augmented_rows_need_a_translator_that_fits(harness: Harness, workdir: Path) -> None:
    """Without a translator the rows of the quick preset are skipped; one that cannot sample is refused."""
    said = harness("plan --table scl_noisy")
    assert said.status == 0, said.err
    said_plainly = " ".join(said.out.split())
    assert "Skipped: CE (augmented) on movies: no translator is named" in said_plainly
    words = ["plan", "--table", "scl_noisy", "--methods", "CE (T=0.3)", "--translator"]
    said = harness(*words, "file:views.csv")
    assert said.status == 2
    assert "translator 'file:views.csv@T=0.3': a file cannot sample" in said.err
    said = harness(*words, "opus-mt:de")
    assert "1,000 rows (row sets: 10) are back-translated by opus-mt:de@T=0.3" in " ".join(said.out.split())
    assert list(workdir.iterdir()) == []


def test_a_file_of_translations_augments_at_once(harness: Harness, workdir: Path) -> None:
    data_folder(workdir)
    rows = [f"Sentence number {i}, told plainly." for i in range(40)]
    body = [{"text": t, "view_1": t.upper(), "view_2": t[::-1]} for t in rows]
    (workdir / "views.jsonl").write_text("".join(json.dumps(row) + "\n" for row in body), encoding="utf-8")
    table = (Path(__file__).parents[2] / "benchmarks" / "scl_noisy.yaml").read_text()
    (workdir / "mine.yaml").write_text(table.replace("sizes: [100]", "sizes: [20]").replace("\n  100:\n", "\n  20:\n"))
    words = ["plan", "--table", "mine.yaml", "--methods", "CE (augmented)", "--tasks", "sst2", "--data", "."]
    said = harness(*words, "--translator", "file:views.jsonl")
    assert said.status == 0, said.err
    assert "are back-translated by" not in said.out
    assert "Runs: 10, one for each" in said.out
    (workdir / "views.jsonl").write_text(json.dumps(body[0] | {"view_3": "x"}) + "\n", encoding="utf-8")
    assert "there is no row for the text" in harness(*words, "--translator", "file:views.jsonl").err


@pytest.mark.usefixtures("packaged")
def test_a_corpus_that_holds_dev_texts_is_told(
    harness: Harness, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_csv(workdir / "sst2" / "train.csv", sst2(1100))
    write_csv(workdir / "sst2" / "validation.csv", sst2(600, 5000))
    held_out = "".join(f"Sentence number {i}, told plainly.\n" for i in range(5000, 5600))
    (workdir / "mine.txt").write_text(held_out, encoding="utf-8")
    words = "plan --table pretraining --preset laptop --methods MLM --subsets 0 --data . --corpus mine.txt"
    said = harness(words).out
    assert "200 of 200 rows of sst2/dev share a text with the corpus mine" in said
    assert "400 of 400 rows of sst2/test share a text with the corpus mine" in said
    monkeypatch.setattr("harness.planning.runs.COMPARED_TEXTS", 10)
    monkeypatch.setattr("harness.views.notes.COMPARED_TEXTS", 10)
    assert "Overlap: not looked for in the 600 texts of mine" in harness(words).out

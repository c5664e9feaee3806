"""Reference rows as a user meets them: benched by the flag, cut off and gone on with, shown, compared, verified; without a model to export."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli.conftest import Harness
from cluster import in_process
from trained import sentiment_folder

from harness.commands.recorded import best_key
from harness.planning.request import Request
from harness.store import Store

BENCH = (
    "--table few_shot --tasks sst2 --data data --sizes 20 --subsets 0 --seeds 31,42 --encoder {encoder} "
    "--set max_length=64 --set fine_tune.steps=6 --set fine_tune.batch_size=8"
)


def test_reference_rows(
    harness: Harness, folders: dict[str, Path], workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentiment_folder(workdir / "data")
    words = BENCH.format(encoder=folders["bert"])
    with monkeypatch.context() as patch:
        in_process.patch(patch, stop_after=3)
        assert harness(f"bench {words} --methods ft --reference").status == 130
        in_process.patch(patch)
        benched = harness(f"bench {words} --methods ft --reference")
        assert benched.status == 0, benched
        assert re.search(r"FT .*\n *Majority .*\n *TF-IDF .*\n *Frozen states .*\n *Frozen head ", benched.out)
        said = benched.out.replace("\n", " ")
        one_fit = "Majority, TF-IDF and Frozen states do not depend on the seed: all seeds of a subset are one fit."
        assert one_fit in harness("report --view notes").out.replace("\n", " ")
        assert not re.search(r"collapsed[^:]*: [^.]*Majority", said)

        store = Store("sqlite:///.harness/harness.db", create=False)
        runs: dict[str, set[str]] = {}
        for label in store.recorded_runs():
            runs.setdefault(label["row"], set()).add(label["key"])
        assert {row: len(keys) for row, keys in runs.items()} == {
            "FT": 2, "Majority": 1, "TF-IDF": 1, "Frozen states": 1, "Frozen head": 2,
        }  # fmt: skip
        assert harness("report --last --format csv").out.count("\n") > 10
        key = best_key(Request())
        dev = {each: next(iter(record.dev_scores.values())) for each, record in store.records(store.keys()).items()}
        assert dev[key] == max(dev[each] for each in (*runs["FT"], *runs["Frozen head"]))
        (workdir / "results.csv").write_text(harness("report --last --format csv").out, encoding="utf-8")
        verified = harness("verify results.csv --rerun 7")
        assert verified.status == 0, verified
        assert verified.out.count("bit-identical") == 7

    before, after = (
        harness(f"compare {words} --methods {rows}").out for rows in ("ft,frozen_head", "ft,frozen_head --reference")
    )
    assert "those with a reference row by themselves: the 4 comparisons with FT" in after.replace("\n", " ")
    holm = [line.split() for line in before.splitlines() if line.strip().startswith("SST-2")]
    assert holm
    key = min(runs["TF-IDF"])
    shown = harness(f"show {key[:12]}").out
    assert "by scikit-learn; 5 candidates, each a step of the history" in shown
    assert "encoder none" in shown
    assert re.search(r"reproduce: harness bench .*--methods tfidf", shown.replace("\n", " "))
    assert "--reference" not in shown
    assert harness(f"errors {key[:12]}").status == 0
    for refused in (f"export {key[:12]} --out model", f"predict {key[:12]} --row warm"):
        said = harness(refused).err
        assert f"{key[:12]} (tfidf) was fitted by scikit-learn and left no model, its predictions alone" in said, said
    assert "what scikit-learn fits leaves none" in harness("export --best --out model --methods tfidf,majority").err
    unknown = harness(f"bench {words} --methods tfidf --set tfidf.c=3").err
    assert "tfidf.c" in unknown

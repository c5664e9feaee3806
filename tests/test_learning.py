"""Pre-training objectives learn (slow: 200 updates of each); what measures it, and that a failure is reported where nothing is learnt.

pytest tests/test_learning.py -m slow -rP      # under six minutes on two cores, with what was measured
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import learning
import pytest
import tiny


@pytest.fixture
def learned(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Each objective of the script, four updates of a tiny encoder on a few texts, in this process."""
    texts = tiny.tokens(bert, tiny.texts(40, 3)[0])

    def read(setting: Any, located: Any) -> Any:
        return texts.take(range(24)), texts.take(range(24, 40)), tiny.vocabulary(bert)

    monkeypatch.setattr(learning, "read", read)
    monkeypatch.setattr(learning, "BATCH", 8)
    setting = learning.Setting(str(bert), 4, 1e-3, tmp_path)
    return {name: learning.learn(name, setting) for name in learning.TRAINED}


@pytest.mark.slow
@pytest.mark.usefixtures("packaged")
def test_every_objective_learns(tmp_path: Path) -> None:
    """On Wikipedia's passages, from bert-tiny."""
    setting = learning.Setting("bert-tiny", 200, 1e-3, tmp_path)
    laws = learning.laws({name: learning.learn(name, setting) for name in learning.TRAINED})
    for name, measure, value, against, other, holds in laws:
        print(f"{name}, {measure}: {value:.3f}, {against}: {other:.3f}, {'holds' if holds else 'does not hold'}")
    assert all(law[-1] for law in laws)


@pytest.mark.usefixtures("packaged")
def test_every_objective_is_measured_before_and_after(learned: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    for name, each in learned.items():
        assert [row["step"] for row in each["rows"]] == [0, 1, 2, 3, 4]
        assert all(math.isfinite(value) for row in each["rows"] for value in row.values()), name
        assert {"context_gap", "sequence_gap"} <= set(each["rows"][0])
    first = {name: each["rows"][0] for name, each in learned.items()}
    assert len({row["context_gap"] for row in first.values()}) == 1, "all begin with the same encoder"
    assert first["MLM"]["masked_accuracy"] == first["TACO"]["masked_accuracy"]
    assert json.loads(json.dumps(learned))


@pytest.mark.usefixtures("packaged")
def test_what_does_not_hold_is_said(learned: dict[str, dict[str, Any]]) -> None:
    """Each of the ten laws is broken by the one value that it looks at, and by no other."""
    for each in learned.values():
        each["rows"][0] |= {"context_gap": 0.2, "sequence_gap": 0.2}
        each["rows"][-1] |= {
            "masked_accuracy": 0.5, "rtd_balanced_accuracy": 0.6, "corrected_share": 0.2, "corrected_by_frequency": 0.1,
        }  # fmt: skip
    gaps = {"MLM": (0.2, 0.2), "TACO": (0.5, 0.3), "ELECTRA": (0.0, 0.0), "CLM only": (0.1, 0.0), "COCO-LM": (0.1, 0.6)}
    for name, (context, sequence) in gaps.items():
        learned[name]["rows"][-1] |= {"context_gap": context, "sequence_gap": sequence}
    learned["MLM"]["unigram"] = 0.1
    assert [row[-1] for row in learning.laws(learned)] == [True] * 10
    for name, key, value, broken in (
        ("MLM", "masked_accuracy", 0.05, [0]),
        ("ELECTRA", "rtd_balanced_accuracy", 0.5, [1]),
        ("COCO-LM", "rtd_balanced_accuracy", 0.4, [3]),
        ("CLM only", "corrected_share", 0.1, [4]),
        ("TACO", "context_gap", 0.1, [6, 7]),
        ("COCO-LM", "sequence_gap", 0.1, [8]),
    ):
        kept = learned[name]["rows"][-1][key]
        learned[name]["rows"][-1][key] = value
        assert [i for i, row in enumerate(learning.laws(learned)) if not row[-1]] == broken
        learned[name]["rows"][-1][key] = kept


def test_measuring_changes_nothing_in_the_encoder(bert: Path) -> None:
    """Both probes, which measure the encoder alone, and a second look finds the same."""
    encoder, held_out = tiny.encoder(bert), tiny.tokens(bert, tiny.texts(9, 5)[0])
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    sequences = learning.build(learning.spec_of(*learning.SEQUENCES), encoder, tiny.vocabulary(bert), None, 0.0, 0)
    seen = [
        (
            learning.measure(encoder, held_out, lambda t, d: learning.context_cosines(encoder, t, d, learning.CPU)),
            learning.measure(sequences, held_out, lambda t, d: sequences.probe(t, d, learning.CPU)),
        )
        for _ in range(2)
    ]
    assert seen[0] == seen[1]
    assert all(bool((encoder.state_dict()[name] == tensor).all()) for name, tensor in before.items())

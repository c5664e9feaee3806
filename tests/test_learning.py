"""Pre-training objectives learn (slow: 200 updates of each).

pytest tests/test_learning.py -m slow -rP      # under six minutes on two cores, with what was measured
"""

from __future__ import annotations

from pathlib import Path

import learning
import pytest


@pytest.mark.slow
@pytest.mark.usefixtures("packaged")
def test_every_objective_learns(tmp_path: Path) -> None:
    """On Wikipedia's passages, from bert-tiny."""
    setting = learning.Setting("bert-tiny", 200, 1e-3, tmp_path)
    laws = learning.laws({name: learning.learn(name, setting) for name in learning.TRAINED})
    for name, measure, value, against, other, holds in laws:
        print(f"{name}, {measure}: {value:.3f}, {against}: {other:.3f}, {'holds' if holds else 'does not hold'}")
    assert all(law[-1] for law in laws)

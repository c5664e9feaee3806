"""A small space of a user's own, and studies that nothing is trained for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.planning.request import Request
from harness.search.request import TuneRequest
from harness.search.space import ResolvedSpace, load_space, resolve_space
from harness.search.space_file import Space
from harness.search.trials import ReplicateOutcome

SPACE = """
name: mine
method: cmlm
table: few_shot
defaults: {alpha: 0.5, p_c: 0.7, contrast: simsiam, temperature: 0.07, num_views: 1}
grid: {alpha: [0.1, 0.5], p_c: [0.3, 0.7]}
search:
  alpha: {low: 0.01, high: 2.0, log: true}
  p_c: {low: 0.1, high: 0.9, step: 0.1}
  num_views: {low: 1, high: 3}
  contrast: {choice: [simsiam, simclr]}
  temperature: {low: 0.02, high: 0.5, log: true, when: {contrast: simclr}}
"""


_LOADED: dict[str, Space] = {}


def small_space(folder: Path, text: str = SPACE, **wishes: Any) -> ResolvedSpace:
    """A 2 x 2 grid, and a search with a conditional parameter."""
    if text not in _LOADED:
        path = folder / "mine.yaml"
        path.write_text(text, encoding="utf-8")
        _LOADED[text] = load_space(path)
    return explored(_LOADED[text], **wishes)


def request(space: Space, **wishes: Any) -> TuneRequest:
    """`wishes`: fields of the request."""
    return TuneRequest(space.method, base=Request(), **wishes)


def explored(space: Space, **wishes: Any) -> ResolvedSpace:
    """As a request with these fields explores it."""
    return resolve_space(space, request(space, **wishes))


def outcome(value: float, **others: Any) -> ReplicateOutcome:
    return ReplicateOutcome(value, **{"flops": 1e9, "seconds": 0.5, "trained": 2, "stages": 2, **others})

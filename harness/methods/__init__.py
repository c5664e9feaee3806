"""The methods that can be compared. A method is data: hyperparameters, a citation, and the stages or the objective it makes."""

from __future__ import annotations

from harness.errors import UserError, unknown
from harness.methods.base import Method, RunContext, Step, UnlabelledPhase, chain, hyperparameters, mlm_head_stage
from harness.methods.cmlm import CMLM
from harness.methods.coco_lm import COCO_LM
from harness.methods.cssl import CSSL
from harness.methods.electra import ELECTRA
from harness.methods.ft import FT
from harness.methods.mlm import MLM
from harness.methods.scl import SCL
from harness.methods.taco import TACO
from harness.methods.tapt import TAPT

METHODS: dict[str, Method] = {
    method.name: method for method in (FT, SCL, CSSL, TAPT, CMLM, MLM, TACO, ELECTRA, COCO_LM)
}


def methods_named(name: str, where: str = "") -> tuple[Method, ...]:
    """The methods of 'cmlm' or 'cmlm+scl': those without labels in their order, then at most one that fine-tunes.

    Raises UserError for an unknown part (with the closest name) and for an order that cannot be.
    """
    found = []
    for part in name.split("+"):
        if part not in METHODS:
            raise unknown("method", part, METHODS, where)
        found.append(METHODS[part])
    place = f"{where}: " if where else ""
    if any(method.supervised for method in found[:-1]):
        raise UserError(f"{place}'{name}' trains after fine-tuning; only the last method may use labels.")
    if len(set(found)) < len(found):
        raise UserError(f"{place}'{name}' names a method twice; keep one of them.")
    return tuple(found)


__all__ = [
    "METHODS",
    "Method",
    "RunContext",
    "Step",
    "UnlabelledPhase",
    "chain",
    "hyperparameters",
    "methods_named",
    "mlm_head_stage",
]

"""What a method is, and the two stages that most of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from harness.errors import UserError
from harness.objectives import objective
from harness.specs import Data, Encoder, Objective, Optim, Parent, RowSet, Stage, Target
from harness.yaml_files import Strict, describe_errors


@dataclass(frozen=True)
class Method:
    """A paper's method. `stages(hyperparameters, target)` is its chain, the leaf last; `skip` a reason not to run it."""

    name: str
    title: str
    citation: str
    Hyperparameters: type[Strict]
    stages: Callable[[Any, Target], tuple[Stage, ...]]
    skip: Callable[[Target], str | None] = lambda target: None


def hyperparameters(method: Method, values: Mapping[str, Any], where: str) -> Strict:
    """The method's hyperparameters with `values` set. Raises UserError naming `where`, the key and what is allowed."""
    known = method.Hyperparameters.model_fields
    for name, value in values.items():
        if isinstance(value, bool) and name in known and known[name].annotation in (int, float):
            raise UserError(f"{where}: {name} should be a number, not {str(value).lower()}.")
    try:
        return method.Hyperparameters(**values)
    except ValidationError as error:
        raise UserError(describe_errors(error, method.Hyperparameters, where, dict(values))) from None


def warm_up_stage(encoder: Encoder, corpus: RowSet, optim: Optim, max_length: int, seed: int) -> Stage:
    """The MLM stage on neutral prose that comes before everything, shared by all methods."""
    data = Data(corpus, max_length=max_length)
    return Stage(objective("mlm", p_m=0.15), data, optim, seed, encoder, phase="warm-up")


def fine_tune(spec: Objective, target: Target, after: Stage | None = None) -> Stage:
    """The supervised stage of a chain: from the chain's base, or from the encoder of `after`."""
    init = target.base if after is None else Parent(after)
    return Stage(spec, target.data, target.fine_tune, target.seed, init, target.selection, "fine-tune")


def post_train(spec: Objective, target: Target, *, mlm_head: bool) -> Stage:
    """The unsupervised stage on the task's own texts; it carries the base's MLM head on where the objective uses it."""
    data = Data(target.unlabelled, max_length=target.data.max_length)
    base = target.base
    if isinstance(base, Parent):
        base = Parent(base.stage, base.step, ("encoder", "mlm_head") if mlm_head else ("encoder",))
    return Stage(spec, data, target.post_train, target.seed, base, phase="post-train")

"""The Method type, chains of methods, and the stages that most methods share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from pydantic import ValidationError

from harness.errors import UserError, first_line
from harness.kinds import Classes, Kind, Scores, Spans
from harness.methods.definition import definition_of, objective
from harness.prompts import Prompt
from harness.specs import NO_ENCODER, Data, Encoder, Objective, Optim, Parent, RowSet, Selection, Stage
from harness.yaml_files import Strict, describe_errors


@dataclass(frozen=True)
class RunContext:
    """What a method builds the stages of one run from: one task, size, subset and seed under one protocol's recipe.

    `unlabelled`: what stages without labels read, the same object in all runs that read it, so that its part of their keys is made once.
    `prompt`: the task's template and label words; None where it has none.
    `translated`: the same texts as back-translated views; None where there are none, for the reason in `untranslated`. `mlm_head`: the
    stage that replaces `encoder` for stages that use an MLM head; None where the encoder's own head is usable.
    """

    task: str
    size: int
    subset: int
    seed: int
    data: Data
    unlabelled: Data
    fine_tune: Optim
    post_train: Optim
    selection: Selection
    encoder: Encoder
    mlm_head: Parent | None = None
    translated: Data | None = None
    untranslated: str = "no translator is named"
    prompt: Prompt | None = None


@dataclass(frozen=True)
class UnlabelledPhase:
    """A training phase without labels: its rows, recipe, seed, the encoder or stage that it starts from, and its name.

    `mlm_head`: the stage that replaces `base` for a stage that uses an MLM head; None where that of `base` is usable.
    """

    data: Data
    optim: Optim
    seed: int
    base: Encoder | Parent
    name: str
    mlm_head: Parent | None = None


class Method(Strict):
    """A paper's method: a frozen model of its hyperparameters. One with a loss of its own is the `Definition` of that loss as well, and its
    hyperparameters are the loss's parameters; another one says by `objective` which loss it takes.

    `kinds`: of tasks that it can be run on. `labelled`: it fine-tunes; else it trains on unlabelled text. `translates`: its rows are
    back-translated views. `decisions`: the rows of docs/papers.md that say how it is implemented where its paper leaves a question open.
    `full_name`: what the title stands for. `file`: of one from outside, its file's name and digest.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    citation: ClassVar[str]
    full_name: ClassVar[str] = ""
    kinds: ClassVar[tuple[type[Kind], ...]] = (Classes, Scores, Spans)
    labelled: ClassVar[bool] = False
    translates: ClassVar[bool] = False
    decisions: ClassVar[tuple[str, ...]] = ()
    file: ClassVar[str] = ""

    def objective(self, batch_size: int = 0) -> Objective:
        """What it trains with, in batches of that size."""
        raise NotImplementedError

    def train(self, phase: UnlabelledPhase) -> tuple[Stage, ...]:
        """Its stages on unlabelled text, of which each starts from the one before: as pre-training on a corpus, or as post-training on a task's own text."""
        return (unlabelled_stage(self.objective(phase.optim.batch_size), phase),)

    def adapt(self, context: RunContext) -> RunContext:
        """The context that it fine-tunes in: with another reading of the rows, or another recipe."""
        return context

    @classmethod
    def skipped(cls, context: RunContext) -> str | None:
        """Why it is not run in a context; None where it is."""
        kind = context.data.kind
        if kind is None or isinstance(kind, cls.kinds):
            return None
        return f"{cls.title} is not defined for {kind.description}"


def hyperparameters(
    method: type[Method], values: Mapping[str, Any], where: str, origins: Mapping[str, str] | None = None
) -> Method:
    """The method with these hyperparameters. Raises UserError naming `where`, the key and what is allowed;
    `origins`: what names a key instead."""
    try:
        return method(**values)
    except ValidationError as error:
        raise UserError(describe_errors(error, where, dict(values), origins)) from None


# ------------------------------------------------------------------------------------------------------------ chains


def chain(steps: Sequence[Method], context: RunContext, start: Encoder | Parent | None = None) -> tuple[Stage, ...]:
    """The stages of methods one after another: those without labels as post-training, then fine-tuning with the
    supervised one, with cross-entropy where none is named. `start` replaces the context's encoder and MLM head: a pre-trained or a
    fine-tuned stage."""
    stages: list[Stage] = []
    base: Encoder | Parent = start or context.encoder
    spec = objective("cross_entropy")
    for method in steps:
        with _in_its_file(method):
            if method.labelled:
                context = method.adapt(context)
                spec = method.objective(context.fine_tune.batch_size)
            else:
                data = cast(Data, context.translated) if method.translates else context.unlabelled
                phase = UnlabelledPhase(data, context.post_train, context.seed, base, "post-train", context.mlm_head)
                stages += method.train(phase)
                base = Parent(stages[-1])
    reads_encoder = definition_of(spec).encoded
    init = _start(spec, base, context.mlm_head) if reads_encoder else NO_ENCODER
    if (stages or start) and not reads_encoder:
        raise UserError(
            f"method {steps[-1].name} reads no encoder, so nothing can be trained before it; name it alone."
        )
    fine_tuned = Stage(spec, context.data, context.fine_tune, context.seed, init, context.selection, "fine-tune")
    return (*stages, fine_tuned)


@contextmanager
def _in_its_file(method: Method) -> Iterator[None]:
    """Raises UserError for what the code of a method from outside raises."""
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) or not method.file:
            raise
        file = method.file.partition(",")[0]
        raise UserError(f"{file}: {type(error).__name__}: {first_line(error)}.") from None


def _start(spec: Objective, base: Encoder | Parent, mlm_head: Parent | None) -> Encoder | Parent:
    """What a stage starts from: an encoder, or the stage that gives it an MLM head where the objective uses one; of an earlier stage its encoder
    and the parts that the objective inherits."""
    inherits = definition_of(spec).inherits
    if isinstance(base, Encoder) and "mlm_head" in inherits:
        base = mlm_head or base
    if isinstance(base, Encoder):
        return base
    return Parent(base.stage, base.step, ("encoder", *inherits))


def unlabelled_stage(spec: Objective, phase: UnlabelledPhase) -> Stage:
    """A stage on unlabelled text."""
    base = _start(spec, phase.base, phase.mlm_head)
    return Stage(spec, phase.data, phase.optim, phase.seed, base, phase=phase.name)


def mlm_head_stage(
    encoder: Encoder, corpus: RowSet, optim: Optim, max_length: int, seed: int, *, frozen: bool = False
) -> Stage:
    """The MLM stage on neutral prose that gives the encoder a usable MLM head; `frozen` trains the head alone."""
    data = Data(corpus, max_length=max_length)
    spec = objective("mlm_head" if frozen else "mlm", p_m=0.15)
    return Stage(spec, data, optim, seed, encoder, phase="mlm-head")

"""The laws of an objective, which tests hold the built-in ones to and `harness check` a file from outside: its terms and gradients, what draws its views,
batches without content, half precision, a batch in parts, and whether a GPU may repeat its operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from harness.encoders.models.batch import Batch
from harness.encoders.models.text_encoder import load_encoder, set_dropout
from harness.encoders.tokens import Examples, Tokens, Vocabulary
from harness.errors import UserError, first_line
from harness.kinds import kind_of_outputs
from harness.methods import Method, RunContext, chain, definition_of
from harness.objectives import build
from harness.objectives.base import TrainingObjective
from harness.prompts import Prompt
from harness.specs import Data, Encoder, Objective, Optim, RowSet, Selection, Stage
from harness.streams import stream
from harness.training.forward_backward import CPU, ForwardBackward, Placement, autocast
from harness.training.update import repeatable, trainable

CONTEXT = RunContext(
    task="toy",
    size=20,
    subset=0,
    seed=31,
    data=Data(RowSet("b" * 32), num_labels=2, max_length=96, dev=RowSet("d" * 32), tests=(RowSet("f" * 32),)),
    unlabelled=Data(RowSet("a" * 32), max_length=96),
    fine_tune=Optim(1e-5, 64, 700),
    post_train=Optim(2e-5, 256, 650),
    selection=Selection("accuracy"),
    encoder=Encoder("e" * 32),
    translated=Data(RowSet("9" * 32), max_length=96, views=2),
    prompt=Prompt("{first} It was [MASK].", ("terrible", "great")),
)
CONFIG: dict[str, Any] = {
    **{"model_type": "bert", "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"intermediate_size": 48, "max_position_embeddings": 64, "initializer_range": 0.1},
}
"""Of the encoder that an objective is tried on."""
FIRST, LAST, MASK, WORD = 2, 3, 4, 5
"""Ids of the special tokens, and the first id of the others."""
LENGTHS = (6, 14, 3, 9, 8, 5, 12, 4, 10)
"""Two contrast groups of four, and one sequence alone."""


def require(holds: bool, sentence: str) -> None:
    """Raises UserError where a law does not hold, with the sentence that says how."""
    if not holds:
        raise UserError(sentence)


@dataclass(frozen=True)
class Subject:
    """An objective in training mode, and a batch for it."""

    module: TrainingObjective
    examples: Examples
    labels: NDArray[np.int64] | None

    def batch(self, seed: int = 1, step: int = 1) -> Batch:
        return self.module.prepare(
            self.examples, self.labels, lambda purpose, *more: stream(seed, purpose, step, *more)
        )

    def terms(self, batch: Batch | None = None) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = self.module((batch or self.batch()).on(CPU))
        return terms

    def backward(self, what: str = "") -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Terms and gradients, which have to be finite."""
        terms = self.terms()
        self.module.loss(terms).backward()  # type: ignore[no-untyped-call]
        found = gradients(self.module)
        for name, tensor in (terms | {f"the gradient of {name}": each for name, each in found.items()}).items():
            require(bool(torch.isfinite(tensor).all()), f"{what}{name} is not finite")
        return terms, found


Make = Callable[..., Subject]
"""(lengths: of the sequences, LENGTHS by default; dropout: 0 by default; p_m: where the objective has one) -> an objective on a fresh copy of the encoder."""


def made(spec: Objective, views: int, lengths: Sequence[int] = LENGTHS, dropout: float = 0.0, **params: Any) -> Subject:
    """On random tokens. `views`: sequences of an example."""
    spec = replace(spec, params={name: params.get(name, value) for name, value in spec.params.items()})
    sizes = np.repeat(lengths, views)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    ids = np.random.default_rng(4).integers(WORD, CONFIG["vocab_size"], offsets[-1], np.int32)
    ids[offsets[:-1]], ids[offsets[1:] - 1] = FIRST, LAST
    tokens = Tokens(ids, np.zeros(len(ids), np.int8), ids < WORD, offsets)
    examples = Examples(tokens, np.arange(len(lengths) + 1) * views)
    labels = np.arange(len(lengths)) % 2 if definition_of(spec).labelled else None
    encoder = load_encoder(Path(), "made", seed=0, config=CONFIG)
    module = build(spec, encoder, Vocabulary(CONFIG["vocab_size"], MASK), kind_of_outputs(2), 1)
    set_dropout(module, dropout)
    module.take_training_set(examples, labels)
    return Subject(module.train(), examples, labels)


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def seen(batch: Any) -> Any:
    """What a batch holds, to compare it."""
    return tree_map(
        lambda each: seen(each) if isinstance(each, Tokens | Batch) else getattr(each, "tolist", lambda: each)(),
        vars(batch),
    )


# ------------------------------------------------------------------------------------------------------------ the laws


def terms_are_scalars_with_counts_and_flops_and_the_loss_is_their_weighted_sum(make: Make) -> None:
    subject = make()
    terms, weights = subject.terms(), subject.module.weights
    require(terms.keys() == weights.keys(), f"its terms {sorted(terms)} are not those of its weights {sorted(weights)}")
    batch = subject.batch()
    require(terms.keys() <= subject.module.counts(batch).keys(), "counts() has not all of its terms")
    flops = subject.module.step_flops(batch)
    require(0 < flops < np.inf, f"a step counts {flops} FLOPs; see flops() of its definition")
    require(all(weight > 0 for weight in weights.values()), "a weight is not above 0")
    for name, term in terms.items():
        require(term.shape == () and term.dtype == torch.float32, f"term {name} is no scalar in single precision")
    expected = sum(weights[name] * term.item() for name, term in terms.items())
    loss = subject.module.loss(terms).item()
    require(abs(loss - expected) <= 1e-6 * abs(expected) + 1e-12, "its loss is not the weighted sum of its terms")


def what_is_trained_has_a_gradient_and_nothing_else(make: Make) -> None:
    subject = make()
    _, found = subject.backward()
    lacking = sorted(trainable(subject.module).keys() ^ found.keys())
    require(not lacking, f"{', '.join(lacking[:3])}: has no gradient, or has one and is not trained")
    for name, gradient in found.items():
        require(bool(gradient.any()), f"the gradient of {name} is 0")


def seed_and_step_decide_what_it_sees(make: Make) -> None:
    one, again = make(dropout=0.1), make(dropout=0.1)
    before, batch = one.examples.tokens.ids.copy(), one.batch()
    one.batch(1, 2)
    torch.randn(3)
    alike = seen(again.batch()) == seen(batch)
    require(alike, "two calls of prepare() with one seed and step give two batches; draw with draw(purpose)")
    require(np.array_equal(one.examples.tokens.ids, before), "prepare() changes the examples")
    values = []
    for subject in (one, again):
        torch.manual_seed(5)
        values.append({name: term.item() for name, term in subject.terms(batch).items()})
    require(values[0] == values[1], "two equal objectives with one seed have two losses; draw heads with draw_linear")


def half_precision_is_finite(make: Make) -> None:
    for precision in ("bf16", "fp16"):
        for dropout in (0.0, 0.1):
            with autocast(CPU, precision):
                terms, _ = make(dropout=dropout).backward(f"in {precision}, ")
            single = all(term.dtype == torch.float32 for term in terms.values())
            require(single, "a term is in half precision; make it single")


DEGENERATE: tuple[tuple[str, tuple[int, ...], float], ...] = (
    ("one sequence", (7,), 0.5),
    ("one sequence of no word", (2,), 0.15),
    ("five sequences of no word", (2,) * 5, 1.0),
    ("nothing masked", (2, 4), 1e-9),
)


def batches_without_content_are_finite(make: Make) -> None:
    for what, lengths, p_m in DEGENERATE:
        subject = make(lengths=lengths, p_m=p_m)
        measures = subject.module.measures = dict[str, Tensor]()
        _, found = subject.backward(f"{what}: ")
        require(bool(found), f"{what}: nothing has a gradient")
        require(not any(measure.isinf() for measure in measures.values()), f"{what}: a measure is infinite")


def a_batch_in_parts_is_the_batch(make: Make) -> None:
    """Terms and gradients in double precision. Micro-batches of 1 and 3 cut contrast groups of 4, those of 4 and 5 do not."""

    def found(micro_batch: int) -> dict[str, Tensor]:
        subject = make(lengths=LENGTHS[:8])
        module = subject.module.double()
        terms = ForwardBackward(module, Optim(1e-3, 8, 1), 1, Placement(micro_batch=micro_batch)).run(
            subject.batch(), 1
        )
        return terms | {f"gradient of {name}": gradient for name, gradient in gradients(module).items()}

    whole = found(0)
    for micro_batch in (1, 3, 4, 5):
        parts = found(micro_batch)
        for name, value in whole.items():
            tolerance = 1e-9 if name.startswith("gradient of ") else 1e-12
            alike = name in parts and torch.allclose(parts[name], value, rtol=tolerance, atol=tolerance * 1e-4)
            require(alike, f"the {name} differs in micro-batches of {micro_batch}; see counts() and batch.gather")


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators that run on a device that holds no values, with all that Python gives them: shapes and types there, values elsewhere."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = tree_map(lambda each: _form(each) if isinstance(each, Tensor) else each, (args, kwargs))
        self.found.append(f"{func} {given}")
        return func(*args, **(kwargs or {}))


def _form(tensor: Tensor) -> Any:
    require(tensor.is_meta or not tensor.dim(), "forward() computes with a tensor on the host")
    return (tensor.shape, tensor.dtype) if tensor.is_meta else tensor.item()


def a_gpu_may_repeat_its_operators(make: Make) -> None:
    """Those of one update are those of the next one, of a batch of the same form: Python decides nothing that depends on a batch."""
    subject = make(dropout=0.1)
    if not repeatable(subject.module):
        return
    turned = np.arange(len(subject.examples))[::-1]
    labels = None if subject.labels is None else subject.labels[turned].copy()
    other = replace(subject, examples=subject.examples.take(turned), labels=labels)
    module, meta = subject.module.to("meta"), torch.device("meta")
    what = "a GPU cannot repeat its operators; let forward() read its batch alone, or set captured = False in its definition"

    def operators(batch: Batch) -> list[str]:
        given = batch.on(meta)
        module.zero_grad(set_to_none=True)
        noted = _Operators()
        with noted:
            try:
                module.loss(module(given)).backward()  # type: ignore[no-untyped-call]
            except RuntimeError as error:  # a value, or a shape that depends on one, is asked for
                require(False, f"{what} ({first_line(error)})")
        return noted.found

    first = subject.batch().laid_out(block=True)
    found = operators(first)
    # Prepared after it was run, as the next batch is.
    second = next(
        each for step in range(1, 99) if (each := other.batch(2, step).laid_out(block=True)).form == first.form
    )
    require(found == operators(second), what)


def all_its_parameters_are_read(make: Make, spec: Objective) -> None:
    names = ", ".join(sorted(unread(make, spec)))
    require(not names, f"no code reads {names}; drop it from the definition, since it moves keys and no number")


def unread(make: Make, spec: Objective) -> set[str]:
    """The parameters that building the objective, preparing a batch and its forward pass do not read. FLOPs do not count."""
    read: set[str] = set()
    kind = type(definition_of(spec))

    def noted(definition: Any, name: str) -> Any:
        read.add(name)
        return object.__getattribute__(definition, name)

    with patch.object(kind, "__getattribute__", noted), patch.object(kind, "flops", lambda *_: 1.0):
        make().terms()
    return spec.params.keys() - read - kind.retired.keys()


OF_OBJECTIVE: tuple[Callable[[Make], None], ...] = (
    terms_are_scalars_with_counts_and_flops_and_the_loss_is_their_weighted_sum,
    what_is_trained_has_a_gradient_and_nothing_else,
    seed_and_step_decide_what_it_sees,
    half_precision_is_finite,
    batches_without_content_are_finite,
    a_batch_in_parts_is_the_batch,
    a_gpu_may_repeat_its_operators,
)

# ------------------------------------------------------------------------------------------------ a file from outside


def check(method: type[Method], source: str) -> Iterator[tuple[str, str]]:
    """(what a law was held against and the law in words, how it is broken: '' where it holds), for the objectives that the file with this digest
    defines, at its method's defaults and at each value of a switch or a named choice."""
    stages: list[Stage] = []
    yield f"method {method.name}: its stages are made", _broken(lambda: stages.extend(_stages(method)))
    for stage in stages:
        spec = stage.objective
        if spec.source != source or definition_of(spec).refused(CONFIG):
            continue
        make = partial(made, spec, stage.data.views)
        words = ", ".join(f"{name} {value}" for name, value in spec.params.items())
        for law in (*(partial(law, make) for law in OF_OBJECTIVE), partial(all_its_parameters_are_read, make, spec)):
            name = law.func.__name__.replace("_", " ")
            yield f"objective {spec.name}{words and f' ({words})'}: {name}", _broken(law)


def _stages(method: type[Method]) -> list[Stage]:
    """One for each objective: another number is the same code."""
    found = {repr(stage.objective): stage for stage in chain([method()], CONTEXT)}
    for name, info in method.model_fields.items():
        for value in (True, False) if info.annotation is bool else get_args(info.annotation):
            with suppress(UserError, ValidationError):  # it cannot stand beside the defaults
                for stage in chain([method(**{name: value})], CONTEXT):
                    found.setdefault(repr(stage.objective), stage)
    return list(found.values())


def _broken(law: Callable[[], None]) -> str:
    try:
        law()
    except (Exception, SystemExit) as error:  # whatever the file's code raises
        return (
            str(error).rstrip(".") if isinstance(error, UserError) else f"{type(error).__name__}: {first_line(error)}"
        )
    return ""

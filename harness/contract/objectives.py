"""The laws of an objective: its terms and gradients, what draws its views, batches without content, half precision, and a batch in parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, BertConfig, PreTrainedTokenizerFast
from transformers.utils import logging

from harness import objectives
from harness.contract.replay import Replay
from harness.encoders.models.text_encoder import load_encoder
from harness.encoders.sources import locate
from harness.encoders.tokens import Examples, Tokeniser, Tokens
from harness.kinds import kind_of_outputs
from harness.methods import definition_of
from harness.methods.definition import Config, Definition, StepSize
from harness.objectives import build
from harness.objectives.base import Draw, TrainingObjective, Views
from harness.specs import Objective, Optim
from harness.streams import stream
from harness.training.forward_backward import ForwardBackward, Placement, autocast
from harness.training.update import repeatable, trainable


class BrokenLawError(AssertionError):
    """A law that does not hold, with the sentence that says how."""


def require(holds: bool, sentence: str) -> None:
    if not holds:
        raise BrokenLawError(sentence)


CPU = torch.device("cpu")
ROWS = 9
"""Of a batch: two contrast groups of four, and one sequence alone."""
TEXT_LENGTH = 64
WORDS = (*(f"w{i}" for i in range(40)), "good", "bad", "##ish")


SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "initializer_range": 0.1,
}

# -------------------------------------------------------------------------------------------------------- a tiny encoder


def tokenizer(like_roberta: bool = False) -> PreTrainedTokenizerFast:
    """WordPiece over `WORDS`, with the special tokens, their places and the token types of BERT or RoBERTa."""
    if not like_roberta:
        first, last, pad, unknown, mask = "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"
        special = [pad, unknown, first, last, mask]
        pair = f"{first}:0 $A:0 {last}:0 $B:1 {last}:1"
    else:
        first, last, pad, unknown, mask = "<s>", "</s>", "<pad>", "<unk>", "<mask>"
        special = [first, pad, last, unknown, mask]
        pair = f"{first}:0 $A:0 {last}:0 {last}:0 $B:0 {last}:0"
    ids = {token: i for i, token in enumerate((*special, *WORDS))}
    made = Tokenizer(models.WordPiece(ids, unk_token=unknown))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0", pair=pair, special_tokens=[(first, ids[first]), (last, ids[last])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made, cls_token=first, sep_token=last, pad_token=pad, unk_token=unknown, mask_token=mask
    )


def random_model(config: Any, seed: int = 0) -> Any:
    """A random masked-language model; biases and norms are random too, so that a missing one is noticed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = AutoModelForMaskedLM.from_config(config)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
    return made


def bert_config() -> BertConfig:
    return BertConfig(**SHAPE, vocab_size=len(tokenizer()), max_position_embeddings=TEXT_LENGTH)


def write_bert(folder: Path) -> Path:
    """A tiny BERT with its tokenizer, as save_pretrained writes it."""
    logging.disable_progress_bar()
    random_model(bert_config()).save_pretrained(str(folder))
    tokenizer().save_pretrained(str(folder))
    return folder


def texts(count: int, seed: int = 0, pairs: bool = False) -> tuple[list[tuple[str, ...]], NDArray[np.int64]]:
    """Rows of one or two texts of 1 to 12 words, and labels that the words tell (`good` or `bad` somewhere)."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, count)

    def sentence(label: int) -> str:
        words = [f"w{i}" for i in generator.integers(0, 30, generator.integers(1, 12))]
        words.insert(int(generator.integers(0, len(words) + 1)), ("bad", "good")[label])
        return " ".join(words)

    rows: list[tuple[str, ...]] = [
        (sentence(int(label)), sentence(int(label))) if pairs else (sentence(int(label)),) for label in labels
    ]
    return rows, labels


def draw_of(seed: int = 1, step: int = 1) -> Draw:
    return lambda purpose, *more: stream(seed, purpose, step, *more)


# -------------------------------------------------------------------------------------- an objective and what it reads


@dataclass(frozen=True)
class Subject:
    """An objective, and a batch as the loop would give it."""

    module: TrainingObjective
    examples: Examples
    labels: NDArray[Any] | None

    def views(self, seed: int = 1, step: int = 1) -> Views:
        return self.module.prepare(self.examples, self.labels, draw_of(seed, step))

    def terms(self, views: Views | None = None, measures: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        views = views or self.views()
        self.module.measures = measures
        terms: dict[str, Tensor] = self.module(views.on(CPU))
        return terms

    def loss(self, views: Views | None = None) -> Tensor:
        return self.module.loss(self.terms(views))


Make = Callable[..., Subject]
"""(rows: texts, nine of them by default; dropout: 0 by default; p_m: where the objective has one) -> an objective on a fresh copy of the encoder, in training mode."""


def made(
    folder: Path,
    spec: Objective,
    views: int,
    rows: list[tuple[str, ...]] | None = None,
    dropout: float = 0.0,
    **params: Any,
) -> Subject:
    """`views`: of each text, which stand one after another in the rows of an example."""
    spec = replace(spec, params={**spec.params, **params})
    rows = texts(ROWS, seed=4)[0] if rows is None else rows
    labels = np.arange(len(rows)) % 2 if definition_of(spec).labelled else None
    tokeniser = Tokeniser(folder)
    whole = [("w7 " + row[0] if view else row[0],) for row in rows for view in range(views)]
    examples = Examples(tokeniser(whole, TEXT_LENGTH), np.arange(len(rows) + 1) * views)
    encoder = load_encoder(folder, locate(str(folder)).encoder.digest, seed=0)
    module = build(spec, encoder, tokeniser.vocabulary, kind_of_outputs(2), dropout, 1)
    module.set_dropout(dropout)
    module.take_training_set(examples, labels)
    return Subject(module.train(), examples, labels)


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def flat(value: Any) -> Any:
    if isinstance(value, Tokens):
        return [flat(part) for part in vars(value).values()]
    if isinstance(value, dict):
        return [(name, flat(part)) for name, part in sorted(value.items())]
    return value.tolist() if isinstance(value, np.ndarray) else value


def seen(views: Views) -> Any:
    return [flat(part) for part in vars(views).values()]


def finite(tensors: dict[str, Tensor], prefix: str) -> None:
    for name, tensor in tensors.items():
        require(bool(torch.isfinite(tensor).all()), f"{prefix}{name} is not finite")


# ------------------------------------------------------------------------------------------------------------ the laws


def terms_are_scalars_and_the_loss_is_their_weighted_sum(make: Make) -> None:
    subject = make()
    terms, weights = subject.terms(), subject.module.weights
    require(terms.keys() == weights.keys(), f"its terms {sorted(terms)} are not those of its weights {sorted(weights)}")
    counted = subject.module.counts(subject.views())
    require(terms.keys() <= counted.keys(), "counts() has not all of its terms")
    require(all(weight > 0 for weight in weights.values()), "a weight is not above 0")
    for name, term in terms.items():
        require(term.shape == () and term.dtype == torch.float32, f"term {name} is no scalar in single precision")
    finite(terms, "term ")
    expected = sum(weights[name] * term.item() for name, term in terms.items())
    loss = subject.module.loss(terms).item()
    require(abs(loss - expected) <= 1e-6 * abs(expected) + 1e-12, "its loss is not the weighted sum of its terms")


def what_is_trained_has_a_gradient_and_nothing_else(make: Make) -> None:
    subject = make()
    subject.loss().backward()  # type: ignore[no-untyped-call]
    found, chosen = gradients(subject.module), trainable(subject.module)
    lacking = sorted({*chosen, *found} - (chosen.keys() & found.keys()))
    require(not lacking, f"{', '.join(lacking[:3])}: has no gradient, or has one and is not trained")
    finite(found, "the gradient of ")
    for name, gradient in found.items():
        require(bool(gradient.any()), f"the gradient of {name} is 0")


def seed_and_step_decide_what_it_sees(make: Make) -> None:
    one, again = make(dropout=0.1), make(dropout=0.1)
    before, views = one.examples.tokens.ids.copy(), one.views()
    one.views(1, 2)
    torch.randn(3)
    require(
        seen(again.views()) == seen(views),
        "two calls of prepare() with one seed and step give two views; draw with draw(purpose)",
    )
    require(np.array_equal(one.examples.tokens.ids, before), "prepare() changes the examples")
    values = []
    for subject in (one, again):
        torch.manual_seed(5)
        values.append(subject.terms(views))
    require(same(*values), "two equal objectives with one seed have two losses; draw heads with draw_linear")


def half_precision_is_finite(make: Make) -> None:
    for precision in ("bf16", "fp16"):
        for dropout in (0.0, 0.1):
            subject = make(dropout=dropout)
            measures: dict[str, Tensor] = {}
            with autocast(CPU, precision):
                terms = subject.terms(measures=measures)
                loss = subject.module.loss(terms)
            loss.backward()  # type: ignore[no-untyped-call]
            require(
                all(term.dtype == torch.float32 for term in terms.values()),
                "a term is in half precision; make it single",
            )
            finite(terms, f"in {precision}, term ")
            finite(gradients(subject.module), f"in {precision}, the gradient of ")


DEGENERATE: tuple[tuple[str, list[tuple[str, ...]], float], ...] = (
    ("one sequence", [("w1 w2 w3 w4 good",)], 0.5),
    ("one sequence of no word", [("",)], 0.15),
    ("five sequences of no word", [("",)] * 5, 1.0),
    ("nothing masked", [("",), ("w1 w2",)], 1e-9),
)


def batches_without_content_are_finite(make: Make) -> None:
    for what, rows, p_m in DEGENERATE:
        subject = make(rows=rows, p_m=p_m)
        measures: dict[str, Tensor] = {}
        terms = subject.terms(measures=measures)
        subject.module.loss(terms).backward()  # type: ignore[no-untyped-call]
        finite(terms, f"{what}: term ")
        found = gradients(subject.module)
        require(bool(found), f"{what}: nothing has a gradient")
        finite(found, f"{what}: the gradient of ")
        require(not any(measure.isinf() for measure in measures.values()), f"{what}: a measure is infinite")


def a_batch_in_parts_is_the_batch(make: Make) -> None:
    """Terms and gradients in double precision. Micro-batches of 1 and 3 cut contrast groups of 4, those of 4 and 5 do not."""
    whole: dict[str, Tensor] = {}
    terms: dict[str, Any] = {}
    for micro_batch in (0, 1, 3, 4, 5):
        subject = make(rows=texts(8, seed=4)[0])
        module = subject.module.double()
        step = ForwardBackward(module, Optim(1e-3, 8, 1), 1, Placement(micro_batch=micro_batch))
        parts, added = step.run(subject.views(), 1), gradients(module)
        whole, terms = (whole, terms) if micro_batch else (added, parts)
        for name, term in terms.items():
            close = torch.isclose(torch.as_tensor(parts[name]), torch.as_tensor(term), rtol=1e-12, atol=1e-15)
            require(
                bool(close),
                f"term {name} is {float(parts[name]):.6g} in micro-batches of {micro_batch} and {float(term):.6g} in one; see counts() and batch.gather",
            )
        for name, gradient in whole.items():
            alike = name in added and torch.allclose(added[name], gradient, rtol=1e-9, atol=1e-13)
            require(
                alike,
                f"the gradient of {name} differs in micro-batches of {micro_batch}; see counts() and batch.gather",
            )


def a_gpu_may_repeat_its_operators(make: Make) -> None:
    """Those of one update, recorded, give the next batch's losses and gradients, bit for bit: Python decides nothing that depends on a batch."""
    subject = make(dropout=0.1)
    if not repeatable(subject.module):
        return
    labels, turned = subject.labels, np.arange(len(subject.examples))[::-1]
    other = replace(
        subject, examples=subject.examples.take(turned), labels=None if labels is None else labels[turned].copy()
    )
    first, module = subject.views().batch(block=True), subject.module
    batch = first.to(CPU)

    def losses() -> Tensor:
        terms = module(batch)
        module.loss(terms).backward()  # type: ignore[no-untyped-call]
        return torch.stack([term.detach() for term in terms.values()])

    what = "a GPU cannot repeat its operators; let forward() read its batch alone, or set captured = False in its definition"
    try:
        found, replay = Replay().record(losses)
    except RuntimeError as error:
        require(False, f"{what} ({error})")
    # Prepared after it was recorded, as the next batch is.
    second = next(each for step in range(1, 99) if (each := other.views(2, step).batch(block=True)).form == first.form)
    batch.fill(second)
    torch.manual_seed(5)
    replay()
    repeated = found.clone(), {name: gradient.clone() for name, gradient in gradients(module).items()}
    module.zero_grad(set_to_none=True)
    torch.manual_seed(5)
    require(torch.equal(losses(), repeated[0]) and same(gradients(module), repeated[1]), what)


def its_flops_are_counted(make: Make) -> None:
    views = make().views()
    require(
        np.isfinite(views.flops) and views.flops > 0,
        f"prepare() counts {views.flops} FLOPs; take self.step_flops(tokens)",
    )


OF_OBJECTIVE: tuple[Callable[[Make], None], ...] = (
    terms_are_scalars_and_the_loss_is_their_weighted_sum,
    what_is_trained_has_a_gradient_and_nothing_else,
    seed_and_step_decide_what_it_sees,
    half_precision_is_finite,
    batches_without_content_are_finite,
    a_batch_in_parts_is_the_batch,
    a_gpu_may_repeat_its_operators,
    its_flops_are_counted,
)

# ------------------------------------------------------------------------------------------------ parameters that are read


def noting(definition: Definition, read: set[str]) -> Definition:
    """The same definition, which notes the names that are read of it. FLOPs do not count."""

    class Noting(type(definition)):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

        def flops(self, config: Config, size: StepSize) -> float:
            return 1.0

    noted: Definition = Noting.model_construct(**dict(definition))
    read.clear()
    return noted


def unread(make: Make, spec: Objective) -> set[str]:
    """The parameters that building the objective, preparing a batch and its forward pass do not read: they would move keys and no number."""
    read: set[str] = set()
    plain = definition_of
    objectives.definition_of = lambda spec: noting(plain(spec), read)
    try:
        subject = make()
    finally:
        objectives.definition_of = plain
    subject.terms()
    return spec.params.keys() - read - plain(spec).retired.keys()

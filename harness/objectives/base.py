"""What every objective is: it makes its views on the host, turns them into named terms, and owns its heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harness.encoders.flops import TRAIN, forward_flops, mlm_head_flops
from harness.encoders.models.text_encoder import Batch, TextEncoder
from harness.encoders.tokens import Tokens, Vocabulary
from harness.streams import seed_of

Measures = dict[str, Tensor]
"""What is logged beside the loss and never trained: accuracies, and what tells a collapsed encoder from a learning one."""

Draw = Callable[..., np.random.Generator]
"""`draw(purpose, *more)`: the stream of this step for a purpose; equal for every objective at equal seed and step."""


PER_MASKED = ("where", "targets", "uniforms", "replacements")
"""What `Views.extra` holds for each masked position."""

Gather = Callable[[Tensor], Tensor]
"""[n, ...] of the rows (or tokens) of one part -> [N, ...] of the whole batch, with gradient to the part's own."""


@dataclass(frozen=True)
class GlobalBatchContext:
    """What a part of a batch needs of the rest where a contrast group reaches beyond it: the `whole` batch's views, and
    `gather`, which a forward pass calls once at most."""

    whole: Views
    gather: Gather


@dataclass(frozen=True)
class Views:
    """One step's host side: the token ids that go through the encoder, and what the loss needs besides.

    `tokens`: the sequences of all views end to end, `ids` [T] their (corrupted) ids; `flops` of the training step.
    `global_batch`: of a part of a batch whose contrast groups are cut.
    """

    tokens: Tokens
    ids: NDArray[Any]
    labels: NDArray[Any] | None
    flops: float
    extra: dict[str, Any] = field(default_factory=dict)
    global_batch: GlobalBatchContext | None = None

    def part(self, size: int, rows: slice, gather: Gather | None = None) -> Views:
        """The views of some of a batch's `size` rows: whole contrast groups, or else with what gathers the others."""
        first, last = (int(self.tokens.offsets[edge]) for edge in (rows.start, rows.stop))

        def taken(tokens: Tokens) -> Tokens:
            views = range(0, len(tokens), size)
            return tokens.take(np.concatenate([np.arange(rows.start, rows.stop) + view for view in views]))

        tokens, extra = taken(self.tokens), dict(self.extra)
        if "where" in extra:
            inside = (extra["where"] >= first) & (extra["where"] < last)
            extra |= {name: extra[name][inside] for name in PER_MASKED if name in extra}
            extra["where"] = extra["where"] - first
        if "anchors" in extra:
            extra["anchors"] = extra["anchors"][first:last]
            width = int(tokens.lengths.max())
            extra["positives"], drawn = (extra[name][rows, :width] for name in ("positives", "negatives"))
            extra["negatives"] = np.where(drawn < 0, drawn, drawn - np.array([rows.start, 0]))
        if "main" in extra:
            extra["main"] = taken(extra["main"])
        ids = taken(replace(self.tokens, ids=self.ids)).ids
        labels = None if self.labels is None else self.labels[rows]
        return Views(tokens, ids, labels, self.flops, extra, gather and GlobalBatchContext(self, gather))

    def on(self, device: torch.device, *names: str) -> tuple[Tensor, ...]:
        """Arrays of `extra` as tensors on a device."""
        return tuple(torch.from_numpy(self.extra[name]).to(device) for name in names)


class TrainingObjective(nn.Module):
    """Base of the objectives. `weights` are the terms' coefficients: loss = sum of weight x term.

    `supervised`: it predicts labels. `uses_mlm_head`: the encoder's own MLM head is trained.
    `contrasted`: the term that is taken over contrast groups, where there is one.
    """

    supervised = False
    uses_mlm_head = False
    contrasted = "contrast"

    def __init__(
        self,
        encoder: TextEncoder,
        vocabulary: Vocabulary,
        num_labels: int,
        dropout: float,
        seed: int,
        params: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.vocabulary = vocabulary
        self.num_labels = num_labels
        self.dropout = dropout
        self.seed = seed
        self.params = dict(params)
        self.weights: dict[str, float] = {}
        self.build()

    def build(self) -> None:
        """Make the heads and set the weights."""
        raise NotImplementedError

    def prepare(self, tokens: Tokens, labels: NDArray[Any] | None, draw: Draw) -> Views:
        """The views of a batch of B sequences with T tokens."""
        raise NotImplementedError

    def forward(self, batch: Batch, views: Views, measures: Measures | None = None) -> dict[str, Tensor]:
        """Named terms, each a scalar; fills `measures` where it is given (scalars, NaN where one is undefined)."""
        raise NotImplementedError

    def counts(self, views: Views) -> dict[str, float]:
        """How many things each term is a mean over in these views of B sequences: what a part of a batch weighs by."""
        raise NotImplementedError

    def probe(self, tokens: Tokens, draw: Draw, device: torch.device) -> Measures:
        """What is logged of some sequences of a batch whenever the history grows: called in evaluation mode, without
        gradient, with streams of its own, so that it changes nothing that is trained."""
        return {}

    def predict(self, batch: Batch) -> Tensor:
        """Logits [B, num_labels]; supervised objectives only."""
        raise NotImplementedError

    def set_dropout(self, probability: float) -> None:
        self.encoder.set_dropout(probability)

    def parts(self) -> dict[str, Tensor]:
        """Weights of its own, as 'part/name' on the CPU, that a later stage can start from."""
        return {}

    def load_parts(self, tensors: Mapping[str, Tensor], parts: tuple[str, ...]) -> None:
        """Take those of its own parts that the parent's weights hold and `parts` names."""

    def loss(self, terms: Mapping[str, Tensor]) -> Tensor:
        return torch.stack([self.weights[name] * term for name, term in terms.items()]).sum()

    @property
    def contrast_group(self) -> int:
        """Consecutive rows that are contrasted with each other; 0 where rows have nothing to do with each other."""
        return int(self.params.get("contrast_group", 0))

    def step_flops(self, tokens: Tokens, masked: int = 0) -> float:
        config = self.encoder.shape
        lengths = tokens.lengths.astype(np.float64)
        return TRAIN * (
            forward_flops(config, float(lengths.sum()), float((lengths**2).sum())) + mlm_head_flops(config, masked)
        )

    def draw_linear(self, layer: nn.Linear, purpose: str) -> nn.Linear:
        return draw_linear(layer, self.encoder.config.initializer_range, self.seed, purpose)


def draw_linear(layer: nn.Linear, spread: float, seed: int, purpose: str) -> nn.Linear:
    """Normal with standard deviation `spread` (the encoder's initialiser range), bias 0, from the stream (seed, purpose)."""
    generator = torch.Generator().manual_seed(seed_of(seed, purpose))
    with torch.no_grad():
        layer.weight.normal_(0.0, spread, generator=generator)
        if layer.bias is not None:
            layer.bias.zero_()
    return layer


def at_least_single(values: Tensor) -> Tensor:
    """Half precision becomes single, double stays."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def in_groups(size: int, group: int) -> Iterator[tuple[slice, float]]:
    """The contrast groups of a batch as slices, each with its share of the batch; the last one may be smaller."""
    for start in range(0, size, group):
        stop = min(start + group, size)
        yield slice(start, stop), (stop - start) / size


def named(cosines: Mapping[str, Tensor]) -> Measures:
    """'positive' and 'negative' as they are logged: 'positive_cosine', 'negative_cosine'."""
    return {f"{name}_cosine": value for name, value in cosines.items()}

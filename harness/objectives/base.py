"""The base of the objectives. An objective makes views on the host, turns them into named terms, and owns its heads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harness.encoders.flops import forward_flops
from harness.encoders.models.batch import Batch, Gather, slots_of, width_of
from harness.encoders.models.text_encoder import TextEncoder
from harness.encoders.tokens import Examples, Tokens, Vocabulary
from harness.kinds import Kind
from harness.methods.definition import Definition, StepSize
from harness.objectives.losses import _single, _unit, masked_lm
from harness.streams import seed_of

Draw = Callable[..., np.random.Generator]
"""`draw(purpose, *more)`: the stream of this step for a purpose; equal for every objective at equal seed and step."""


Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Views:
    """One step's data on the host: the token ids that go through the encoder, and what else the loss needs, as arrays by name.

    `tokens`: the sequences that the encoder reads, in its order, with their (corrupted) ids, and `owner` [S] the example of each; `flops` of the
    training step. `sequences` [S, ...]: of each sequence. `predicted` [M, ...]: of each predicted token of the first sequences of the examples, which
    stand before all others; `where` among them, its place in `tokens`, ascending. `placed` [B, L, ...]: of each token of those sequences, False or -1 at
    padding. `main`: what the encoder reads in place of `tokens`. `whole`, `gather`: as `Batch` has them.
    """

    tokens: Tokens
    owner: NDArray[np.int64]
    flops: float
    sequences: Arrays = field(default_factory=dict)
    predicted: Arrays = field(default_factory=dict)
    placed: Arrays = field(default_factory=dict)
    main: Tokens | None = None
    whole: Views | None = None
    gather: Gather | None = None

    @property
    def size(self) -> int:
        """The number of examples."""
        return int(self.owner[-1]) + 1

    def micro_batch(self, rows: slice, gather: Gather | None = None) -> Views:
        """The views of some of a batch's examples, which have all sequences of each: whole contrast groups, or else with what gathers the others."""

        def of_rows(owner: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.flatnonzero((owner >= rows.start) & (owner < rows.stop))

        own = of_rows(self.owner)
        tokens = self.tokens.take(own)
        first, last = self.tokens.offsets[rows.start], self.tokens.offsets[rows.stop]
        where = self.predicted.get("where", np.zeros(0, np.int64))
        predicted = {name: array[(where >= first) & (where < last)] for name, array in self.predicted.items()}
        predicted |= {"where": predicted["where"] - first} if predicted else {}
        return replace(
            self,
            tokens=tokens,
            owner=self.owner[own] - rows.start,
            sequences={name: array[own] for name, array in self.sequences.items()},
            predicted=predicted,
            placed={name: array[rows, : int(tokens.lengths.max())] for name, array in self.placed.items()},
            main=self.main and self.main.take(of_rows(np.resize(self.owner, len(self.main)))),
            whole=self if gather else None,
            gather=gather,
        )

    def on(self, device: torch.device, *, block: bool = False) -> Batch:
        """On a device, as an objective reads it."""
        return self.batch(block=block).to(device)

    def batch(self, *, block: bool = False) -> Batch:
        """The same on the host. In a block the number of predicted tokens is rounded up too, so that few shapes occur."""
        whole = self.whole.batch(block=block) if self.whole else None
        width = width_of(self.tokens) if block else 0
        width = whole.shape[1] if width and whole else width
        predicted, placed = dict(self.predicted), dict(self.placed)
        if width:
            for name, array in placed.items():
                missing = False if array.dtype == bool else -1
                placed[name] = np.full((len(array), width, *array.shape[2:]), missing, array.dtype)
                placed[name][:, : array.shape[1]] = array
        if width and predicted:
            predicted["where"] = slots_of(self.tokens, width)[predicted["where"]]
            count = len(predicted["where"])
            step = max(16, 1 << max(0, count.bit_length() - 2))
            filled = max(step, -(-count // step) * step)
            for name, array in predicted.items():
                predicted[name] = np.concatenate([array, np.zeros((filled - count, *array.shape[1:]), array.dtype)])
            predicted["counted"] = np.arange(filled) < count
        found = Batch.on_host(self.tokens, width)
        main = Batch.on_host(self.main, width) if self.main else None
        arrays = {**found.arrays, **self.sequences, **predicted, **placed}
        return replace(found, arrays=arrays, main=main, whole=whole, gather=self.gather)


class TrainingObjective(nn.Module):
    """Base of the objectives. `weights` are the terms' coefficients: loss = sum of weight x term. `params`: its definition with the
    parameters of the stage, of the type that a subclass names.

    `has_classifier`: it predicts labels by a head that is not the encoder's, and no words. `uses_mlm_head`: the encoder's own MLM head is trained.
    `contrasted`: the term that is taken over contrast groups, where there is one. `measured`: it has
    something to measure beside the loss; `measures` is filled where the loop asks for it: scalars (NaN where one is undefined) that are logged and never
    trained, `mlm_accuracy`, and `embedding_std` of first tokens, which is 0 at collapse.
    """

    has_classifier = False
    uses_mlm_head = False
    contrasted = "contrast"
    measured = True
    measures: dict[str, Tensor] | None = None
    params: Any

    def __init__(
        self,
        encoder: TextEncoder,
        vocabulary: Vocabulary,
        kind: Kind | None,
        dropout: float,
        seed: int,
        params: Definition,
    ) -> None:
        super().__init__()
        self.encoder, self.vocabulary, self.kind, self.params = encoder, vocabulary, kind, params
        self.dropout, self.seed = dropout, seed
        self.weights: dict[str, float] = {}
        self.build()

    def build(self) -> None:
        """Make the heads and set the weights."""
        raise NotImplementedError

    def take_training_set(self, examples: Examples, labels: NDArray[Any] | None) -> None:
        """Called once before anything is trained or predicted, with all training examples, by objectives that show some of them."""

    def evaluated(self, examples: Examples) -> Examples:
        """The sequences by which examples are evaluated."""
        return examples

    def prepare(self, examples: Examples, labels: NDArray[Any] | None, draw: Draw) -> Views:
        """The views of a batch of B examples."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Named terms, each a scalar, of the batch that the views of `prepare` are on the device."""
        raise NotImplementedError

    def measure(self, name: str, measure: Callable[..., Tensor], *of: Any) -> None:
        if self.measures is not None:
            self.measures[name] = measure(*of)

    def masked_term(self, logits: Tensor, batch: Batch) -> Tensor:
        """The MLM loss of the predicted tokens [M, V]."""
        self.measure("mlm_accuracy", accuracy, logits, batch)
        return masked_lm(logits, batch["targets"], batch.counted)

    def counts(self, views: Views) -> dict[str, float]:
        """The number of things that each term is a mean over in these views: the weight of a micro-batch."""
        raise NotImplementedError

    def predict(self, batch: Batch) -> Tensor:
        """The outputs of the kind for each sequence [S, C], or each token [T, C]; only where it reads labels."""
        raise NotImplementedError

    def set_dropout(self, probability: float) -> None:
        self.encoder.set_dropout(probability)

    def parts(self) -> dict[str, Tensor]:
        """Weights of its own, as 'part/name' on the CPU, that a later stage can start from."""
        return {}

    def load_parts(self, tensors: Mapping[str, Tensor], parts: tuple[str, ...]) -> None:
        """Load those of its own parts that are named in `parts`, from the parent's weights."""

    def loss(self, terms: Mapping[str, Tensor]) -> Tensor:
        return torch.stack([self.weights[name] * term for name, term in terms.items()]).sum()

    @property
    def contrast_group(self) -> int:
        """The number of consecutive rows that are contrasted with each other; 0 where rows are independent."""
        return int(getattr(self.params, "contrast_group", 0))

    def encoding_flops(self, tokens: Tokens) -> float:
        """FLOPs of a forward pass of the encoder."""
        lengths = tokens.lengths.astype(np.float64)
        return forward_flops(self.encoder.shape, float(lengths.sum()), float((lengths**2).sum()))

    def step_flops(self, tokens: Tokens, *, predicted: int = 0, encoded: Tokens | None = None) -> float:
        """FLOPs of a training step. `tokens`: the first view; `encoded`: all tokens that go through the encoder, where these are
        more; `predicted`: the number of predicted positions of the first view."""
        every = tokens if encoded is None else encoded
        lengths, of_all = tokens.lengths.astype(np.float64), every.lengths.astype(np.float64)
        size = StepSize(lengths.sum(), (lengths**2).sum(), of_all.sum(), (of_all**2).sum(), predicted)
        return float(self.params.flops(self.encoder.shape, size))


def draw_linear(layer: nn.Linear, encoder: TextEncoder, seed: int, purpose: str) -> nn.Linear:
    """Normal with the standard deviation of the encoder's initialiser, bias 0, from the stream (seed, purpose)."""
    generator = torch.Generator().manual_seed(seed_of(seed, purpose))
    with torch.no_grad():
        layer.weight.normal_(0.0, encoder.config.initializer_range, generator=generator)
        if layer.bias is not None:
            layer.bias.zero_()
    return layer


@torch.no_grad()
@_single
def embedding_std(features: Tensor) -> Tensor:
    """A measure of collapse, the spread of directions: [B, d] -> scalar, 0 at one point and about 1 for directions spread over the sphere.

    The mean over the dimensions of the standard deviation over the batch of the l2-normalised rows, times sqrt(d). The
    deviation is the population's (divided by B); NaN if B = 0. Zero vectors are rows of zeros.

    Source: SimSiam (Chen and He, 2021), section 4.1, which compares the same deviation with 1 / sqrt(d).
    """
    unit = _unit(features)
    return (unit - unit.mean(dim=0)).square().mean(dim=0).sqrt().mean() * math.sqrt(features.shape[1])


def accuracy(logits: Tensor, batch: Batch) -> Tensor:
    """The share of the predicted tokens [M, V] that are right."""
    right = (logits.detach().argmax(dim=1) == batch["targets"]).float()
    return right.mean() if batch.counted is None else (right * batch.counted).sum() / batch.counted.sum()


def at_least_single(values: Tensor) -> Tensor:
    """Half precision becomes single, double stays."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def mean_over_groups(size: int, group: int, loss: Callable[[slice], Tensor], *, summed: bool = False) -> Tensor:
    """The mean of a loss over the contrast groups of a batch, the last of which may be smaller, by their sizes; or, `summed`, its sum."""
    groups = [slice(start, min(start + group, size)) for start in range(0, size, group)]
    return torch.stack([loss(rows) * (1.0 if summed else (rows.stop - rows.start) / size) for rows in groups]).sum()

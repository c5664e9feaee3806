"""The base of the objectives. An objective makes a batch on the host, turns it into named terms, and owns its heads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harness.encoders.flops import forward_flops
from harness.encoders.models.batch import Batch
from harness.encoders.models.text_encoder import TextEncoder
from harness.encoders.tokens import Examples, Tokens, Vocabulary
from harness.kinds import Kind
from harness.methods.definition import Definition, StepSize
from harness.objectives.losses import _single, _unit, masked_lm
from harness.streams import seed_of

Draw = Callable[..., np.random.Generator]
"""`draw(purpose, *more)`: the stream of this step for a purpose; equal for every objective at equal seed and step."""


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
    masked_lm = staticmethod(masked_lm)
    params: Any

    def __init__(
        self, encoder: TextEncoder, vocabulary: Vocabulary, kind: Kind | None, seed: int, params: Definition
    ) -> None:
        super().__init__()
        self.encoder, self.vocabulary, self.kind, self.params = encoder, vocabulary, kind, params
        self.seed, self.weights = seed, dict[str, float]()
        self.build()

    def build(self) -> None:
        """Make the heads and set the weights."""
        raise NotImplementedError

    def take_training_set(self, examples: Examples, labels: NDArray[Any] | None) -> None:
        """Called once before anything is trained or predicted, with all training examples, by objectives that show some of them."""

    def evaluated(self, examples: Examples) -> Examples:
        """The sequences by which examples are evaluated."""
        return examples

    def prepare(self, examples: Examples, labels: NDArray[Any] | None, draw: Draw) -> Batch:
        """The batch of B examples, on the host."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Named terms, each a scalar, of what `prepare` made, on the device."""
        raise NotImplementedError

    def measure(self, name: str, measure: Callable[..., Tensor], *of: Any) -> None:
        if self.measures is not None:
            self.measures[name] = measure(*of)

    def masked_term(self, logits: Tensor, batch: Batch) -> Tensor:
        """The MLM loss of the predicted tokens [M, V]."""
        self.measure("mlm_accuracy", accuracy, logits, batch)
        return self.masked_lm(logits, batch.at_predicted("targets"), batch.counted)

    def counts(self, batch: Batch) -> dict[str, float]:
        """The number of things that each term is a mean over in this batch: the weight of a micro-batch."""
        raise NotImplementedError

    def predict(self, batch: Batch) -> Tensor:
        """The outputs of the kind for each sequence [S, C], or each token [T, C]; only where it reads labels."""
        raise NotImplementedError

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

    def step_flops(self, batch: Batch) -> float:
        """FLOPs of a training step."""
        of_all = (batch.main or batch).tokens.lengths.astype(np.float64)
        lengths = batch.tokens.lengths[: batch.size].astype(np.float64)
        size = StepSize(lengths.sum(), (lengths**2).sum(), of_all.sum(), (of_all**2).sum(), batch.num_predicted)
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
    right = (logits.detach().argmax(dim=1) == batch.at_predicted("targets")).float()
    return right.mean() if batch.counted is None else (right * batch.counted).sum() / batch.counted.sum()


def at_least_single(values: Tensor) -> Tensor:
    """Half precision becomes single, double stays."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def mean_over_groups(size: int, group: int, loss: Callable[[slice], Tensor], *, summed: bool = False) -> Tensor:
    """The mean of a loss over the contrast groups of a batch, the last of which may be smaller, by their sizes; or, `summed`, its sum."""
    groups = [slice(start, min(start + group, size)) for start in range(0, size, group)]
    return torch.stack([loss(rows) * (1.0 if summed else (rows.stop - rows.start) / size) for rows in groups]).sum()

"""CSSL: contrast between back-translated views of a text, without a token loss."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from harness.encoders.models.text_encoder import Batch
from harness.encoders.tokens import Tokens
from harness.objectives.base import Draw, Measures, TrainingObjective, Views
from harness.objectives.view_contrast import ViewContrast


class TranslatedContrast(TrainingObjective):
    """CMLM equations 13 and 14: the contrast of equations 7 to 11 between the views that the data hold side by side.

    params: num_views (K), contrast ('simclr' with temperature and contrast_group, or 'simsiam'). A batch holds the B sequences of view 0,
    then those of view 1, and so on to view K.
    """

    def build(self) -> None:
        self.weights = {"contrast": 1.0}
        self.contrast = ViewContrast(self.encoder, self.params, self.seed)

    def prepare(self, tokens: Tokens, labels: NDArray[Any] | None, draw: Draw) -> Views:
        return Views(tokens, tokens.ids, None, self.step_flops(tokens))

    def forward(self, batch: Batch, views: Views, measures: Measures | None = None) -> dict[str, Tensor]:
        first = self.encoder(batch, batch.packing.first)
        by_view = first.view(self.params["num_views"] + 1, -1, first.shape[-1])
        return {"contrast": self.contrast(by_view, views, measures)}

    def counts(self, views: Views) -> dict[str, float]:
        return {"contrast": len(views.tokens)}

"""Embeddings of texts under the weights of a recorded stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.commands.recorded import Recorded
from harness.commands.texts import reader
from harness.commands.train import unshown
from harness.commands.trained import trained_model
from harness.errors import UserError


class Embeddings(NamedTuple):
    """`vectors`: float32 [n, d]; `labels`: the gold labels [n] of a test set (class codes, or numbers), None for other texts."""

    vectors: NDArray[np.float32]
    labels: NDArray[Any] | None


def embeddings_of(recorded: Recorded, texts: Sequence[tuple[str, ...]] | None, storage: str | None) -> Embeddings:
    """States of first tokens after the last layer, without dropout: of the stage's first test set, or of `texts`, one row each.

    Weights that are not stored are trained again and compared with the record. Raises UserError as `trained_model` does, and without
    `texts` for a stage that has no test set.
    """
    import torch

    from harness.encoders.models.batch import Batch
    from harness.encoders.tokens import Plain, by_length
    from harness.training.forward_backward import autocast

    if texts is None and not recorded.stage.data.tests:
        raise UserError(f"{recorded.key[:12]} ({recorded.stage.phase}) has no test set; name texts.")
    model = trained_model(recorded, unshown, storage=storage)
    stage, encoder, device = model.stage, model.objective.encoder, torch.device(model.setup.device)
    if texts is None:
        read = reader(model.prepared.plan, model.prepared.plan.encoders[0], model.tokeniser, model.prepared.store)
        examples, labels = read(stage.data.tests[0], stage.data)
    else:
        examples, labels = Plain(stage.data.max_length).examples(texts, model.tokeniser), None
    tokens = examples.tokens
    vectors = np.zeros((len(tokens), encoder.hidden_size), dtype=np.float32)
    model.objective.eval()
    with torch.inference_mode(), autocast(device, stage.optim.precision):
        for rows in by_length(tokens.lengths):
            batch = Batch.of(tokens.take(rows), device)
            vectors[rows] = encoder(batch, batch.packing.first).float().cpu().numpy()
    return Embeddings(vectors, labels)

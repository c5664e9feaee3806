"""Embeddings of a test set under recorded runs: of each cell the run with the best dev score."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.commands.prepare import Prepared
from harness.commands.recorded import recorded
from harness.commands.texts import reader
from harness.commands.trained import TrainedModel, View, trained_model
from harness.errors import UserError
from harness.specs import Run
from harness.tables.embedding_figure import MOST, Embedded
from harness.tables.waves import best_run

if TYPE_CHECKING:
    import torch

    from harness.encoders.models.text_encoder import TextEncoder


def embeddings_of(prepared: Prepared, view: View) -> tuple[list[Embedded], list[str]]:
    """The first test set of a table's only task under the best recorded run of each cell, in the order of sizes and rows: the state
    of the first token after the last layer, which the classifier's head reads, without dropout. Of more than MOST examples the
    first; and sentences about the runs, for people.

    Weights that are not stored are trained again, shown by `view`. Raises UserError for a table of several tasks, for a regression,
    and where no run is recorded or a run cannot be made again.
    """
    plan, resolved = prepared.plan, prepared.resolved
    if len(resolved.tasks) > 1:
        raise UserError(
            f"--figure embeddings: the table has {', '.join(resolved.tasks)}; name one task with {prepared.request.option('tasks')}."
        )
    (data,) = plan.tasks.values()
    if data.task.regression:
        raise UserError(
            f"--figure embeddings: task {data.task.name} is a regression, and the figure shows classes; name another task."
        )
    column = next(iter(resolved.columns.values()))
    digest = data.tests[column.evaluation].digest
    import torch

    best = _best(prepared)
    if not best:
        raise UserError(
            "--figure embeddings: no run of these cells is recorded; run 'harness bench' with the same values first (--keep best keeps the weights)."
        )
    found, sentences = [], []
    for run, dev in best:
        stage = recorded(prepared.store.url, run.stage.key)
        model = trained_model(stage, view, storage=prepared.request.storage)
        tokens, gold = _read(model, stage.key, digest, prepared)
        predicted = stage.record.predictions[digest].logits[: len(gold)].argmax(axis=1)
        model.objective.eval()
        device = torch.device(model.setup.device)
        vectors = first_states(model.objective.encoder, tokens, device, run.stage.optim.precision)
        found.append(Embedded(run.row, run.size, run.subset, run.seed, run.stage.key, vectors, gold, predicted))
        sentences.append(
            f"{found[-1].title}: run {stage.key[:12]} (subset {run.subset}, seed {run.seed}, dev {100 * dev:.2f}); "
            f"{found[-1].numbers}. {' '.join(model.sentences)}"
        )
    return found, sentences


def _best(prepared: Prepared) -> list[tuple[Run, float]]:
    """Of each cell the run that `best_run` selects, with its dev score; cells without a finished run are left out."""
    runs = prepared.plan.runs
    records = prepared.store.records([run.stage.key for run in runs])
    found = []
    for size in prepared.resolved.sizes:
        for row in prepared.resolved.rows:
            best = best_run([run for run in runs if (run.size, run.row) == (size, row.name)], records)
            if best is not None:
                assert best.stage.selection is not None
                found.append((best, records[best.stage.key].dev_scores[best.stage.selection.metric]))
    return found


def _read(model: TrainedModel, key: str, digest: str, prepared: Prepared) -> tuple[Any, NDArray[Any]]:
    """The first examples of the test set, as tokens, and their classes."""
    from harness.encoders.tokens import Tokeniser

    stage = model.prepared.plan.stages[key]
    rows = next(rows for rows in stage.data.tests if rows.digest == digest)
    tokens, gold = reader(model.prepared.plan, Tokeniser(model.setup.encoder_folder), prepared.store)(rows, stage.data)
    some = np.arange(min(MOST, len(tokens)))
    return tokens.take(some), gold[some]


def first_states(encoder: TextEncoder, tokens: Any, device: torch.device, precision: str) -> NDArray[Any]:
    """The states of the first tokens of sequences after the last layer, float32 [n, d], in batches of similar lengths as dev and test are
    evaluated, in the mode that the encoder is in."""
    import torch

    from harness.encoders.models.text_encoder import Batch
    from harness.training.forward_backward import autocast
    from harness.training.loop import by_length

    found = np.zeros((len(tokens), encoder.hidden_size), dtype=np.float32)
    with torch.inference_mode(), autocast(device, precision):
        for rows in by_length(tokens.lengths):
            batch = Batch.of(tokens.take(rows), device)
            found[rows] = encoder(batch, batch.packing.first).float().cpu().numpy()
    return found

"""What is measured of weights: probes of the pre-trained rows of a prepared table after their saved updates, which the store keeps, and
embeddings of a test set under its best runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.commands.execution import storage_of
from harness.commands.prepare import Prepared
from harness.commands.recorded import Recorded, recorded
from harness.commands.texts import reader
from harness.commands.train import View
from harness.commands.trained import Step, TrainedModel, start_of, trained_model, trained_models
from harness.errors import UserError
from harness.methods import METHODS
from harness.planning.waves import best_run
from harness.report.figures.embeddings import MOST, Embedded
from harness.report.figures.probes import Probed, ProbeFigure
from harness.specs import Data, Encoder, Parent, Record, Run, Stage, canonical, digest_of
from harness.storage import weights_of
from harness.streams import stream
from harness.tasks import open_source, similar_pairs
from harness.wording import counted

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from harness.encoders.models.text_encoder import TextEncoder
    from harness.encoders.tokens import Tokens


VERSION = 1
"""Raised when a probe computes other numbers; part of the digest under which a result is recorded."""
SEED = 0
SEQUENCES = 512
"""Sequences of the corpus in which tokens are paired."""
RANDOM_PAIRS, SIMILAR_PAIRS = 500, 500
WORD_SEQUENCES, WORD_PAIRS = 20_000, 500


@dataclass(frozen=True)
class Line:
    """A pre-training stage with the name of its line, and the updates after which it is probed; after 0: the encoder that the stage
    starts from, as it is, under a key of its own."""

    name: str
    stage: Stage
    updates: tuple[int, ...]
    key: str


def probed(prepared: Prepared, figure: ProbeFigure, view: View) -> tuple[list[Probed], list[str], bool]:
    """What a figure shows, in the order of rows and updates; sentences about it for people; and whether a row is not pre-trained yet.

    What the store does not hold is measured now and kept in it, by weights that are stored or else trained again, shown by `view`.
    Raises UserError for a table without pre-training, where no row's pre-training is recorded or has what the figure shows, and where
    texts are not at hand.
    """
    lines = _lines(prepared, figure)
    records = prepared.store.records([line.key for line in lines])
    done = [
        line for line in lines if line.updates == (0,) or (line.key in records and records[line.key].status == "done")
    ]
    missing = [line.name for line in lines if line not in done]
    if not done:
        raise UserError(
            f"--figure {figure.name}: pre-training is recorded of none of {', '.join(missing)}; run 'harness bench' with the same values first."
        )
    sentences = [f"Not drawn: {', '.join(missing)}, whose pre-training is not recorded."] if missing else []
    if figure.probe:
        data = next(line.stage.data for line in lines if line.updates != (0,))
        found, about = _measured(prepared, figure, done, records, data, view)
        return found, [*about, *sentences], bool(missing)
    found = [
        Probed(line.name, line.key, entry["step"], values)
        for line in done
        for entry in (records[line.key].history if line.key in records else ())
        if (values := {n: v for n, v in entry.get("measures", {}).items() if n in figure.measures})
    ]
    without = [line.name for line in done if line.name not in {each.row for each in found}]
    if not found:
        raise UserError(
            f"--figure {figure.name}: no row of this table logged {', '.join(figure.measures)} (rows: {', '.join(without)}); COCO-LM's rows "
            "do, where this version of harness pre-trained them."
        )
    logged = "What pre-training logged every 100 updates and at its end, of up to 32 sequences of the last batch, without dropout."
    return found, [logged, *sentences, *([f"Not logged by {', '.join(without)}."] if without else [])], bool(missing)


def _lines(prepared: Prepared, figure: ProbeFigure) -> list[Line]:
    """A line for each pre-training stage of the table. Its updates are those that its rows start from; where these start from its last
    one alone, also those that the table saves. Where weights are probed, the encoder of rows that are fine-tuned as it is comes first."""
    plan = prepared.plan
    stages: dict[str, Stage] = {}
    rows: dict[str, list[str]] = {}
    starts: dict[str, dict[int, None]] = {}
    for run in plan.runs:
        for child in run.stage.chain:
            start = child.init
            if isinstance(start, Parent) and start.stage.phase == "pre-train" and child.phase != "pre-train":
                stage = stages.setdefault(start.stage.key, start.stage)
                rows.setdefault(stage.key, []).append(run.row)
                step = stage.optim.steps if isinstance(start.step, str) else start.step
                starts.setdefault(stage.key, {})[step] = None
    if not stages:
        raise UserError(
            f"--figure {figure.name}: no row of table {prepared.resolved.table.name} is pre-trained; name a table such as pretraining or "
            "taco_updates."
        )
    named = {row.name: row for row in prepared.resolved.rows}
    lines: list[Line] = []
    for key, stage in stages.items():
        own = list(dict.fromkeys(prepared.resolved.titles[row] for row in rows[key]))
        parts = [part for part in named[rows[key][0]].pre_train.split("+") if part]
        name = own[0] if len(own) == 1 else "+".join(METHODS[part].title for part in parts)
        if name in {line.name for line in lines}:
            name = own[0]
        updates = set(starts[key])
        if updates == {stage.optim.steps}:
            updates |= plan.saved_at(stage)
        ordered = sorted(updates)
        lines.append(Line(name, stage, tuple(ordered[-1:] if figure.last_only else ordered), key))
    plain = [run.stage for run in plan.runs if isinstance(run.stage.init, Encoder)]
    if plain and figure.probe:
        # Random weights are drawn from the seed of the stage, the others are the encoder's whatever the seed.
        identity = digest_of(["encoder", canonical(plain[0].init), plain[0].seed if plan.located.new else 0])
        lines.insert(0, Line(f"{plan.located.name} as it is", plain[0], (0,), identity))
    return lines


# ---------------------------------------------------------------- measuring


Values = tuple[dict[str, float], dict[str, list[float]]]
"""What was measured, and the numbers behind it."""


@dataclass(frozen=True)
class Probe:
    """What a figure measures of weights: `measure` is called with an encoder, its device and the precision. `identity`: of the texts that
    it reads; `about`: these in words."""

    identity: Mapping[str, Any]
    about: str
    measure: Callable[[TextEncoder, torch.device, str], Values]


def _measured(
    prepared: Prepared,
    figure: ProbeFigure,
    lines: Sequence[Line],
    records: Mapping[str, Record],
    data: Data,
    view: View,
) -> tuple[list[Probed], list[str]]:
    """The results of a probe, from the store or measured now and kept in it."""
    import torch

    from harness.training.forward_backward import autocast

    probe, store, storage = _probe(prepared, figure, data), prepared.store, storage_of(prepared.request, prepared.store)
    digests = {
        (line.key, update): digest_of([VERSION, SEED, figure.probe, line.key, update, probe.identity])
        for line in lines
        for update in line.updates
    }
    known = store.probes(digests.values())
    sentences = [probe.about]

    def measure(line: Line, update: int, encoder: TextEncoder, device: str) -> None:
        place, precision = torch.device(device), line.stage.optim.precision
        with torch.inference_mode(), autocast(place, precision):
            values, samples = probe.measure(encoder.to(place).eval(), place, precision)
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        body: dict[str, Any] = {"probe": figure.probe, "key": line.key, "update": update, "seed": SEED}
        body |= {"of": probe.identity, "values": finite, "samples": samples}
        store.keep_probe(digests[line.key, update], body)
        known[digests[line.key, update]] = body

    for line in lines:
        new = [update for update in line.updates if digests[line.key, update] not in known]
        if new == [0]:
            measure(line, 0, *start_of(prepared, line.stage))
        if new in ([], [0]):
            continue
        steps: dict[Step, int] = {"last" if update == line.stage.optim.steps else update: update for update in new}
        gone = [s for s in steps if not (storage.exists(weights_of(line.key, s)) or records[line.key].digest_after(s))]
        if gone:
            after = ", ".join(f"{steps.pop(step):,}" for step in gone)
            sentences.append(f"{line.name}: its weights were not saved after update {after}, which is left out.")
        if not steps:
            continue
        recorded = Recorded(prepared.store, line.stage, records[line.key], prepared.request)
        with trained_models(recorded, [*steps], view, storage=prepared.request.storage) as model:
            for step, update in steps.items():
                trained = model(step)
                measure(line, update, trained.objective.encoder, trained.setup.device)
        now = ", ".join(f"{update:,}" for update in steps.values())
        sentences.append(f"{line.name}: measured now after update {now}, and kept in the store.")
    drawn = [
        Probed(line.name, line.key, update, kept["values"], kept["samples"])
        for line in lines
        for update in line.updates
        if (kept := known.get(digests[line.key, update]))
    ]
    if not drawn:
        raise UserError(f"--figure {figure.name}: {' '.join(sentences[1:])} Name rows whose weights are saved.")
    return drawn, sentences


def _probe(prepared: Prepared, figure: ProbeFigure, data: Data) -> Probe:
    """The probe of a figure, which reads sequences of the corpus as stages with these `data` read it."""
    from harness.encoders.tokens import Plain, Tokeniser
    from harness.encoders.tokens.cooccurrence import cooccurring_words

    plan = prepared.plan
    if not plan.corpora or plan.located.folder is None:
        raise UserError(
            f"--figure {figure.name}: {', '.join(plan.unresolved) or 'the corpus'} is not at hand; run 'harness bench' with the same values first."
        )
    corpus, tokeniser = plan.corpora[0], Tokeniser(plan.located.folder)
    tokens = reader(plan, tokeniser, prepared.store)(corpus.row_set(), data)[0].tokens
    identity: dict[str, Any] = {"corpus": corpus.digest, "max_length": data.max_length, "blocks": data.blocks}
    of = f"of {corpus.name}"
    if figure.probe == "context":
        some = _drawn(tokens, SEQUENCES, "sequences")
        about = f"Every token of {len(some):,} sequences {of} beside another of its own sequence and one of another sequence, drawn at random."
        return Probe(identity | {"sequences": SEQUENCES}, about, partial(_of_context, some))
    if figure.probe == "words":
        words = cooccurring_words(_drawn(tokens, WORD_SEQUENCES, "words"), tokeniser.words, WORD_PAIRS)
        if not len(words):
            raise UserError(
                f"--figure {figure.name}: no two words co-occur often enough in {corpus.name}; take a larger corpus."
            )
        about = (
            f"Word embeddings of {counted(len(words), 'pair')} of frequent words {of}, those with the highest normalised pointwise mutual "
            "information. "
            "The paper's pairs were chosen by people and are not named."
        )
        return Probe(identity | {"pairs": words.tolist()}, about, partial(_of_words, words))
    given = prepared.named.request.data
    rows, what = similar_pairs(None if given is None else open_source(given))
    order = stream(SEED, "probe_similar_pairs").permutation(len(rows))[:SIMILAR_PAIRS]
    chosen = [rows.texts[i] for i in order]
    one, other = (
        Plain(data.max_length).examples([(pair[side],) for pair in chosen], tokeniser).tokens for side in (0, 1)
    )
    some = _drawn(tokens, 2 * RANDOM_PAIRS, "random_pairs")
    about = (
        f"States of first tokens. Similar: {len(chosen):,} {what}. Random: {len(some) // 2:,} pairs of sequences {of}."
    )
    identity |= {"similar": rows.digest, "pairs": [RANDOM_PAIRS, SIMILAR_PAIRS]}
    measure = partial(_of_plane, one, other) if figure.probe == "plane" else partial(_of_pairs, one, other, some)
    return Probe(identity, about, measure)


def _drawn(tokens: Tokens, most: int, purpose: str) -> Tokens:
    """Some of the sequences, drawn without repetition."""
    chosen = stream(SEED, f"probe_{purpose}").permutation(len(tokens))[:most]
    return tokens.take(chosen)


def _of_pairs(
    one: Tokens, other: Tokens, random: Tokens, encoder: TextEncoder, device: torch.device, precision: str
) -> Values:
    """Similar pairs, and random ones: each sequence of the first half beside one of the second."""
    from harness.objectives.probes import alignment, paired_cosines, uniformity

    first, second = (_states(encoder, side, device, precision) for side in (one, other))
    states = _states(encoder, random, device, precision)
    half = len(states) // 2
    apart = paired_cosines(states[:half], states[half : 2 * half])
    similar = paired_cosines(first, second)
    values = {
        "alignment": alignment(first, second),
        "uniformity": uniformity(states),
        "random_cosine": apart.mean(),
        "similar_cosine": similar.mean(),
    }
    samples = {"random_cosine": apart.tolist(), "similar_cosine": similar.tolist()}
    return {name: float(value) for name, value in values.items()}, samples


def _of_plane(one: Tokens, other: Tokens, encoder: TextEncoder, device: torch.device, precision: str) -> Values:
    """t-SNE of both texts of all pairs, side by side."""
    from harness.objectives.probes import paired_cosines
    from harness.report.figures.embeddings import plane

    first, second = (_states(encoder, side, device, precision) for side in (one, other))
    points = plane(np.stack([first, second], axis=1).reshape(-1, first.shape[1]))
    similar = float(paired_cosines(first, second).mean())
    return {"similar_cosine": similar}, {"x": points[:, 0].tolist(), "y": points[:, 1].tolist()}


def _states(encoder: TextEncoder, tokens: Tokens, device: torch.device, precision: str) -> Tensor:
    import torch

    return torch.from_numpy(first_states(encoder, tokens, device, precision))


def _of_words(pairs: Any, encoder: TextEncoder, device: torch.device, precision: str) -> Values:
    """Of the words themselves, whatever the precision."""
    import torch

    from harness.objectives.probes import paired_cosines

    embedded: Any = encoder.base.get_input_embeddings()
    shuffled = stream(SEED, "probe_other_words").permutation(pairs[:, 1])
    there = shuffled != pairs[:, 0]
    cosines = [
        paired_cosines(*(embedded(torch.from_numpy(words).to(device)) for words in (ones, others))).mean()
        for ones, others in ((pairs[:, 0], pairs[:, 1]), (pairs[there, 0], shuffled[there]))
    ]
    return dict(zip(("cooccurring_cosine", "other_cosine"), map(float, cosines), strict=True)), {}


def _of_context(tokens: Tokens, encoder: TextEncoder, device: torch.device, precision: str) -> Values:
    """Over parts of PROBED sequences, weighted by their words; of equal size or one less, so that none holds a single sequence, which would
    have no other."""
    from harness.objectives.probes import PROBED, context_cosines

    sums: dict[str, float] = {}
    weight = 0
    for k, rows in enumerate(np.array_split(np.arange(len(tokens)), max(1, len(tokens) // PROBED))):
        some = tokens.take(rows)
        cosines = context_cosines(encoder, some, lambda purpose, k=k: stream(SEED, f"probe_{purpose}", k), device)
        words = int(np.count_nonzero(~some.special))
        weight += words
        for name, value in cosines.items():
            sums[name] = sums.get(name, 0.0) + words * float(value)
    means = {name: total / weight for name, total in sums.items()}
    return {**means, "contextual_score": means["intra_context_cosine"] - means["inter_context_cosine"]}, {}


# --------------------------------------------------------------------------------------------- embeddings of a test set


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
    if not data.task.classes:
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
        tokens, gold = _read(model, digest)
        predicted = stage.record.predictions[digest].decoded[: len(gold)]
        model.objective.eval()
        device = torch.device(model.setup.device)
        vectors = first_states(model.objective.encoder, tokens, device, run.stage.optim.precision)
        found.append(
            Embedded(
                run.row,
                run.size,
                run.subset,
                run.seed,
                run.stage.key,
                vectors,
                gold,
                predicted,
                prepared.resolved.size_unit,
            )
        )
        sentences.append(
            f"{found[-1].title}: run {stage.key[:12]} (subset {run.subset}, seed {run.seed}, dev {100 * dev:.2f}); "
            f"{found[-1].numbers}. {' '.join(model.sentences)}"
        )
    return found, sentences


def to_train_again(prepared: Prepared) -> list[str]:
    """Keys of the runs that the figure shows and whose weights were not kept."""
    storage = storage_of(prepared.request, prepared.store)
    keys = [run.stage.key for run, _ in _best(prepared)]
    return [key for key in keys if not storage.exists(weights_of(key, "last"))]


def _best(prepared: Prepared) -> list[tuple[Run, float]]:
    """Of each cell the run that `best_run` selects, with its dev score; cells without a finished run are left out, and so are rows that leave no model."""
    runs = prepared.plan.runs_with_weights
    records = prepared.store.records([run.stage.key for run in runs])
    found = []
    for size in prepared.resolved.sizes:
        for row in prepared.resolved.rows:
            best = best_run([run for run in runs if (run.size, run.row) == (size, row.name)], records)
            if best is not None:
                assert best.stage.selection is not None
                found.append((best, records[best.stage.key].dev_scores[best.stage.selection.metric]))
    return found


def _read(model: TrainedModel, digest: str) -> tuple[Any, NDArray[Any]]:
    """The first examples of the test set, as tokens, and their classes."""
    rows = next(rows for rows in model.stage.data.tests if rows.digest == digest)
    read = reader(model.prepared.plan, model.tokeniser, model.prepared.store)
    examples, gold = read(rows, model.stage.data)
    some = np.arange(min(MOST, len(examples)))
    return examples.take(some).tokens, gold[some]


def first_states(encoder: TextEncoder, tokens: Any, device: torch.device, precision: str) -> NDArray[Any]:
    """The states of the first tokens of sequences after the last layer, float32 [n, d], in batches of similar lengths as dev and test are
    evaluated, in the mode that the encoder is in."""
    import torch

    from harness.encoders.models.text_encoder import Batch
    from harness.encoders.tokens import by_length
    from harness.training.forward_backward import autocast

    found = np.zeros((len(tokens), encoder.hidden_size), dtype=np.float32)
    with torch.inference_mode(), autocast(device, precision):
        for rows in by_length(tokens.lengths):
            batch = Batch.of(tokens.take(rows), device)
            found[rows] = encoder(batch, batch.packing.first).float().cpu().numpy()
    return found

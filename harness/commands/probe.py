"""Probes of the pre-trained rows of a prepared table after their saved updates: measured once, recorded in the store."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.commands.execution import storage_of
from harness.commands.prepare import Prepared
from harness.commands.recorded import Recorded
from harness.commands.texts import reader
from harness.commands.trained import Step, View, recorded_digest, start_of, trained_models
from harness.errors import UserError
from harness.methods import METHODS
from harness.specs import Data, Encoder, Parent, Record, Stage, canonical, digest_of
from harness.storage import weights_of
from harness.store import Store
from harness.streams import stream
from harness.tables.caption import counted
from harness.tables.probe_figure import Probed, ProbeFigure
from harness.tasks import open_source
from harness.tasks.similar_pairs import similar_pairs

if TYPE_CHECKING:
    import torch

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
        own = list(dict.fromkeys(rows[key]))
        parts = [part for part in named[own[0]].pre_train.split("+") if part]
        name = named[own[0]].title if len(own) == 1 else "+".join(METHODS[part].title for part in parts)
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


@dataclass(frozen=True)
class Texts:
    """What a probe reads: the corpus as the first line's stage does, similar pairs where it compares texts, and both in words."""

    data: Data
    tokens: Tokens
    identity: Mapping[str, Any]
    about: str
    pairs: tuple[Tokens, Tokens] | None = None
    words: Any = None


@dataclass
class _Results:
    """The results of a probe by their digests: those that the store has, and those measured now, which it gets."""

    store: Store
    figure: ProbeFigure
    texts: Texts
    known: dict[str, dict[str, Any]]

    def digest(self, line: Line, update: int) -> str:
        return digest_of([VERSION, SEED, self.figure.probe, line.key, update, self.texts.identity])

    def measure(self, line: Line, update: int, encoder: TextEncoder, device: str) -> None:
        import torch

        precision = line.stage.optim.precision
        values, samples = _of_encoder(self.figure, encoder, torch.device(device), precision, self.texts)
        body: dict[str, Any] = {"probe": self.figure.probe, "key": line.key, "update": update, "seed": SEED}
        body |= {"of": self.texts.identity, "values": _finite(values), "samples": samples}
        self.store.keep_probe(self.digest(line, update), body)
        self.known[self.digest(line, update)] = body

    def probed(self, lines: Sequence[Line]) -> list[Probed]:
        return [
            Probed(line.name, line.key, update, kept["values"], kept["samples"])
            for line in lines
            for update in line.updates
            if (kept := self.known.get(self.digest(line, update)))
        ]


def _measured(
    prepared: Prepared,
    figure: ProbeFigure,
    lines: Sequence[Line],
    records: Mapping[str, Record],
    data: Data,
    view: View,
) -> tuple[list[Probed], list[str]]:
    """The results of a probe, from the store or new."""
    results = _Results(prepared.store, figure, _texts(prepared, figure, data), {})
    results.known = prepared.store.probes(results.digest(line, update) for line in lines for update in line.updates)
    sentences = [results.texts.about]
    storage = storage_of(prepared.request, prepared.store)
    for line in lines:
        new = [update for update in line.updates if results.digest(line, update) not in results.known]
        if new == [0]:
            results.measure(line, 0, *start_of(prepared, line.stage))
        if new in ([], [0]):
            continue
        steps: dict[Step, int] = {"last" if update == line.stage.optim.steps else update: update for update in new}
        gone = [
            s for s in steps if not (storage.exists(weights_of(line.key, s)) or recorded_digest(records[line.key], s))
        ]
        if gone:
            after = ", ".join(f"{steps.pop(step):,}" for step in gone)
            sentences.append(f"{line.name}: its weights were not saved after update {after}, which is left out.")
        if not steps:
            continue
        found = Recorded(prepared.store, line.stage, records[line.key], prepared.request)
        with trained_models(found, [*steps], view, storage=prepared.request.storage) as model:
            for step, update in steps.items():
                trained = model(step)
                results.measure(line, update, trained.objective.encoder, trained.setup.device)
        now = ", ".join(f"{update:,}" for update in steps.values())
        sentences.append(f"{line.name}: measured now after update {now}, and kept in the store.")
    if not (drawn := results.probed(lines)):
        raise UserError(f"--figure {figure.name}: {' '.join(sentences[1:])} Name rows whose weights are saved.")
    return drawn, sentences


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _texts(prepared: Prepared, figure: ProbeFigure, data: Data) -> Texts:
    """What the probe of a figure reads: sequences of the corpus as stages with these `data` read it."""
    from harness.encoders.tokens import Tokeniser
    from harness.encoders.tokens.cooccurrence import cooccurring_words

    plan = prepared.plan
    if not plan.corpora or plan.located.folder is None:
        raise UserError(
            f"--figure {figure.name}: {', '.join(plan.unresolved) or 'the corpus'} is not at hand; run 'harness bench' with the same values first."
        )
    corpus, tokeniser = plan.corpora[0], Tokeniser(plan.located.folder)
    tokens, _ = reader(plan, tokeniser, prepared.store)(corpus.row_set(), data)
    identity: dict[str, Any] = {"corpus": corpus.digest, "max_length": data.max_length, "blocks": data.blocks}
    of = f"of {corpus.name}"
    if figure.probe == "context":
        some = _drawn(tokens, SEQUENCES, "sequences")
        about = f"Every token of {len(some):,} sequences {of} beside another of its own sequence and one of another sequence, drawn at random."
        return Texts(data, some, {**identity, "sequences": SEQUENCES}, about)
    if figure.probe == "words":
        pairs = cooccurring_words(_drawn(tokens, WORD_SEQUENCES, "words"), tokeniser.words, WORD_PAIRS)
        if not len(pairs):
            raise UserError(
                f"--figure {figure.name}: no two words co-occur often enough in {corpus.name}; take a larger corpus."
            )
        about = (
            f"Word embeddings of {counted(len(pairs), 'pair')} of frequent words {of}, those with the highest normalised pointwise mutual "
            "information. "
            "The paper's pairs were chosen by people and are not named."
        )
        return Texts(data, tokens, {**identity, "pairs": pairs.tolist()}, about, words=pairs)
    given = prepared.named.request.data
    rows, what = similar_pairs(None if given is None else open_source(given))
    order = stream(SEED, "probe_similar_pairs").permutation(len(rows))[:SIMILAR_PAIRS]
    chosen = [rows.texts[i] for i in order]
    one, other = (tokeniser([(pair[side],) for pair in chosen], data.max_length) for side in (0, 1))
    some = _drawn(tokens, 2 * RANDOM_PAIRS, "random_pairs")
    about = (
        f"States of first tokens. Similar: {len(chosen):,} {what}. Random: {len(some) // 2:,} pairs of sequences {of}."
    )
    identity |= {"similar": rows.digest, "pairs": [RANDOM_PAIRS, SIMILAR_PAIRS]}
    return Texts(data, some, identity, about, (one, other))


def _drawn(tokens: Tokens, most: int, purpose: str) -> Tokens:
    """Some of the sequences, drawn without repetition."""
    chosen = stream(SEED, f"probe_{purpose}").permutation(len(tokens))[:most]
    return tokens.take(chosen)


def _of_encoder(
    figure: ProbeFigure, encoder: TextEncoder, device: torch.device, precision: str, texts: Texts
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """The values of a probe, and the numbers behind them."""
    import torch

    from harness.commands.embeddings import first_states
    from harness.objectives.probes import alignment, paired_cosines, uniformity
    from harness.training.forward_backward import autocast

    encoder.to(device).eval()
    with torch.inference_mode(), autocast(device, precision):
        if figure.probe == "words":
            return _of_words(encoder, texts.words, device), {}
        if figure.probe == "context":
            return _of_context(encoder, texts.tokens, device), {}
        assert texts.pairs is not None
        one, other = (first_states(encoder, each, device, precision) for each in texts.pairs)
        similar = paired_cosines(*map(torch.from_numpy, (one, other)))
        if figure.probe == "plane":
            points = _plane(one, other)
            return {"similar_cosine": float(similar.mean())}, {"x": points[:, 0].tolist(), "y": points[:, 1].tolist()}
        states = torch.from_numpy(first_states(encoder, texts.tokens, device, precision))
        half = len(states) // 2
        random = paired_cosines(states[:half], states[half : 2 * half])
        values = {
            "alignment": alignment(*map(torch.from_numpy, (one, other))),
            "uniformity": uniformity(states),
            "random_cosine": random.mean(),
            "similar_cosine": similar.mean(),
        }
        samples = {"random_cosine": random.tolist(), "similar_cosine": similar.tolist()}
        return {name: float(value) for name, value in values.items()}, samples


def _plane(one: Any, other: Any) -> Any:
    """t-SNE of both texts of all pairs, side by side [2 N, 2]."""
    from harness.tables.embedding_figure import plane

    return plane(np.stack([one, other], axis=1).reshape(-1, one.shape[1]))


def _of_words(encoder: Any, pairs: Any, device: Any) -> dict[str, float]:
    import torch

    from harness.objectives.probes import paired_cosines

    embedded = encoder.base.get_input_embeddings()
    shuffled = stream(SEED, "probe_other_words").permutation(pairs[:, 1])
    there = shuffled != pairs[:, 0]
    cosines = [
        paired_cosines(*(embedded(torch.from_numpy(each).to(device)) for each in (ones, others))).mean()
        for ones, others in ((pairs[:, 0], pairs[:, 1]), (pairs[there, 0], shuffled[there]))
    ]
    return dict(zip(("cooccurring_cosine", "other_cosine"), map(float, cosines), strict=True))


def _of_context(encoder: Any, tokens: Tokens, device: Any) -> dict[str, float]:
    """Over parts of PROBED sequences, weighted by their words."""
    from harness.objectives.probes import PROBED, context_cosines

    sums: dict[str, float] = {}
    weight = 0
    for part, rows in _parts(len(tokens), PROBED):
        some = tokens.take(rows)
        found = context_cosines(encoder, some, lambda purpose, k=part: stream(SEED, f"probe_{purpose}", k), device)
        words = int(np.count_nonzero(~some.special))
        weight += words
        for name, value in found.items():
            sums[name] = sums.get(name, 0.0) + words * float(value)
    means = {name: total / weight for name, total in sums.items()}
    return {**means, "contextual_score": means["intra_context_cosine"] - means["inter_context_cosine"]}


def _parts(size: int, width: int) -> Iterator[tuple[int, Any]]:
    """Rows in parts of equal size or one less, so that none holds a single sequence, which would have no other."""
    yield from enumerate(np.array_split(np.arange(size), max(1, size // width)))

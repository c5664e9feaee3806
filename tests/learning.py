"""Pre-training of a small encoder on packaged text by each objective, with measures on held-out text, and what they have to show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from harness.encoders import Located, locate
from harness.encoders.models.batch import Batch
from harness.encoders.models.text_encoder import TextEncoder, load_encoder
from harness.encoders.tokens import Examples, Packed, Tokeniser, Tokens, Vocabulary
from harness.encoders.tokens.corpus_files import tokenise_corpus
from harness.methods import METHODS, UnlabelledPhase, hyperparameters
from harness.objectives import build
from harness.objectives.base import Draw, Measures
from harness.specs import Data, Objective, Optim, RowSet
from harness.streams import stream
from harness.tasks.corpora import open_corpus
from harness.training.loop import Inputs, train

CPU = torch.device("cpu")
BATCH, HELD_OUT, SEED = 32, 128, 0
"""Blocks in an update, held-out blocks, and the seed of everything that is drawn."""
LENGTH = 64
"""Tokens of a block."""

TRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "MLM": ("mlm", {}),
    "TACO": ("taco", {}),
    "ELECTRA": ("electra", {"auxiliary": "shallow"}),
    "CLM only": ("coco_lm", {"contrast": False}),
    "COCO-LM": ("coco_lm", {}),
}
SEQUENCES: tuple[str, dict[str, Any]] = ("coco_lm", {"replacements": "random", "lm": "none"})
"""Whose contrast measures sequences on every encoder, so that objectives can be told apart: its heads play no part in it."""


def masked_accuracy(encoder: TextEncoder, vocabulary: Vocabulary, held_out: Tokens) -> float:
    """Accuracy of the MLM head at 15 % of the held-out tokens, all replaced by the mask: none of them can be copied."""
    mode, right, asked = encoder.training, 0, 0
    encoder.eval()
    with torch.no_grad():
        for index, start in enumerate(range(0, len(held_out), BATCH)):
            tokens = held_out.take(np.arange(start, min(start + BATCH, len(held_out))))
            chosen = (stream(1, "probe", index).random(len(tokens.ids)) < 0.15) & ~tokens.special
            where = torch.from_numpy(np.flatnonzero(chosen))
            ids = np.where(chosen, np.int32(vocabulary.mask_id or 0), tokens.ids)
            states = encoder(Batch.of(tokens, CPU, ids)).index_select(0, where)
            targets = torch.from_numpy(tokens.ids[chosen].astype(np.int64))
            right += int((encoder.mlm_logits(states).argmax(dim=1) == targets).sum())
            asked += len(targets)
    encoder.train(mode)
    return right / asked


@dataclass(frozen=True)
class Setting:
    encoder: str
    steps: int
    lr: float
    folder: Path


def spec_of(method: str, values: dict[str, Any]) -> Objective:
    made = METHODS[method]
    text = UnlabelledPhase(
        Data(RowSet("corpus")), Optim(1e-3, BATCH, 1), SEED, locate("bert-tiny").encoder, "pre-train"
    )
    return hyperparameters(made, values, method).train(text)[-1].objective


def read(setting: Setting, located: Located) -> tuple[Tokens, Tokens, Vocabulary]:
    """(training blocks, held-out blocks, vocabulary)."""
    assert located.folder is not None
    tokeniser, corpus = Tokeniser(located.folder), open_corpus("boolq_prose")
    folder = setting.folder / f"blocks-{located.encoder.digest[:10]}"
    identity = f"{corpus.digest}/{located.encoder.digest}"
    blocks = tokenise_corpus(corpus.texts(), tokeniser, Packed(LENGTH), folder, identity=identity)
    rows = np.arange(len(blocks))
    return blocks.take(rows[:-HELD_OUT]), blocks.take(rows[-HELD_OUT:]), tokeniser.vocabulary


def measure(module: nn.Module, held_out: Tokens, look: Callable[[Tokens, Draw], Measures]) -> dict[str, float]:
    """Means over the held-out blocks, without dropout, the same draws whenever it is called."""
    mode = module.training
    module.eval()
    found: list[Measures] = []
    with torch.no_grad():
        for index, start in enumerate(range(0, len(held_out), BATCH)):
            tokens = held_out.take(np.arange(start, min(start + BATCH, len(held_out))))

            def draw(purpose: str, *more: int, _index: int = index) -> np.random.Generator:
                return stream(SEED + 1, purpose, _index, *more)

            found.append(look(tokens, draw))
    module.train(mode)
    return {name: float(torch.stack([each[name] for each in found]).nanmean()) for name in found[0]}


def measures_of(objective: Any) -> Callable[[Tokens, Draw], Measures]:
    """Of an objective on replaced tokens: the balanced accuracy of telling original from replaced ones (said to be replaced is what is more
    probable than their share), the share of the replaced ones that is corrected, that of the most frequent original among them, and the gap
    between the cosines of a sequence with its own crop and with others."""

    def look(tokens: Tokens, draw: Draw) -> Measures:
        if not hasattr(objective, "terms_of"):
            return Measures()
        kept: list[Any] = []
        with patch.object(objective, "terms_of", lambda seen: kept.append(seen) or {}):
            objective(objective.prepare(Examples(tokens), None, draw).on(CPU))
        (seen,) = kept
        same = seen.original == seen.ids
        said = objective.detector(seen.states)[:, 0].sigmoid() >= same.float().mean()
        right = torch.stack([(said & same).sum() / same.sum(), (~said & ~same).sum() / (~same).sum()])
        words = objective.encoder.embedding_logits(seen.states[~same]).argmax(dim=1)
        originals = seen.original[~same]
        found = {
            "rtd_balanced_accuracy": right.mean(),
            "corrected_share": (words == originals).float().mean(),
            "corrected_by_frequency": torch.bincount(originals).max() / len(originals),
        }
        if len(seen.first_cropped):
            one, other = (nn.functional.normalize(each, dim=1) for each in (seen.first, seen.first_cropped))
            cosines, own = one @ other.T, torch.eye(len(one), dtype=torch.bool)
            found["sequence_gap"] = cosines[own].mean() - cosines[~own].mean()
        return found

    return look


def context_cosines(encoder: TextEncoder, tokens: Tokens, draw: Draw) -> Measures:
    """The means of cos(h_i, h_j) and cos(h_i, h_k) over the words of the text, h_j of another word of the sequence and h_k of one of
    another sequence, each drawn uniformly (TACO, appendix A.3)."""
    unit = nn.functional.normalize(encoder(Batch.of(tokens, CPU)).float(), dim=1).numpy()
    places = np.flatnonzero(~tokens.special)
    sequence = np.searchsorted(tokens.offsets, places, side="right") - 1
    found = {}
    for name, same in (("intra", True), ("inter", False)):
        random = draw(name)
        means = []
        for place, own in zip(places, sequence, strict=True):
            others = places[((sequence == own) == same) & (places != place)]
            means += [float(unit[place] @ unit[random.choice(others)])] if len(others) else []
        found[name] = torch.tensor(np.mean(means))
    return found


def learn(name: str, setting: Setting) -> dict[str, Any]:
    """Train one objective and measure it: its history, a row for every look."""
    torch.set_num_threads(1)
    located = locate(setting.encoder)
    trained, held_out, vocabulary = read(setting, located)
    assert located.folder is not None
    config = located.config if located.new else None
    encoder = load_encoder(located.folder, located.encoder.digest, seed=SEED, config=config)
    optim = Optim(setting.lr, BATCH, setting.steps, warmup=0.1, clip=2.0, weight_decay=0.01, dropout=0.0)
    objective = build(spec_of(*TRAINED[name]), encoder, vocabulary, None, optim.dropout, SEED)
    sequences = build(spec_of(*SEQUENCES), encoder, vocabulary, None, 0.0, SEED)
    rows: list[dict[str, Any]] = []

    def look(entry: dict[str, Any]) -> None:
        row = {"step": entry["step"], **measure(objective, held_out, measures_of(objective))}
        context = measure(encoder, held_out, lambda tokens, draw: context_cosines(encoder, tokens, draw))
        sequence = measure(sequences, held_out, measures_of(sequences))
        row["context_gap"] = context["intra"] - context["inter"]
        row["sequence_gap"] = sequence["sequence_gap"]
        if objective.uses_mlm_head:
            row["masked_accuracy"] = masked_accuracy(encoder, vocabulary, held_out)
        rows.append(row)

    look({"step": 0})
    train(objective, Inputs(Examples(trained)), optim, SEED, report=look, log_every=max(1, setting.steps // 5))
    counts = np.bincount(trained.ids[~trained.special])
    unigram = float((held_out.ids[~held_out.special] == counts.argmax()).mean())
    return {"name": name, "rows": rows, "unigram": unigram}


def laws(learned: dict[str, dict[str, Any]]) -> list[tuple[str, str, float, str, float, bool]]:
    """What has to hold: (objective, what is measured, its value, against what, that value, whether it holds)."""
    first = {name: each["rows"][0] for name, each in learned.items()}
    last = {name: each["rows"][-1] for name, each in learned.items()}
    rows = []

    def above(name: str, key: str, against: str, value: float) -> None:
        rows.append((name, key, last[name][key], against, value, last[name][key] > value))

    above("MLM", "masked_accuracy", "the most frequent token throughout", learned["MLM"]["unigram"])
    for name in ("ELECTRA", "CLM only", "COCO-LM"):
        above(name, "rtd_balanced_accuracy", "chance", 0.5)
    for name in ("CLM only", "COCO-LM"):
        by_frequency = last[name]["corrected_by_frequency"]
        above(name, "corrected_share", "the most frequent original throughout", by_frequency)
    above("TACO", "context_gap", "TACO before training", first["TACO"]["context_gap"])
    above("TACO", "context_gap", "MLM after as many updates", last["MLM"]["context_gap"])
    above("COCO-LM", "sequence_gap", "COCO-LM before training", first["COCO-LM"]["sequence_gap"])
    above("COCO-LM", "sequence_gap", "CLM only after as many updates", last["CLM only"]["sequence_gap"])
    return rows

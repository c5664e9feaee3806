"""Does each pre-training objective learn what it says? A small encoder, packaged text, measures on held-out text.

    python benchmarks/learning.py [--encoder bert-tiny] [--steps 200] [--out FOLDER]

Each objective pre-trains the encoder for a few hundred updates on BoolQ's passages, in a process of its own with one
thread; before, in between and after, it is measured on passages that it does not see, with the same draws each time. Prints a
table with what has to hold, writes measures as JSON and a picture, and exits with 1 when something does not hold.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tabulate import tabulate
from torch import nn

from harness.encoders import Located, locate
from harness.encoders.models.text_encoder import Batch, TextEncoder, load_encoder
from harness.encoders.tokens import Tokeniser, Tokens, Vocabulary
from harness.encoders.tokens.corpus_files import tokenise_corpus
from harness.methods import METHODS, UnlabelledPhase, hyperparameters
from harness.objectives import build
from harness.objectives.base import Draw, Measures, TrainingObjective
from harness.objectives.probes import context_cosines
from harness.specs import Data, Objective, Optim, RowSet
from harness.streams import stream
from harness.tasks import open_corpus
from harness.training.loop import Inputs, mean_measures, train

CPU = torch.device("cpu")
LENGTH, BATCH, HELD_OUT, SEED = 64, 32, 128, 0
"""Tokens in a block, blocks in an update, held-out blocks, and the seed of everything that is drawn."""

TRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "MLM": ("mlm", {}),
    "TACO": ("taco", {}),
    "ELECTRA": ("electra", {"auxiliary": "shallow"}),
    "CLM only": ("coco_lm", {"contrast": False}),
    "COCO-LM": ("coco_lm", {}),
}
SEQUENCES: tuple[str, dict[str, Any]] = ("coco_lm", {"replacements": "random", "lm": "none"})
"""Whose probe measures sequences on every encoder, so that objectives can be told apart: its heads play no part in it."""


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
    assert made.train is not None
    return made.train(hyperparameters(made, values, method), text)[-1].objective


def read(setting: Setting, located: Located) -> tuple[Tokens, Tokens, Vocabulary]:
    """(training blocks, held-out blocks, vocabulary)."""
    assert located.folder is not None
    tokeniser, corpus = Tokeniser(located.folder), open_corpus("boolq_prose")
    folder = setting.folder / f"blocks-{located.encoder.digest[:10]}"
    identity = f"{corpus.digest}/{located.encoder.digest}"
    blocks = tokenise_corpus(corpus.texts(), tokeniser, LENGTH, "packed", folder, identity=identity)
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
    return mean_measures(found)


def measures_of(objective: TrainingObjective) -> Callable[[Tokens, Draw], Measures]:
    """What the objective logs beside its loss."""

    def look(tokens: Tokens, draw: Draw) -> Measures:
        views, found = objective.prepare(tokens, None, draw), Measures()
        objective(Batch.of(views.tokens, CPU, views.ids), views, found)
        return found

    return look


def masked_accuracy(encoder: TextEncoder, vocabulary: Vocabulary, held_out: Tokens) -> float:
    """Accuracy of the MLM head at 15 % of the held-out tokens, all replaced by the mask: none of them can be copied."""
    mode, right, asked = encoder.training, 0, 0
    encoder.eval()
    with torch.no_grad():
        for index, start in enumerate(range(0, len(held_out), BATCH)):
            tokens = held_out.take(np.arange(start, min(start + BATCH, len(held_out))))
            chosen = (stream(SEED + 1, "probe", index).random(len(tokens.ids)) < 0.15) & ~tokens.special
            where = torch.from_numpy(np.flatnonzero(chosen))
            ids = np.where(chosen, np.int32(vocabulary.mask_id or 0), tokens.ids)
            states = encoder(Batch.of(tokens, torch.device("cpu"), ids)).index_select(0, where)
            targets = torch.from_numpy(tokens.ids[chosen].astype(np.int64))
            right += int((encoder.mlm_logits(states).argmax(dim=1) == targets).sum())
            asked += len(targets)
    encoder.train(mode)
    return right / asked


def learn(name: str, setting: Setting) -> dict[str, Any]:
    """Train one objective and measure it: its history, a row for every look."""
    torch.set_num_threads(1)
    located = locate(setting.encoder)
    trained, held_out, vocabulary = read(setting, located)
    assert located.folder is not None
    config = located.config if located.new else None
    encoder = load_encoder(located.folder, located.encoder.digest, seed=SEED, config=config)
    optim = Optim(setting.lr, BATCH, setting.steps, warmup=0.1, clip=2.0, weight_decay=0.01, dropout=0.0)
    objective = build(spec_of(*TRAINED[name]), encoder, vocabulary, 0, optim.dropout, SEED)
    sequences = build(spec_of(*SEQUENCES), encoder, vocabulary, 0, 0.0, SEED)
    started, rows = time.perf_counter(), []

    def look(entry: dict[str, Any]) -> None:
        row = {"step": entry["step"], **measure(objective, held_out, measures_of(objective))}
        context = measure(encoder, held_out, lambda tokens, draw: context_cosines(encoder, tokens, draw, CPU))
        sequence = measure(sequences, held_out, lambda tokens, draw: sequences.probe(tokens, draw, CPU))
        row["context_gap"] = context["intra_context_cosine"] - context["inter_context_cosine"]
        row["sequence_gap"] = sequence["positive_sequence_cosine"] - sequence["negative_sequence_cosine"]
        if objective.uses_mlm_head:
            row["masked_accuracy"] = masked_accuracy(encoder, vocabulary, held_out)
        rows.append(row)
        print(f"{name}: {row['step']}/{setting.steps} updates", file=sys.stderr, flush=True)

    look({"step": 0})
    train(objective, Inputs(trained), optim, SEED, report=look, log_every=max(1, setting.steps // 5))
    counts = np.bincount(trained.ids[~trained.special])
    unigram = float((held_out.ids[~held_out.special] == counts.argmax()).mean())
    return {"name": name, "rows": rows, "seconds": time.perf_counter() - started, "unigram": unigram}


def laws(found: dict[str, dict[str, Any]]) -> list[tuple[str, str, float, str, float, bool]]:
    """What has to hold: (objective, what is measured, its value, against what, that value, whether it holds)."""
    first = {name: each["rows"][0] for name, each in found.items()}
    last = {name: each["rows"][-1] for name, each in found.items()}
    rows = []

    def above(name: str, key: str, against: str, value: float) -> None:
        rows.append((name, key, last[name][key], against, value, last[name][key] > value))

    above("MLM", "masked_accuracy", "the most frequent token throughout", found["MLM"]["unigram"])
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


def picture(found: dict[str, dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    panels: list[tuple[str, str, tuple[str, ...], Callable[[dict[str, Any]], float] | None]] = [
        ("MLM accuracy at masked tokens", "masked_accuracy", ("MLM", "TACO"), lambda f: f["MLM"]["unigram"]),
        ("balanced accuracy of RTD", "rtd_balanced_accuracy", ("ELECTRA", "CLM only", "COCO-LM"), lambda f: 0.5),
        ("replaced tokens corrected", "corrected_share", ("CLM only", "COCO-LM"), None),
        ("intra- minus inter-context cosine", "context_gap", tuple(TRAINED), None),
        ("positive minus negative cosine of sequences", "sequence_gap", tuple(TRAINED), None),
    ]
    figure, grid = pyplot.subplots(2, 3, figsize=(12, 6.4), constrained_layout=True)
    *axes, blank = grid.flat
    colours = dict(zip(TRAINED, pyplot.rcParams["axes.prop_cycle"].by_key()["color"], strict=False))
    lines = {}
    for axis, (title, key, names, reference) in zip(axes, panels, strict=True):
        for name in names:
            rows = found[name]["rows"]
            steps, values = [r["step"] for r in rows], [r[key] for r in rows]
            (lines[name],) = axis.plot(steps, values, marker="o", ms=3, color=colours[name])
        if reference:
            lines["without learning"] = axis.axhline(reference(found), color="grey", ls=":")
        if key == "corrected_share":
            rows = found["COCO-LM"]["rows"]
            axis.plot([r["step"] for r in rows], [r["corrected_by_frequency"] for r in rows], color="grey", ls=":")
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("updates")
    blank.axis("off")
    blank.legend([lines[n] for n in (*TRAINED, "without learning")], [*TRAINED, "without learning"], loc="center")
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--encoder", default="bert-tiny", help="a packaged name, new:SIZE, a folder or a hub id")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--out", type=Path, default=Path(".harness/learning"))
    args = parser.parse_args()
    setting = Setting(args.encoder, args.steps, args.lr, args.out)
    args.out.mkdir(parents=True, exist_ok=True)
    read(setting, locate(args.encoder))  # the blocks are made once, before the processes share them
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        found = dict(zip(TRAINED, pool.map(learn, TRAINED, [setting] * len(TRAINED)), strict=True))
    rows = laws(found)
    headers = ("objective", "measure", "after", "against", "there", "holds")
    print(
        f"{args.encoder}, {args.steps} updates of {BATCH} x {LENGTH} tokens, lr {args.lr:g}, {HELD_OUT} held-out blocks"
    )
    print(tabulate(rows, headers=headers, floatfmt=".3f"))
    print("; ".join(f"{name} {each['seconds']:.0f} s" for name, each in found.items()))
    (args.out / "learning.json").write_text(
        json.dumps({"setting": vars(args) | {"out": str(args.out)}, **found}, indent=1)
    )
    picture(found, args.out / "learning.png")
    print(f"written: {args.out / 'learning.json'}, {args.out / 'learning.png'}")
    return 0 if all(row[-1] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

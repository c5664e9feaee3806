"""The four curves of table learning_curves in one picture: accuracy after fine-tuning, and the loss at masked tokens of blocks that
pre-training did not draw, in nats, beside that of the unigram distribution.

    python benchmarks/learning_curves.py --preset laptop --out curves

reads the store of a `harness bench --table learning_curves --keep all` and trains nothing. The loss of MLM and TACO is that of their saved
weights at 15 % of the tokens of 128 such blocks, all replaced by the mask. ELECTRA and COCO-LM discard the auxiliary network that is
trained by MLM, so theirs is the mean over the updates between two entries of the record's history, at tokens that are all replaced by
the mask too and, within the first epoch, of blocks not seen before.
"""

import argparse
import itertools
import sys
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from harness.commands.execution import storage_of
from harness.commands.prepare import Prepared, prepare
from harness.commands.report import grid_of
from harness.commands.texts import reader
from harness.encoders.models.text_encoder import Batch, load_encoder
from harness.encoders.models.weights import checked_weights
from harness.encoders.tokens import Tokeniser, Tokens, Vocabulary
from harness.errors import UserError
from harness.methods import METHODS
from harness.objectives.losses import masked_lm
from harness.planning.request import Request
from harness.report.figures.figure import Point, canvas_of, csv_of, figure_of, points_of
from harness.report.figures.panels import file_of
from harness.specs import Parent, Stage
from harness.streams import stream
from harness.training.loop import batch_order

UNSEEN, BATCH, MASKED, SEED = 128, 32, 0.15, 1
"""Unseen blocks, blocks of them at once, the share of their tokens that is masked, and the seed of which ones."""
PANEL, HISTORY = "Masked tokens of unseen text", "auxiliary_mlm"


def split(stage: Stage, blocks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of so many blocks (those that pre-training draws, the next UNSEEN in the order of its first epoch). Raises UserError where it
    leaves fewer."""
    optim = stage.optim
    drawn, epoch = optim.steps * optim.batch_size, -(-blocks // optim.batch_size)
    if drawn + UNSEEN > blocks:
        raise UserError(
            f"{optim.steps} updates of {optim.batch_size} leave fewer than {UNSEEN} of {blocks:,} blocks unseen."
        )
    order = np.concatenate(list(itertools.islice(batch_order(blocks, optim.batch_size, stage.seed), epoch)))
    return order[:drawn], order[drawn : drawn + UNSEEN]


def masked(tokens: Tokens, index: int) -> NDArray[np.bool_]:
    """[T]: the tokens that are masked in the batch `index` of unseen blocks."""
    return (stream(SEED, "probe", index).random(len(tokens.ids)) < MASKED) & ~tokens.special


def batches(blocks: Tokens) -> list[Tokens]:
    return [blocks.take(np.arange(start, min(start + BATCH, len(blocks)))) for start in range(0, len(blocks), BATCH)]


def unigram_loss(drawn: Tokens, held_out: Tokens, size: int) -> float:
    """Nats a masked token under the frequencies in the blocks that are drawn, each of `size` entries counted once more."""
    counts = 1.0 + np.bincount(drawn.ids[~drawn.special], minlength=size)
    targets = np.concatenate([each.ids[masked(each, index)] for index, each in enumerate(batches(held_out))])
    return float(-np.log(counts[targets] / counts.sum()).mean())


def weights_loss(prepared: Prepared, stage: Stage, step: int, held_out: Tokens, vocabulary: Vocabulary) -> float:
    """Nats a masked token of the MLM head after an update of pre-training, without dropout."""
    located, storage = prepared.plan.located, storage_of(prepared.request, prepared.store)
    assert located.folder is not None
    config = located.config if located.new else None
    encoder = load_encoder(located.folder, stage.encoder.digest, seed=stage.seed, config=config)
    kept = "last" if step == stage.optim.steps else step
    encoder.load_parts(checked_weights(storage, stage.key, kept)[0], ("encoder", "mlm_head"))
    encoder.eval()
    losses, counts = [], []
    with torch.inference_mode():
        for index, tokens in enumerate(batches(held_out)):
            chosen = masked(tokens, index)
            ids = np.where(chosen, np.int32(vocabulary.mask_id or 0), tokens.ids)
            states = encoder(Batch.of(tokens, torch.device("cpu"), ids), torch.from_numpy(np.flatnonzero(chosen)))
            targets = torch.from_numpy(tokens.ids[chosen].astype(np.int64))
            losses.append(float(masked_lm(encoder.mlm_logits(states), targets)))
            counts.append(len(targets))
    return float(np.average(losses, weights=counts))


def losses(prepared: Prepared) -> list[Point]:
    """The loss of each objective after the updates that rows start from, or of its record's history, and that of unigrams."""
    starts: dict[str, tuple[str, Stage, set[int]]] = {}
    names = {row.name: METHODS[row.pre_train].title for row in prepared.resolved.rows if row.pre_train}
    for run in prepared.plan.runs:
        if isinstance(run.stage.init, Parent):
            parent, step = run.stage.init.stage, run.stage.init.step
            _, _, steps = starts.setdefault(parent.key, (names[run.row], parent, set()))
            steps.add(parent.optim.steps if isinstance(step, str) else step)
    folder = prepared.plan.located.folder
    assert folder is not None
    tokeniser = Tokeniser(folder)
    _, first, _ = next(iter(starts.values()))
    blocks = reader(prepared.plan, tokeniser, prepared.store)(first.data.train, first.data)[0].tokens
    drawn, others = split(first, len(blocks))
    held_out, vocabulary = blocks.take(others), tokeniser.vocabulary
    found = [point_of(None, "unigrams (loss)", unigram_loss(blocks.take(np.sort(drawn)), held_out, vocabulary.size))]
    records = prepared.store.records(list(starts))
    for key, (name, stage, steps) in starts.items():
        if key not in records or records[key].status != "done":
            print(f"{name}: its pre-training is not recorded, so its loss is left out.", file=sys.stderr)
        elif HISTORY in records[key].history[0]:
            found += [point_of(entry["step"], name, entry[HISTORY]) for entry in records[key].history]
        else:
            found += [
                point_of(step, name, weights_loss(prepared, stage, step, held_out, vocabulary))
                for step in sorted(steps)
            ]
    return found


def point_of(step: int | None, name: str, nats: float) -> Point:
    return Point(
        PANEL, "nats", "loss", 0, step, name if step is None else f"{name}-{step}", nats, None, 1, 1, None, name
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--preset", default="laptop")
    parser.add_argument("--store", help="as of harness bench")
    parser.add_argument("--out", type=Path, default=Path("learning_curves"), help="written: OUT.png and OUT.csv")
    args = parser.parse_args()
    torch.set_num_threads(1)
    try:
        prepared = prepare(Request("learning_curves", preset=args.preset, store=args.store), train=False)
        points = points_of(grid_of(prepared)[0]) + losses(prepared)
    except (UserError, FileNotFoundError) as error:
        print(f"learning_curves.py: {error}", file=sys.stderr)
        return 2
    shown = figure_of(prepared.resolved)

    def drawn() -> object:
        canvas = canvas_of(points, shown)
        canvas.axes[-1].set(ylabel="loss in nats")
        return canvas

    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".csv").write_text(csv_of(points))
    args.out.with_suffix(".png").write_bytes(file_of(drawn, "png"))
    print(f"written: {args.out.with_suffix('.csv')}, {args.out.with_suffix('.png')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How good is the MLM head that post-training starts from? Accuracy at masked tokens of prose that no stage has read.

    harness bench --table mlm_head                             # trains the stages; their weights stay in the store's folder
    python benchmarks/mlm_head.py [--encoder bert-tiny] [--store URL]

The held-out prose is the passages of BoolQ's development file, which the corpus `boolq_prose` leaves out. 15 % of the tokens are
masked, all by [MASK], so that none can be copied; the same tokens for every stage. Stages that were not trained are named.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import torch
from tabulate import tabulate

from harness.cli.request import read_words
from harness.commands.execution import storage_of
from harness.commands.prepare import prepare
from harness.encoders.models.text_encoder import Batch, TextEncoder, load_encoder
from harness.encoders.models.weights import checked_weights
from harness.encoders.tokens import Tokeniser, Tokens, Vocabulary
from harness.specs import Stage
from harness.storage import Storage, weights_of
from harness.streams import stream
from harness.tasks import load_corpus
from harness.tasks.packaged import packaged_rows

HELD_OUT, LENGTH, BATCH, SEED = 512, 64, 32, 1
"""Passages that are measured on, their most tokens, how many are read at once, and the seed of which tokens are masked."""


def masked_accuracy(encoder: TextEncoder, vocabulary: Vocabulary, held_out: Tokens) -> float:
    """Accuracy of the MLM head at 15 % of the held-out tokens, all replaced by the mask: none of them can be copied."""
    mode, right, asked = encoder.training, 0, 0
    encoder.eval()
    with torch.no_grad():
        for index, start in enumerate(range(0, len(held_out), BATCH)):
            tokens = held_out.take(np.arange(start, min(start + BATCH, len(held_out))))
            chosen = (stream(SEED, "probe", index).random(len(tokens.ids)) < 0.15) & ~tokens.special
            where = torch.from_numpy(np.flatnonzero(chosen))
            ids = np.where(chosen, np.int32(vocabulary.mask_id or 0), tokens.ids)
            states = encoder(Batch.of(tokens, torch.device("cpu"), ids)).index_select(0, where)
            targets = torch.from_numpy(tokens.ids[chosen].astype(np.int64))
            right += int((encoder.mlm_logits(states).argmax(dim=1) == targets).sum())
            asked += len(targets)
    encoder.train(mode)
    return right / asked


def stages_of(encoder: str, store: str) -> dict[str, tuple[Stage, Storage]]:
    """What post-training can start from, by name, with the storage of its weights."""
    found = {}
    preset = "quick" if encoder == "bert-tiny" else "laptop"
    for name, frozen, phase in (
        ("MLM of the whole model", "false", "mlm-head"),
        ("MLM of the head alone", "true", "mlm-head"),
        ("the former warm-up (rows 'after MLM')", "false", "pre-train"),
    ):
        words = f"plan --table mlm_head --preset {preset} --encoder {encoder} --tasks movies --subsets 0"
        words += f" --seeds 31 --set mlm_head.frozen={frozen}" + (f" --store {store}" if store else "")
        prepared = prepare(read_words(words.split()), train=False)
        stage = next(stage for stage in prepared.plan.stages.values() if stage.phase == phase)
        found[name] = (stage, storage_of(prepared.request, prepared.store))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--encoder", default="bert-tiny", help="bert-tiny or minilm")
    parser.add_argument("--store", default="", help="the store of the bench (default: .harness/harness.db)")
    args = parser.parse_args()
    from harness.encoders import locate

    located = locate(args.encoder)
    assert located.folder is not None
    tokeniser = Tokeniser(located.folder)
    passages = sorted({(passage,) for _, passage in packaged_rows("boolq", "validation").texts})
    held_out = tokeniser(passages[:HELD_OUT], LENGTH)
    prose = tokeniser(load_corpus("boolq_prose").texts, LENGTH)
    frequent = np.bincount(prose.ids[~prose.special]).argmax()
    unigram = float((held_out.ids[~held_out.special] == frequent).mean())
    rows: list[tuple[str, str, str]] = [("the most frequent token throughout", "", f"{unigram:.3f}")]
    encoder = load_encoder(located.folder, located.encoder.digest, seed=0)
    rows.append(("the encoder as it is", "", f"{masked_accuracy(encoder, tokeniser.vocabulary, held_out):.3f}"))
    missing = 0
    for name, (stage, storage) in stages_of(args.encoder, args.store).items():
        if not storage.exists(weights_of(stage.key)):
            rows.append((name, f"{stage.optim.steps}", "not trained"))
            missing += 1
            continue
        encoder = load_encoder(located.folder, located.encoder.digest, seed=stage.seed)
        encoder.load_parts(checked_weights(storage, stage.key)[0], ("encoder", "mlm_head"))
        recipe = f"{stage.optim.steps} updates, lr {stage.optim.lr:g}"
        rows.append((name, recipe, f"{masked_accuracy(encoder, tokeniser.vocabulary, held_out):.3f}"))
    print(f"{args.encoder}, {len(held_out)} held-out passages of at most {LENGTH} tokens")
    print(tabulate(rows, headers=("start of post-training", "trained for", "accuracy at masks"), disable_numparse=True))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())

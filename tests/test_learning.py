"""Pre-training objectives learn: a small encoder on packaged text by each, with measures on held-out text, and what they have to show (slow: 200 updates of each).

pytest tests/test_learning.py -m slow -rP      # under six minutes on two cores, with what was measured
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from harness.encoders import locate
from harness.encoders.models.batch import Batch
from harness.encoders.models.text_encoder import load_encoder
from harness.encoders.tokens import Examples, Tokeniser, Tokens
from harness.encoders.tokens.corpus_files import tokenise_corpus
from harness.encoders.tokens.reading import Packed
from harness.methods import METHODS, UnlabelledPhase, hyperparameters
from harness.objectives import build
from harness.specs import Data, Optim, RowSet
from harness.streams import stream
from harness.tasks.corpora import open_corpus
from harness.training.loop import Inputs, train

CPU = torch.device("cpu")
BATCH, HELD_OUT, LENGTH, STEPS, SEED = 32, 128, 64, 200, 0
"""Blocks in an update, held-out blocks, tokens of a block, updates, and the seed of everything that is drawn."""
TRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "MLM": ("mlm", {}),
    "TACO": ("taco", {}),
    "ELECTRA": ("electra", {"auxiliary": "shallow"}),
    "CLM only": ("coco_lm", {"contrast": False}),
    "COCO-LM": ("coco_lm", {}),
}
SEQUENCES: tuple[str, dict[str, Any]] = ("coco_lm", {"replacements": "random", "lm": "none"})
"""Whose contrast measures sequences on every encoder, so that objectives can be told apart: its heads play no part in it."""


class Learner:
    """An encoder that an objective trains. Measures are of 32 held-out blocks at a time, without dropout, the same draws whenever they are taken."""

    def __init__(self, folder: Path) -> None:
        located, corpus = locate("bert-tiny"), open_corpus("boolq_prose")
        assert located.folder is not None
        tokeniser = Tokeniser(located.folder)
        blocks = tokenise_corpus(corpus.texts(), tokeniser, Packed(LENGTH), folder / "blocks", corpus.digest)
        rows = np.arange(len(blocks))
        self.text, held_out = blocks.take(rows[:-HELD_OUT]), blocks.take(rows[-HELD_OUT:])
        self.parts = [held_out.take(np.arange(start, start + BATCH)) for start in range(0, HELD_OUT, BATCH)]
        counts = np.bincount(self.text.ids[~self.text.special])
        self.unigram = float((held_out.ids[~held_out.special] == counts.argmax()).mean())
        self.vocabulary, self.located = tokeniser.vocabulary, located

    def learn(self, name: str) -> tuple[dict[str, float], dict[str, float]]:
        """Measures before and after the training."""
        torch.set_num_threads(1)
        self.encoder = load_encoder(Path(str(self.located.folder)), self.located.encoder.digest, seed=SEED)
        objective, self.sequences = self.built(*TRAINED[name]), self.built(*SEQUENCES)
        optim = Optim(1e-3, BATCH, STEPS, warmup=0.1, clip=2.0, weight_decay=0.01, dropout=0.0)
        before = self.measured(objective)
        train(objective, Inputs(Examples(self.text)), optim, SEED)
        return before, self.measured(objective)

    def built(self, method: str, values: dict[str, Any]) -> Any:
        text = UnlabelledPhase(Data(RowSet("c")), Optim(1e-3, BATCH, 1), SEED, self.located.encoder, "pre-train")
        spec = hyperparameters(METHODS[method], values, method).train(text)[-1].objective
        return build(spec, self.encoder, self.vocabulary, None, SEED)

    def measured(self, objective: Any) -> dict[str, float]:
        objective.eval()
        self.sequences.eval()
        found: list[dict[str, Any]] = []
        with torch.no_grad():
            for index, tokens in enumerate(self.parts):
                of_context = self.context_gap(tokens, index)
                of_sequences = self.replaced(self.sequences, tokens, index)["sequence_gap"]
                found.append(
                    {**self.replaced(objective, tokens, index), "context_gap": of_context, "sequence_gap": of_sequences}
                )
                if objective.uses_mlm_head:
                    found[-1]["masked_accuracy"] = self.masked_accuracy(tokens, index)
        objective.train()
        return {name: float(np.nanmean([float(each[name]) for each in found])) for name in found[0]}

    def masked_accuracy(self, tokens: Tokens, index: int) -> Any:
        """Of the MLM head at 15 % of the tokens, all replaced by the mask: none of them can be copied."""
        chosen = (stream(1, "probe", index).random(len(tokens.ids)) < 0.15) & ~tokens.special
        masked = np.where(chosen, np.int32(self.vocabulary.mask_id or 0), tokens.ids)
        states = self.encoder(Batch.of(replace(tokens, ids=masked), CPU))
        return (self.encoder.mlm_logits(states[chosen]).argmax(dim=1).numpy() == tokens.ids[chosen]).mean()

    def replaced(self, objective: Any, tokens: Tokens, index: int) -> dict[str, Any]:
        """Of an objective on replaced tokens: the balanced accuracy of telling original from replaced ones (said to be replaced is what is more
        probable than their share), the share of the replaced ones that is corrected, that of the most frequent original among them, and the gap
        between the cosines of a sequence with its own crop and with others."""
        if not hasattr(objective, "detector"):
            return {}
        views = objective.prepare(Examples(tokens), None, lambda p, *m: stream(SEED + 1, p, index, *m))
        main, original = objective.replace(views.on(CPU))
        hidden, ids = objective.encoder(main), main.ids[: len(original)]
        states, first = hidden[: len(original)], hidden.index_select(0, main.first)
        corrupted, cropped = first[: len(tokens)], first[len(tokens) :]
        same = original == ids
        said = objective.detector(states)[:, 0].sigmoid() >= same.float().mean()
        words, originals = objective.encoder.embedding_logits(states[~same]).argmax(dim=1), original[~same]
        found = {
            "rtd_balanced_accuracy": ((said & same).sum() / same.sum() + (~said & ~same).sum() / (~same).sum()) / 2,
            "corrected_share": (words == originals).float().mean(),
            "corrected_by_frequency": torch.bincount(originals).max() / len(originals),
        }
        if len(cropped):
            cosines, own = normalize(corrupted) @ normalize(cropped).T, torch.eye(len(corrupted)).bool()
            found["sequence_gap"] = cosines[own].mean() - cosines[~own].mean()
        return found

    def context_gap(self, tokens: Tokens, index: int) -> Any:
        """The mean of cos(h_i, h_j) less that of cos(h_i, h_k) over the words of the text, h_j of another word of the sequence and h_k of one of
        another sequence, each drawn uniformly (TACO, appendix A.3)."""
        unit = normalize(self.encoder(Batch.of(tokens, CPU)).float()).numpy()
        places = np.flatnonzero(~tokens.special)
        sequence = np.searchsorted(tokens.offsets, places, side="right") - 1
        means = []
        for name, same in (("intra", True), ("inter", False)):
            random = stream(SEED + 1, name, index)
            others = [
                places[((sequence == own) == same) & (places != place)]
                for place, own in zip(places, sequence, strict=True)
            ]
            means.append(
                np.mean([unit[i] @ unit[random.choice(o)] for i, o in zip(places, others, strict=True) if len(o)])
            )
        return means[0] - means[1]


@pytest.mark.slow
@pytest.mark.usefixtures("packaged")
def test_every_objective_learns(tmp_path: Path) -> None:
    """On Wikipedia's passages, from bert-tiny."""
    learner = Learner(tmp_path)
    learned = {name: learner.learn(name) for name in TRAINED}
    first, last = ({name: each[at] for name, each in learned.items()} for at in (0, 1))
    laws = [("MLM", "masked_accuracy", "the most frequent token throughout", learner.unigram)]
    laws += [(name, "rtd_balanced_accuracy", "chance", 0.5) for name in ("ELECTRA", "CLM only", "COCO-LM")]
    for name in ("CLM only", "COCO-LM"):
        laws.append(
            (name, "corrected_share", "the most frequent original throughout", last[name]["corrected_by_frequency"])
        )
    for name, key, other in (("TACO", "context_gap", "MLM"), ("COCO-LM", "sequence_gap", "CLM only")):
        laws.append((name, key, f"{name} before training", first[name][key]))
        laws.append((name, key, f"{other} after as many updates", last[other][key]))
    broken = []
    for name, key, against, value in laws:
        print(f"{name}, {key}: {last[name][key]:.3f}, {against}: {value:.3f}")
        broken += [] if last[name][key] > value else [(name, key, against)]
    assert not broken

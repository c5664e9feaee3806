"""How often the intervals of `compare --labels` hold at a larger size that they have not seen: a linear classifier on TF-IDF of real texts.

    python benchmarks/next_label.py GLUE_FOLDER

Of each task 12 tables of 5 subsets x 3 seeds. From the sizes up to each one the gain to the next is predicted and compared with the mean gain of all tables. Other
exponents than the product's are for comparison. Minutes on one core.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import SGDClassifier

from harness.statistics.learning_curve import EXPONENTS, LEAST_SIZES, more_examples, worth

SIZES = (20, 50, 100, 200, 500, 1000, 2000)
TEXTS = {"sst2": "sentence", "cola": "sentence", "yelp_polarity": "text", "amazon_polarity": "content"}
TABLES, SUBSETS, SEEDS = 12, 5, 3
MOST_TEST = 1500
RULES: dict[str, Sequence[float]] = {
    "exponents -0.5 to 1.5": EXPONENTS,
    "exponents 0 to 1": [c for c in EXPONENTS if 0 <= c <= 1],
    "log n alone": [0.0],
}


def scores_of(folder: Path, task: str) -> tuple[tuple[int, ...], NDArray[np.float64]]:
    """The sizes, and accuracies (tables, sizes, subsets, seeds) in points."""
    train, test = (pd.read_parquet(folder / task / f"{split}.parquet") for split in ("train", "validation"))
    test = test.iloc[:MOST_TEST]
    vectors = TfidfVectorizer(min_df=2, sublinear_tf=True)
    inputs, held_out = vectors.fit_transform(train[TEXTS[task]]), vectors.transform(test[TEXTS[task]])
    labels, gold = train["label"].to_numpy(), test["label"].to_numpy()
    sizes = tuple(size for size in SIZES if 2 * size <= len(train))
    rng, found = np.random.default_rng(0), np.zeros((TABLES, len(sizes), SUBSETS, SEEDS))
    for table, k, subset in np.ndindex(TABLES, len(sizes), SUBSETS):
        size = sizes[k]
        rows = rng.choice(len(labels), size, replace=False)
        while len(set(labels[rows])) < 2:
            rows = rng.choice(len(labels), size, replace=False)
        for seed in range(SEEDS):
            model = SGDClassifier(
                loss="log_loss", alpha=1e-3, max_iter=max(5, 3000 // size), tol=None, random_state=seed
            )
            found[table, k, subset, seed] = 100 * model.fit(inputs[rows], labels[rows]).score(held_out, gold)
    return sizes, found


def main(folder: Path) -> None:
    lines = []
    for task in TEXTS:
        sizes, scores = scores_of(folder, task)
        means = scores.mean(axis=(0, 2, 3))
        print(task, ", ".join(f"{size:,}: {mean:.1f}" for size, mean in zip(sizes, means, strict=True)), flush=True)
        for k in range(LEAST_SIZES, len(sizes)):
            gain = means[k] - means[k - 1]
            figure = more_examples(sizes[k - 1], sizes[k] - sizes[k - 1])
            for name, exponents in RULES.items():
                found = worth(scores[:, :k], sizes[:k], figure, exponents=exponents)
                said = ~np.isnan(found.low)
                held = said & (found.low <= gain) & (gain <= found.high)
                row = {
                    "task": task,
                    "rule": name,
                    "said": 100 * said.mean(),
                    "holds": 100 * held.sum() / max(1, said.sum()),
                }
                lines.append({**row, "gain": gain, "width": float(np.nanmedian(found.high - found.low))})
    frame = pd.DataFrame(lines)
    print(frame.groupby(["rule", "task"], sort=False).mean(numeric_only=True).round(1).to_string())
    print(frame.groupby("rule", sort=False)[["said", "holds", "width"]].mean().round(1).to_string())


if __name__ == "__main__":
    main(Path(sys.argv[1]))

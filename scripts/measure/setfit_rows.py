"""SetFit on the rows of a table: the same training subsets and the same test rows, as another system's rows beside those of the harness.

SetFit has an environment of its own, since it wants other versions than the harness is tested with:

    python -m venv setfit && setfit/bin/pip install torch==2.13.0 setfit==1.2.0
    harness plan ...                                            # the table's own command says what its rows are
    python scripts/measure/setfit_rows.py rows rows.parquet --table few_shot --tasks sst2 --sizes 20,100 --data GLUE
    setfit/bin/python scripts/measure/setfit_rows.py train rows.parquet setfit.csv --encoder FOLDER --seeds 31,42,53

`rows` runs in the environment of the harness and writes `harness.plan(...).rows`. `train` runs in SetFit's: for each training set and
seed its own defaults (one epoch over pairs by oversampling, batch 16, learning rate 2e-5, logistic regression on the embeddings; Tunstall et al.,
2022, and setfit 1.2.0), and nothing selected on dev, which SetFit does not ask for. It writes one line a run as soon as it has ended, and goes on where it
was cut off. `seconds` is the time of training alone.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path
from typing import Any

COLUMNS = (
    "system",
    "row",
    "task",
    "size",
    "subset",
    "seed",
    "evaluation",
    "metric",
    "test",
    "seconds",
    "train_digest",
    "test_digest",
)


def write_rows(args: argparse.Namespace) -> None:
    """The rows of a plan as a Parquet file."""
    import harness

    fields: dict[str, Any] = {"preset": args.preset, "data": args.data, "tasks": args.tasks.split(","), "methods": "ft"}
    fields |= {name: [int(value) for value in getattr(args, name).split(",")] for name in ("sizes", "subsets")}
    rows = harness.plan(args.table, **fields).rows
    rows.to_parquet(args.file)
    print(f"{args.file}: {len(rows):,} rows of {rows['digest'].nunique()} sets")


def train(args: argparse.Namespace) -> None:
    """One line for each training set and seed."""
    import pandas as pd
    import setfit

    rows = pd.read_parquet(args.file)
    out = Path(args.out)
    done = set()
    if out.exists():
        with out.open(newline="", encoding="utf-8") as file:
            done = {(line["train_digest"], line["seed"]) for line in csv.DictReader(file)}
    else:
        out.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    training = rows[rows["split"] == "train"]
    for seed in args.seeds.split(","):
        for (task, size, subset, digest), drawn in training.groupby(["task", "size", "subset", "digest"]):
            if (digest, seed) in done:
                continue
            tests = rows[(rows["task"] == task) & ~rows["split"].isin(["train", "dev"])]
            scores, seconds = run(drawn, tests, args.encoder, int(seed))
            with out.open("a", newline="", encoding="utf-8") as file:
                for (evaluation, test_digest), score in scores.items():
                    place = [f"setfit {setfit.__version__}", "SetFit", task, size, subset, seed, evaluation, "accuracy"]
                    csv.writer(file).writerow([*place, score, round(seconds, 1), digest, test_digest])
            print(f"{task}, {size} examples, subset {subset}, seed {seed}: {scores}, {seconds:.0f} s", flush=True)


def run(drawn: Any, tests: Any, encoder: str, seed: int) -> tuple[dict[tuple[str, str], float], float]:
    """Accuracy by (evaluation, digest) of its test set, and the seconds of training."""
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    classes = sorted(drawn["label"].unique())
    model = SetFitModel.from_pretrained(encoder, labels=classes)
    arguments = TrainingArguments(seed=seed, report_to="none", show_progress_bar=False, save_strategy="no")
    labelled = Dataset.from_dict(
        {"text": list(drawn["sentence"]), "label": [classes.index(label) for label in drawn["label"]]}
    )
    started = time.perf_counter()
    Trainer(model=model, args=arguments, train_dataset=labelled).train()
    seconds = time.perf_counter() - started
    scores = {}
    for place, test in tests.groupby(["split", "digest"]):
        predicted = model.predict(list(test["sentence"]))
        scores[place] = float((test["label"].to_numpy() == list(predicted)).mean())
    return scores, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    write = commands.add_parser(
        "rows", help="the rows of a table as a Parquet file (in the environment of the harness)"
    )
    write.add_argument("file")
    for name, value in {
        "table": "few_shot",
        "preset": "laptop",
        "data": None,
        "tasks": "sst2",
        "sizes": "20,100",
        "subsets": "0,1,2,3,4",
    }.items():
        write.add_argument(f"--{name}", default=value)
    write.set_defaults(handler=write_rows)
    learn = commands.add_parser("train", help="SetFit on these rows (in an environment of its own)")
    learn.add_argument("file")
    learn.add_argument("out")
    learn.add_argument("--encoder", required=True, help="a folder or hub id of a sentence encoder")
    learn.add_argument("--seeds", default="31,42,53")
    learn.set_defaults(handler=train)
    args = parser.parse_args()
    args.handler(args)


if __name__ == "__main__":
    main()

"""The whole story of docs/own_data.md on a real file, step by step, with the time of each: from labelled rows to a model in use.

    python scripts/measure/own_data.py ROWS.parquet [--text content] [--label label] [--folder own_data] [-- FLAGS OF HARNESS BENCH]

ROWS.parquet has a column of text and one of whole numbers, the classes in the order of --classes (Amazon or Yelp polarity, say).
The first 200 rows become reviews.csv with the names of their classes, 5,000 others texts without labels, and 20 more are classified.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq

LABELLED, UNLABELLED, NEW = 200, 5000, 20
PLAIN = """
from transformers import AutoModelForSequenceClassification, AutoTokenizer
tokenizer, model = AutoTokenizer.from_pretrained("model"), AutoModelForSequenceClassification.from_pretrained("model")
rows = tokenizer(["I want my money back.", "Best purchase in years!"], padding=True, truncation=True, return_tensors="pt")
print([model.config.id2label[int(i)] for i in model(**rows).logits.argmax(-1)])
"""
"""Five lines of plain transformers, which run where harness cannot be imported."""


def write_files(options: argparse.Namespace) -> None:
    table = pq.read_table(options.rows, columns=[options.text, options.label])
    rows = table.slice(0, LABELLED + UNLABELLED + NEW).to_pylist()
    classes = options.classes.split(",")
    with (options.folder / "reviews.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["review", "stars"])
        writer.writerows([row[options.text], classes[row[options.label]]] for row in rows[:LABELLED])
    texts = [" ".join(row[options.text].split()) for row in rows]
    (options.folder / "all.txt").write_text("\n".join(texts[LABELLED:-NEW]) + "\n", encoding="utf-8")
    with (options.folder / "new.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["review"], *([text] for text in texts[-NEW:])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--text", default="content")
    parser.add_argument("--label", default="label")
    parser.add_argument("--classes", default="negative,positive")
    parser.add_argument("--folder", type=Path, default=Path("own_data"))
    mark = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options, flags = parser.parse_args(sys.argv[1:mark]), sys.argv[mark + 1 :]
    options.folder.mkdir(parents=True, exist_ok=True)
    write_files(options)
    own = ["--tasks", "reviews.csv", "--text", "review", "--label", "stars", "--unlabelled", "all.txt", *flags]
    harness = [sys.executable, "-m", "harness"]
    steps = {
        "plan": [*harness, "plan", *own],
        "bench": [*harness, "bench", *own],
        "export": [*harness, "export", "--best", "--out", "model"],
        "plain transformers": [sys.executable, "-I", "-c", PLAIN],
        "predict": [*harness, "predict", "model", "--input", "new.csv", "--output", "scored.csv"],
        "runs": [*harness, "list", "runs"],
    }
    for name, command in steps.items():
        print(f"\n===== {name}", flush=True)
        started = time.perf_counter()
        subprocess.run(command, cwd=options.folder, check=True, stdin=subprocess.DEVNULL)
        print(f"===== {name}: {time.perf_counter() - started:.0f} s", flush=True)
    print((options.folder / "scored.csv").read_text(encoding="utf-8")[:600])


if __name__ == "__main__":
    main()

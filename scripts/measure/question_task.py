"""A task of answerable questions from a sample of SQuAD 2.0, as files for `harness bench --tasks`: can a small encoder learn to answer?

    python scripts/measure/question_task.py DATA FOLDER     # DATA/squad_v2/validation_cs224n.parquet
    cd FOLDER && harness bench --tasks answers.yaml ...    # results/README.md has the whole command

Questions that have an answer, with contexts of at most 800 characters. The test set is four articles of their own, so that no article is both trained on
and tested on; dev is cut from the others by the harness, all questions of a context together.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

SAMPLE = "squad_v2/validation_cs224n.parquet"
TEST_ARTICLES = ("Normans", "Warsaw", "Force", "Harvard_University")
CHARACTERS = 800
"""Of a context: with MiniLM's vocabulary nearly all of them are one window of 256 tokens."""
TASK = """name: answers
title: Questions with an answer
data: train.parquet
test: test.parquet
columns: [question, context]
label: answers
spans: true
metrics: [answer_f1, exact_match]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help=f"a folder with {SAMPLE}")
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    if not (args.data / SAMPLE).is_file():
        parser.error(f"{args.data} has no {SAMPLE}; name the folder that has it.")
    questions = pq.read_table(args.data / SAMPLE)
    answers = pc.list_value_length(pc.struct_field(questions["answers"], "text"))
    short = pc.less_equal(pc.utf8_length(questions["context"]), CHARACTERS)
    questions = questions.filter(pc.and_(pc.greater(answers, 0), short))
    tested = pc.is_in(questions["title"], pa.array(TEST_ARTICLES))
    args.folder.mkdir(parents=True, exist_ok=True)
    for split, chosen in {"train": pc.invert(tested), "test": tested}.items():
        rows = questions.filter(chosen).select(["question", "context", "answers"])
        pq.write_table(rows, args.folder / f"{split}.parquet")
        print(f"{split}: {rows.num_rows} questions")
    (args.folder / "answers.yaml").write_text(TASK, encoding="utf-8")


if __name__ == "__main__":
    main()

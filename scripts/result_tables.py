"""Writes the tables of README.md and docs/ that are made of a file of results: what stands between `<!-- results FILE KIND OPTIONS -->` and
`<!-- /results -->`. `tests/test_docs.py` compares them.

    python scripts/result_tables.py              # all pages again
    python scripts/result_tables.py FILE KIND [columns=sst2,Avg] [rows=FT,SCL] [average=Avg] [family=40]   # one table, printed

KIND is `scores` (mean ± standard deviation of the test scores over subsets and seeds) or `differences` (each row minus the first one, pair by pair: points, the crossed 95 %
interval, p, p by Holm over all such differences of these rows in the file, and at least `family`). The number of examples, and the grid of a difference, are left out where
all are the same. A space in the name of a row is written as _. `average` names a further column, the mean over the columns of runs that are there in all of them. FILE is as
`harness report --format csv` writes it; after a comma further files follow, also those of other systems, as `harness report --other-system` takes them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from harness.statistics.crossed import Difference, difference, full_grid, holm

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/**/*.md", "results/**/*.md")
BLOCK = re.compile(r"(<!-- results (?P<words>[^\n]+?) -->\n)(?P<table>.*?)(<!-- /results -->)", re.DOTALL)
REGION = 0.01
"""Of practical equivalence; no table here says anything of it."""


def results(paths: list[Path]) -> pd.DataFrame:
    """The finished runs of these files by the metric that each column shows, its first one. Another system has a task for each column, and finished runs alone."""
    frame = pd.concat([pd.read_csv(path, keep_default_na=False, na_values="") for path in paths], ignore_index=True)
    frame = frame.assign(column=frame["column"].fillna(frame["task"]), status=frame["status"].fillna("done"))
    first = frame.groupby("column", sort=False)["metric"].transform("first")
    return frame[(frame["metric"] == first) & (frame["status"] == "done")]


def averaged(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """`frame` with a further column: the mean over all columns of each run that has a score in all of them."""
    scores = frame.pivot_table(index=["row", "size", "subset", "seed"], columns="column", values="test", sort=False)
    means = scores.dropna().mean(axis=1).rename("test").reset_index()
    return pd.concat([frame, means.assign(column=name, metric="mean")], ignore_index=True)


def score_rows(frame: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Headers, and a line for each row: a cell for each column and size; `14/15` where runs of the file's subsets x seeds are missing."""
    planned = frame["subset"].nunique() * frame["seed"].nunique()
    places = list(dict.fromkeys(zip(frame["column"], frame["metric"], frame["size"], strict=True)))
    lines = []
    for row, runs in frame.groupby("row", sort=False):
        cells = [str(row)]
        for column, _, size in places:
            scores = 100 * runs.loc[(runs["column"] == column) & (runs["size"] == size), "test"]
            whole = len(scores) == planned
            cells.append(f"{scores.mean():.2f} ± {scores.std():.2f}" if whole else f"{len(scores)}/{planned}")
        lines.append(cells)
    sized = frame["size"].nunique() > 1
    return ["", *(f"{column} ({metric})" + f", {size}" * sized for column, metric, size in places)], lines


def compared(frame: pd.DataFrame, against: str) -> Iterator[tuple[int, str, str, Difference]]:
    """(size, column, row, its difference from `against`) over the largest full grid of common subsets and seeds."""
    for (size, column), cell in frame.groupby(["size", "column"], sort=False):
        scores = cell.pivot_table(index=["subset", "seed"], columns="row", values="test")
        for row in dict.fromkeys(cell["row"]) if against in scores else ():
            pairs = (scores[row] - scores[against]).dropna()
            subsets, seeds = full_grid(list(pairs.index))
            if row != against and subsets:
                yield size, column, row, difference(pairs.unstack("seed").loc[subsets, seeds].to_numpy(), REGION)


def difference_rows(
    frame: pd.DataFrame, against: str, shown: pd.DataFrame, family: int
) -> tuple[list[str], list[list[str]]]:
    """Headers, and a line for each difference of the `shown` columns; Holm over those of the whole `frame`, and at least `family`."""
    found = list(compared(frame, against))
    p_values = [d.p for *_, d in found if d.p is not None]
    adjusted = iter(holm(p_values + [1.0] * (family - len(p_values))))
    places = {*shown["column"]}
    lines = []
    for size, column, row, d in found:
        p = "" if d.p is None else f"{next(adjusted):.2g}"
        if column in places:
            interval = (
                f"{100 * d.low:+.2f} to {100 * d.high:+.2f}" if d.low is not None and d.high is not None else d.why
            )
            floor = "" if d.p is None else f"{d.p:.2g}"
            grid = f"{d.num_subsets} x {d.num_seeds}"
            lines.append([column, str(size), row, f"{100 * d.difference:+.2f}", interval, floor, p, grid])
    headers = ["column", "examples", f"minus {against}", "points", "95 % interval", "p", "by Holm", "subsets x seeds"]
    told = [at for at in range(len(headers)) if at not in (1, 7) or len({line[at] for line in lines}) > 1]
    return [headers[at] for at in told], [[line[at] for at in told] for line in lines]


def table(words: list[str]) -> str:
    """The Markdown of FILE KIND OPTIONS."""
    files, kind, *rest = words
    options = dict(word.split("=", 1) for word in rest)
    frame = results([REPOSITORY / name for name in files.split(",")])
    if "rows" in options:
        frame = frame[frame["row"].isin(options["rows"].replace("_", " ").split(","))]
    if "average" in options:
        frame = averaged(frame, options["average"])
    shown = frame[frame["column"].isin(options["columns"].split(","))] if "columns" in options else frame
    if kind == "scores":
        headers, lines = score_rows(shown)
    elif kind == "differences":
        headers, lines = difference_rows(frame, str(frame["row"].iloc[0]), shown, int(options.get("family", 0)))
    else:
        raise SystemExit(f"{kind}: no kind of table; write scores or differences.")
    rule = [":--", *["--:"] * (len(headers) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (headers, rule, *lines))


def written(text: str) -> str:
    """A page with its tables made again."""
    return BLOCK.sub(lambda found: f"{found[1]}{table(found['words'].split())}\n{found[4]}", text)


def pages() -> list[Path]:
    """The pages that may hold such tables."""
    return [path for pattern in PAGES for path in sorted(REPOSITORY.glob(pattern))]


def main() -> None:
    if len(sys.argv) > 1:
        print(table(sys.argv[1:]))
        return
    for path in pages():
        text = path.read_text(encoding="utf-8")
        if (again := written(text)) != text:
            path.write_text(again, encoding="utf-8")
            print(path.relative_to(REPOSITORY))


if __name__ == "__main__":
    main()

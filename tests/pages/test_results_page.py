"""The page of a table, from made-up results: self-contained, escaped, the same bytes each time, sentences for what is missing."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest
from tables.runs import filled, result, results, rows_of

from harness.errors import UserError
from harness.pages import picture
from harness.pages.results_page import Results, results_page
from harness.specs import Record
from harness.tables.caption import Caption
from harness.tables.class_report import ClassReport, ClassScores
from harness.tables.comparison import compared
from harness.tables.request import Request
from harness.tables.resolve import ResolvedTable, resolve
from harness.tables.schema import Result
from harness.tables.table import load_table
from harness.tables.variance import decomposed

HOSTILE = "<script>alert(1)</script> & \"x\" $\\frac$ 'y'"
VOID = {"meta", "br", "hr", "img", "input", "link"}


def few_shot(**request: Any) -> ResolvedTable:
    return resolve(load_table("few_shot"), Request(preset="paper", **request))


SMALL = {"methods": ("ft", "scl"), "tasks": ("sst2", "rte"), "sizes": (20,), "subsets": (0, 1), "seeds": (31, 42)}


def made(r: ResolvedTable, found: list[Result], **caption_: Any) -> str:
    """The page of these results, with a record of each finished run."""
    grid = filled(r, found, rows_of(r))
    runs, records, curves = {}, {}, {}
    for each in found:
        place = (each.size, each.row, each.task, each.subset, each.seed)
        key = hashlib.sha256(repr(place).encode()).hexdigest()[:32]
        stage = SimpleNamespace(key=key, selection=SimpleNamespace(metric="accuracy"))
        stage.chain = (stage,)
        names = {"row": each.row, "task": each.task, "size": each.size, "subset": each.subset, "seed": each.seed}
        runs[place] = SimpleNamespace(stage=stage, **names)
        origin = {"device": "a CPU", "torch": "2.13.0", "threads": 1, "workers": 1}
        records[key] = Record(key, each.status, each.reason or "", seconds=36.0, flops=1e12, provenance=origin)
        curves[key] = [(100 * step, 0.5 + step / 100) for step in range(1, 31)] if each.status == "done" else []
    try:
        comparisons: Any = compared(grid)
    except UserError as error:
        comparisons = str(error)
    caption = Caption(len(runs), "files", **caption_)
    return results_page(
        Results(
            grid, caption, comparisons, decomposed(grid, {}), [*runs.values()], records, curves, ["harness bench ..."]
        )
    )


class Parsed(HTMLParser):
    """The elements of a page with their attributes, and its text outside of style and script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.within = ""
        self.inline: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.within = tag

    def handle_endtag(self, tag: str) -> None:
        self.within = ""

    def handle_data(self, data: str) -> None:
        if self.within in ("style", "script"):
            self.inline[self.within] = data
        else:
            self.text += data


@pytest.fixture(scope="module")
def page() -> str:
    r = few_shot(**SMALL)
    return made(r, results(r))


def test_equal_inputs_give_equal_bytes(page: str) -> None:
    r = few_shot(**SMALL)
    assert made(r, results(r)) == page
    assert made(r, results(r, seed=1)) != page


def test_nothing_is_asked_of_anywhere(page: str) -> None:
    """The policy admits this style and this script alone, and no element or attribute would need more."""
    found = Parsed(page)
    (policy,) = [a["content"] for tag, a in found.elements if a.get("http-equiv") == "Content-Security-Policy"]
    for name in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(found.inline[name].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in str(policy)
    assert str(policy).startswith("default-src 'none'; ")
    assert not {tag for tag, _ in found.elements} & {"link", "img", "iframe", "object", "embed", "base", "image"}
    for tag, attributes in found.elements:
        assert not {name for name in attributes if name in ("style", "src", "srcset") or name.startswith("on")}, tag
        assert str(attributes.get("href", "#")).startswith("#"), tag
    assert "url(" not in found.inline["style"]
    assert "@import" not in found.inline["style"]


def test_every_picture_has_a_name_and_its_data(page: str) -> None:
    figures = re.findall(r"<figure>(.*?)</figure>", page, flags=re.DOTALL)
    assert len(figures) >= 2
    for figure in figures:
        name, description = re.search(r'aria-labelledby="(\S+) (\S+)"', figure).groups()  # type: ignore[union-attr]
        assert re.search(rf'<title id="{name}">[^<]+</title><desc id="{description}">[^<]+</desc>', figure)
        assert figure.count("<table") == 1
        assert "<td>" in figure
    ids = [str(attributes["id"]) for _, attributes in Parsed(page).elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    referred = set(re.findall(r'(?:href="#|url\(#)([\w-]+)', page))
    assert referred <= set(ids)


def test_cells_have_intervals_verdicts_and_the_papers_numbers() -> None:
    r = few_shot(**SMALL)
    high = [replace(each, test=0.5 + 0.4 * (each.row == "SCL") + 0.001 * (each.test or 0)) for each in results(r)]
    text = made(r, high)
    assert "higher than FT" in text
    assert re.search(r"<small>\d\d\.\d\d to \d\d\.\d\d</small>", text)
    assert re.search(r"<b>9\d\.\d\d ± \d\.\d\d</b>", text)
    whole = few_shot(methods=("ft", "scl"), tasks=("sst2",), sizes=(20,))
    assert re.search(
        r"<small>paper \d\d\.\d\d[^<]*: (agrees|higher|lower|not comparable)</small>", made(whole, results(whole))
    )


def test_names_are_escaped() -> None:
    r = few_shot(**SMALL)
    rows = tuple(row.model_copy(update={"name": HOSTILE}) if row.name == "SCL" else row for row in r.rows)
    columns = {name: column.model_copy(update={"title": f"<i>{name}"}) for name, column in r.columns.items()}
    r = replace(r, rows=rows, columns=columns)
    found = results(r)
    found[-1] = replace(found[-1], status="failed", test=None, reason="<b>no</b> memory")
    text = made(r, found)
    parsed = Parsed(text)
    assert sum(tag == "script" for tag, _ in parsed.elements) == 1
    assert not any(tag == "i" for tag, _ in parsed.elements)
    assert HOSTILE in parsed.text
    assert "<b>no</b> memory" in parsed.text


@pytest.mark.parametrize(
    ("request_", "kept", "says"),
    [
        ({"subsets": (0,), "seeds": (31,)}, 1.0, "one needs the mean of two runs or more"),
        ({"seeds": (31,)}, 1.0, "over subsets; one seed says nothing about others"),
        ({"subsets": (0,)}, 1.0, "over seeds; one subset says nothing about others"),
        ({"methods": ("ft",)}, 1.0, "name two or more with"),
        ({}, 0.5, "missing or failed"),
        ({}, 0.0, "No run is recorded"),
    ],
    ids=["one replicate", "one seed", "one subset", "one row", "half of the runs", "none"],
)
def test_what_is_missing_is_said(request_: dict[str, Any], kept: float, says: str) -> None:
    r = few_shot(**{**SMALL, **request_})
    found = results(r)
    text = Parsed(made(r, found[: int(kept * len(found))])).text
    assert says in text
    assert not re.search(r"\b(nan|None|inf)\b", text, flags=re.IGNORECASE)


def test_classes_of_a_users_own_task_are_shown() -> None:
    classes = (
        ClassScores("<good>", 30, 0.9, 0.8, 0.85, (24.0, 6.0)),
        ClassScores("bad", 30, 0.8, 0.9, 0.85, (3.0, 27.0)),
    )
    report = ClassReport("Mine & yours", 20, 60, ("f1_macro",), (("FT", (0.85,)),), "FT", classes)
    r = few_shot(**SMALL)
    text = made(r, results(r), class_reports=(report,))
    assert ">Classes</h2>" in text
    assert '<th scope="row">&lt;good&gt;</th><td>30<td>90.00<td>80.00<td>85.00<td>24.0<td>6.0' in text
    assert "Mine &amp; yours, 20 training examples: means over the runs on 60 test examples" in text


def test_a_figure_of_the_tables_own_is_there_too() -> None:
    r = resolve(load_table("views"), Request(preset="paper", tasks=("mnli",)))
    found = [result(r, row, size, *rest, 0.1, dev=0.1 * rest[1] + 0.01 * len(row)) for size, row, *rest in r.places]
    text = made(r, found)
    assert "Scores over K, complementary views: 10 points." in text
    assert 'class="own"' in text
    assert "of 10 points; the others' runs are not all done" in made(r, found[:-1]).replace("&#39;", "'")


def test_failed_and_diverged_runs_keep_their_reasons() -> None:
    r = few_shot(**SMALL)
    long = "CUDA out of memory. " * 30
    found = [
        result(r, each.row, each.size, each.column, each.subset, each.seed, status="failed", reason=long)
        if each.row == "SCL"
        else each
        for each in results(r)
    ]
    text = Parsed(made(r, found)).text
    assert long.strip() in text
    assert "no verdict" in text
    assert "nan" not in text


def test_colours_of_a_picture_are_the_pages(page: str) -> None:
    from matplotlib.figure import Figure

    def drawn() -> Any:
        figure = Figure()
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], color=picture.SERIES[2])
        axes.set_title("a < b")
        return figure

    mine = picture.picture(drawn, "one", "A title", "A description")
    assert 'class="s2"' in mine
    assert "#0101" not in mine
    assert "#000000" not in mine
    assert "style=" not in mine
    assert "a &lt; b" in mine
    assert "#010102" in picture.picture(drawn, "one", "A title", "A description", own_colours=True)


@pytest.mark.slow
def test_the_largest_table_stays_below_a_megabyte() -> None:
    r = resolve(load_table("pretraining"), Request(preset="paper"))
    assert len(made(r, results(r)).encode()) < 1_000_000

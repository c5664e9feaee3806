"""What a plan detects, in words and as a table. Pure."""

from __future__ import annotations

from collections.abc import Callable

from harness.statistics.power import MOST_SEEDS, MOST_SUBSETS, Design
from harness.tables.caption import counted, in_points
from harness.tables.power import Detection, Detections
from harness.tables.render import STYLES, table_lines

MANY = 8
"""Comparisons above which a narrower table is advised."""


def detection_lines(found: Detections, duration: Callable[[float], str]) -> list[str]:
    """`duration`: hours in words."""
    dash = STYLES["text"].dash
    wanted = in_points(found.wanted)
    head = ["Column", "Examples", "Subset sd", "Seed sd", "Run sd", "From", "Detects", f"For {wanted}", "Time"]
    body = []
    for each in found.found:
        sds = [in_points(value**0.5) for value in vars(each.components).values()]
        source = counted(each.recorded, "recorded difference") if each.recorded else "defaults"
        detects = dash if each.detects is None else in_points(each.detects)
        size = f"{each.size:,}" if each.size else "full"
        enough = [design_text(each.enough), duration(each.enough.cost)] if each.enough else [dash, dash]
        body.append([each.title, size, *sds, source, detects, *enough])
    planned = f"{counted(found.num_subsets, 'subset')} x {counted(found.num_seeds, 'seed')}"
    lines = [
        *table_lines(head, body, "text", left=(0, 5)),
        "",
        f"Detects: the smallest true difference from {found.against}, in points, that {planned} can find with 80 % power (crossed t test, two-sided "
        f"5 %, by Holm over {counted(found.comparisons, 'comparison')}, at its first step {found.level:.3g}). The whole table in this design takes "
        f"about {duration(found.hours)} from its beginning. Sd: of a paired difference by source, in points.",
    ]
    if found.largest is None:
        lines.append("The full training set is one subset: other designs are proposed for sizes that are drawn.")
    elif found.enough is None:
        most = f"{MOST_SUBSETS} subsets x {MOST_SEEDS} seeds"
        lines.append(
            f"No design of up to {most} detects {wanted} points in all columns and sizes; the largest detects {in_points(found.largest)}."
        )
    else:
        lines.append(
            f"The cheapest design that detects {wanted} points in all columns and sizes: {design_text(found.enough)}, about "
            f"{duration(found.enough.cost)} for the whole table."
        )
        lines.append(
            f"In a shell: --subsets $(seq -s, 0 {found.enough.num_subsets - 1}), and with --seeds any {found.enough.num_seeds} numbers."
        )
    if found.num_subsets < found.subsets_for_exact:
        lines.append(
            f"The exact sign-flip test cannot reach p {found.level:.3g} with {counted(found.num_subsets, 'subset')} (its smallest p is "
            f"{2 / 2**found.num_subsets:.3g}): it needs {found.subsets_for_exact}."
        )
    if found.comparisons > MANY:
        lines.append("With fewer comparisons each detects less: narrow them with --methods, --tasks or --sizes.")
    if any(not each.recorded for each in found.found):
        lines.append(
            "Defaults: the mean of five recorded differences (SST-2, 100 examples, MiniLM and bert-tiny). They are a guess for other tasks, sizes and "
            "metrics: run two subsets x two seeds of two rows first, and the plan takes their variances."
        )
    if found.num_seeds == 1:
        lines.append("One seed says nothing about others: what it detects holds for that seed.")
    return lines


def design_text(design: Design) -> str:
    return f"{design.num_subsets} x {design.num_seeds}"


def detection_rows(found: Detections) -> list[dict[str, object]]:
    """One row a column and size, on the metric's own scale."""
    return [_row(each) for each in found.found]


def _row(each: Detection) -> dict[str, object]:
    enough = each.enough
    return {
        "size": each.size,
        "column": each.column,
        **{f"{name}_variance": value for name, value in vars(each.components).items()},
        "recorded": each.recorded,
        "detects": each.detects,
        "enough_subsets": enough.num_subsets if enough else None,
        "enough_seeds": enough.num_seeds if enough else None,
        "enough_hours": enough.cost if enough else None,
    }

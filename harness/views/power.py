"""What a plan detects, in words and as a table. Pure."""

from __future__ import annotations

from collections.abc import Callable

from harness.statistics.power import CONFIDENCE, MOST_SEEDS, MOST_SUBSETS, Design
from harness.views.numbers.power import Detections
from harness.views.view import DASH, Table, text_lines
from harness.wording import counted, in_points

MANY = 8
"""Comparisons above which a narrower table is advised."""


def detection_lines(detections: Detections, duration: Callable[[float], str]) -> list[str]:
    """`duration`: hours in words."""
    wanted = in_points(detections.wanted)
    head = ["Column", "Examples", "Subset sd", "Seed sd", "Run sd", "From", "Detects", f"For {wanted}", "Time"]
    body = []
    for detection in detections.by_column:
        sds = [in_points(value**0.5) for value in vars(detection.components).values()]
        source = counted(detection.recorded, "recorded difference") if detection.recorded else "defaults"
        detects = DASH if detection.detects is None else in_points(detection.detects)
        size, best = f"{detection.size:,}" if detection.size else "full", detection.enough
        cheapest = [design_text(best), duration(best.cost)] if best else [DASH] * 2
        body.append([detection.title, size, *sds, source, detects, *cheapest])
    planned = f"{counted(detections.num_subsets, 'subset')} x {counted(detections.num_seeds, 'seed')}"
    lines = [
        *text_lines(Table("", head, body, frozenset({0, 5}))),
        "",
        f"Detects: the smallest true difference from {detections.against}, in points, that {planned} can find with 80 % power (crossed t test, two-sided "
        f"5 %, by Holm over {counted(detections.comparisons, 'comparison')}, at its first step {detections.level:.3g}). The whole table in this design takes "
        f"about {duration(detections.hours)} from its beginning. Sd: of a paired difference by source, in points; of recorded differences the "
        f"upper {100 * CONFIDENCE:.0f} % confidence limit.",
    ]
    if detections.largest is None:
        lines.append("The full training set is one subset: other designs are proposed for sizes that are drawn.")
    elif detections.enough is None:
        most = f"{MOST_SUBSETS} subsets x {MOST_SEEDS} seeds"
        lines.append(
            f"No design of up to {most} detects {wanted} points in all columns and sizes; the largest detects {in_points(detections.largest)}."
        )
    else:
        lines.append(
            f"The cheapest design that detects {wanted} points in all columns and sizes: {design_text(detections.enough)}, about "
            f"{duration(detections.enough.cost)} for the whole table."
        )
        lines.append(
            f"In a shell: --subsets $(seq -s, 0 {detections.enough.num_subsets - 1}), and with --seeds any {detections.enough.num_seeds} numbers."
        )
    if detections.num_subsets < detections.subsets_for_exact:
        lines.append(
            f"The exact sign-flip test cannot reach p {detections.level:.3g} with {counted(detections.num_subsets, 'subset')} (its smallest p is "
            f"{2 / 2**detections.num_subsets:.3g}): it needs {detections.subsets_for_exact}."
        )
    if detections.comparisons > MANY:
        lines.append("With fewer comparisons each detects less: narrow them with --methods, --tasks or --sizes.")
    if any(not detection.recorded for detection in detections.by_column):
        lines.append(
            "Defaults: by subset and run as of five recorded differences (SST-2, 100 examples, MiniLM and bert-tiny), by seed 1 point. They are a guess "
            "for other tasks, sizes and metrics: run 5 subsets x 3 seeds of two rows first, and the plan takes their variances."
        )
    if detections.num_seeds == 1:
        lines.append("One seed says nothing about others: what it detects holds for that seed.")
    return lines


def design_text(design: Design) -> str:
    return f"{design.num_subsets} x {design.num_seeds}"


def detection_rows(detections: Detections) -> list[dict[str, object]]:
    """One row a column and size, on the metric's own scale."""
    return [
        {
            "size": detection.size,
            "column": detection.column,
            **{f"{name}_variance": value for name, value in vars(detection.components).items()},
            "recorded": detection.recorded,
            "detects": detection.detects,
            "enough_subsets": detection.enough and detection.enough.num_subsets,
            "enough_seeds": detection.enough and detection.enough.num_seeds,
            "enough_hours": detection.enough and detection.enough.cost,
        }
        for detection in detections.by_column
    ]

"""From what was timed to a table, the goals and a picture."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from tabulate import tabulate

BASELINE = "Trainer, padded to 128"
DYNAMIC = "Trainer, dynamic padding"
Found = dict[str, Any]


def seconds(rounds: list[dict[str, Any]], variant: str) -> list[float]:
    """Of a run, a round each."""
    return [each[variant]["inside"] / each[variant]["runs"] for each in rounds]


def ratios(rounds: list[dict[str, Any]], variant: str, against: str) -> list[float]:
    """How often `variant` makes a run while `against` makes one, a round each."""
    ours, theirs = (seconds(rounds, way) for way in (variant, against))
    return [other / own for own, other in zip(ours, theirs, strict=True)]


def middle(values: list[float], digits: int = 1) -> str:
    """Median (least to most)."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def table(found: Found) -> str:
    """Whole runs: each way's seconds a run and its speed against the Trainer."""
    lines = []
    for case in found["cases"]:
        for variant in case["rounds"][0]:
            spent = seconds(case["rounds"], variant)
            started = [each[variant]["start"] for each in case["rounds"]]
            line = [case["name"], variant, middle(spent, 2), middle(started)]
            for against in (BASELINE, DYNAMIC):
                line.append(middle(ratios(case["rounds"], variant, against)))
            line.append(middle([60 * 60 / each for each in spent], 0))
            lines.append(line)
    headers = ("case", "way", "s a run", "start, s", "x Trainer 128", "x dynamic", "runs an hour")
    return tabulate(lines, headers=headers, disable_numparse=True)


def parts_table(found: Found) -> str:
    lines = []
    for name, parts in found["parts"].items():
        for part, ways in parts.items():
            least = {way: statistics.median(times) for way, times in ways.items()}
            ours = least["harness"]
            shown = [f"{1000 * each:.1f}" for each in least.values()]
            gains = [f"{least[way] / ours:.1f}" for way in ("padded to 128", "dynamic padding")]
            lines.append([name, part, *shown, *gains])
    headers = ("case", "part", "padded to 128, ms", "dynamic, ms", "harness, ms", "x", "x dynamic")
    return tabulate(lines, headers=headers, disable_numparse=True)


def goals(found: Found) -> str:
    """Each goal with its figure."""
    lines: list[tuple[str, str, str]] = []

    def goal(text: str, shown: str, met: bool) -> None:
        lines.append((text, shown, "met" if met else "MISSED"))

    for case in found["cases"]:
        encoder, wanted = case["name"].split(",")[0], {"bert-tiny": (10, 2.5, 10), "minilm": (9, 2, 12)}
        if encoder not in wanted:
            continue
        least, dynamic, half = wanted[encoder]
        for way, against, bound in (
            ("harness bench", BASELINE, least),
            ("harness bench, bf16", BASELINE, half),
            ("harness bench", DYNAMIC, dynamic),
        ):
            if way in case["rounds"][0] and not (way.endswith("bf16") and encoder == "bert-tiny"):
                values = ratios(case["rounds"], way, against)
                goal(
                    f"{case['name']}: {way} at least {bound} x {against}",
                    middle(values),
                    statistics.median(values) >= bound,
                )
    for name, each in found["overhead"].items():
        bound = 0.03 if name.startswith("bert-tiny") else 0.01
        goal(f"{name}: time outside the loop at most {bound:.0%}", f"{each['overhead']:.2%}", each["overhead"] <= bound)
        between = each["between_runs_milliseconds"]
        goal(f"{name}: schedule and transport at most 20 ms a run", f"{between:.1f} ms", between <= 20)
    for name, (bound, values) in found["commands"].items():
        goal(f"{name} at most {bound} s", middle(values, 2), statistics.median(values) <= bound)
    return tabulate(lines, headers=("goal", "figure", ""), disable_numparse=True)


def picture(found: Found, path: Path) -> None:
    """How often each way makes a run while the Trainer padded to 128 makes one; and the parts."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle

    cases = found["cases"]
    ways = list(dict.fromkeys(way for case in cases for way in case["rounds"][0]))
    colours = dict(zip(ways, pyplot.rcParams["axes.prop_cycle"].by_key()["color"], strict=False))
    figure, axes = pyplot.subplots(
        1, 2, figsize=(13, 1.6 + 0.32 * sum(len(c["rounds"][0]) for c in cases)), constrained_layout=True, squeeze=False
    )
    axis, at, ticks = axes[0][0], 0.0, []
    for case in cases:
        first = at
        for way in case["rounds"][0]:
            values = ratios(case["rounds"], way, BASELINE)
            centre = statistics.median(values)
            axis.barh(at, centre, color=colours[way])
            axis.plot([min(values), max(values)], [at, at], color="black", lw=1)
            axis.text(max(values) * 1.03, at, f"{centre:.1f}", va="center", fontsize=8)
            at += 1
        ticks.append(((first + at - 1) / 2, case["name"].replace(", ", "\n")))
        at += 0.7
    axis.set_yticks([place for place, _ in ticks], [name for _, name in ticks])
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlabel("runs while the Trainer padded to 128 makes one (median, least to most)")
    handles = [Rectangle((0, 0), 1, 1, color=colours[way]) for way in ways]
    figure.legend(handles, ways, loc="outside upper center", ncols=3, fontsize=8)
    bars, at, ticks = axes[0][1], 0.0, []
    for name, parts in found["parts"].items():
        for part, each in parts.items():
            ours = statistics.median(each["harness"])
            for way, colour in (
                ("padded to 128", colours[BASELINE]),
                ("dynamic padding", colours.get(DYNAMIC, "grey")),
            ):
                gain = statistics.median(each[way]) / ours
                bars.barh(at, gain, color=colour)
                bars.text(gain * 1.03, at, f"{gain:.1f}", va="center", fontsize=7)
                at += 1
            ticks.append((at - 1.5, f"{name}: {part}"))
            at += 0.5
    bars.set_yticks([place for place, _ in ticks], [name for _, name in ticks], fontsize=7)
    bars.invert_yaxis()
    bars.set_xscale("log")
    bars.axvline(1, color="black", lw=0.8)
    bars.set_xlabel("time of the library's plain way over the harness's, one thread")
    for each in (axis, bars):
        left, right = each.get_xlim()
        each.set_xlim(left, right * 1.6)
    figure.savefig(path, dpi=110)

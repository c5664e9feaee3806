"""benchmarks/gpu_check: its part that needs no GPU passes on a CPU, each check fails where a number is wrong, and nothing that
happens in one check keeps the others from running."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from harness.encoders.families import FAMILIES
from harness.encoders.models.text_encoder import Batch
from harness.objectives.definitions import DEFINITIONS
from harness.streams import stream

NUMBERS = ("float32", "losses", "packed", "micro-batches", "dropout", "bf16", "fp16", "repeated", "process group")
"""How the names of the checks of numbers begin."""


@pytest.fixture(scope="module")
def gpu_check() -> Callable[[str], ModuleType]:
    return lambda name: importlib.import_module(f"benchmarks.gpu_check.{name}")


@pytest.fixture
def setting(gpu_check: Callable[[str], ModuleType], tmp_path: Path) -> Any:
    """The smallest sizes."""
    sizes = {"shape": "tiny", "repeated": "tiny", "shapes": ("tiny",), "steps": 2, "updates": 1, "warm": 1}
    return gpu_check("models").Setting(torch.device("cpu"), tmp_path, **sizes)


@pytest.fixture
def rows_of(gpu_check: Callable[[str], ModuleType], setting: Any) -> Callable[[str], dict[str, Any]]:
    """Runs the checks whose names begin so, in this process."""

    def run(words: str) -> dict[str, Any]:
        checks = gpu_check("checks")
        known = checks.checks(setting)
        return {name: gpu_check("rows").row_of(name, known[name]) for name in checks.chosen(known, words)}

    return run


# --------------------------------------------------------------------------------------------------------- the checks


def test_numbers_on_a_cpu(rows_of: Callable[[str], dict[str, Any]]) -> None:
    """The CPU against itself is the same code: equal bits. The other checks stay within their tolerances."""
    rows = rows_of(",".join(NUMBERS))
    assert {row.name: row.reason for row in rows.values() if row.status != "pass"} == {}
    for name, row in rows.items():
        if name.startswith("losses"):
            assert (row.values["first"], row.values["worst"]) == (0.0, 0.0), name
            assert len(row.values["cpu"]) == 2
        if name.startswith("repeated"):
            assert set(row.values.values()) == {0.0}, name


def test_times_on_a_cpu(rows_of: Callable[[str], dict[str, Any]]) -> None:
    rows = rows_of("update")
    timed = {name: row for name, row in rows.items() if "mlm-512" not in name}
    assert {row.status for row in timed.values()} == {"pass"}
    assert len(timed) == 10, "five objectives, two precisions"
    assert all(row.values["milliseconds"] > 0 and row.values["flops"] > 0 for row in timed.values())
    assert {row.values["share_of_peak"] for row in timed.values()} == {None}
    assert {row.status for name, row in rows.items() if name not in timed} == {"skipped"}


def test_every_objective_is_compared(gpu_check: Callable[[str], ModuleType], setting: Any) -> None:
    compared = gpu_check("models").trained()
    assert {what.spec.name for what in compared.values()} == set(DEFINITIONS)
    assert {f"losses {name}" for name in compared} <= set(gpu_check("checks").checks(setting))


@pytest.mark.parametrize("name", ["mlm", "cmlm", "taco"])
def test_the_trainer_trains_the_same_loss(name: str, gpu_check: Callable[[str], ModuleType], setting: Any) -> None:
    """The models that the Trainer is timed with compute the objective's own loss. (FT has another head there, and COCO-LM
    another draw.)"""
    models, plain, config = gpu_check("models"), gpu_check("plain"), setting.config
    what = gpu_check("updates").timed()[name].what
    inputs, objective = models.inputs_of(what, config), models.built(what, config)
    model, collate = plain.plain(objective, config, inputs)
    getattr(model, "model", model).load_state_dict(objective.encoder.model.state_dict())
    if name == "cmlm":
        model.contrast.load_state_dict(objective.contrast.state_dict())
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    rows = list(range(models.BATCH))
    views = objective.prepare(inputs.train.take(rows), None, lambda p, *m: stream(models.SEED, p, 1, *m))
    ours = objective.loss(objective(Batch.of(views.tokens, models.CPU, views.ids), views))
    theirs = model(**collate(rows))["loss"]
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-5)


# ------------------------------------------------------------------------------------------------- each of them can fail


def spoil_every_second(monkeypatch: pytest.MonkeyPatch, module: ModuleType, factor: float) -> None:
    """Every second training of the checks starts from other weights."""
    train, count = module.train, iter(range(10**6))

    def wrong(objective: Any, *given: Any, **named: Any) -> Any:
        if next(count) % 2:
            with torch.no_grad():
                for parameter in objective.encoder.base.encoder.parameters():
                    parameter.mul_(factor)
        return train(objective, *given, **named)

    monkeypatch.setattr(module, "train", wrong)


@pytest.mark.parametrize(
    ("check", "factor"),
    [("losses ft", 1.01), ("losses coco_lm-relative", 1.01), ("micro-batches scl", 1.01), ("repeated taco fp32", 1.0001), ("bf16 ft", 10.0), ("fp16 ft", 10.0)],
)  # fmt: skip
def test_wrong_weights(
    check: str,
    factor: float,
    gpu_check: Callable[[str], ModuleType],
    rows_of: Callable[[str], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spoil_every_second(monkeypatch, gpu_check("numerics"), factor)
    row = rows_of(check)[check]
    assert row.status == "fail"
    assert "more than" in row.reason


def test_a_loss_that_is_nan_or_another_term(gpu_check: Callable[[str], ModuleType]) -> None:
    rows, numerics = gpu_check("rows"), gpu_check("numerics")
    assert not rows.within({"worst": 1.0}, {"worst": math.nan}).passed
    assert numerics.differences([{"loss": 1.0}], [{"loss": 1.0, "rtd": 0.0}]) == [math.inf]
    assert numerics.differences([{"loss": 1.0}], []) == [math.inf]


def test_a_packed_batch_that_is_another(
    gpu_check: Callable[[str], ModuleType],
    rows_of: Callable[[str], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two tokens of one sequence change places in the packed batch alone."""
    numerics = gpu_check("numerics")

    class Swapped(numerics.Batch):  # type: ignore[name-defined,misc]
        @classmethod
        def of(cls, tokens: Any, device: Any, ids: Any = None) -> Any:
            made = tokens.ids.copy()
            made[[1, 2]] = made[[2, 1]]
            assert made[1] != made[2]
            return super().of(tokens, device, made)

    monkeypatch.setattr(numerics, "Batch", Swapped)
    rows = rows_of("packed")
    packed = {kind for kind, family in FAMILIES.items() if family.packed}
    assert set(rows) == {f"packed {kind}" for kind in (packed - {"camembert", "xlm-roberta"}) | {"mpnet"}}
    for row in rows.values():
        assert row.status == "fail"
        assert "states is" in row.reason
        assert "gradient is" in row.reason


def test_another_mask_of_dropout(
    gpu_check: Callable[[str], ModuleType],
    rows_of: Callable[[str], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numerics, count = gpu_check("numerics"), iter(range(10**6))
    seed_dropout = numerics.seed_dropout
    monkeypatch.setattr(numerics, "seed_dropout", lambda _, device: seed_dropout(next(count), device))
    assert [row.status for row in rows_of("dropout").values()] == ["fail"] * 3


def test_another_gradient_in_a_group(
    gpu_check: Callable[[str], ModuleType],
    rows_of: Callable[[str], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A group that left out the division by the number of its ranks would double it."""

    def doubled(objective: Any, **_: Any) -> Any:
        for parameter in objective.parameters():
            if parameter.requires_grad:
                parameter.register_hook(lambda gradient: 2 * gradient)
        return objective

    monkeypatch.setattr(gpu_check("numerics"), "DistributedDataParallel", doubled)
    (row,) = rows_of("process group").values()
    assert (row.status, row.values["mlm"]) == ("fail", pytest.approx(1.0))


def test_whatever_a_check_raises_is_its_row(gpu_check: Callable[[str], ModuleType]) -> None:
    rows = gpu_check("rows")

    def raises(error: Exception) -> Any:
        def check() -> Any:
            raise error

        return rows.row_of("one", check)

    broken = raises(RuntimeError("CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert'"))
    assert (broken.status, broken.poisoned) == ("fail", True)
    assert broken.reason == "RuntimeError: CUDA error: device-side assert triggered"
    full = raises(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB"))
    assert (full.status, full.poisoned) == ("fail", False)
    absent = raises(rows.SkippedError("ray is not installed"))
    assert (absent.status, absent.reason) == ("skipped", "ray is not installed")
    assert rows.read_line(rows.line_of(broken)) == broken


def test_peaks_by_name(gpu_check: Callable[[str], ModuleType]) -> None:
    peak = gpu_check("peaks").peak
    assert peak("NVIDIA H200", "bf16") == peak("NVIDIA H100 80GB HBM3", "bf16") == 989e12
    assert peak("NVIDIA A100-SXM4-80GB", "fp32") == peak("NVIDIA A100-PCIE-40GB", "fp32") == 19.5e12
    assert peak("NVIDIA H100 PCIe", "fp32") == 51e12
    assert peak("Tesla T4", "bf16") is None
    for other in ("NVIDIA H200 NVL", "NVIDIA GH200 480GB", "NVIDIA L4", "AMD EPYC 9R14"):
        assert peak(other, "fp32") is None


# ------------------------------------------------------------------------------------------------------- the whole command

CHILD = """
import json, os, signal, sys, time
report, names = sys.argv[1], sys.argv[2].split(",")
def write(line):
    with open(report, "a") as file:
        file.write(line + "\\n")
for name in names:
    write("begun " + name)
    row = {{"name": name, "status": "pass"}}
    if "mlm" in name:
        exec({act!r})
    write("ended " + json.dumps(row))
    if row.get("poisoned"):
        break
"""
"""A process that runs the checks as the real one does, but computes nothing; something happens at each check of an MLM."""


@pytest.fixture
def command(
    gpu_check: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Runs the command over `losses`, with what happens at each check of an MLM. Returns its exit status and its rows, and makes
    sure that it ended with a row for every check."""
    main, runner = gpu_check("__main__"), gpu_check("runner")
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.01)

    def run(act: str, *words: str) -> tuple[int, dict[str, Any]]:
        script = tmp_path / "child.py"
        script.write_text(CHILD.format(act=act))

        def started(device: str, names: Sequence[str], report: Path, log: Path) -> subprocess.Popen[bytes]:
            assert device == "cpu"
            line = [sys.executable, str(script), str(report), ",".join(names)]
            with log.open("ab") as file:
                return subprocess.Popen(line, stdout=file, stderr=file, start_new_session=True)

        monkeypatch.setattr(main, "started", started)
        status = main.main(["--device", "cpu", "--only", "losses", "--out", str(tmp_path / "out"), *words])
        body = json.loads((tmp_path / "out" / "gpu_check.json").read_text())
        assert [row["name"] for row in body["rows"]] == [f"losses {name}" for name in gpu_check("models").trained()]
        assert body["machine"]["device"]
        return status, {row["name"].removeprefix("losses "): row for row in body["rows"]}

    return run


def statuses(rows: dict[str, Any]) -> dict[str, str]:
    """Of the checks of an MLM, and of all others together."""
    return {("mlm" if "mlm" in name else "other"): row["status"] for name, row in rows.items()}


def test_all_pass(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status, rows = command("pass")
    assert (status, statuses(rows)) == (0, {"mlm": "pass", "other": "pass"})
    assert f"{len(rows)} passed, 0 failed, 0 skipped" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        ("row.update(status='fail', reason='worst is 2')", "worst is 2"),
        ("row.update(status='fail', poisoned=True)", ""),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "its process ended with signal 11"),
        ("sys.exit('no memory left')", "its process ended with status 1: no memory left"),
    ],
    ids=["fails", "spoils its process", "crashes", "exits"],
)
def test_a_check_that_fails_is_alone(act: str, reason: str, command: Any) -> None:
    """The checks after it run, in another process where it took its own with it; the exit status says it."""
    status, rows = command(act)
    assert (status, statuses(rows)) == (1, {"mlm": "fail", "other": "pass"})
    assert all(reason in row["reason"] for name, row in rows.items() if "mlm" in name)


def test_a_check_that_hangs(
    command: Any, gpu_check: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check("runner"), "CHECK_SECONDS", 5.0)
    status, rows = command("time.sleep(60) if name == 'losses mlm' else None")
    assert status == 1
    assert {name for name, row in rows.items() if row["status"] == "fail"} == {"mlm"}
    assert rows["mlm"]["reason"] == "it did not end within 5 s"


def test_time_that_is_over(command: Any) -> None:
    status, rows = command("time.sleep(60)", "--minutes", "0.01")
    assert status == 0
    late = {name: row["reason"] for name, row in rows.items() if row["status"] == "skipped"}
    assert "mlm" in late
    assert set(late.values()) == {"the 0.01 minutes were over"}


def test_what_it_refuses(
    gpu_check: Callable[[str], ModuleType],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # which the script sets for all that it starts
    main = gpu_check("__main__").main
    assert main(["--device", "cpu", "--only", "nothing", "--out", str(tmp_path)]) == 2
    assert "no check begins with 'nothing': there are float32 product" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert main(["--out", str(tmp_path)]) == 2
        assert "sees no CUDA device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ray
@pytest.mark.slow
def test_processes_on_a_cpu(rows_of: Callable[[str], dict[str, Any]]) -> None:
    """Two runs at a time, a group of one, and both faults, raised here instead of provoked."""
    rows = rows_of("two runs,worker group,out of memory,CUDA error")
    assert {row.name: row.reason for row in rows.values() if row.status != "pass"} == {}
    assert len(rows) == 4
    assert rows["CUDA error"].values["events"] == ["started", "retried", "started", "done"]
    assert rows["out of memory"].values["events"] == ["started", "failed", "started", "done"]

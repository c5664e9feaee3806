"""TensorBoard, MLflow and W&B themselves, read back by their own formats and clients."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import pytest
from tracking.samples import failed_then_done, filled, plan_of, projection
from views.runs import commit

from harness.errors import UserError
from harness.planning.runs import Plan
from harness.store import Store
from harness.tracking import MARK, WandB, Writer


@pytest.fixture
def plan() -> Plan:
    return plan_of()


@pytest.fixture
def store(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    for name in (
        "MLFLOW_TRACKING_URI",
        "MLFLOW_EXPERIMENT_NAME",
        "WANDB_API_KEY",
        "WANDB_MODE",
        "WANDB_PROJECT",
        "WANDB_DIR",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(workdir))  # no ~/.netrc
    return Store(f"sqlite:///{workdir}/harness.db")


def written(store: Store, plan: Plan, name: str) -> int:
    """How many runs are new."""
    made = Writer(store.url, [name])
    made.write(projection(plan))
    assert not made.outcomes[name].error
    return made.outcomes[name].new


def events(folder: Path) -> list[tuple[str, int, float]]:
    """(tag, step, value) of every scalar in the event files of a folder: length, checksum, message, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(folder.glob("events.*")):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            event = Event.FromString(content[at + 12 : at + 12 + length])
            found += [
                (v.tag, event.step, v.simple_value)
                for v in event.summary.value
                if v.WhichOneof("value") == "simple_value"
            ]
            at += 12 + length + 4
    return found


def test_tensorboard_files_hold_each_point_once(store: Store, plan: Plan, workdir: Path) -> None:
    filled(store, plan)
    assert written(store, plan, "tensorboard") == len(plan.stages)
    before = {path: path.read_bytes() for path in (workdir / "tensorboard").rglob("*") if path.is_file()}
    assert written(store, plan, "tensorboard") == 0
    assert {path: path.read_bytes() for path in (workdir / "tensorboard").rglob("*") if path.is_file()} == before
    run = next(run for run in plan.runs if run.row == "FT" and run.seed == 31)
    (folder,) = (workdir / "tensorboard").rglob(f"*-{run.stage.key[:12]}-*")
    assert (
        folder.relative_to(workdir)
        .as_posix()
        .startswith("tensorboard/harness-few_shot/FT/cola/n20_quick_bert-tiny/subset0_seed31")
    )
    points = events(folder)
    assert max(Counter((tag, step) for tag, step, _ in points).values()) == 1
    assert ("train/loss", 2, pytest.approx(0.6)) in points
    assert ("final/dev/mcc", 8, 0.5) in points


def test_a_folder_that_a_killed_command_left_counts_as_not_written(store: Store, plan: Plan, workdir: Path) -> None:
    filled(store, plan)
    written(store, plan, "tensorboard")
    said = next(workdir.rglob("events.*"))
    said.parent.rename(said.parent.with_name(".killed"))
    assert written(store, plan, "tensorboard") == 1


def test_mlflow_in_a_folder(store: Store, plan: Plan, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # no migrations: seconds less
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{workdir}/mlruns")
    from mlflow.tracking import MlflowClient

    stage = plan.runs[0].stage
    failed_then_done(store, stage, lambda: written(store, plan, "mlflow"))
    assert written(store, plan, "mlflow") == 1, "the stage in place of the failed one"
    client = MlflowClient()
    experiment = client.get_experiment_by_name("harness-few_shot")
    assert experiment
    made = client.search_runs([experiment.experiment_id], f"tags.`harness.key` = '{stage.key}'")
    assert [run.info.status for run in made] == ["FINISHED"]
    assert made[0].data.metrics["final/dev/mcc"] == 0.5
    assert made[0].data.params["seed"] == "31"
    commit(store, plan.runs[1].stage)
    assert written(store, plan, "mlflow") == 1
    assert [(m.step, m.value) for m in client.get_metric_history(made[0].info.run_id, "train/loss")] == [(3, 0.5)]
    client.create_run(experiment.experiment_id, tags={"harness.key": stage.key, MARK: "of a killed command"})
    assert written(store, plan, "mlflow") == 0


def test_a_server_that_is_away_is_found_out_in_seconds(
    store: Store, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    made = Writer(store.url, ["mlflow"])
    made.write(projection(plan))
    assert "127.0.0.1:9" in made.outcomes["mlflow"].error


@pytest.mark.slow
def test_wandb_offline_writes_a_run_once(store: Store, workdir: Path) -> None:
    """A process of wandb's own is started: seconds."""
    pytest.importorskip("wandb")
    plan = plan_of(("ft",), (31,))
    filled(store, plan)
    assert written(store, plan, "wandb") == 1
    (stage,) = plan.stages
    assert len(list(workdir.glob(f"wandb/offline-run-*-{stage}/run-{stage}.wandb"))) == 1
    assert written(store, plan, "wandb") == 0


@pytest.mark.parametrize(
    ("mode", "key", "offline"),
    [("", "", True), ("online", "", False), ("", "k" * 40, False), ("offline", "k" * 40, False)],
)
def test_wandb_is_offline_without_a_key(
    mode: str, key: str, offline: bool, store: Store, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WANDB_MODE is left to wandb itself."""
    monkeypatch.setenv("WANDB_MODE", mode)
    monkeypatch.setenv("WANDB_API_KEY", key)
    assert WandB("harness-x", workdir)._offline == offline
    (workdir / ".netrc").write_text("machine api.wandb.ai login user password abc\n")
    (workdir / ".netrc").chmod(0o600)
    assert not WandB("harness-x", workdir)._offline


def test_a_missing_package_is_refused_with_its_command(monkeypatch: pytest.MonkeyPatch, workdir: Path) -> None:
    monkeypatch.setattr("harness.tracking.find_spec", lambda name: None)
    with pytest.raises(
        UserError,
        match=r"--track mlflow: the package mlflow is not installed; run pip install 'glue-harness\[mlflow\]'",
    ):
        Writer("", ["mlflow"], "--track")
    with pytest.raises(UserError, match=r"--track: unknown tracker 'tensorbord'\. Did you mean 'tensorboard'"):
        Writer("", ["tensorbord"], "--track")


def test_a_folder_of_runs_is_no_package(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B writes to ./wandb, which Python takes for a package without code where it starts from that folder."""
    (workdir / "only_a_folder").mkdir()
    monkeypatch.syspath_prepend(str(workdir))
    monkeypatch.setattr("harness.tracking.TRACKERS", {"x": ("only_a_folder", None)})
    with pytest.raises(UserError, match="only_a_folder is not installed"):
        Writer("", ["x"])

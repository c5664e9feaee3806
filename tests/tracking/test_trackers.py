"""A tracker shows what the store holds, once, however often it is written: TensorBoard, MLflow and W&B are read back by their own clients."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from requested import resolve_table
from views.runs import OWNER, commit

from harness.commands.study import track_trial
from harness.commands.tracking import KEY, Tracked, Trackers, check_trackers
from harness.encoders import HeadTraining, Located
from harness.errors import UserError
from harness.planning.runs import Plan, make_plan
from harness.search.points import Trial
from harness.specs import Encoder, Record, Stage
from harness.store import Store
from harness.tasks.metrics import score

HISTORY: list[dict[str, Any]] = [
    {
        "step": 4,
        "loss": 0.5,
        "ce": 0.5,
        "dev": {"mcc": 0.1},
        "curve": {"loss": [[2, 0.6], [4, 0.4]], "dev": [[2, 0.05]]},
    },
    {"step": 8, "loss": 0.25, "ce": 0.25, "dev": {"mcc": 0.2}, "measures": {"std": 0.9, "cosine": float("nan")}},
]


def plan_of(methods: tuple[str, ...] = ("ft", "cmlm"), seeds: tuple[int, ...] = (31, 42)) -> Plan:
    """Rows on CoLA with 20 examples of one subset, one run a seed."""
    one = {"tasks": ("cola",), "sizes": (20,), "subsets": (0,), "seeds": seeds, "encoder": "bert-tiny"}
    head = HeadTraining("boolq_prose", steps=100, lr=1e-3)
    located = Located(Encoder("7" * 32, "tiny"), None, {}, head)
    return make_plan(resolve_table("few_shot", "quick", methods=methods, **one), None, located)


def filled(store: Store, plan: Plan, count: int | None = None) -> dict[str, Record]:
    """Records of the first `count` stages."""
    origin = {"started_at": 1_000_000.0, "device": "a CPU", "tokens_per_second": 99.0}
    given: dict[str, Any] = {"history": HISTORY, "seconds": 2.0, "provenance": origin}
    stages = list(plan.stages.values())[:count]
    return {s.key: commit(store, s, selected_step=8 if s.selection else None, **given) for s in stages}


def trackers(store: Store, plan: Plan, *names: str) -> Trackers:
    return Trackers(names, "harness-few_shot", store.url).add_plan(plan)


def recorded_in(patch: pytest.MonkeyPatch, **writes: Callable[[Tracked, str, Path], str]) -> None:
    """Let these be the trackers that there are."""
    patch.setattr("harness.commands.tracking.TRACKERS", {name: ("json", write) for name, write in writes.items()})


def failed_then_done(store: Store, stage: Stage, between: Callable[[], Any]) -> None:
    """The stage fails, `between` is called, and a later command trains it."""
    assert store.lease(stage.key, OWNER) == "granted"
    assert store.commit(stage, Record(stage.key, "failed", "out of memory"), OWNER)
    between()
    assert store.lease(stage.key, OWNER, seen_attempt=1) == "granted"
    history = [{"step": 3, "loss": 0.5}]
    assert store.commit(stage, Record(stage.key, "done", history=history, seconds=2.0, dev_scores={"mcc": 0.5}), OWNER)


@pytest.fixture
def plan() -> Plan:
    return plan_of()


@pytest.fixture
def store(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("API_KEY", "MODE", "PROJECT", "DIR"):
        monkeypatch.delenv(f"WANDB_{name}", raising=False)
    monkeypatch.setenv("HOME", str(workdir))  # no ~/.netrc
    return Store(f"sqlite:///{workdir}/harness.db")


def written(store: Store, plan: Plan, name: str) -> None:
    made = trackers(store, plan, name)
    made.finish()
    assert not made.errors


# ------------------------------------------------------------------------------------------------------ what is shown


def shown(store: Store, plan: Plan) -> dict[str, Tracked]:
    made = trackers(store, plan)
    return {key: made.tracked(key, record) for key, record in store.each(plan.stages, predictions=True)}


def test_every_recorded_number_is_shown_under_its_update(store: Store) -> None:
    plan = plan_of(("ft",), (31,))
    records = filled(store, plan)
    (run,) = plan.runs
    found, record = shown(store, plan)[run.stage.key], records[run.stage.key]
    assert found.history == (
        ("dev/curve", 2, 0.05),
        ("train/loss", 2, 0.6),
        ("dev/mcc", 4, 0.1),
        ("train/ce", 4, 0.5),
        ("train/loss", 4, 0.4),
        ("dev/mcc", 8, 0.2),
        ("measures/std", 8, 0.9),
        ("train/ce", 8, 0.25),
        ("train/loss", 8, 0.25),
    )
    predicted = record.predictions[plan.tasks["cola"].tests["test"].digest]
    scores = {"final/test/mcc": score("mcc", predicted), "final/dev/mcc": 0.5, "final/step": 8, "cost/seconds": 2.0}
    assert scores.items() <= found.scores.items()
    own = {"row": "FT", "task": "cola", "size": 20, "subset": 0, "seed": 31, "preset": "quick"}
    own |= {"provenance.device": "a CPU"}
    recipe = {"objective": "cross_entropy", "optim.lr": run.stage.optim.lr, "optim.steps": run.stage.optim.steps}
    assert (own | recipe).items() <= found.settings.items()


def test_a_shared_stage_has_only_what_its_runs_agree_on(store: Store) -> None:
    plan = plan_of(("cmlm",))
    filled(store, plan)
    shared = [found for found in shown(store, plan).values() if "more" in found.name]
    assert shared
    for found in shared:
        assert found.settings["task"] == "cola"
        assert "seed" not in found.settings
        assert not any(name.startswith("final/test") for name in found.scores)


def test_a_tracker_that_is_away_costs_one_warning_and_is_caught_up_with(
    store: Store, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails at its first run, is left alone while stages end, and gets everything at the end if it is back."""
    kept, tried, said, away = [], [], [], [True]

    def write(run: Tracked, experiment: str, folder: Path) -> str:
        tried.append(run.key)
        if away:
            raise ConnectionError("refused")
        kept.append(run.key)
        return "memory"

    others: list[str] = []
    recorded_in(monkeypatch, away=write, other=lambda run, *_: others.append(run.key) or "memory")
    made = trackers(store, plan, "away", "other")
    for key in filled(store, plan):
        made.write([key], said.append)
    assert len(tried) == 1
    (warning,) = said
    assert warning.startswith("Tracker away cannot be written (ConnectionError: refused); training goes on.")
    away.clear()
    assert len(made.finish()) == 2
    assert not made.errors
    assert sorted(kept) == sorted(others) == sorted(plan.stages), "each once"


def test_trials_are_groups_and_written_as_their_replicates_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trials that share a head, without a test score."""
    plans = [plan_of(("cmlm",), (seed,)) for seed in (31, 42)]
    points = SimpleNamespace(runs_of=lambda points: plans[points[0]["place"]].runs)
    opened: Any = SimpleNamespace(name="mine", points=points)
    kept: dict[str, Tracked] = {}
    recorded_in(monkeypatch, recording=lambda run, *_: kept.update({run.key: run}) or "memory")
    made = Trackers(["recording"], "harness-mine", store.url)
    for number, plan in enumerate(plans):
        trial = Trial(number, {"place": number})
        track_trial(opened, made, print, "started", trial)
        known = store.statuses(plan.stages)
        filled(store, SimpleNamespace(stages={k: s for k, s in plan.stages.items() if k not in known}))  # type: ignore[arg-type]
        track_trial(opened, made, print, "replicate", trial)
        assert plan.stages.keys() <= kept.keys(), "before the study ends"
        track_trial(opened, made, print, "ended", trial)  # a trial is its own group, however often it is added
    assert made.finish() == [f"Tracker recording: {len(kept)} stages; memory."]
    ends = [run for run in kept.values() if run.settings["phase"] == "fine-tune"]
    assert [(run.group, run.settings["trial"]) for run in ends] == [("trial 0/cola/n20", 0), ("trial 1/cola/n20", 1)]
    assert not [name for run in kept.values() for name in run.scores if "test" in name]


# ------------------------------------------------------------------------------------------------------- the trackers


def events(folder: Path) -> list[tuple[str, int, float]]:
    """(tag, step, value) of every scalar in the event files of a folder: length, checksum, message, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(folder.glob("events.*")):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            event = Event.FromString(content[at + 12 : at + 12 + length])
            scalars = (v for v in event.summary.value if v.WhichOneof("value") == "simple_value")
            found += [(scalar.tag, event.step, scalar.simple_value) for scalar in scalars]
            at += 12 + length + 4
    return found


def test_tensorboard_files_hold_each_point_once(store: Store, plan: Plan, workdir: Path) -> None:
    filled(store, plan)
    for _ in range(2):
        written(store, plan, "tensorboard")
        assert len([*workdir.rglob("events.*")]) == len(plan.stages)
    run = next(run for run in plan.runs if run.row == "FT" and run.seed == 31)
    (folder,) = (workdir / "tensorboard").rglob(f"*-{run.stage.key[:12]}")
    assert folder.parent == workdir / "tensorboard" / "harness-few_shot"
    assert folder.name.startswith("FT_cola_n20_subset0_seed31-")
    points = events(folder)
    assert max(Counter((tag, step) for tag, step, _ in points).values()) == 1
    assert ("train/loss", 2, pytest.approx(0.6)) in points
    assert ("final/dev/mcc", 8, 0.5) in points


def test_mlflow_in_a_folder(store: Store, plan: Plan, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # no migrations: seconds less
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{workdir}/mlruns")
    from mlflow.tracking import MlflowClient

    stage = plan.runs[0].stage
    failed_then_done(store, stage, lambda: written(store, plan, "mlflow"))
    client = MlflowClient()
    experiment = client.get_experiment_by_name("harness-few_shot")
    assert experiment
    client.create_run(experiment.experiment_id, tags={KEY: stage.key})  # of a killed command
    for _ in range(2):
        written(store, plan, "mlflow")
        made = client.search_runs([experiment.experiment_id])
        assert [(run.info.status, run.data.tags[KEY]) for run in made] == [("FINISHED", stage.key)]
    assert made[0].data.metrics["final/dev/mcc"] == 0.5
    assert made[0].data.params["seed"] == "31"
    assert [(m.step, m.value) for m in client.get_metric_history(made[0].info.run_id, "train/loss")] == [(3, 0.5)]


def test_a_server_that_is_away_is_found_out_in_seconds(
    store: Store, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    filled(store, plan, 1)
    made = trackers(store, plan, "mlflow")
    made.finish()
    assert "127.0.0.1:9" in made.errors["mlflow"]


@pytest.mark.slow
def test_wandb_without_a_key_writes_a_run_once_offline(store: Store, workdir: Path) -> None:
    """A process of wandb's own is started: seconds."""
    pytest.importorskip("wandb")
    plan = plan_of(("ft",), (31,))
    (stage,) = plan.stages.values()
    failed_then_done(store, stage, lambda: written(store, plan, "wandb"))
    for _ in range(2):
        written(store, plan, "wandb")
        assert len(list(workdir.glob(f"wandb/offline-run-*-{stage.key}/run-{stage.key}.wandb"))) == 2, (
            "failed, then done"
        )


def test_a_folder_of_runs_is_no_package(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B writes to ./wandb, which Python takes for a package without code where it starts from that folder."""
    (workdir / "only_a_folder").mkdir()
    monkeypatch.syspath_prepend(str(workdir))
    monkeypatch.setattr("harness.commands.tracking.TRACKERS", {"x": ("only_a_folder", None)})
    with pytest.raises(UserError, match="only_a_folder is not installed"):
        check_trackers(["x"], "track")

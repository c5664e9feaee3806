"""Checks through the harness's own processes, on Ray: two runs on one GPU, a worker group of one, a run that needs more memory
than there is, and an error of CUDA.

On a CPU the same code runs with no GPU per run, and the two faults are raised instead of provoked.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu_check.models import BATCH, SEED, SHAPES, Setting, built, inputs_of, trained, vocabulary_of
from benchmarks.gpu_check.numerics import LR, differences
from benchmarks.gpu_check.rows import Finding, SkippedError, one_line, within
from harness.specs import Data, Encoder, Optim, Record, RowSet, Selection, Stage
from harness.storage import Storage
from harness.training.loop import Placement, Scoring, train

REPOSITORY = Path(__file__).resolve().parents[2]
NEEDED = ("ray", "sqlalchemy", "pydantic", "ruamel")
SAME = 1e-4
"""Tolerance of the losses in a worker group of one against those of this process: the same code on the same device."""
WORDS = tuple(f"w{number}" for number in range(40))


def _needs_ray() -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise SkippedError(f"{', '.join(missing)} not installed: pip install -c constraints.txt -e .")


# ------------------------------------------------------------------------------------------- two runs on one GPU


def two_runs(setting: Setting) -> Finding:
    """`harness bench` with two runs at a time on one GPU: all are recorded, on that GPU, and two overlap in time."""
    _needs_ray()
    folder = setting.folder / "bench"
    _write_bench(folder, SHAPES[setting.shape])
    seeds, share = range(1, 7), 0.5 if setting.cuda else 0.0
    line = "-m harness bench --table few_shot --preset quick --tasks words.yaml --data data --encoder encoder --methods ft "
    line += f"--sizes 20 --subsets 0 --seeds {','.join(map(str, seeds))} --slots 2 --gpus-per-run {share:g} "
    line += f"--set fine_tune.steps=300 --store sqlite:///{folder}/harness.db --yes --format json"
    path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, *line.split()],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return Finding(False, reason=f"harness bench ended with {done.returncode}: {last[:300]}")
    from harness.store import Store

    store = Store(f"sqlite:///{folder}/harness.db")
    keys = list(dict.fromkeys(each["key"] for each in json.loads(done.stdout)["results"]))
    records = list(store.records(keys).values())
    devices = {str(record.provenance["device"]) for record in records}
    spans = sorted((record.provenance["started_at"], record.seconds) for record in records)
    overlaps = sum(before[0] + before[1] > after[0] for before, after in itertools.pairwise(spans))
    values = {"records": len(records), "overlaps": overlaps, "devices": sorted(devices)}
    wrong = [
        f"{len(records)} of {len(seeds)} runs are recorded" if len(records) != len(seeds) else "",
        _wrong_device(setting, devices),
        "" if overlaps else "no two runs overlap in time",
    ]
    reason = "; ".join(filter(None, wrong))
    return Finding(not reason, f"{len(records)} runs, {overlaps} overlap", f"{len(seeds)} runs, 1", values, reason)


def _wrong_device(setting: Setting, devices: set[str]) -> str:
    expected = {torch.cuda.get_device_name(setting.device)} if setting.cuda else None
    return f"they ran on {sorted(devices)}" if expected and devices != expected else ""


def _write_bench(folder: Path, config: dict[str, Any]) -> None:
    """A task with random texts that their label tells, and an encoder folder with a tokenizer for them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedTokenizerFast

    (folder / "data" / "words").mkdir(parents=True)
    task = "name: words\ncolumns: [text]\nclasses: [negative, positive]\nmetrics: [accuracy]\n"
    (folder / "words.yaml").write_text(task, encoding="utf-8")
    random = np.random.default_rng(SEED)
    for split, count in (("train", 800), ("validation", 200)):
        with (folder / "data" / "words" / f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("text", "label"))
            for row in range(count):
                words = random.choice(WORDS, random.integers(6, 40))
                label = ("negative", "positive")[row % 2]
                writer.writerow((f"{split}{row} {' '.join(words)} {label}", label))
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    ids = {token: number for number, token in enumerate((*special, *WORDS, "negative", "positive"))}
    made = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=made, **names).save_pretrained(str(folder / "encoder"))
    fields = {**config, "vocab_size": len(ids)}
    kind = fields.pop("model_type")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = AutoModelForMaskedLM.from_config(AutoConfig.for_model(kind, **fields))
    model.save_pretrained(str(folder / "encoder"))


# ------------------------------------------------------------------------------------------------ a pool of workers


def _stage(seed: int, steps: int = 10) -> Stage:
    """A fine-tuning stage of the checks' random rows."""
    rows, dev = RowSet(f"{seed:032x}", "made/train", 4 * BATCH, 100.0), RowSet("d" * 32, "made/dev", 4 * BATCH, 100.0)
    optim = Optim(LR, BATCH, steps, schedule="constant", dropout=0.0)
    encoder = Encoder("made", "made")
    return Stage(trained()["ft"].spec, Data(rows, 2, 128, dev), optim, seed, encoder, Selection("accuracy", 5))


def _pool(
    setting: Setting, name: str, stages: Sequence[Stage], start_worker: Callable[..., Any]
) -> tuple[list[Any], list[Record]]:
    """Train stages, the first one first, one at a time through the real pool. Returns its events and the records."""
    _needs_ray()
    from harness.cluster.session import session  # before ray: it makes Ray listen on loopback only
    from harness.execution import Execution, WorkerSetup
    from harness.store import Store
    from harness.tables.work import Item

    config, folder = setting.config, setting.folder / name
    folder.mkdir()
    train_rows = inputs_of(trained()["ft"], config)
    items = [
        Item(stage, f"{name} {number}", float(len(stages) - number), ("accuracy",), False, False, 0)
        for number, stage in enumerate(stages)
    ]
    store = Store(f"sqlite:///{folder}/harness.db")
    setup = WorkerSetup(folder, Storage(str(folder / "products")), encoder_config=config)
    execution = Execution(slots=1, gpus_per_run=1.0 if setting.cuda else 0.0)
    with session(execution, {}) as (_, settled):
        from harness.cluster.pool import Pool

        rows = (train_rows.train, train_rows.labels)
        pool = Pool(store, setup, vocabulary_of(config), lambda *_: rows, settled, name, start_worker)
        events = list(pool.run(items))
        pool.close()
    records = store.records([stage.key for stage in stages])
    return events, [records[stage.key] for stage in stages]


def worker_group(setting: Setting) -> Finding:
    """A Ray Train worker group of one rank, on NCCL where there is a GPU: a stage with the losses of this process."""
    _needs_ray()
    stage = _stage(SEED)

    def start(execution: Any, setup: Any, ledger: Any, name: str, /, **options: Any) -> Any:
        import ray

        from harness.cluster.worker_group import WorkerGroup

        kind: Any = WorkerGroup
        address = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
        return kind.options(runtime_env={"env_vars": address}, **options).remote(setup, ledger, name, execution)

    _, (record,) = _pool(setting, "group", [stage], start)
    if record.status != "done":
        return Finding(False, reason=f"{record.status}: {one_line(record.reason)}")
    if wrong := _wrong_device(setting, {str(record.provenance["device"])}):
        return Finding(False, reason=wrong)
    data = inputs_of(trained()["ft"], setting.config)
    assert data.labels is not None
    inputs = replace(data, evaluations={"d" * 32: (data.train, data.labels)})
    scoring, placement = Scoring.of(stage, ("accuracy",)), Placement(setting.device)
    objective = built(trained()["ft"], setting.config)  # draws from SEED, as the stage does
    alone = train(objective, inputs, stage.optim, stage.seed, scoring=scoring, placement=placement)
    runs = [[{"loss": entry["loss"]} for entry in each.history] for each in (alone, record)]
    return within({"worst": SAME}, {"worst": max(differences(*runs))})


def out_of_memory(setting: Setting) -> Finding:
    """A run that needs more memory than its process may take is recorded as failed with the reason, its process is replaced, and
    the next run is trained."""

    def limit(cuda: bool = setting.cuda) -> None:
        import torch

        if not cuda:
            raise torch.OutOfMemoryError("CUDA out of memory. (raised, not provoked)")
        # Of the whole memory, a mebibyte: less than one block of torch's allocator.
        torch.cuda.set_per_process_memory_fraction(2**20 / torch.cuda.get_device_properties(0).total_memory)

    events, started, (failed, after) = _with_fault(setting, "memory", [_stage(1), _stage(2)], limit)
    wrong = [
        "" if failed.status == "failed" else f"the run is recorded as {failed.status}",
        "" if failed.reason.startswith("out of memory: ") else f"its reason is '{one_line(failed.reason)}'",
        _not_replaced(started),
        "" if after.status == "done" else f"the next run {after.status}: {one_line(after.reason)}",
        _wrong_device(setting, {str(after.provenance.get("device"))}),
    ]
    return _outcome(wrong, events, started, failed.reason)


def cuda_error(setting: Setting) -> Finding:
    """An error of CUDA, permanent in its process: the process is replaced, and its run is trained by the next one."""

    def spoil(cuda: bool = setting.cuda) -> None:
        import torch

        if not cuda:
            raise RuntimeError("CUDA error: device-side assert triggered (raised, not provoked)")
        four = torch.zeros(4, device="cuda")
        four[torch.tensor([9], device="cuda")].sum().item()  # no such element: an assertion in the kernel

    events, started, (record,) = _with_fault(setting, "cuda-error", [_stage(3)], spoil)
    reasons = [event.reason for event in events if event.kind == "retried"]
    wrong = [
        "" if any("CUDA error" in reason for reason in reasons) else f"no stage was retried for it: {reasons}",
        _not_replaced(started),
        "" if record.status == "done" else f"the run is recorded as {record.status}: {one_line(record.reason)}",
        _wrong_device(setting, {str(record.provenance.get("device"))}),
    ]
    return _outcome(wrong, events, started, "; ".join(reasons))


def _outcome(wrong: Sequence[str], events: Sequence[Any], started: Sequence[str], reason: str) -> Finding:
    found = "; ".join(filter(None, wrong))
    kinds = [event.kind for event in events if event.kind != "notice"]  # a busy machine gives those
    values = {"events": kinds, "workers": list(started), "recorded_reason": reason}
    return Finding(not found, ", ".join(kinds), "-", values, found)


def _not_replaced(started: Sequence[str]) -> str:
    return "" if len(started) == 2 else f"{len(started)} worker processes were started, not 2"


def _with_fault(
    setting: Setting, name: str, stages: Sequence[Stage], fault: Callable[[], None]
) -> tuple[list[Any], list[str], list[Record]]:
    """Train stages in workers of which the first one runs `fault` before it trains. Returns the events, the names of the workers
    that were started, and the records."""
    started: list[str] = []

    def start(execution: Any, setup: Any, ledger: Any, name: str, /, **options: Any) -> Any:
        import ray

        from harness.cluster.worker import WorkerProcess

        class Faulty(WorkerProcess):
            def record(self, item: Any, vocabulary: Any, digests: Any, references: Any) -> Any:
                from harness.cluster import local_trainer
                from harness.cluster.worker import fetched
                from harness.cluster.worker import trained as train_item

                def launch(train_function: Any) -> Any:
                    def faulty() -> Any:
                        fault()
                        return train_function()

                    return local_trainer.launch(faulty)

                sets = fetched(references)
                return train_item(item, self._setup, vocabulary, digests, sets, ledger=self._ledger, launch=launch)

        kind: Any = ray.remote(WorkerProcess if started else Faulty)
        started.append(name)
        options |= {"num_cpus": execution.cpus_per_run, "num_gpus": execution.gpus_per_run}
        return kind.options(**options).remote(setup, ledger, name)

    events, records = _pool(setting, name, stages, start)
    return events, started, records

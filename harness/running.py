"""Runs one stage: loads the weights that it starts from, trains, saves its weights, and returns a Record in every case.

No ray and no database.
"""

from __future__ import annotations

import subprocess
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor

import harness
from harness.encoders.kernels.cpu import kernels
from harness.encoders.models.text_encoder import ENCODER_PARTS, load_encoder
from harness.encoders.models.weights import checked_weights, save_weights
from harness.encoders.tokens import Vocabulary
from harness.errors import DivergedError, StoppedError, UserError, first_line
from harness.machine import cpu_name
from harness.methods.definition import HEAD, WORD_EMBEDDINGS
from harness.objectives import build
from harness.objectives.base import TrainingObjective
from harness.objectives.fitted import Fitted
from harness.specs import NO_ENCODER, Parent, Record, Stage
from harness.storage import WorkerSetup, weights_of
from harness.training.checkpoint import Checkpoints, SavedWeights
from harness.training.fit import fit
from harness.training.forward_backward import Placement
from harness.training.loop import Inputs, train
from harness.training.process_group import SINGLE_PROCESS, ProcessGroup
from harness.training.result import Scoring, Speed


def run_stage(
    stage: Stage,
    inputs: Inputs,
    vocabulary: Vocabulary,
    metrics: tuple[str, ...],
    setup: WorkerSetup,
    *,
    keep_weights: bool,
    save_at: tuple[int, ...] = (),
    until: int = 0,
    report_speed: Callable[[Speed], None] = lambda _: None,
    stopping: Callable[[], bool] = lambda: False,
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> Record:
    """Train one stage. An error of the stage itself is not raised but recorded with its reason. Raises StoppedError where it stopped
    because `stopping` said so.

    `metrics` are scored on dev; `keep_weights`: a later stage starts from these weights; `save_at`: the updates after which weights
    are saved as well; `until`: the update after which training ends, where no later weights are wanted (0: the last), and the record
    is not to be kept. In a worker group every rank calls this with the same stage, rank 0 saves the weights, and all return the same
    numbers.
    """
    started = time.perf_counter()
    record = Record(
        stage.key, "failed", provenance=provenance(setup, process_group) | {"encoder": stage.encoder.digest}
    )
    checkpoints = None
    if setup.checkpoint_seconds:
        checkpoints = Checkpoints(setup.storage, stage.key, setup.checkpoint_seconds)
    try:
        objective = _build(stage, vocabulary, setup, record)

        def tensors() -> dict[str, Tensor]:
            return {**objective.encoder.parts(), **objective.parts()}

        saved = SavedWeights(setup.storage, stage.key, save_at, tensors) if save_at else None
        scoring, device = Scoring.of(stage, metrics), torch.device(setup.device)
        if isinstance(objective, Fitted):
            assert scoring is not None
            fitted = objective.to(device)
            result = fit(fitted, inputs, scoring, stopping=stopping)
        else:
            result = train(
                objective,
                inputs,
                stage.optim,
                stage.seed,
                scoring=scoring,
                placement=Placement(device, process_group, setup.micro_batch),
                checkpoints=checkpoints,
                saved=saved,
                until=until,
                report_speed=report_speed,
                stopping=stopping,
            )
        if keep_weights and process_group.rank == 0:
            record.weights_digest = save_weights(tensors(), setup.storage, stage.key)
        if saved and process_group.rank == 0:
            record.provenance["saved_digests"] = saved.digests
        record.provenance |= result.provenance
        vars(record).update({name: value for name, value in vars(result).items() if name != "provenance"})
        if stage.data.dev and (predicted := result.predictions.get(stage.data.dev.digest)):
            record.histogram, record.collapsed = predicted.histogram, predicted.collapsed
        record.status = "done"
    except StoppedError:
        raise
    except DivergedError as error:
        record.status, record.reason = "diverged", str(error)
    except (Exception, SystemExit) as error:  # every error of a model, a batch or a library becomes a record
        if isinstance(error, SystemExit) and _ends_worker(error):
            raise
        if process_group.size > 1 and _of_one_rank(error):
            raise  # the other ranks wait for this one: the worker group ends, and starts again
        record.reason = _reason(error)
    record.seconds = time.perf_counter() - started
    if checkpoints:
        record.seconds += checkpoints.seconds_before
        record.provenance |= checkpoints.provenance
    return record


def _build(stage: Stage, vocabulary: Vocabulary, setup: WorkerSetup, record: Record) -> TrainingObjective:
    """The stage's objective on the weights that it starts from. Notes the parent's weights in the record's provenance."""
    encoder, root, tensors = None, stage.encoder, dict[str, Tensor]()
    parts: tuple[str, ...] = ()
    if root != NO_ENCODER:
        folder, config = setup.encoders[root.digest]
        encoder = load_encoder(folder, root.digest, seed=stage.seed, config=config)
        if root.relative_buckets:
            encoder.add_relative_positions(root.relative_buckets, root.relative_distance)
    if encoder and isinstance(stage.init, Parent):
        step, parts, kept = stage.init.step, stage.init.parts, "selected" if stage.init.stage.selection else "last"
        if isinstance(step, str) and step != kept:
            raise ValueError(f"the parent keeps its {kept} weights, and step '{step}' is asked for")
        tensors, record.provenance["parent_product"] = _parents_weights(stage.init, setup)
        encoder.load_parts(tensors, [part for part in parts if part in ENCODER_PARTS])
        if WORD_EMBEDDINGS in parts:
            encoder.load_word_embeddings(tensors)
    objective = build(stage.objective, encoder, vocabulary, stage.data.kind, stage.seed)
    if parts:
        objective.load_parts(tensors, parts)
    return objective


def restored(stage: Stage, vocabulary: Vocabulary, setup: WorkerSetup) -> tuple[TrainingObjective, str]:
    """The objective of a trained stage with its stored weights, and their digest. Its encoder says that its MLM head is
    fresh where no stage has trained it and the encoder came without one.

    Raises FileNotFoundError where they are not stored, SafetensorError where they are damaged, and KeyError where an older harness
    stored them without the head of the classifier.
    """
    tensors, digest = checked_weights(setup.storage, stage.key)
    folder, config = setup.encoders[stage.encoder.digest]
    encoder = load_encoder(folder, stage.encoder.digest, seed=stage.seed, config=config)
    drawn = encoder.fresh_head and not (isinstance(stage.init, Parent) and "mlm_head" in stage.init.parts)
    encoder.load_parts(tensors, ENCODER_PARTS)
    objective = build(stage.objective, encoder, vocabulary, stage.data.kind, stage.seed)
    encoder.fresh_head = drawn and not objective.uses_mlm_head
    if objective.has_classifier:
        objective.load_parts(tensors, (HEAD,))
    return objective.to(torch.device(setup.device)), digest


def _ends_worker(error: SystemExit) -> bool:
    """Whether Ray raised it, as it does to end a process that got SIGTERM, and not the stage's own code."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return bool(frame.f_globals["__name__"].startswith("ray."))


def _of_one_rank(error: BaseException) -> bool:
    """Whether an error may be one rank's alone; others come from the stage itself, on every rank alike."""
    return isinstance(error, OSError) or not isinstance(error, (ValueError, UserError, SystemExit))


def _reason(error: BaseException) -> str:
    """Why a stage failed, in a line for its record."""
    out_of_memory = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    # torch has no type for it on the CPU.
    if out_of_memory or "DefaultCPUAllocator: can't allocate memory" in str(error):
        return f"out of memory: {first_line(error)}"
    if isinstance(error, UserError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {first_line(error)} ({Path(place.filename).name}:{place.lineno})"


def _parents_weights(parent: Parent, setup: WorkerSetup) -> tuple[dict[str, Tensor], str]:
    """The weights of an earlier stage and their digest. Damaged weights are deleted, and the next command makes them again."""
    key = parent.stage.key
    try:
        return checked_weights(setup.storage, key, parent.step)
    except FileNotFoundError:
        raise UserError(
            f"the weights of its parent stage {key} are no longer in {setup.storage.shown}: the same command makes them again"
        ) from None
    except SafetensorError as error:
        setup.storage.delete(weights_of(key, parent.step))
        raise UserError(
            f"the weights of its parent stage {key[:10]} were damaged ({first_line(error)}) and are deleted: the same "
            "command makes them again"
        ) from None


def provenance(setup: WorkerSetup, process_group: ProcessGroup) -> dict[str, Any]:
    """What the stage ran on: part of the record, never of the key."""
    return {
        "harness": harness.__version__,
        "commit": source_commit(),
        "torch": str(torch.__version__),  # a class of torch's own, which whoever unpickles it has to import
        "transformers": transformers.__version__,
        "device": device_name(setup.device),
        "kernels": kernels() if setup.device == "cpu" else "blocks",
        "threads": torch.get_num_threads(),
        "workers": process_group.size,
        "micro_batch": setup.micro_batch,
        "started_at": time.time(),
    }


@cache
def source_commit() -> str:
    """The commit that the harness runs from, with '-dirty' where its files were changed; '' where it is no checkout."""
    root = Path(harness.__file__).parent.parent
    if not (root / ".git").exists():
        return ""
    asked = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def device_name(device: str) -> str:
    """The name of a torch device; the device itself where CUDA does not start, which training then says better."""
    if not device.startswith("cuda"):
        return cpu_name()
    try:
        return torch.cuda.get_device_name()
    except (RuntimeError, AssertionError):  # no driver, no memory for a context, a build of torch without CUDA
        return device

"""Where a command's work runs and where its weights lie, from its flags."""

from __future__ import annotations

import argparse
import os
import resource

from harness.bench.resolve import ResolvedTable
from harness.encoders import Located
from harness.errors import UserError
from harness.specs import Execution, WorkerSetup
from harness.storage import Storage
from harness.store import Store

ADDRESS_SPACE, STORE_SHARE = 8 * 2**30, 0.3
"""What Ray's raylet maps at the most: 12 GB were seen on 25 GB of memory, of which its object store takes 30 %."""


def execution_of(args: argparse.Namespace, resolved: ResolvedTable) -> Execution:
    gpus = args.gpus_per_run if args.gpus_per_run is not None else -1.0
    return Execution(args.address, args.slots, gpus, args.cpus_per_run, num_workers=resolved.num_workers)


def storage_of(args: argparse.Namespace, store: Store) -> Storage:
    """Where weights lie: as asked, else beside the store."""
    return Storage.named(args.storage) if args.storage else Storage(str(store.artifacts.resolve()))


def worker_setup_of(args: argparse.Namespace, located: Located, storage: Storage, execution: Execution) -> WorkerSetup:
    """For workers of a session: every node that is there sees the storage and has the encoder."""
    from harness.cluster.nodes import shared

    assert located.folder is not None  # unresolved encoders were refused
    config = located.config if located.new else None
    setup = WorkerSetup(
        located.folder.resolve(),
        storage,
        execution.threads,
        encoder_config=config,
        micro_batch=args.micro_batch,
        checkpoint_seconds=60 * args.checkpoint_minutes,
    )
    return shared(setup, execution, located.encoder.digest)


def check_gpus(args: argparse.Namespace) -> None:
    """On this machine Ray needs a folder and memory, and a share of a GPU needs one; of another cluster its session tells."""
    if args.address == "local":
        _check_limits()
    if args.gpus_per_run and args.address == "local":
        import torch

        if torch.cuda.device_count() < args.gpus_per_run:
            raise UserError(
                f"--gpus-per-run {args.gpus_per_run:g}: torch {torch.__version__} sees {torch.cuda.device_count()} GPUs on "
                "this machine; leave the flag out to train with what there is."
            )


def _check_limits() -> None:
    """Raises UserError for what Ray would end in a traceback of its own, some after a minute."""
    flag = "RAY_TMPDIR" if "RAY_TMPDIR" in os.environ else "TMPDIR"
    folder = os.environ.get(flag, "")
    if not folder.isascii():
        raise UserError(
            f"{flag} is '{folder}': Ray takes ASCII paths only; set RAY_TMPDIR=/tmp, or another such folder."
        )
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    needed = ADDRESS_SPACE + STORE_SHARE * memory
    if limit != resource.RLIM_INFINITY and limit < needed:
        raise UserError(
            f"'ulimit -v' allows {limit / 2**30:.1f} GiB of address space, and Ray reserves {needed / 2**30:.0f} GiB here, most "
            "of it unused; run 'ulimit -v unlimited', and limit memory by a container instead."
        )

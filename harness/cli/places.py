"""Where a command's work runs and where its weights lie, from its flags."""

from __future__ import annotations

import argparse

from harness.bench.resolve import ResolvedTable
from harness.encoders import Located
from harness.errors import UserError
from harness.specs import Execution, Workplace
from harness.storage import Storage
from harness.store import Store


def execution_of(args: argparse.Namespace, resolved: ResolvedTable) -> Execution:
    gpus = args.gpus_per_run if args.gpus_per_run is not None else -1.0
    return Execution(args.address, args.slots, gpus, args.cpus_per_run, num_workers=resolved.num_workers)


def storage_of(args: argparse.Namespace, store: Store) -> Storage:
    """Where weights lie: as asked, else beside the store."""
    return Storage.named(args.storage) if args.storage else Storage(str(store.products.resolve()))


def workplace_of(args: argparse.Namespace, located: Located, storage: Storage, execution: Execution) -> Workplace:
    """For workers of a session: every node that is there sees the storage and has the encoder."""
    from harness.cluster.nodes import shared

    assert located.folder is not None  # unresolved encoders were refused
    config = located.config if located.new else None
    workplace = Workplace(
        located.folder.resolve(),
        storage,
        execution.threads,
        encoder_config=config,
        micro_batch=args.micro_batch,
        checkpoint_seconds=60 * args.checkpoint_minutes,
    )
    return shared(workplace, execution, located.encoder.digest)


def check_gpus(args: argparse.Namespace) -> None:
    """On this machine a share of a GPU needs one; of another cluster its session tells."""
    if args.gpus_per_run and args.address == "local":
        import torch

        if torch.cuda.device_count() < args.gpus_per_run:
            raise UserError(
                f"--gpus-per-run {args.gpus_per_run:g}: torch {torch.__version__} sees {torch.cuda.device_count()} GPUs on "
                "this machine; leave the flag out to train with what there is."
            )

"""Every private interface of Ray and torch that the harness uses, and nothing else. `pyproject.toml` caps their versions to the tested minor
ones; `tests/test_private.py` fails for each whose name or meaning changes. Only harness/cluster calls those of Ray."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from harness.errors import masked

if TYPE_CHECKING:
    from torch import Tensor

NODE_DIED = "its node has died"  # what Ray says of a process whose node left: it has no type for that


def job_config() -> Any:
    """A job whose workers import from this package's place, not from the folders that Ray adds: a file there may have a library's name."""
    from ray.job_config import JobConfig

    root, config = Path(__file__).parent.parent, JobConfig()
    fixed = type("Paths", (list,), {"extend": lambda self, paths: None})
    config._py_driver_sys_path = fixed([] if root.name.endswith("-packages") else [str(root)])
    return config


def draining_nodes() -> frozenset[str]:
    """Ray's ids of the nodes that will leave the cluster."""
    import ray

    return frozenset(ray._private.state.state.get_draining_nodes())


def command_line_masked() -> Any:
    """Inside, a driver that starts or joins Ray tells its dashboard the command line without passwords, and hears SIGTERM by its own handler."""
    from unittest.mock import patch  # asyncio and more, which no worker needs

    from ray._private import utils

    whole = utils.get_entrypoint_name
    return patch.multiple(utils, get_entrypoint_name=lambda: masked(whole()), set_sigterm_handler=lambda handler: None)


def orphaned_placement_groups() -> list[Any]:
    """The placement groups of this job that were made by an actor which is dead. Ray itself removes them when the job ends."""
    import ray
    from ray.core.generated.gcs_pb2 import PlacementGroupTableData as Data
    from ray.util.placement_group import PlacementGroup

    table = ray._private.state.state._connect_and_get_accessor().get_placement_group_table()
    return [
        PlacementGroup(ray.PlacementGroupID(group.placement_group_id))
        for group in map(Data.FromString, table)
        if group.creator_job_id.hex() == ray.get_runtime_context().get_job_id() and group.state != Data.REMOVED
        if group.creator_actor_dead and not ray.ActorID(group.creator_actor_id).is_nil()  # nil: made by no actor
    ]


def linear_pointwise(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [n, i] @ weight [o, i].T + bias [o] through oneDNN."""
    import torch

    return cast("Tensor", torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], ""))


def softmax_backward(gradient: Tensor, output: Tensor) -> Tensor:
    """The gradient of a softmax over the last dimension, from its output."""
    import torch

    return torch._softmax_backward_data(gradient, output, -1, output.dtype)

"""Every private interface of Ray, torch and Optuna that the harness uses, and nothing else. `pyproject.toml` caps their versions
to the minor ones that were tested; `tests/test_private.py` fails for each use whose name or meaning changes.

The libraries are imported inside the functions: only harness/cluster calls those of Ray, which is the one exception to the law
that nothing else imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from torch import Tensor

# ------------------------------------------------------------------------------------------------------------------- Ray


def set_command_line(shown: str) -> None:
    """What Ray shows as the job's command line, in its dashboard and as this process's title."""
    import ray._private.utils
    import ray._raylet

    ray._private.utils.get_entrypoint_name = lambda: shown
    ray._raylet.setproctitle(shown)


def silence_worker_logs() -> None:
    """Keep the raylet's reports of dead workers off the driver's standard output: `log_to_driver=False` does not."""
    import ray._private.worker

    ray._private.worker._worker_logs_enabled = False


def assume_dashboard_dependencies() -> None:
    """Keep `ray.init` from importing all that the dashboard needs (0.9 s of CPU time) to see whether it is installed: the harness
    depends on `ray[default]`."""
    import ray._private.utils

    ray._private.utils.get_dashboard_dependency_error = lambda: None


def start_fewer_processes() -> None:
    """Keep a local `ray.init` from starting two processes that it has no use for, each an interpreter of its own: the autoscaler's
    monitor, and the one that sends the logs of workers to a driver that shows none."""
    from ray._private.node import Node

    Node.start_monitor = Node.start_log_monitor = lambda self: None


@contextmanager
def dashboard_put_off() -> Iterator[Callable[[], None]]:
    """Keep a Ray that is started here from starting its dashboard. Yields what starts it later, without waiting until it answers."""
    from ray._private import ray_constants
    from ray._private.node import Node
    from ray.experimental import internal_kv

    start, get = Node.start_api_server, internal_kv._internal_kv_get
    put_off: list[Callable[[], None]] = []

    def answered(key: Any, **options: Any) -> Any:
        return b"" if key == ray_constants.DASHBOARD_ADDRESS else get(key, **options)

    def start_now() -> None:
        with patch.object(internal_kv, "_internal_kv_get", answered):
            put_off.pop()()

    with patch.object(
        Node, "start_api_server", lambda node, **options: put_off.append(partial(start, node, **options))
    ):
        yield start_now


def started_dashboard() -> str:
    """The address of the dashboard that this process started, which others who join its Ray can ask for from now on; '' while it starts. Raises
    RuntimeError where it ended."""
    from ray._private import ray_constants, worker

    node, namespace = worker._global_node, ray_constants.KV_NAMESPACE_DASHBOARD
    gcs = node.get_gcs_client()
    address: bytes = gcs.internal_kv_get(ray_constants.DASHBOARD_ADDRESS.encode(), namespace) or b""
    (dashboard,) = node.all_processes[ray_constants.PROCESS_TYPE_DASHBOARD]
    if dashboard.process.poll() is not None:
        raise RuntimeError("the dashboard ended")
    if address:
        node._webui_url = address.decode()
        gcs.internal_kv_put(b"webui:url", address, True, namespace)
    return address.decode()


def user_temporary_folder() -> str:
    """The folder in which Ray makes its folder `ray`."""
    from ray._common.utils import get_default_system_temp_dir

    return str(get_default_system_temp_dir())


def draining_nodes() -> dict[str, int]:
    """Nodes that will leave the cluster, by Ray's id, with the time of that in ms since the epoch (0: not said)."""
    import ray

    deadlines: dict[str, int] = ray._private.state.state.get_draining_nodes()
    return deadlines


def worker_process_died(error: Exception) -> bool:
    """Whether this failure of a Ray Train worker is the death of its process, and not an exception that it raised."""
    return hasattr(error, "health_check_failure")


def fit(trainer: Any) -> Any:
    """`trainer.fit()` of Ray Train without the detached actors that it starts, which outlive the command: one removes the placement group
    of a dead controller, but asks the dashboard, which a cluster may lack, and does not know the group before all its workers have started
    (`orphaned_placement_groups` takes its place); one asks the autoscaler for what the placement group asks it for too."""
    from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
    from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy

    class Policy(FixedScalingPolicy):
        def _send_resource_request(self) -> None:
            pass

        _maybe_send_resource_request = _cancel_resource_request = _send_resource_request

    run = trainer._initialize_and_run_controller

    def run_without(**options: Any) -> Any:
        options["scaling_policy"] = Policy(options["scaling_policy"].scaling_config)
        options["callbacks"] = [
            callback for callback in options["callbacks"] if not isinstance(callback, PlacementGroupCleanerCallback)
        ]
        return run(**options)

    trainer._initialize_and_run_controller = run_without
    return trainer.fit()


def orphaned_placement_groups() -> list[Any]:
    """The placement groups of this job that were made by an actor which is dead. Ray itself removes them when the job ends."""
    import ray
    from ray.core.generated.gcs_pb2 import PlacementGroupTableData
    from ray.util.placement_group import PlacementGroup

    accessor = ray._private.state.state._connect_and_get_accessor()
    job = ray.get_runtime_context().get_job_id()
    groups = map(PlacementGroupTableData.FromString, accessor.get_placement_group_table())
    return [
        PlacementGroup(ray.PlacementGroupID(group.placement_group_id))
        for group in groups
        if group.creator_job_id.hex() == job
        and group.state != PlacementGroupTableData.REMOVED
        and group.creator_actor_dead  # also of one that no actor made
        and not ray.ActorID(group.creator_actor_id).is_nil()
    ]


NODE_DIED = "its node has died"
"""What Ray says of a process whose node left: it has no type for that."""


def last_failure(trial: Any) -> Any:
    """The exception with which an attempt at a trial of Tune ended. `Trial.get_pickled_error` looks where it is copied to later."""
    import pickle

    with open(trial.pickled_error_file, "rb") as file:
        return pickle.load(file)


def forgive(trial: Any) -> None:
    """Let Tune not count the last failure of a trial that it starts again."""
    trial.run_metadata.num_failures -= 1


def forget_stopped(scheduler: Any, trial: Any) -> None:
    """Let Tune's `MedianStoppingRule` take a trial that it stopped for one that it has not."""
    scheduler._stopped_trials.discard(trial)


# ----------------------------------------------------------------------------------------------------------------- torch


def linear_pointwise(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [n, i] @ weight [o, i].T + bias [o] through oneDNN."""
    import torch

    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


def softmax_backward(gradient: Tensor, output: Tensor) -> Tensor:
    """The gradient of a softmax over the last dimension, from its output."""
    import torch

    return torch._softmax_backward_data(gradient, output, -1, output.dtype)


def gelu_backward(gradient: Tensor, x: Tensor) -> Tensor:
    """The gradient of the exact GELU of x."""
    import torch

    gradient_of_x: Tensor = torch.ops.aten.gelu_backward(gradient, x)
    return gradient_of_x


def layer_norm_backward(
    gradient: Tensor, x: Tensor, shape: tuple[int, ...], mean: Tensor, rstd: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a layer norm's input, weight and bias; `mean` and `rstd` are what `torch.native_layer_norm` returned."""
    import torch

    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_layer_norm_backward(
        gradient, x, shape, mean, rstd, weight, bias, (True, True, True)
    )
    return gradients


# ---------------------------------------------------------------------------------------------------------------- Optuna


def study_id(study: Any) -> int:
    """The study's number in Optuna's storage."""
    return int(study._study_id)


def trial_id(trial: Any) -> int:
    """The number in Optuna's storage of a trial that was stored."""
    return int(trial._trial_id)


def set_trial_id(trial: Any, number: int) -> None:
    trial._trial_id = number

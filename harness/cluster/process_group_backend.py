"""How the ranks of a Ray Train worker group join one torch process group."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psutil
import ray
from ray.train.backend import Backend, BackendConfig

COLLECTIVE = timedelta(seconds=600)
"""How long a rank waits for the others to join, and for what another has to send."""
_LISTENERS: list[socket.socket] = []


@dataclass
class ProcessGroupConfig(BackendConfig):
    """As `ray.train.torch.TorchConfig`, with the rendezvous store on the address that Ray uses, not on all addresses of the
    machine. `backend`: as of `init_process_group`; NCCL refuses two ranks that share a GPU, gloo does not."""

    backend: str

    @property
    def backend_cls(self) -> type[Backend]:
        return _Backend


class _Backend(Backend):
    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: ProcessGroupConfig) -> None:
        size, store = len(worker_group), worker_group.execute_single(0, _listen)
        given = backend_config, *store, size
        ray.get([worker_group.execute_single_async(rank, _join, rank, *given) for rank in range(size)])


def _listen() -> tuple[str, int]:
    """Open the store's socket on this node's address."""
    address = ray.util.get_node_ip_address()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    _LISTENERS.append(socket.create_server((address, 0), family=family))
    return address, _LISTENERS[0].getsockname()[1]


def _join(rank: int, config: ProcessGroupConfig, address: str, port: int, size: int) -> None:
    import torch
    from torch.distributed import TCPStore, init_process_group  # type: ignore[attr-defined]

    # gloo would take the address of the host's name, which Debian maps to the loopback
    here = ray.util.get_node_ip_address()
    for interface, addresses in psutil.net_if_addrs().items():
        if any(each.address == here for each in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    listener: dict[str, Any] = {"master_listen_fd": _LISTENERS[0].detach()} if rank == 0 else {}
    store = TCPStore(address, port, size, rank == 0, timeout=COLLECTIVE, **listener)
    backend = config.backend if torch.cuda.is_available() else "gloo"
    init_process_group(backend, store=store, rank=rank, world_size=size, timeout=COLLECTIVE)

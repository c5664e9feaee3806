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


@dataclass
class ProcessGroupConfig(BackendConfig):
    """As `ray.train.torch.TorchConfig`, with the rendezvous store on the address that Ray uses, not on all addresses of the
    machine. `backend`: as of `init_process_group`; NCCL refuses two ranks that share a GPU, gloo does not. `start_seconds`: how
    long a rank waits for the others to join, `collective_seconds`: for what another rank has to send."""

    backend: str
    start_seconds: float = 300.0
    collective_seconds: float = 600.0

    @property
    def backend_cls(self) -> type[Backend]:
        return _Backend


class _Backend(Backend):
    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: ProcessGroupConfig) -> None:
        size = len(worker_group)
        address, port = worker_group.execute_single(0, _listen)
        ray.get(
            [
                worker_group.execute_single_async(rank, _join, backend_config, address, port, rank, size)
                for rank in range(size)
            ]
        )


_LISTENERS: list[socket.socket] = []


def _listen() -> tuple[str, int]:
    """Open the store's socket on this node's address."""
    address = ray.util.get_node_ip_address()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    _LISTENERS.append(socket.create_server((address, 0), family=family))
    return address, _LISTENERS[0].getsockname()[1]


def _interface(address: str) -> str:
    """The network interface that has this node's address, '' where none has. gloo would take the address of the host's name, which Debian maps to
    the loopback."""
    every = psutil.net_if_addrs().items()
    return next((name for name, here in every if any(each.address == address for each in here)), "")


def _join(config: ProcessGroupConfig, address: str, port: int, rank: int, size: int) -> None:
    import torch
    from torch.distributed import TCPStore, init_process_group  # type: ignore[attr-defined]

    backend = config.backend if torch.cuda.is_available() else "gloo"
    if interface := _interface(ray.util.get_node_ip_address()):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    timeout = timedelta(seconds=config.start_seconds)
    if rank == 0:
        store = TCPStore(address, port, size, True, timeout=timeout, master_listen_fd=_LISTENERS[0].detach())
    else:
        store = TCPStore(address, port, size, False, timeout=timeout)
    collective = timedelta(seconds=config.collective_seconds)
    init_process_group(backend, store=store, rank=rank, world_size=size, timeout=collective)

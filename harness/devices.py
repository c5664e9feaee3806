"""The name of the processor, and GPUs by their makers' data sheets: memory, and FLOP/s of dense products. Imports the standard library alone.

Looked up on 2026-11-23 in tables that quote NVIDIA's sheets: T4, V100 (SXM2), L4, L40S, A100, H100, H200, B200 (HGX) and RTX 4090 (GeForce Ada
white paper). From memory of the sheet or white paper, and not looked up: A10G, H100 PCIe and the tensor rate of RTX 3090 (GA102 white paper, with fp32 accumulation).
Where a sheet prints a rate with sparsity, half of it is the dense one.
"""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UserError, hint


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@dataclass(frozen=True)
class Device:
    """`pattern`: a regular expression that the name which torch gives the device holds. `memory`: in bytes. `single`, `half`: FLOP/s in
    fp32 without tensor cores (TF32 is off), and in bf16 or fp16; `bf16`: whether it has bf16."""

    title: str
    pattern: str
    memory: float
    single: float
    half: float
    bf16: bool = True

    def peak(self, precision: str) -> float:
        """FLOP/s at most in 'fp32', 'bf16' or 'fp16'. bf16 on a device without it is counted as fp32."""
        return self.single if precision == "fp32" or (precision == "bf16" and not self.bf16) else self.half

    def is_named(self, name: str) -> bool:
        """Whether torch names it so."""
        return bool(re.search(rf"\b(?:{self.pattern})\b", name))


DEVICES = {
    "t4": Device("T4", "T4", 16e9, 8.1e12, 65e12, bf16=False),
    "v100-16": Device("V100 16 GB", r"V100-\w+-16GB", 16e9, 15.7e12, 125e12, bf16=False),
    "v100-32": Device("V100 32 GB", r"V100-\w+-32GB", 32e9, 15.7e12, 125e12, bf16=False),
    "rtx3090": Device("GeForce RTX 3090", "RTX 3090(?! Ti)", 24e9, 35.6e12, 71e12),
    "rtx4090": Device("GeForce RTX 4090", "RTX 4090(?! D)", 24e9, 82.6e12, 165.2e12),
    "a10g": Device("A10G", "A10G", 24e9, 35e12, 70e12),
    "l4": Device("L4", "L4", 24e9, 30.3e12, 121e12),
    "l40s": Device("L40S", "L40S", 48e9, 91.6e12, 362e12),
    "a100-40": Device("A100 40 GB", r"A100-\w+-40GB", 40e9, 19.5e12, 312e12),
    "a100-80": Device("A100 80 GB", "A100.*80GB", 80e9, 19.5e12, 312e12),
    "h100": Device("H100 SXM", "H100 80GB HBM3", 80e9, 66.9e12, 989.4e12),
    "h100-pcie": Device("H100 PCIe", "H100 PCIe", 80e9, 51e12, 756e12),
    "h200": Device("H200 SXM", "H200(?! NVL)", 141e9, 66.9e12, 989.4e12),
    "b200": Device("B200 (HGX)", "B200", 180e9, 75e12, 2250e12),
}
"""By the name that `--device` takes."""


def device_called(name: str) -> Device | None:
    """The device of a name that torch gives; None where there is no sheet of it here."""
    return next((device for device in DEVICES.values() if device.is_named(name)), None)


def device_and_count(text: str, where: str) -> tuple[Device, int]:
    """'h100:8' -> (H100, 8); without a number one device. Raises UserError, which names `where`."""
    name, colon, number = text.strip().lower().partition(":")
    if name not in DEVICES:
        several = [known for known in DEVICES if known.startswith(f"{name}-")]
        close = f" Did you mean {' or '.join(several)}?" if several else hint(name, DEVICES)
        raise UserError(f"{where}: unknown device '{name}'.{close} Known: {', '.join(DEVICES)}.")
    if colon and not (number.isdecimal() and int(number)):
        raise UserError(f"{where} {text}: '{number}' is not a number of devices; write it as {name}:8.")
    return DEVICES[name], int(number) if colon else 1

"""Peak arithmetic rates of GPUs, from their makers' data sheets: float32 without tensor cores (TF32 is off), and dense bf16."""

from __future__ import annotations

import re

PEAKS: dict[str, tuple[float | None, float | None, str]] = {
    r"H200(?! NVL)": (67e12, 989e12, "NVIDIA H200 data sheet, SXM; bf16 is half of what it prints with sparsity"),
    r"H100 PCIe": (51e12, 756e12, "NVIDIA H100 data sheet, PCIe; bf16 is half of what it prints with sparsity"),
    r"H100 80GB HBM3": (67e12, 989e12, "NVIDIA H100 data sheet, SXM; bf16 is half of what it prints with sparsity"),
    r"A100": (19.5e12, 312e12, "NVIDIA A100 data sheet"),
    r"L40S": (91.6e12, 362e12, "NVIDIA L40S data sheet"),
    r"T4": (8.1e12, None, "NVIDIA T4 data sheet; it has no bf16"),
}
"""(FLOP/s in float32, in bf16, source) by a pattern in the device's name as torch prints it. A device that is not here has no
share of peak: add a line with its source."""


def peak(device: str, precision: str) -> float | None:
    """FLOP/s of a device by its name; None where it is not known."""
    for pattern, (single, half, _) in PEAKS.items():
        if re.search(rf"\b{pattern}\b", device):
            return half if precision == "bf16" else single
    return None

"""Peak rates of GPUs, by the name that the driver gives.

Rates are dense: without structured sparsity, at the boost clock of the data sheet. A name that is not in the
table has no peak, and nothing is computed from one.
"""

from __future__ import annotations

import re

from msgspec import Struct


class Card(Struct, frozen=True):
    """Says what one kind of GPU can do at most."""

    name: str
    tensor_tflops: float
    """bf16 on tensor or matrix cores; fp16 where the card has no bf16."""
    fp32_tflops: float
    """fp32 without tensor cores."""
    memory_gb_s: float
    link_gb_s: float
    """From pinned host memory, one way, by the generation of its PCIe slot: 16 lanes."""
    source: str
    """The vendor's data sheet."""


_PCIE_3, _PCIE_4, _PCIE_5 = 16.0, 32.0, 64.0

CARDS: tuple[tuple[str, Card], ...] = (
    (r"\bB200\b", Card("B200", 2250, 75, 7700, _PCIE_5, "NVIDIA DGX B200 data sheet, one of eight GPUs")),
    (r"\bH200\b", Card("H200 SXM", 989, 67, 4800, _PCIE_5, "NVIDIA H200 Tensor Core GPU data sheet")),
    (r"H100 NVL", Card("H100 NVL", 835, 60, 3900, _PCIE_5, "NVIDIA H100 Tensor Core GPU data sheet")),
    (r"H100 PCIe", Card("H100 PCIe", 756, 51, 2000, _PCIE_5, "NVIDIA H100 Tensor Core GPU data sheet")),
    (r"\bH100\b", Card("H100 SXM", 989, 67, 3350, _PCIE_5, "NVIDIA H100 Tensor Core GPU data sheet")),
    (r"A100.*40GB", Card("A100 40 GB", 312, 19.5, 1555, _PCIE_4, "NVIDIA A100 Tensor Core GPU data sheet")),
    (r"\bA100\b", Card("A100 80 GB", 312, 19.5, 2039, _PCIE_4, "NVIDIA A100 Tensor Core GPU data sheet")),
    (r"\bA40\b", Card("A40", 149.7, 37.4, 696, _PCIE_4, "NVIDIA A40 data sheet")),
    (r"\bA10\b", Card("A10", 125, 31.2, 600, _PCIE_4, "NVIDIA A10 Tensor Core GPU data sheet")),
    (r"\bL40S\b", Card("L40S", 362, 91.6, 864, _PCIE_4, "NVIDIA L40S data sheet")),
    (r"\bL4\b", Card("L4", 121, 30.3, 300, _PCIE_4, "NVIDIA L4 Tensor Core GPU data sheet")),
    (r"V100", Card("V100 SXM2", 125, 15.7, 900, _PCIE_3, "NVIDIA V100 Tensor Core GPU data sheet")),
    (r"\bT4\b", Card("T4", 65, 8.1, 320, _PCIE_3, "NVIDIA T4 data sheet")),
    (r"MI325X", Card("MI325X", 1307, 163.4, 6000, _PCIE_5, "AMD Instinct MI325X data sheet")),
    (r"MI300X", Card("MI300X", 1307, 163.4, 5300, _PCIE_5, "AMD Instinct MI300X data sheet")),
    (
        r"MI250X",
        Card("MI250X, one of two dies", 191.5, 23.9, 1638, _PCIE_4, "AMD Instinct MI250X data sheet"),
    ),
)
"""A pattern for the driver's name, and the card; the first match counts."""


def card_of(name: str | None) -> Card | None:
    """Returns the card of a driver's name. None if it is not in the table."""
    if name is None:
        return None
    return next((card for pattern, card in CARDS if re.search(pattern, name)), None)

"""Peaks by the driver's name: the cards that it can mean are told apart, and others have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from aorta.metrics.cards import CARDS, card_of


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100 80 GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 40 GB"),
        ("Tesla V100-SXM2-16GB", "V100 SXM2"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA A10G", None),
        ("NVIDIA GeForce RTX 2080", None),
        ("", None),
        (None, None),
    ],
)
def test_the_drivers_name_says_which_card_it_is(name: str | None, card: str | None) -> None:
    found = card_of(name)
    assert (None if found is None else found.name) == card


def test_the_documented_table_is_the_one_that_is_used() -> None:
    text = (Path(__file__).parents[2] / "docs/traces.md").read_text(encoding="utf-8")
    for _, card in CARDS:
        rates = (card.tensor_tflops, card.fp32_tflops, card.memory_gb_s, card.link_gb_s)
        row = " | ".join((card.name, *(f"{rate:g}" for rate in rates), card.source))
        assert f"| {row} |" in text


def test_tensor_cores_are_faster_than_fp32_on_each_card() -> None:
    assert all(card.tensor_tflops > 2 * card.fp32_tflops > 0 for _, card in CARDS)
    assert all(card.memory_gb_s > card.link_gb_s > 0 and card.source for _, card in CARDS)

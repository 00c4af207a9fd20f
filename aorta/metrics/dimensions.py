"""Parallel dimensions by the names of groups."""

from __future__ import annotations

import re

from aorta.artefacts.mesh import Dimension

_WORDS: tuple[tuple[Dimension, frozenset[str]], ...] = (
    ("data", frozenset(("data", "dp", "ddp", "fsdp", "hsdp", "shard", "replicate", "dpcp"))),
    ("pipeline", frozenset(("pipeline", "pp", "pipe"))),
    ("tensor", frozenset(("tensor", "tp"))),
    ("sequence", frozenset(("sequence", "context", "sp", "cp", "ulysses", "ring"))),
    ("expert", frozenset(("expert", "experts", "ep", "moe"))),
)
"""Words in the names of groups: those of DeviceMesh, Megatron and torchtitan. The first one counts."""


def dimension_of(name: str) -> Dimension | None:
    """Returns the dimension that a group's name says. None if it says none."""
    words = set(re.split(r"[^a-z]+", name.lower()))
    return next((dimension for dimension, known in _WORDS if words & known), None)

"""The cause behind a finding's cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NOT_DETERMINED = "not_determined"
MOST = 0.5
"""A share from which on something is most of what it is a part of."""


@dataclass(frozen=True, slots=True)
class SubCause:
    """A code, the same in words, and what was measured."""

    code: str
    text: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


def unknown(text: str) -> SubCause:
    """Nothing that was measured tells; `text` says what is missing."""
    return SubCause(NOT_DETERMINED, text)

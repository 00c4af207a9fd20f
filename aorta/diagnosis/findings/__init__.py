"""The findings: one module each. Every table of kinds is made of `FINDINGS`."""

from __future__ import annotations

from aorta.artefacts.analysis import Kind
from aorta.diagnosis.finding import FindingSpec
from aorta.diagnosis.plugins import discover

PLUGINS = tuple(sorted(discover(__name__, __path__, FindingSpec), key=lambda item: item.spec.order))
FINDINGS = {item.spec.kind: item.spec for item in PLUGINS}
"""All findings by kind, in the order in which they are reported."""
HEALTHY, INSUFFICIENT, INCOMPLETE, HANG = "healthy", "insufficient_data", "incomplete", "hang"
NAMES = {
    **{kind: spec.name for kind, spec in FINDINGS.items()},
    INSUFFICIENT: "insufficient data",
    HEALTHY: "healthy",
    HANG: "standstill",
    INCOMPLETE: "incomplete",
}
"""Every kind of finding and verdict, as documents call it."""


def kind_name(kind: Kind) -> str:
    """Returns what documents call a kind; other versions of aorta may know kinds that this one does not."""
    return NAMES.get(kind, kind.replace("_", " "))


def likeliest(factor: str) -> list[Kind]:
    """Returns the findings that may show a loss of one factor of scaling efficiency, the likeliest first."""
    places = {kind: spec.lowers[factor] for kind, spec in FINDINGS.items() if factor in spec.lowers}
    return sorted(places, key=lambda kind: places[kind])

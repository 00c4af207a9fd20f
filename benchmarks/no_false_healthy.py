"""Captures with a known fault, damaged in many ways: none may be called healthy.

    python benchmarks/no_false_healthy.py [--only TEXT] [--keep FOLDER]

Four ranks with 32 steps are made for each fault (a slow rank, slow loaders, slow exchange, a slow host) and
for balanced work. Each is changed as profilers, disks and people do it: marks removed, kernels dropped,
files missing, cut or merged, communication renamed, sizes lost, clocks shifted, graphs not recorded,
impossible events, sends removed.

Of the faulty ones none may be healthy, and none may have another cause with high confidence. Of the changes
that leave the cause visible, four fifths must name it. Of the balanced ones none may have a bottleneck, and
three quarters must be healthy. The exit status is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aorta.artefacts.analysis import Analysis
from aorta.commands._traces import analyze_traces
from aorta.errors import ArtefactError
from aorta.report.confidence import confidence
from benchmarks.capture_damage import Change, Mutation, mutations
from benchmarks.known_captures import BALANCED, FAULTS, Work, capture

LEAST_HEALTHY = 0.75
"""Share of the balanced captures: of the changes a quarter take away what a healthy verdict needs."""
SILENT = ("insufficient_data", "incomplete")


def analysed(work: Work, change: Change, folder: Path) -> Analysis | None:
    """Returns the analysis of a changed capture; None where it was refused."""
    change(capture(work), folder)
    try:
        return analyze_traces([folder])
    except ArtefactError:
        return None


def trials(only: str, keep: Path | None) -> Iterator[tuple[str, Mutation, Analysis | None]]:
    """Gives each capture's fault (or `balanced`), the change, and the analysis."""
    cases = FAULTS | {f"balanced {name}": work for name, work in BALANCED.items()}
    for fault, work in cases.items():
        for number, mutation in enumerate(mutations()):
            if only not in f"{fault} {mutation.name}":
                continue
            with tempfile.TemporaryDirectory() as temporary:
                folder = Path(temporary) if keep is None else keep / f"{fault} {number}".replace(" ", "_")
                folder.mkdir(parents=True, exist_ok=True)
                yield fault, mutation, analysed(work, mutation.write, folder)


def main() -> int:
    """Runs every trial, prints what came out, and returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="trials whose name holds this text")
    parser.add_argument("--keep", type=Path, help="write the captures here")
    options = parser.parse_args()
    counts = dict.fromkeys(
        ("faulty", "false healthy", "wrong", "visible", "named", "balanced", "blamed", "healthy"), 0
    )
    for fault, mutation, found in trials(options.only, options.keep):
        kind = "refused" if found is None else found.verdict.kind
        level = (
            "" if found is None else confidence(found, next(iter(found.findings), None), shared=False).level
        )
        bad = ""
        if fault.startswith("balanced"):
            counts["balanced"] += 1
            counts["healthy"] += kind == "healthy"
            if kind not in ("healthy", "refused", *SILENT):
                counts["blamed"] += 1
                bad = "BLAMED"
        else:
            counts["faulty"] += 1
            visible = fault in mutation.visible
            counts["visible"] += visible
            counts["named"] += visible and kind == fault
            counts["false healthy"] += kind == "healthy"
            wrong = kind not in (fault, "healthy", "refused", *SILENT) and level == "high"
            counts["wrong"] += wrong
            bad = (
                "FALSE"
                if kind == "healthy"
                else "WRONG"
                if wrong
                else "UNNAMED"
                if visible and kind != fault
                else ""
            )
        print(f"{fault:24} {mutation.name:40} {kind:22} {level:7} {bad}")
    print(json.dumps(counts))
    met = not counts["false healthy"] and not counts["wrong"] and not counts["blamed"]
    met &= (
        counts["named"] >= 0.8 * counts["visible"] and counts["healthy"] >= LEAST_HEALTHY * counts["balanced"]
    )
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""Seconds to aggregate three synthetic scenarios: 1, 2 and 4 nodes of 8 ranks, 200 steps each.

    python benchmarks/aggregate_time.py [--ranks-per-node 8] [--steps 200] [--json]

Writing the synthetic runs is not counted. `reading` includes merging the monitors' files; `figures` are those
of the runs; `documents` are the texts, the JSON files and the figure over all scenarios.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aorta.artefacts.io import write_json, write_text
from aorta.artefacts.layout import RunDir, Scenario
from aorta.diagnosis.analyse_run import analyse
from aorta.metrics.scaling import scaling_curves
from aorta.readers.run import read_run
from aorta.report import style
from aorta.report.aggregate import ScenarioReport, build
from aorta.report.document import write_documents
from aorta.report.figure import run_figure
from aorta.report.run import run_text
from aorta.report.series import run_series
from tests.support.synthetic import RunSpec, write_run


@contextmanager
def timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[part] = seconds.get(part, 0.0) + time.perf_counter() - started


def aggregate(runs: list[RunDir], docs: Path) -> dict[str, float]:
    seconds: dict[str, float] = {}
    reports = []
    for run in runs:
        with timed(seconds, "reading"):
            data = read_run(run, query_accounting=False)
        with timed(seconds, "metrics"):
            analysis = analyse(data)
        with timed(seconds, "figures"), style.styled():
            style.save(run_figure(analysis, run_series(data)), run.plot_png, run.plot_svg)
        with timed(seconds, "documents"):
            write_json(run.analysis, analysis)
            write_text(run.report, run_text(analysis))
        reports.append(ScenarioReport(Scenario(run.root.parent.name), run, analysis))
    with timed(seconds, "documents"):
        curves = scaling_curves([report.analysis for report in reports])
        write_documents(docs, build(reports, curves, [], 0), reports)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks-per-node", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            write_run(
                Path(folder) / "results",
                RunSpec(
                    nodes=nodes, ranks_per_node=options.ranks_per_node, steps=options.steps, jitter_ms=8.0
                ),
            )
            for nodes in (1, 2, 4)
        ]
        size = sum(path.stat().st_size for run in runs for path in run.root.rglob("*") if path.is_file())
        seconds = aggregate(runs, Path(folder) / "docs")
    result = {
        "ranks": [nodes * options.ranks_per_node for nodes in (1, 2, 4)],
        "steps": options.steps,
        "input_mib": size / 2**20,
        "seconds": seconds,
        "total_s": sum(seconds.values()),
    }
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"ranks {result['ranks']}, {options.steps} steps, {result['input_mib']:.1f} MiB of input")
    for part, value in seconds.items():
        print(f"  {part:10} {value:6.2f} s")
    print(f"  {'total':10} {result['total_s']:6.2f} s")


if __name__ == "__main__":
    main()

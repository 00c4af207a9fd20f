"""`python benchmark_ddp.py`: measure, then show. Not a subcommand of `aorta`: it needs torch."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from aorta.artefacts.ddp_benchmark import DdpBenchmark
from aorta.artefacts.files import is_file
from aorta.artefacts.io import read_json
from aorta.artefacts.study_layout import DdpBenchmarkDir
from aorta.errors import AortaError, RunError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as the flags say; errors of ours become one message.

    Returns:
        The exit code.
    """
    try:
        _run(arguments)
    except AortaError as error:
        sys.stdout.flush()
        print(f"aorta: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _run(arguments: Sequence[str] | None) -> None:
    from aorta.workloads.ddp_benchmark import main as benchmark
    from aorta.workloads.ddp_benchmark.options import parse

    options = parse(arguments)
    started = time.time_ns()
    try:
        reports = benchmark.run(options)
    except RunError:
        if not options.profile:
            _report(DdpBenchmarkDir(options.output_dir), started)
        raise
    if reports and not options.profile:
        _report(DdpBenchmarkDir(options.output_dir), started)


def _report(folder: DdpBenchmarkDir, started_ns: int) -> None:
    """Show what was measured since `started_ns`: everything, or what a run that failed had finished."""
    from aorta.report.ddp_benchmark import draw, show

    if not is_file(folder.results):
        return
    document = read_json(folder.results, DdpBenchmark)
    if document.wall_ns < started_ns:
        return
    show(document)
    draw(document, folder)
    print(f"results: {folder.results}, {folder.plot_png}, {folder.plot_svg}")

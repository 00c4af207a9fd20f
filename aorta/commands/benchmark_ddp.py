"""`python benchmark_ddp.py`: measure, then show. Not a subcommand of `aorta`: it needs torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from aorta.artefacts.ddp_benchmark import DdpBenchmark
from aorta.artefacts.io import read_json
from aorta.artefacts.layout import DdpBenchmarkDir
from aorta.errors import AortaError


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
    from aorta.train.ddp_benchmark import main as benchmark
    from aorta.train.ddp_benchmark.options import parse

    options = parse(arguments)
    reports = benchmark.run(options)
    if not reports or options.profile:
        return
    from aorta.report.ddp_benchmark import draw, show

    folder = DdpBenchmarkDir(options.output_dir)
    document = read_json(folder.results, DdpBenchmark)
    show(document)
    draw(document, folder)
    print(f"results: {folder.results}, {folder.plot_png}, {folder.plot_svg}")

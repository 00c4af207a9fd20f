"""`aorta explain`: what a finding, a mistake or a threshold means."""

from __future__ import annotations

import click

from aorta.commands._say import say


@click.command()
@click.argument("name", metavar="[KIND|KEY]", required=False)
def command(name: str | None) -> None:
    """Explain a finding or mistake, why it costs time and what to do, or explain a threshold.

    KIND is a finding, such as data_loading, or a mistake, such as fp32_matmul. KEY is a threshold, such as
    thresholds.data_wait_pct. Without an argument, all are listed.
    """
    from aorta.diagnosis.findings import PLUGINS
    from aorta.diagnosis.mistakes import CATALOGUE
    from aorta.report.catalogue import mistake_blocks, mistakes_overview
    from aorta.report.reference import finding_blocks, overview_blocks, threshold_blocks
    from aorta.report.render import to_text

    plugin = next((item for item in PLUGINS if item.spec.kind == name), None)
    if name is None:
        blocks = [*overview_blocks(), *mistakes_overview()]
    elif name in CATALOGUE:
        blocks = mistake_blocks(CATALOGUE[name])
    else:
        blocks = finding_blocks(plugin) if plugin is not None else threshold_blocks(name)
    say(to_text(blocks).rstrip("\n"))

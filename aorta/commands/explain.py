"""`aorta explain`: what a finding or a threshold means."""

from __future__ import annotations

import click


@click.command()
@click.argument("name", metavar="[KIND|KEY]", required=False)
def command(name: str | None) -> None:
    """Say what a finding looks for, why it costs time and what to do; or what a threshold decides.

    KIND is a finding, such as data_loading. KEY is a threshold, such as thresholds.data_wait_pct. Without
    either, both are listed.
    """
    from aorta.diagnosis.findings import PLUGINS
    from aorta.report.reference import finding_blocks, overview_blocks, threshold_blocks
    from aorta.report.render import to_text

    plugin = next((item for item in PLUGINS if item.spec.kind == name), None)
    if name is None:
        blocks = overview_blocks()
    else:
        blocks = finding_blocks(plugin) if plugin is not None else threshold_blocks(name)
    click.echo(to_text(blocks).rstrip("\n"))

"""`aorta attach-node`: one node's part of `aorta attach`; Slurm starts it inside the job."""

from __future__ import annotations

import click

from aorta.commands._say import say_encoded


@click.command("attach-node")
@click.option("--job", required=True, metavar="ID")
@click.option("--seconds", default=5.0, type=click.FloatRange(min=1, max=60))
@click.option("--node-index", type=click.IntRange(min=0), help="Use only processes of this node of the job.")
@click.option("--step", metavar="NUMBER", help="Use only processes of this step.")
@click.option("--recorders", is_flag=True, help="Also read flight recorders, if processes offer them.")
@click.option(
    "--looks", default=1, type=click.IntRange(min=1), help="How many times to look, one after another."
)
def command(
    job: str, seconds: float, node_index: int | None, step: str | None, *, recorders: bool, looks: int
) -> None:
    """Print what the training processes of a job are doing on this node, as one line of JSON per look."""
    import socket

    from aorta.artefacts.attached import NodeView, encoded
    from aorta.attach.processes import of_job
    from aorta.attach.sample import node_view
    from aorta.errors import AortaError

    for _ in range(looks):
        try:
            view = node_view(of_job(job, node_index, step), seconds, recorders=recorders)
        except AortaError as error:
            view = NodeView(host=socket.gethostname(), processes=[], problems=[error.message])
        say_encoded(encoded(view))

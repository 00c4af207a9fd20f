"""Finds how every figure looks, and how it is written: the same data gives the same bytes.

Figures are made directly, never through pyplot, so that nothing is shared between two of them. Text from data
is never read as markup.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter
from PIL import Image

from aorta.artefacts.clean import plain
from aorta.artefacts.io import write_bytes
from aorta.report.palette import FAINT, INK

_STYLE = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.0,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#BBBBBB",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "text.color": INK,
    "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
    "svg.hashsalt": "aorta",
    "svg.fonttype": "path",
    "figure.facecolor": "white",
}


@contextmanager
def styled() -> Iterator[None]:
    """Inside, figures are made and drawn in the house style whatever the user's matplotlibrc says."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def new_figure(width: float, height: float) -> Figure:
    """A figure of `width` × `height` inches (100 pixels an inch at 1×), laid out without overlaps."""
    engine = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, wspace=0.03, hspace=0.04)
    figure = Figure(figsize=(width, height), layout=engine)
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, png: Path, svg: Path) -> None:
    """Write `figure` as pixels (2×) and as vectors, without dates or versions in them.

    The canvases are asked themselves: `savefig` goes through every artist once more before it draws.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, for both: half of the time
    vectors = io.StringIO()
    canvas = FigureCanvasSVG(figure)
    canvas.print_svg(vectors, metadata={"Date": None, "Creator": None})  # type: ignore[no-untyped-call]
    write_bytes(svg, vectors.getvalue().encode())
    write_bytes(png, _pixels(figure))


def _pixels(figure: Figure) -> bytes:
    """A PNG with a palette of 128 colours: a third of the size, and the eye sees no difference."""
    figure.set_dpi(200)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    drawn = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    image = Image.fromarray(drawn).convert("RGB")
    small = io.BytesIO()
    image.quantize(128, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


def title(axes: Axes, text: str, *notes: str) -> None:
    """A panel's title at its left edge, with notes in small print below it, one per line. Empty notes are
    left out.
    """
    lines = [plain(note) for note in notes if note]
    axes.set_title(text + "\n" * len(lines), pad=6)
    if lines:
        small = axes.annotate(
            "\n".join(lines),
            (0, 1),
            (0, 5),
            "axes fraction",
            "offset points",
            color=FAINT,
            fontsize=8,
            va="bottom",
        )
        small.set_in_layout(False)


def absent(axes: Axes, reason: str) -> None:
    """A panel without data says so: no axis, no zero line."""
    axes.set_axis_off()
    axes.text(
        0.5,
        0.5,
        textwrap.fill(plain(reason), 46),
        transform=axes.transAxes,
        ha="center",
        va="center",
        color=FAINT,
        fontsize=9.5,
        bbox={"boxstyle": "round,pad=0.8", "facecolor": "#F6F6F6", "edgecolor": "#DDDDDD"},
    )


def thousands(axis: object) -> None:
    """Tick labels as this project writes numbers."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))  # type: ignore[attr-defined]


def label_bar(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    """A number in the middle of a piece of a bar that has `colour`."""
    # Luma of ITU-R BT.601.
    pale = np.dot(to_rgb(colour), (0.299, 0.587, 0.114)) > 0.5
    axes.text(x, y, text, ha="center", va="center", color=INK if pale else "white", fontsize=8)

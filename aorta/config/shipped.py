"""The configuration files that come with the package: beside it in a checkout, within it when installed."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def shipped(name: str) -> Path:
    """`config/<name>` of the folder one works in, which is the user's own; else the one that came with aorta.

    Args:
        name: such as `small.yaml`.
    """
    own = Path("config") / name
    within, beside = _PACKAGE / "files" / name, _PACKAGE.parents[1] / "config" / name
    return next((path for path in (own, within, beside) if path.is_file()), own)

"""The configuration files that come with the package: beside it in a checkout, within it when installed."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_FOLDERS = (_PACKAGE / "files", _PACKAGE.parents[1] / "config")


def shipped(name: str) -> Path:
    """`config/<name>` of the folder one works in, which is the user's own; else the one that came with aorta.

    Args:
        name: such as `small.yaml`.
    """
    own = Path("config") / name
    return next((path for path in (own, *(folder / name for folder in _FOLDERS)) if path.is_file()), own)


def is_shipped(path: Path) -> bool:
    """Return True if the file came with aorta."""
    return path.resolve().parent in _FOLDERS

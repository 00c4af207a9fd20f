"""Texts held equal to files; with `AORTA_WRITE_GOLDEN=1` in the environment they are written anew."""

from __future__ import annotations

import os
from pathlib import Path


def assert_golden(path: Path, text: str) -> None:
    """`text` is what `path` holds."""
    if os.environ.get("AORTA_WRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")

"""An image for Charliecloud that holds nothing itself: the programs of this machine are mounted into it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDERS = ("dev", "proc", "sys", "etc", "tmp", "usr", "root", "ch")
MARK = "AORTA_TEST_IMAGE"


def make_image(root: Path) -> tuple[Path, list[str]]:
    """The folder of an image, and the mounts that its Python needs; skips where nothing can run it."""
    program = shutil.which("ch-run")
    if program is None:
        pytest.skip("Charliecloud is not installed: apt-get install charliecloud")
    image = root / "image"
    for name in FOLDERS:
        (image / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        if Path("/", name).is_symlink():
            (image / name).symlink_to(f"usr/{name}")
    for name in ("passwd", "group"):
        (image / "etc" / name).touch()
    (image / "ch/environment").write_text(f"{MARK}=yes\nPYTHONPATH=/from/image\n")
    needed = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve(), *_paths()}
    outside = sorted(str(path) for path in needed if path.is_dir() and not path.is_relative_to("/usr"))
    done = subprocess.run(
        [program, "--bind", "/usr:/usr", str(image), "--", "/usr/bin/true"],
        capture_output=True, text=True, check=False, env={**os.environ, "USER": "root"},
    )  # fmt: skip
    if done.returncode != 0:
        pytest.skip(f"Charliecloud cannot start a container here: {done.stderr.strip()}")
    return image, ["/usr:ro", *(f"{path}:ro" for path in outside)]


def _paths() -> list[Path]:
    """Folders that `.pth` files add to the path of this Python."""
    return [Path(path).resolve() for path in sys.path if path.endswith("site-packages")]

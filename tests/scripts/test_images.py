"""The files that make images, as far as they can be read without Docker or Apptainer."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def test_the_base_image_is_an_argument_everywhere() -> None:
    dockerfile = (ROOT / "docker/Dockerfile").read_text()
    definition = (ROOT / "docker/aorta.def").read_text()
    base = re.search(r"^ARG BASE=(\S+)$", dockerfile, re.M)[1]
    assert "FROM $BASE\n" in dockerfile, "Charliecloud reads no braces here"
    assert f"    BASE={base}\n" in definition
    assert "From: {{ BASE }}" in definition
    services = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"]
    assert {name: set(one["build"]["args"]) for name, one in services.items()} == {
        "cuda": {"BASE"},
        "rocm": {"BASE"},
    }
    assert base in services["cuda"]["build"]["args"]["BASE"]
    assert all(
        (ROOT / "docker" / one["build"]["context"] / one["build"]["dockerfile"]).is_file()
        for one in services.values()
    )


@pytest.mark.parametrize("name", ["Dockerfile", "aorta.def"])
def test_the_base_images_torch_is_kept(name: str, tmp_path: Path) -> None:
    line = next(one for one in (ROOT / "docker" / name).read_text().splitlines() if "grep -v" in one)
    command = (
        line.strip()
        .removeprefix("RUN ")
        .removesuffix(" \\")
        .replace("constraints.image.txt", str(tmp_path / "c"))
    )
    subprocess.run(["/bin/sh", "-c", command], cwd=ROOT, check=True)
    before, after = (
        (ROOT / "constraints.txt").read_text().splitlines(),
        (tmp_path / "c").read_text().splitlines(),
    )
    assert [one for one in before if one not in after] == [one for one in before if one.startswith("torch==")]
    assert len(before) == len(after) + 1


def test_the_torchrec_example_has_the_file_that_it_names() -> None:
    tree = yaml.safe_load((ROOT / "config/torchrec_dist/sparse_data_dist_base.yaml").read_text())
    assert tree["world_size"] == 2
    assert tree["profile_dir"] == "."

"""Ranks in a container: a real one by Charliecloud where that is installed, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from aorta.artefacts.io import read_json
from aorta.artefacts.layout import Scenario, runs
from aorta.artefacts.own_program import OwnProgram
from aorta.artefacts.records import Manifest, ProfilerChoice
from aorta.config.load import load_config
from aorta.errors import RunError
from aorta.launch.container import Mount
from aorta.runner import contained
from aorta.runner.options import NodeOptions
from tests.support.container import MARK, make_image
from tests.support.step_records import read_records

PROGRAM = """
import os, torch
print("IN", os.environ.get("CH_RUNNING"), os.environ.get({mark!r}), os.environ["AORTA_RUN_DIR"], flush=True)
print("PATHS", os.environ["PYTHONPATH"], flush=True)
model = torch.nn.Linear(4, 1)
update = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    update.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    update.step()
"""


def options(tmp_path: Path, **changes: object) -> NodeOptions:
    values = {"executor": "local", "job_id": "7", "node_index": 0, "nodes": 1, "config": None}
    values |= {"scenario": Scenario("1node"), "results": tmp_path / "results", "command": ("train.py",)}
    return NodeOptions(**{**values, **changes})  # type: ignore[arg-type]


def enter(tmp_path: Path, image: str, mounts: list[str], **changes: object) -> contained.Inside | None:
    settings = [f"container.image={json.dumps(image)}", f"container.mounts={json.dumps(mounts)}"]
    return contained.enter(load_config(None, settings), options(tmp_path, **changes), os.environ, None, [])


def test_without_an_image_there_is_no_container(tmp_path: Path) -> None:
    assert contained.enter(load_config(None), options(tmp_path), os.environ, None, []) is None


def test_a_program_runs_and_is_recorded_inside(tmp_path: Path) -> None:
    image, mounts = make_image(tmp_path)
    home = tmp_path / "project"
    home.mkdir()
    (home / "train.py").write_text(PROGRAM.format(mark=MARK))
    argv = [sys.executable, "-m", "aorta", "profile", "--nodes", "1", "--procs-per-node", "1"]
    argv += ["--results", "results", "--container", str(image), "--python", sys.executable]
    argv += ["--override", f"container.mounts={json.dumps(mounts)}", "--", "train.py"]
    done = subprocess.run(
        argv, cwd=home, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    ((_, run),) = runs(home / "results")
    output = next((home / "results").glob("profile_1node_*.out")).read_text()
    assert "COMPLETED" in done.stdout, done.stdout + done.stderr + output
    assert output.count(f"IN Weird Al Yankovic yes {run.root}") == 1
    paths = output.partition("PATHS ")[2].split()[0].split(":")
    assert paths[0].endswith("aorta/inject/site"), "the image's own PYTHONPATH does not hide the hooks"
    assert "/from/image" in paths
    plan = read_json(run.manifest, Manifest).plan
    assert (plan.container.runtime, plan.container.image) == ("charliecloud", str(image))
    assert len(read_records(run.root, 0)) == 20 - 2, "the hooks learn from the first two updates"


def test_what_is_wrong_with_an_image_is_said_before_the_start(tmp_path: Path) -> None:
    image, mounts = make_image(tmp_path)
    with pytest.raises(RunError, match="charliecloud does not start /no/such/python"):
        enter(tmp_path, str(image), mounts, own=OwnProgram(python="/no/such/python"))
    with pytest.raises(RunError, match=r"/usr/bin/python3 in .* has no torch"):
        enter(tmp_path, str(image), mounts, own=OwnProgram(python="/usr/bin/python3"))
    with pytest.raises(RunError, match="has no aorta, which contains the built-in trainer"):
        enter(
            tmp_path,
            str(image),
            mounts,
            command=(),
            own=OwnProgram(python="/usr/bin/python3", launcher="own"),
        )
    inside = enter(tmp_path, str(image), mounts, command=(), own=OwnProgram(python=sys.executable))
    assert inside is not None
    assert inside.packages["aorta"] == version("aorta"), "the built-in trainer runs in such an image"


def test_a_runtime_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunError, match="it needs apptainer, but this node has none"):
        enter(tmp_path, "/x.sif", [])


@pytest.mark.parametrize(
    ("resolved", "program", "inside", "mounts"),
    [
        ("nsys", "nsight-systems-2024/target/nsys", None, "nsight-systems-2024"),
        ("nsys", "bin/nsys", "nsys", None),
        ("rocprofv3", "rocm/bin/rocprofv3", "rocprofv3", None),
    ],
)
def test_a_profiler_is_mounted_or_has_to_be_in_the_image(
    tmp_path: Path, resolved: str, program: str, inside: str | None, mounts: str | None
) -> None:
    choice = ProfilerChoice(requested="auto", resolved=resolved, reason="", program=str(tmp_path / program))
    seen, found = contained.visible_tool(choice)
    assert seen.program == (inside or str(tmp_path / program))
    folder = str(tmp_path / str(mounts))
    assert found == ([Mount(folder, folder, True)] if mounts else [])


def test_an_image_that_prints_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = [sys.executable, "-c", "while True: print('x' * 1000)"]
    said, _ = contained._first_words(endless, os.environ)
    assert len(said) == 1 << 16
    assert contained._versions(said) is None
    monkeypatch.setattr(contained, "_PROBE_S", 0.2)
    with pytest.raises(TimeoutError, match="no answer"):
        contained._first_words([sys.executable, "-c", "import time; time.sleep(600)"], os.environ)


def test_the_exit_code_of_an_image_is_kept() -> None:
    said, code = contained._first_words(
        [sys.executable, "-c", "print('why'); raise SystemExit(7)"], os.environ
    )
    assert (said, code) == ("why\n", 7)


@pytest.mark.parametrize(
    ("said", "versions"),
    [
        ('aorta-versions {"python": "3.11.2", "torch": "2.9.1"}\n', {"python": "3.11.2", "torch": "2.9.1"}),
        ('hello\naorta-versions {"python": "3.11.2"}\nbye\n', {"python": "3.11.2"}),
        ('aorta-versions {"aorta": "0.1.0"}', {"aorta": "0.1.0"}),
        ('aorta-versions {"python": "3.11.2", "unasked": "1"}', {"python": "3.11.2"}),
        (f'aorta-versions {{"torch": "{"9" * 500}"}}', {"torch": "9" * 100}),
        ("aorta-versions {}", {}),
        ('aorta-versions {"python": 3}', None),
        ('aorta-versions {"python"', None),
        ('aorta-versions ["python"]', None),
        ("", None),
    ],
)
def test_versions_that_an_image_names(said: str, versions: dict[str, str] | None) -> None:
    assert contained._versions(said) == versions

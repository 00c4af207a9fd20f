"""Containers: golden command lines of the three runtimes, mounts, images, and what a shell makes of them."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aorta.config.schema import ContainerConfig
from aorta.errors import ConfigError, RunError
from aorta.launch import container
from aorta.launch.container import Contained, Mount, choose_runtime, parse_mounts, reduced
from aorta.launch.sbatch import render
from tests.support.slurm import PLAN

RANKS = ["python3", "-m", "torch.distributed.run", "--", "train.py"]
MOUNTS = (Mount("/results", "/results"), Mount("/data set", "/in", True))


def contained(runtime: container.Runtime, **changes: object) -> Contained:
    values: dict[str, object] = {
        "runtime": runtime,
        "program": container.PROGRAMS[runtime][0],
        "image": "/images/torch.sif",
        "mounts": MOUNTS,
        "workdir": "/project",
    }
    return Contained(**{**values, **changes})  # type: ignore[arg-type]


def test_the_words_of_pyxis() -> None:
    it = contained(
        "pyxis", node="node7", passed=("PYTHONPATH", "AORTA_RUN_DIR"), task=(("SLURM_NODEID", "1"),)
    )
    assert shlex.join(it.around(RANKS)) == (
        "srun --overlap --nodes=1 --ntasks=1 --cpu-bind=none --mpi=none --kill-on-bad-exit=1 "
        "--nodelist=node7 --container-image=/images/torch.sif --container-workdir=/project "
        "'--container-mounts=/results:/results,/data set:/in:ro' "
        "--container-env=PYTHONPATH,AORTA_RUN_DIR env SLURM_NODEID=1 "
        "python3 -m torch.distributed.run -- train.py"
    )


@pytest.mark.parametrize(("vendor", "flag"), [("nvidia", "--nv "), ("amd", "--rocm "), (None, "")])
def test_the_words_of_apptainer(vendor: str | None, flag: str) -> None:
    assert shlex.join(contained("apptainer", vendor=vendor).around(RANKS)) == (
        f"apptainer exec {flag}--bind /results:/results --bind '/data set:/in:ro' --pwd /project "
        "/images/torch.sif python3 -m torch.distributed.run -- train.py"
    )


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({}, ""),
        ({"image_environment": True}, "--set-env "),
        (
            {"image_environment": True, "hooks": "/a/site"},
            "--set-env '--set-env=PYTHONPATH=/a/site:$PYTHONPATH' ",
        ),
        ({"hooks": "/a/site"}, ""),
    ],
)
def test_the_words_of_charliecloud(changes: dict[str, object], more: str) -> None:
    assert shlex.join(contained("charliecloud", **changes).around(RANKS)) == (
        "ch-run --bind /results:/results --bind '/data set:/in' --cd /project "
        f"--set-env=PATH={container.IMAGE_PATH} {more}/images/torch.sif -- "
        "python3 -m torch.distributed.run -- train.py"
    )


GOLDEN = {
    "pyxis": [
        "#     srun --overlap --nodes=1 --ntasks=1 --cpu-bind=none --mpi=none --kill-on-bad-exit=1 "
        "--nodelist=NODE --container-image=team/torch:2 --container-workdir='/my project' "
        "--container-mounts='/my project:/my project,/data:/data:ro,/shared/results:/shared/results' "
        "--container-env=PYTHONPATH,AORTA_RUN_DIR,AORTA_JOB_ID,AORTA_RUN_ID,AORTA_ATTEMPT,AORTA_SCENARIO,"
        "AORTA_NODE_INDEX,AORTA_PROFILER,AORTA_CAPTURE,AORTA_INSTRUMENT,AORTA_STEPS,AORTA_ROCTX_REGIONS "
        "python3 -m torch.distributed.run ...",
    ],
    "apptainer": [
        "#     apptainer exec --bind '/my project:/my project' --bind /data:/data:ro "
        "--bind /shared/results:/shared/results --pwd '/my project' team/torch:2 "
        "python3 -m torch.distributed.run ...",
        "#     Apptainer gets --nv on nodes with NVIDIA GPUs and --rocm on nodes with AMD GPUs,",
    ],
    "charliecloud": [
        "#     ch-run --bind '/my project:/my project' --bind /data:/data "
        f"--bind /shared/results:/shared/results --cd '/my project' --set-env=PATH={container.IMAGE_PATH} "
        "team/torch:2 -- "
        "python3 -m torch.distributed.run ...",
    ],
}


@pytest.mark.parametrize("runtime", container.RUNTIMES)
def test_the_script_says_how_the_ranks_are_started(runtime: container.Runtime) -> None:
    block = ContainerConfig(image="team/torch:2", runtime=runtime, mounts=["/data:ro"])
    plain = render(replace(PLAN, project="/my project")).splitlines()
    script = render(replace(PLAN, project="/my project", container=block)).splitlines()
    more = [line for line in script if line not in plain]
    words = [shlex.split(line.lstrip("# ")) for line in more[1:-1]]
    assert words == [shlex.split(line.lstrip("# ")) for line in GOLDEN[runtime]]
    assert [line for line in script if line not in more] == plain, "nothing else of the script changes"
    assert all(line.startswith("#") for line in more), "nothing of it is run by the shell"


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        ("/data", Mount("/data", "/data")),
        ("/data:ro", Mount("/data", "/data", True)),
        ("/data:rw", Mount("/data", "/data")),
        ("/data:/in", Mount("/data", "/in")),
        ("/data:/in:ro", Mount("/data", "/in", True)),
        ("/with space:/ro", Mount("/with space", "/ro")),
    ],
)
def test_mounts_are_read(text: str, mount: Mount) -> None:
    assert parse_mounts([text]) == (mount,)


@pytest.mark.parametrize(
    "text",
    ["", "data", "/data:in", "/", "/:/in", "/a/../b", "/a,b", "/a:/b:/c", "/a:/b:xx", "/a\nb", "ro", ":ro"],
)
def test_mounts_that_no_runtime_can_be_told_of_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"container\.mounts"):
        parse_mounts([text])


@pytest.mark.parametrize("image", ["", "-x", "--writable", "a\nb", "a\x7f"])
def test_images_that_would_be_options_or_lines_are_refused(image: str) -> None:
    with pytest.raises(ConfigError, match=r"container\.image"):
        container.check_image(image)


def test_a_folder_that_another_mount_shows_is_left_out() -> None:
    outer, inner = Mount("/p", "/p"), Mount("/p/results", "/p/results")
    assert reduced([inner, outer, inner]) == (outer,)
    assert reduced([Mount("/p", "/p", True), inner]) == (Mount("/p", "/p", True), inner), "inner is writable"
    elsewhere = Mount("/p/data", "/p/in")
    assert reduced([outer, elsewhere]) == (outer, elsewhere)
    assert reduced([outer, Mount("/pq", "/pq")]) == (outer, Mount("/pq", "/pq")), "a beginning is no parent"


ALL: dict[container.Runtime, str] = {"pyxis": "srun", "apptainer": "apptainer", "charliecloud": "ch-run"}


@pytest.mark.parametrize(
    ("image", "folder", "there", "runtime"),
    [
        ("/i/x.sif", False, ALL, "apptainer"),
        ("/i/x", True, ALL, "charliecloud"),
        ("/i/x", True, {"apptainer": "a"}, "apptainer"),
        ("/i/x.sqsh", False, ALL, "pyxis"),
        ("/i/x.sqsh", False, {"charliecloud": "c", "apptainer": "a"}, "charliecloud"),
        ("docker://a/b:1", False, ALL, "pyxis"),
        ("docker://a/b:1", False, {"apptainer": "a", "charliecloud": "c"}, "apptainer"),
        ("nvcr.io#nvidia/pytorch:24.01", False, ALL, "pyxis"),
    ],
)
def test_auto_takes_what_is_there_and_fits(
    image: str, folder: bool, there: dict[container.Runtime, str], runtime: str
) -> None:
    assert choose_runtime("auto", image, there, folder=folder) == (runtime, there[runtime])  # type: ignore[index]


def test_a_bare_name_is_a_folder_only_if_it_holds_a_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("aorta", "rocm/pytorch", "image/usr", "images/torch/bin"):
        Path(folder).mkdir(parents=True)
    for named in ("aorta", "rocm/pytorch", "missing", "/missing", "docker://aorta"):
        assert container.folder_of(named) is None
    for named in ("image", "images/torch", "./aorta", f"{tmp_path}/aorta"):
        assert container.folder_of(named) == Path(named)


def test_the_folder_of_an_image_in_the_storage_of_charliecloud(tmp_path: Path) -> None:
    environ = {"CH_IMAGE_STORAGE": str(tmp_path)}
    kept = tmp_path / "img/rocm%pytorch+6.4"
    kept.mkdir(parents=True)
    assert container.in_storage("rocm/pytorch:6.4", environ) == kept
    assert container.in_storage("rocm/pytorch", environ) is None
    assert container.in_storage("rocm/pytorch:6.4", {"USER": "nobody-here"}) is None


@pytest.mark.parametrize(
    ("asked", "image", "there"),
    [
        ("auto", "/x.sif", {"charliecloud": "c"}),
        ("pyxis", "/x.sqsh", {"charliecloud": "c"}),
        ("auto", "a/b", {}),
    ],
)
def test_a_runtime_that_is_not_there_is_named(
    asked: str, image: str, there: dict[container.Runtime, str]
) -> None:
    with pytest.raises(RunError, match="no runtime for the container"):
        choose_runtime(asked, image, there, folder=False)  # type: ignore[arg-type]


def test_what_describes_the_host_stays_outside() -> None:
    environ = {
        "LD_LIBRARY_PATH": "/cuda", "VIRTUAL_ENV": "/v", "PYTHONHOME": "/p", "TMPDIR": "/scratch/tmp",
        "SLURM_PROCID": "3", "AORTA_RUN_DIR": "/r", "CUDA_VISIBLE_DEVICES": "0",
    }  # fmt: skip
    kept = container.host_environment(environ, [Mount("/results", "/results")])
    assert kept == {"SLURM_PROCID": "3", "AORTA_RUN_DIR": "/r", "CUDA_VISIBLE_DEVICES": "0"}
    assert container.host_environment(environ, [Mount("/scratch", "/scratch")])["TMPDIR"] == "/scratch/tmp"
    assert "TMPDIR" not in container.host_environment(environ, [Mount("/scratch", "/elsewhere")])


def test_places_that_an_image_lacks(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    mounts = [Mount("/x", "/there"), Mount("/x", "/there/more/still")]
    assert container.missing_points(tmp_path, mounts) == [tmp_path / "there/more/still"]
    (tmp_path / "out").symlink_to("/etc")
    with pytest.raises(RunError, match="symbolic link"):
        container.missing_points(tmp_path, [Mount("/x", "/out/new")])
    (tmp_path / "up").symlink_to("../" * 30 + "etc")
    with pytest.raises(RunError, match="out of the image"):
        container.missing_points(tmp_path, [Mount("/x", "/up/new")])
    (tmp_path / "in").symlink_to("there")
    assert container.missing_points(tmp_path, [Mount("/x", "/in")]) == []


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=30))
def test_no_image_name_runs_in_a_shell(name: str) -> None:
    block = ContainerConfig(image=name, runtime="apptainer")
    if name.startswith("-"):
        return
    container.check_image(name)
    lines = container.in_words(block, "/p", "/r", None)
    script = "\n".join(f"#     {line}" for line in lines) + "\nprintf ok\n"
    assert shlex.split(lines[0])[-5] == name.strip() or name != name.strip() or "  " in name
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "ok"

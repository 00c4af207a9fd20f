"""A site's defaults: their place in the order, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from aorta.config import site
from aorta.config.load import load_config, save_config
from aorta.errors import ConfigError
from tests.support.commands import run

SITE = "config: {monitor: {interval_s: 3.0, gpu: false}, container: {runtime: apptainer}}\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def written(text: str) -> Path:
        path = tmp_path / "site.yaml"
        path.write_text(text)
        monkeypatch.setenv("AORTA_SITE_CONFIG", str(path))
        return path

    return written


def test_package_then_site_then_project_then_command_line(write, tmp_path: Path) -> None:
    shipped = Path(__file__).parents[2] / "config/small.yaml"
    assert load_config(shipped).monitor.interval_s == 1.0
    write(SITE)
    assert load_config(None).monitor.interval_s == 3.0
    assert load_config(shipped).monitor.interval_s == 3.0
    project = tmp_path / "mine.yaml"
    project.write_text("monitor: {interval_s: 4.0}\n")
    found = load_config(project, ["container.runtime=pyxis"])
    assert (found.monitor.interval_s, found.monitor.gpu) == (4.0, False)
    assert found.container.runtime == "pyxis"
    assert load_config(project, ["monitor.interval_s=5"]).monitor.interval_s == 5.0


def test_a_job_keeps_what_was_resolved_at_submission(write, tmp_path: Path) -> None:
    save_config(load_config(None), tmp_path / "resolved.yaml")
    write(SITE)
    assert load_config(tmp_path / "resolved.yaml").monitor.interval_s == 1.0


def test_where_the_file_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = tmp_path / "usual.yaml"
    monkeypatch.setattr(site, "USUAL", usual)
    assert site.site_file({}) is None
    usual.write_text(SITE)
    assert site.site_file({}) == usual
    assert site.site_file({"AORTA_SITE_CONFIG": ""}) is None
    with pytest.raises(ConfigError, match="which is not a file"):
        site.site_file({"AORTA_SITE_CONFIG": str(tmp_path / "absent")})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("config: {monitor: {intervals: 3}}", "monitor.intervals"),
        ("config: {monitor: {interval_s: often}}", "monitor.interval_s"),
        ("configs: {}", "configs"),
        ("- a", "list"),
        ("config: 3", "config is not a block"),
        ("submit: {partitions: gpu}", "submit.partitions"),
        ("submit: {gpus_per_node: many}", "submit.gpus_per_node"),
        ("submit: {gpus_per_node: true}", "submit.gpus_per_node"),
        ("config: [", "cannot be read"),
        ("config: " + "[" * 3000, "cannot be read"),
        ("# " + "x" * 70_000, "cannot be read"),
        ("submit: {sbatch_lines: [1, {a: b}]}", "submit.sbatch_lines"),
        ("!!python/object/apply:os.system [id]", "cannot be read"),
    ],
)
def test_what_is_wrong_is_named(write, text: str, named: str) -> None:
    write(text)
    with pytest.raises(ConfigError) as told:
        load_config(None)
    assert named in str(told.value)


def test_an_empty_file_says_nothing(write) -> None:
    write("# nothing yet\n")
    assert load_config(None) == load_config(None, [])
    assert site.preset_options() == {}


def test_options_are_preset_for_submissions(write) -> None:
    write("submit: {partition: gpu, gpus_per_node: 4, time: '02:00:00', sbatch_lines: [--mem=64G]}\n")
    found = site.preset_options()
    assert set(found) == {"submit", "sweep"}
    assert found["submit"] == {
        "partition": "gpu", "gpus_per_node": 4, "time_limit": "02:00:00", "sbatch_lines": ["--mem=64G"],
    }  # fmt: skip


def test_a_site_does_not_disturb_other_commands(write) -> None:
    write("submit: {partition: 3}\n")
    assert run("explain").exit_code == 0
    told = run("submit", "--dry-run")
    assert told.exit_code != 0
    assert "submit.partition" in str(told.exception)


@pytest.mark.parametrize(("mode", "read"), [(0o644, True), (0o664, True), (0o666, False)])
def test_a_file_that_anybody_may_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, read: bool
) -> None:
    path = tmp_path / "mode.yaml"
    path.write_text("submit: {partition: gpu}\n")
    path.chmod(mode)
    monkeypatch.setenv("AORTA_SITE_CONFIG", str(path))
    if read:
        assert site.preset_options()["submit"] == {"partition": "gpu"}
    else:
        with pytest.raises(ConfigError, match="every user may write"):
            site.preset_options()

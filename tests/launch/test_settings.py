"""The site's settings file."""

import subprocess
from pathlib import Path

import pytest

from aorta.errors import PlanError
from aorta.launch.settings import SiteSettings, check_settings, render_settings
from aorta.launch.site import ask_site
from tests.support.slurm import cluster

CONFIG = Path(__file__).parents[2] / "config"


def sourced(text: str, tmp_path: Path) -> dict[str, str]:
    """What the environment holds after sourcing the file."""
    file = tmp_path / "config.sh"
    file.write_text(text)
    done = subprocess.run(
        ["bash", "-c", 'set -euo pipefail; source "$1"; env -0', "-", str(file)],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=True,
        cwd=tmp_path,
    )
    return dict(entry.split("=", 1) for entry in done.stdout.decode().split("\0") if "=" in entry)


def test_with_gpus(tmp_path: Path) -> None:
    environment = sourced(render_settings(SiteSettings("lab", "gpu", 4)), tmp_path)
    expected = {
        "SLURM_ACCOUNT": "lab",
        "SBATCH_ACCOUNT": "lab",
        "SLURM_PARTITION": "gpu",
        "SBATCH_PARTITION": "gpu",
        "SBATCH_GPUS_PER_NODE": "4",
        "AORTA_GPUS_PER_NODE": "4",
        "AORTA_CONFIG": str(CONFIG / "default.yaml"),
    }
    assert expected.items() <= environment.items()


def test_without_gpus_or_account(tmp_path: Path) -> None:
    environment = sourced(render_settings(SiteSettings(None, "debug", 0)), tmp_path)
    assert environment["AORTA_CONFIG"] == str(CONFIG / "small.yaml")
    assert environment["AORTA_GPUS_PER_NODE"] == "0"
    assert not {"SLURM_ACCOUNT", "SBATCH_ACCOUNT", "SBATCH_GPUS_PER_NODE"} & set(environment)


@pytest.mark.parametrize("name", ["$(touch pwned)", "a'b", 'a"b', "a b", "`id`", "a\nexport X=1"])
def test_names_are_quoted(name: str, tmp_path: Path) -> None:
    environment = sourced(render_settings(SiteSettings(name, name, 0)), tmp_path)
    assert environment["SLURM_ACCOUNT"] == environment["SBATCH_PARTITION"] == name
    assert "X" not in environment
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (SiteSettings("theirs", "gpu", 4), "not one of yours"),
        (SiteSettings("lab", "none", 0), "does not exist"),
        (SiteSettings("lab", "gpu", 5), "have 4 GPUs, not 5"),
        (SiteSettings("lab", "debug", 1), "have 0 GPUs, not 1"),
    ],
)
def test_what_the_cluster_does_not_have(settings: SiteSettings, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        check_settings(settings, ask_site("me", cluster()))


def test_what_it_has() -> None:
    check_settings(SiteSettings("lab", "gpu", 4), ask_site("me", cluster()))

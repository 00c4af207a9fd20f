"""install_site.sh, with a stand-in for Python: what it writes, and what it refuses."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/install_site.sh"
PYTHON = """#!/bin/bash
# Stands in for a Python that makes environments: a venv gets itself and an aorta that says its version.
if [ "$2" = venv ]; then
    mkdir -p "$3/bin" "$3/lib"
    cp "$0" "$3/bin/python"
    printf '#!/bin/bash\\necho "aorta, version 7.1"\\n' > "$3/bin/aorta"
    chmod +x "$3/bin/aorta"
else
    printf '%s\\n' "$*" >> "$ASKED"
fi
"""


def install(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = folder / "python"
    program.write_text(PYTHON)
    program.chmod(0o755)
    environ = {"PATH": os.environ["PATH"], "PYTHON": str(program), "ASKED": str(folder / "asked")}
    return subprocess.run([SCRIPT, *arguments], env=environ, capture_output=True, text=True, check=False)


def test_a_module_shows_the_command_and_nothing_else(tmp_path: Path) -> None:
    prefix, wheels = tmp_path / "site", tmp_path / "wheels"
    wheels.mkdir()
    done = install(tmp_path, str(prefix), str(wheels))
    assert done.returncode == 0, done.stderr
    assert f"--no-index --find-links {wheels} aorta" in (tmp_path / "asked").read_text()
    lua = (prefix / "modulefiles/aorta/7.1.lua").read_text()
    tcl = (prefix / "modulefiles/aorta/7.1").read_text()
    assert f'prepend_path("PATH", "{prefix}/command")' in lua
    assert f"prepend-path PATH {prefix}/command" in tcl
    assert tcl.startswith("#%Module")
    assert [path.name for path in (prefix / "command").iterdir()] == ["aorta"]
    said = subprocess.run([prefix / "command/aorta"], capture_output=True, text=True, check=True).stdout
    assert said == "aorta, version 7.1\n"
    assert not [path for path in prefix.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o022]


@pytest.mark.parametrize("prefix", ["/", "a b", 'a"b', "a$(touch pwned)", "a\nb"])
def test_prefixes_that_module_files_could_not_name_are_refused(tmp_path: Path, prefix: str) -> None:
    done = install(tmp_path, prefix if prefix == "/" else str(tmp_path / prefix))
    assert done.returncode == 2
    assert not (tmp_path / "asked").exists()


def test_without_a_prefix_it_says_how(tmp_path: Path) -> None:
    done = install(tmp_path)
    assert done.returncode == 2
    assert "usage: scripts/install_site.sh PREFIX" in done.stderr

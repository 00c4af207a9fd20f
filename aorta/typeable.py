"""Hints as they can be typed where the user stands: in a checkout of aorta or in a folder of their own."""

from __future__ import annotations

import functools
import os
import re
import shlex
import sys
from pathlib import Path

import aorta

_COMMAND = re.compile(
    r"(?<![\w./~-])aorta(?=\s+(?:profile|submit|sweep|wait|status|cancel|configure|analyze|aggregate|runs|clean|staff"
    r"|export|timeline|compare|gate|explain|attach|monitor|doctor|validate|cluster|--help)(?![\w-]))"
)
_TARGET = re.compile(
    r"(?<![\w./~-])make(?= (?:setup|profile|submit-profiling|wait|aggregate|validate|test|lint"
    r"|cluster-up|cluster-down|cluster-status)(?![\w-]))"
)
_PAGE = re.compile(r"(?<![\w./~-])docs/[a-z-]+\.md\b")
"""A page of aorta's documents; reports have capital letters."""
_PROJECT = re.compile(r'^name = "aorta"$', re.MULTILINE)


def typeable(text: str) -> str:
    """Return `text`, in which each command of aorta and each target of its Makefile can be typed here.

    Where the shell does not find `aorta`, `aorta wait` becomes `~/aorta/.venv/bin/aorta wait`. Outside of the
    checkout, `make setup` becomes `make -C ~/aorta setup`, and `docs/attach.md` `~/aorta/docs/attach.md`.
    """
    text = _COMMAND.sub(lambda _: program(), text)
    text = _TARGET.sub(lambda _: _make(), text)
    return _PAGE.sub(lambda page: _page(page[0]), text)


def is_checkout(folder: Path) -> bool:
    """True if `folder` is the source of aorta, whose `docs/` and Makefile the guides name."""
    try:
        return _PROJECT.search((folder / "pyproject.toml").read_text(encoding="utf-8")) is not None
    except (OSError, UnicodeDecodeError):
        return False


@functools.cache
def program() -> str:
    """Return what to type for `aorta`: the word itself if the shell finds it, else what was typed now."""
    import shutil  # takes as long to import as all of this module's others

    typed = sys.argv[0]
    if Path(typed).name == "aorta":
        found = shutil.which("aorta")
        return "aorta" if found is not None and _same(found, typed) else _shown(typed)
    if _same(typed, str(Path(aorta.__file__).with_name("__main__.py"))):
        names = (name for name in ("python", "python3") if shutil.which(name) == sys.executable)
        return f"{next(names, None) or _shown(sys.executable)} -m aorta"
    return "aorta"


def _make() -> str:
    """Return what to type for `make`: with the checkout's folder where this is another one."""
    root = Path(aorta.__file__).parent.parent
    if is_checkout(Path.cwd()) or not is_checkout(root):
        return "make"
    return f"make -C {_shown(str(root))}"


def _page(name: str) -> str:
    """Return where a page of the documents is: with the checkout's folder where this is another one."""
    root = Path(aorta.__file__).parent.parent
    here = is_checkout(Path.cwd()) or Path(name).exists() or not (root / name).is_file()
    return name if here else _shown(str(root / name))


def _same(one: str, other: str) -> bool:
    try:
        return Path(one).samefile(other)
    except OSError:
        return False


def _shown(path: str) -> str:
    """`path` for a shell, with `~` for the home folder."""
    home = os.path.expanduser("~").rstrip("/")  # noqa: PTH111
    if home and path.startswith(f"{home}/"):
        return f"~/{shlex.quote(path[len(home) + 1 :])}"
    return shlex.quote(path)

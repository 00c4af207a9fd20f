"""A site's defaults for all its users, in one file.

Order: what aorta ships < the site < the user's own configuration < the command line.
"""

from __future__ import annotations

import os
import reprlib
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aorta.artefacts import names
from aorta.artefacts.files import is_file, read_regular
from aorta.errors import ConfigError

_LONGEST = 64 << 10
"""Bytes of such a file: each command reads it."""
USUAL = Path("/etc/aorta/site.yaml")
OPTIONS = {
    "account": str, "partition": str, "qos": str, "constraint": str, "time": str, "gpus_per_node": int,
    "cpus_per_task": int, "sbatch_lines": list,
}  # fmt: skip
"""Options of `aorta submit` and `aorta sweep` that a site may preset, with the type of each."""


@dataclass(frozen=True, slots=True)
class SiteDefaults:
    """The contents of a site's file; empty without one."""

    path: Path | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the configuration."""
    submit: Mapping[str, Any] = field(default_factory=dict)
    """Options, by name."""


def site_file(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Returns the file that AORTA_SITE_CONFIG names, else the usual one where it is. None if there is none.

    Raises:
        ConfigError: AORTA_SITE_CONFIG names a file that is not there.
    """
    named = environ.get(names.SITE_CONFIG)
    if named is None:
        return USUAL if is_file(USUAL) else None
    if not named:
        return None
    if not is_file(Path(named)):
        raise ConfigError(
            f"{names.SITE_CONFIG} names {named}, which is not a file",
            f"unset it, or set it to an empty value so that {USUAL} is not read either",
        )
    return Path(named)


def read_site(environ: Mapping[str, str] = os.environ) -> SiteDefaults:
    """Returns the site's defaults.

    Raises:
        ConfigError: every user may write to the file, or it is not such a file; names the key, what it was
        and what
            is allowed.
    """
    path = site_file(environ)
    if path is None:
        return SiteDefaults()
    if path.stat().st_mode & stat.S_IWOTH:
        raise ConfigError(f"{path}: every user may write this file", f"its owner can run chmod o-w {path}")
    import yaml  # without such a file, help and completion need none

    try:
        data = read_regular(path, _LONGEST)
        tree = yaml.safe_load(data.decode("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}", "docs/centres.md shows an example") from error
    tree = {} if tree is None else tree
    if not isinstance(tree, dict) or not set(tree) <= {"config", "submit"}:
        raise ConfigError(
            f"{path} contains {sorted(map(str, tree)) if isinstance(tree, dict) else type(tree).__name__}",
            "its blocks are config (keys of a configuration) and submit (options of aorta submit)",
        )
    config, submit = tree.get("config") or {}, tree.get("submit") or {}
    for name, block in (("config", config), ("submit", submit)):
        if not isinstance(block, dict):
            raise ConfigError(f"{path}: {name} is not a block of keys", f"write {name}:, and keys below it")
    for key, value in submit.items():
        kind = OPTIONS.get(key)
        wrong = kind is None or not isinstance(value, kind) or isinstance(value, bool)
        if wrong or (kind is list and not all(isinstance(line, str) for line in value)):
            raise ConfigError(
                f"{path}: submit.{key} is {reprlib.repr(value)}",
                f"options are {', '.join(f'{name} ({one.__name__})' for name, one in OPTIONS.items())}",
            )
    return SiteDefaults(path, config, submit)


def preset_options(environ: Mapping[str, str] = os.environ) -> dict[str, dict[str, Any]]:
    """Returns the presets of `aorta submit` and `aorta sweep`, as click takes them.

    Raises:
        ConfigError: as `read_site`.
    """
    options = dict(read_site(environ).submit)
    if "time" in options:
        options["time_limit"] = options.pop("time")
    return dict.fromkeys(("submit", "sweep"), options) if options else {}

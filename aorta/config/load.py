"""YAML files and dotted overrides to a checked `Config`.

OmegaConf reads YAML (so that `3e-4` is a number) and the override grammar; msgspec checks types and bounds.
Interpolations (`${...}`) are never resolved: a configuration cannot pull secrets out of the environment.
"""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from aorta.artefacts.files import is_file, is_there, read_regular
from aorta.artefacts.io import write_exact
from aorta.artefacts.masking import here, secret_name
from aorta.config.schema import Config
from aorta.config.shipped import is_shipped
from aorta.config.site import read_site
from aorta.config.thresholds import Thresholds
from aorta.errors import ConfigError

_LONGEST = 1 << 20
"""Bytes of a configuration file."""
_END = b"\n..."
"""The end of each file of `save_config`."""


def load_config(path: Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """The configuration in `path` (None: the defaults) with `key.sub=value` overrides applied in order.

    A site's defaults win over files that came with aorta, and lose against any other file.

    Raises:
        ConfigError: names the file or the dotted key, what it was and what is allowed.
    """
    tree = _read_yaml(path) if path is not None else {}
    source = str(path) if path is not None else "the defaults"
    _refuse_unknown(tree, source)
    site = read_site()
    _refuse_unknown(site.config, str(site.path))
    trees = [tree, dict(site.config)] if path is None or is_shipped(path) else [dict(site.config), tree]
    try:
        merged = OmegaConf.merge(*map(OmegaConf.create, trees), *[_override(text) for text in overrides])
    except OmegaConfBaseException as error:
        raise ConfigError(f"overrides do not fit {source}: {_first_line(error)}") from error
    plain = OmegaConf.to_container(merged, resolve=False)
    return _convert(plain, source, overrides)


def override_thresholds(thresholds: Thresholds, overrides: Sequence[str]) -> Thresholds:
    """Returns `thresholds` with `thresholds.KEY=VALUE` overrides applied in order.

    Raises:
        ConfigError: names the override, what it was and what is allowed.
    """
    for text in overrides:
        if not text.startswith("thresholds."):
            raise ConfigError(
                f"override {text!r} is not a threshold: an analysis can only change thresholds",
                "write --override thresholds.KEY=VALUE; `aorta explain` lists the keys",
            )
    trees = [_override(text) for text in overrides]
    base = OmegaConf.create({"thresholds": msgspec.to_builtins(thresholds)})
    plain = OmegaConf.to_container(OmegaConf.merge(base, *trees), resolve=False)
    return _convert(plain, "the run's configuration", overrides).thresholds


def save_config(config: Config, path: Path) -> None:
    """Write every key of `config`, defaults included, as YAML, and `...`, which ends a document.

    Raises:
        ConfigError: `path` is a file that this function did not write, or a value is a secret.
    """
    if is_file(path) and not read_regular(path).rstrip().endswith(_END):
        raise ConfigError(
            f"{path} exists, but is not the resolved configuration of a run; the run would overwrite it",
            "move the file away, or choose another folder (training.output_dir)",
        )
    tree = msgspec.to_builtins(config)
    _refuse_secrets(tree)
    write_exact(path, yaml.safe_dump(tree, sort_keys=False, explicit_end=True))


def _refuse_secrets(tree: Mapping[str, Any], prefix: str = "") -> None:
    """Raise for a text that must not be written down: a configuration is, and it must not change."""
    masker = here()
    for key, value in tree.items():
        if isinstance(value, Mapping):
            _refuse_secrets(value, f"{prefix}{key}.")
        elif isinstance(value, str) and (masker.text(value) != value or (value and secret_name(str(key)))):
            raise ConfigError(
                f"{prefix}{key} contains a secret, but configurations are written to the results",
                "have the program read it from an environment variable",
            )


def cut_off(path: Path) -> str | None:
    """The sign that a file of `save_config` lacks its end, in words; None if there is no sign.

    A key that is not there is no sign of it: an older version had no such key, and its default is what that
    version did. Versions before the one that ends files with `...` ended them with the last key.

    Raises:
        ConfigError: as `load_config`, for a file that is no YAML.
        OSError: it cannot be read.
    """
    text = read_regular(path, _LONGEST)
    if text.rstrip().endswith(_END):
        return None
    full: dict[str, Any] = msgspec.to_builtins(Config())
    absent, last = list(_missing(_read_yaml(path), full)), _last(full)
    value = "" if text.endswith(b"\n") else "; its last value may be cut as well"
    if absent and f"{last}.".startswith(f"{absent[-1]}."):
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        return f"lacks {absent[0]}{more}: defaults are used for missing keys{value}"
    return f"is cut off{value}" if value else None


def _last(tree: Mapping[str, Any]) -> str:
    """The dotted key that a file of all keys ends with."""
    *_, key = tree
    return f"{key}.{_last(tree[key])}" if isinstance(tree[key], Mapping) else key


def _missing(tree: Mapping[Any, Any], full: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in full.items():
        if key not in tree:
            yield f"{prefix}{key}"
        elif isinstance(value, Mapping) and isinstance(tree[key], Mapping):
            yield from _missing(tree[key], value, f"{prefix}{key}.")


def _read_yaml(path: Path) -> dict[str, Any]:
    if not is_there(path):
        raise ConfigError(f"configuration file {path} does not exist", "name an existing file with --config")
    try:
        loaded = OmegaConf.load(io.StringIO(read_regular(path, _LONGEST).decode("utf-8")))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    except (OmegaConfBaseException, OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"{path}: {_first_line(error)}") from error
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"{path}: expected blocks of keys at the top, such as `training:`")
    tree = OmegaConf.to_container(loaded, resolve=False)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def _override(text: str) -> DictConfig:
    key, separator, _ = text.partition("=")
    if not separator or not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", key):
        raise ConfigError(f"override {text!r} is not written as key.sub=value")
    try:
        override = OmegaConf.from_dotlist([text])
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError(f"override {text!r}: {_first_line(error)}") from error
    tree = OmegaConf.to_container(override, resolve=False)
    assert isinstance(tree, dict)
    _refuse_unknown(tree, f"override {text!r}")
    return override


def _fields(struct: type) -> dict[str, Any]:
    return {item.name: item.type for item in msgspec.structs.fields(struct)}


def _unknown_keys(tree: Mapping[Any, Any], struct: type, prefix: str = "") -> Iterator[tuple[str, list[str]]]:
    fields = _fields(struct)
    for key, value in tree.items():
        if key not in fields:
            yield f"{prefix}{key}", [prefix + name for name in fields]
        elif (
            isinstance(value, Mapping)
            and isinstance(fields[key], type)
            and issubclass(fields[key], msgspec.Struct)
        ):
            yield from _unknown_keys(value, fields[key], f"{prefix}{key}.")


def _refuse_unknown(tree: Mapping[Any, Any], source: str) -> None:
    for dotted, known in _unknown_keys(tree, Config):
        # The blocks before the key are right: alike names are looked for among the last words alone.
        names = {name.rpartition(".")[2]: name for name in known}
        close = [
            names[name]
            for name in difflib.get_close_matches(dotted.rpartition(".")[2], names, n=1, cutoff=0.6)
        ]
        guess = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(f"{source}: unknown key {dotted}", f"{guess}known here: {', '.join(known)}")


def _convert(tree: Any, source: str, overrides: Sequence[str]) -> Config:
    try:
        return msgspec.convert(tree, Config)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        dotted = where.rstrip("`").lstrip(".") or "the top level"
        origin = _origin(dotted, source, overrides)
        raise ConfigError(f"{origin}: {dotted} is {_value_at(tree, dotted)!r}: {message}") from error


def _origin(dotted: str, source: str, overrides: Sequence[str]) -> str:
    """Origin of the value at `dotted`: the last override of it or of a block that it is in, else
    `source`.
    """
    for text in reversed(overrides):
        key = text.partition("=")[0]
        if dotted == key or dotted.startswith((f"{key}.", f"{key}[")):
            return f"override {text!r}"
    return source


def _value_at(tree: Any, dotted: str) -> Any:
    for part in re.findall(r"[A-Za-z_]\w*|\d+", dotted):
        if isinstance(tree, Mapping) and part in tree:
            tree = tree[part]
        elif isinstance(tree, list) and part.isdigit() and int(part) < len(tree):
            tree = tree[int(part)]
        else:
            return None
    return tree


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

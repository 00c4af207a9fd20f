"""The program of a run and its configuration, as far as runs must agree in them to be compared."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from aorta.artefacts.records import Manifest, ResolvedPlan
from aorta.config.schema import Config

Setting = str | int | float | bool | None

_FREE = frozenset(
    {
        # What is trained towards, how the run is watched, and bottlenecks that are put in to be seen.
        *("logging", "optimizer", "scheduler", "profiling", "capture", "monitor", "faults", "thresholds"),
        # Batches and lengths: with them, strong and weak scaling are told apart.
        *("training.batch_size", "training.gradient_accumulation", "training.max_steps", "training.epochs"),
        *("training.log_interval", "training.checkpoint_interval", "training.output_dir", "training.seed"),
        *("dataset.num_samples", "dataset.seed", "dataset.delay_ms", "dcrnn.num_steps"),
        # `auto` may be either: the device that the records name counts.
        *("training.device", "distributed.timeout_s"),
        # The workload is part of the program.
        "workload",
    }
)
TRAINER = "aorta.train"
"""Begins the name of the built-in trainer."""
_FILES = frozenset({"dcrnn.data", "dcrnn.adjacency"})
"""Files: compared by name, since the same one lies elsewhere on another machine."""
_PYTHON = re.compile(r"python[\d.]*")
_LENGTH = re.compile(r"--?[\w-]*(batch|step|epoch|iter)[\w-]*")
_VALUE = re.compile(r"[\d.eE_+-]+")


def program(manifest: Manifest | None) -> str | None:
    """The trainer with its workload, or the user's command; None where nothing says.

    Of a user's command, the interpreter is left out. Some arguments are not compared and are written as `*`:
    the run's own directory, paths that are not scripts, and numbers of options with batch, step, epoch or
    iter in their name.
    """
    if manifest is None or not manifest.plan.command:
        return None
    if manifest.plan.workload is not None:
        return f"{TRAINER} ({manifest.plan.workload})"
    return " ".join(_words(manifest.plan, manifest.job_id))


def _words(plan: ResolvedPlan, job_id: str) -> list[str]:
    run = re.compile(rf"[^\s=]*/{re.escape(plan.scenario)}/run_{re.escape(job_id)}(?=/|$)")
    words = [run.sub("*", word) for word in plan.command]
    if _PYTHON.fullmatch(Path(words[0]).name):
        words = words[1:]
    if words[:1] == ["-u"]:
        words = words[1:]
    named = 2 if words[:1] == ["-m"] else 1
    said, length = words[:named], False
    for word in words[named:]:
        option, equals, value = word.partition("=")
        if length and _VALUE.fullmatch(word):
            said.append("*")
        elif equals and _LENGTH.fullmatch(option) and _VALUE.fullmatch(value):
            said.append(f"{option}=*")
        elif _is_path(value if equals else word):
            said.append(f"{option}=*" if equals else "*")
        else:
            said.append(word)
        length = not equals and _LENGTH.fullmatch(word) is not None
    return said


def _is_path(word: str) -> bool:
    """True if the word is a path of data or output. A `.py` or `.sh` file is the program that a shell or the
    user's own launcher starts.
    """
    return word.startswith(("/", "./", "../", "~")) and not word.endswith((".py", ".sh"))


def settings(
    manifest: Manifest | None, config: Config | None, device: str | None
) -> dict[str, Setting] | None:
    """The settings that two runs of one program must have in common to be compared, by dotted key.

    Args:
        manifest: of the run; it names its GPUs.
        config: None for a program of the user's own, which does not read it.
        device: kind by the records: `cuda` or `cpu`.

    Returns:
        The device, and every key of the configuration but those of `_FREE` and those of blocks not in use.
        None where the device or, for the trainer, the configuration is not known.
    """
    if manifest is None or device is None or (config is None and manifest.plan.workload is not None):
        return None
    names = {gpu.name for node in manifest.nodes for gpu in node.gpus if gpu.name}
    gpus = f" ({', '.join(sorted(names))})" if device == "cuda" and names else ""
    found: dict[str, Setting] = {"device": f"{device}{gpus}"}
    if config is None:
        return found
    unused = {
        *({"model", "dataset"} if config.workload == "dcrnn" else {"dcrnn"}),
        *({"fsdp"} if config.distributed.strategy == "ddp" else {"distributed.bucket_cap_mb"}),
        *(() if config.compile.enabled else ("compile",)),
    }
    for key, value in _flat(msgspec.to_builtins(config)):
        if any(key == name or key.startswith(f"{name}.") for name in _FREE | unused):
            continue
        found[key] = Path(value).name if key in _FILES and isinstance(value, str) else value
    return found


def _flat(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, Setting]]:
    pairs: list[tuple[str, Setting]] = []
    for name, value in tree.items():
        if isinstance(value, dict):
            pairs += _flat(value, f"{prefix}{name}.")
        else:
            pairs.append((f"{prefix}{name}", value if isinstance(value, Setting) else str(value)))
    return pairs

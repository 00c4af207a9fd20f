"""The best source of GPU samples that this node has, and why the better ones are not used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence

from aorta.monitors.devices import Source, SourceError
from aorta.monitors.library import LibrarySource, amdsmi_library, nvml_library
from aorta.monitors.tools import open_amd_smi, open_nvidia_smi, open_rocm_smi

Opener = Callable[[Sequence[str], Mapping[str, str]], Source]


def open_nvml(wanted: Sequence[str], environment: Mapping[str, str]) -> Source:
    """NVML by nvidia-ml-py.

    Raises:
        SourceError: as `LibrarySource.open`.
    """
    try:
        module = importlib.import_module("pynvml")
    except (ImportError, OSError) as error:
        raise SourceError(f"nvml: {error}") from error
    return LibrarySource(nvml_library(module, wanted, environment)).open()


def open_amdsmi(wanted: Sequence[str], environment: Mapping[str, str]) -> Source:
    """The amdsmi module that ROCm installs.

    Raises:
        SourceError: as `LibrarySource.open`.
    """
    try:
        module = importlib.import_module("amdsmi")
    except (ImportError, OSError, KeyError) as error:  # KeyError: it looks for ROCM_PATH without asking
        raise SourceError(f"amdsmi: {error}") from error
    return LibrarySource(amdsmi_library(module, wanted, environment)).open()


ORDER: tuple[Opener, ...] = (open_nvml, open_nvidia_smi, open_amdsmi, open_amd_smi, open_rocm_smi)


def open_source(
    wanted: Sequence[str], environment: Mapping[str, str], order: Sequence[Opener] = ORDER
) -> tuple[Source | None, str | None]:
    """The first source of `order` that has the job's GPUs, and why those before it (or all) have not."""
    reasons: list[str] = []
    for opener in order:
        try:
            return opener(wanted, environment), "; ".join(reasons) or None
        except SourceError as error:
            reasons.append(str(error))
    return None, "; ".join(reasons)

"""Python runs this at its start, because the node agent put this folder in front of PYTHONPATH.

It waits for torch: a program that never imports torch pays for one entry of `sys.meta_path`. Then it runs the
`sitecustomize` that would have been run without this folder.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))
_HOME = os.path.dirname(os.path.dirname(_HERE))
"""The package `aorta` that this folder belongs to."""


class _Loader(importlib.abc.Loader):
    """Loads torch as its own loader does, and installs the hooks after that."""

    def __init__(self, usual: importlib.abc.Loader) -> None:
        self._usual = usual

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._usual.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._usual
        if module.__spec__ is not None:
            module.__spec__.loader = self._usual
        self._usual.exec_module(module)
        _install()


class _AfterTorch(importlib.abc.MetaPathFinder):
    """An entry of `sys.meta_path` that takes itself out when torch is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader)
        return spec


def _install() -> None:
    try:
        if "aorta" not in sys.modules:
            spec = importlib.util.find_spec("aorta")
            if spec is not None and not _is_ours(spec):
                raise ImportError("the program has a different package named aorta")
            _load_home()
        from aorta.inject.start import install

        install()
    except Exception as error:
        print(f"[aorta] no step records: {type(error).__name__}: {error}", file=sys.stderr)


def _is_ours(spec: importlib.machinery.ModuleSpec) -> bool:
    # Any folder of that name that Python's path reaches has a spec without origin: it is no package.
    return spec.origin is None or any(
        os.path.isdir(os.path.join(home, "instrument")) for home in spec.submodule_search_locations or []
    )


def _load_home() -> None:
    """Load this `aorta`, and make nothing else of the folder that holds it visible."""
    spec = importlib.util.spec_from_file_location(
        "aorta", os.path.join(_HOME, "__init__.py"), submodule_search_locations=[_HOME]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["aorta"] = module
    spec.loader.exec_module(module)


def _run_the_sites_own() -> None:
    """Run the next `sitecustomize` of `sys.path`, as Python would have done without this folder."""
    others = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("AORTA_INSTRUMENT") == "auto" and os.environ.get("AORTA_RUN_DIR"):
    sys.meta_path.insert(0, _AfterTorch())
_run_the_sites_own()

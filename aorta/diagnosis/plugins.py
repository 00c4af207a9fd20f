"""Plug-ins: a folder of modules, each of which explains one thing in its docstring and exports one object.

A module's docstring starts with a title line and has three headings. Each heading is a separate line that
ends with a colon: `What it finds:`, `Why it costs time:`, `What to do:`. Tables, pages and `aorta explain`
are made of these, so a module without them does not load.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from inspect import cleandoc
from typing import Generic, TypeVar

from msgspec import Struct

HEADINGS = ("What it finds", "Why it costs time", "What to do")

T = TypeVar("T")


class PluginPage(Struct, frozen=True):
    """Content of a plug-in's docstring."""

    title: str
    finds: str
    costs: str
    remedy: str

    @classmethod
    def of(cls, module: str, docstring: str | None) -> PluginPage:
        """Returns the page in `docstring`.

        Raises:
            TypeError: a heading is missing, empty, or in another order.
        """
        lines = cleandoc(docstring or "").splitlines()
        places = [lines.index(f"{name}:") if f"{name}:" in lines else -1 for name in HEADINGS]
        ends = [*places[1:], len(lines)]
        parts = [
            " ".join(" ".join(lines[start + 1 : end]).split())
            for start, end in zip(places, ends, strict=True)
        ]
        if -1 in places or places != sorted(places) or not all(parts) or not lines[0]:
            wanted = ", ".join(f"'{name}:'" for name in HEADINGS)
            raise TypeError(f"{module}: its docstring needs a title and the headings {wanted}, in this order")
        return cls(lines[0].rstrip("."), *parts)


class Plugin(Struct, Generic[T], frozen=True):
    """One module of a folder of plug-ins."""

    module: str
    page: PluginPage
    spec: T


def discover(package: str, path: Iterable[str], of: type[T]) -> tuple[Plugin[T], ...]:
    """Returns the plug-ins of a package, by module name; modules that start with `_` are helpers.

    Args:
        package: its dotted name.
        path: its `__path__`.
        of: the type of the object that each module exports.

    Raises:
        TypeError: a module does not export exactly one such object, or its docstring lacks a heading.
    """
    found = []
    for info in sorted(pkgutil.iter_modules(path), key=lambda item: item.name):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{package}.{info.name}")
        specs = [value for value in vars(module).values() if isinstance(value, of)]
        if len(specs) != 1:
            raise TypeError(f"{module.__name__}: exports {len(specs)} objects of {of.__name__}, 1 is needed")
        found.append(Plugin(module.__name__, PluginPage.of(module.__name__, module.__doc__), specs[0]))
    return tuple(found)

"""Functions of torch with something of ours before and after. A hook that fails is switched off alone."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

Call = Callable[..., Any]


def say(text: str) -> None:
    """Print one line where the program's errors go."""
    print(f"[aorta] {text}", file=sys.stderr, flush=True)


class Hooks:
    """Every hook of this process, by name.

    Args:
        failed: called once per hook that was switched off, with its name.
    """

    def __init__(self, failed: Callable[[str], None]) -> None:
        self.off: dict[str, str] = {}
        """Hooks that were switched off, and what went wrong in each."""
        self.seen: set[str] = set()
        """Hooks that had something to note."""
        self._failed = failed
        self._lock = threading.Lock()

    def call(self, name: str, function: Call, *args: Any) -> Any:
        """Return what `function` returns; None where it fails, or has failed before."""
        if name in self.off:
            return None
        try:
            return function(*args)
        except Exception as error:
            self._switch_off(name, error)
            return None

    def guarded(self, name: str, function: Call) -> Call:
        """Return `function` as a hook: it returns None, and it never raises."""

        def hook(*args: Any) -> None:
            self.call(name, function, *args)

        return hook

    def around(self, name: str, original: Call, begins: Call, ended: Callable[[Any], None]) -> Call:
        """Return `original` with both ends noted.

        Args:
            name: of the hook.
            original: a function of torch.
            begins: is called with the arguments; what it returns goes to `ended`, unless it is None.
            ended: is called after `original` has returned or raised.
        """

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if name in self.off or torch.compiler.is_compiling():
                return original(*args, **kwargs)
            token = self.call(name, begins, *args)
            if token is None:
                return original(*args, **kwargs)
            self.seen.add(name)
            try:
                return original(*args, **kwargs)
            finally:
                self.call(name, ended, token)

        return wrapper

    def after(self, name: str, original: Call, noted: Callable[[Any], None]) -> Call:
        """Return `original`; `noted` is called with what it returned."""

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if name not in self.off and not torch.compiler.is_compiling():
                self.call(name, noted, result)
            return result

        return wrapper

    def _switch_off(self, name: str, error: Exception) -> None:
        with self._lock:
            if name in self.off:
                return
            self.off[name] = f"{type(error).__name__}: {error}"
        say(f"the hook for {name} failed and is switched off; the program goes on ({self.off[name]})")
        try:
            self._failed(name)
        except Exception as second:
            say(f"recording ends here ({type(second).__name__}: {second})")

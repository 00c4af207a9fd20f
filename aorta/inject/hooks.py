"""Functions of torch with something of ours before and after. A hook that fails is switched off alone.

They run in every step of programs that may be bound by their host: each function that is called costs, so a
hook is one function that calls the driver's.
"""

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

    def guarded(self, name: str, function: Call) -> Call:
        """Return `function` as a hook that never raises: None where it fails or has failed before."""
        off, switch_off = self.off, self.switch_off

        def hook(*args: Any) -> Any:
            if name in off:
                return None
            try:
                return function(*args)
            except Exception as error:
                switch_off(name, error)
                return None

        return hook

    def around(self, name: str, original: Call, begins: Call, ended: Call) -> Call:
        """Return `original` with both ends noted.

        Args:
            name: of the hook.
            original: a function of torch.
            begins: is called with the arguments; None means that the end is not wanted.
            ended: is called after `original` has returned or raised, with what `begins` returned and with
                the result; that is None after an error.
        """
        off, switch_off, compiling = self.off, self.switch_off, torch.compiler.is_compiling

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if compiling() or name in off:
                return original(*args, **kwargs)
            token = None
            try:
                token = begins(*args, **kwargs)
            except Exception as error:
                switch_off(name, error)
            if token is None:
                return original(*args, **kwargs)
            result = None
            try:
                result = original(*args, **kwargs)
                return result
            finally:
                try:
                    ended(token, result)
                except Exception as error:
                    switch_off(name, error)

        return wrapper

    def after(self, name: str, original: Call, noted: Callable[[Any], None]) -> Call:
        """Return `original`; `noted` is called with what it returned."""
        off, switch_off, traced = self.off, self.switch_off, torch.compiler.is_dynamo_compiling

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if not traced() and name not in off:
                try:
                    noted(result)
                except Exception as error:
                    switch_off(name, error)
            return result

        return wrapper

    def switch_off(self, name: str, error: Exception) -> None:
        """Call a hook no more, and say so once."""
        with self._lock:
            if name in self.off:
                return
            self.off[name] = f"{type(error).__name__}: {error}"
        say(f"the hook for {name} failed and is switched off; the program goes on ({self.off[name]})")
        try:
            self._failed(name)
        except Exception as second:
            say(f"recording ends here ({type(second).__name__}: {second})")

"""The variables that a job gives its ranks, for programs that remove them before they train."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_PREFIX = "AORTA_"


class Variables:
    """Keeps the job's variables as they are when the hooks are installed."""

    def __init__(self) -> None:
        self._kept = {name: value for name, value in os.environ.items() if name.startswith(_PREFIX)}

    @contextlib.contextmanager
    def set_again(self) -> Iterator[None]:
        """Set the variables that the program has removed, and remove them again."""
        absent = {name: value for name, value in self._kept.items() if name not in os.environ}
        os.environ.update(absent)
        try:
            yield
        finally:
            for name in absent:
                os.environ.pop(name, None)

"""`python -m aorta`: the `aorta` command by the interpreter that is running."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading

# Modules leave no garbage: to look for it takes a tenth of the time to import them, then and later.
gc.disable()
# Ctrl-C meanwhile ends the process without a traceback: nothing is begun yet.
_handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
if _handled:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
from aorta.cli import main  # noqa: E402
from aorta.commands import _say  # noqa: E402, F401  main needs it to say that it was interrupted

if _handled:
    signal.signal(signal.SIGINT, signal.default_int_handler)
gc.freeze()
gc.enable()


def run() -> None:
    """Run the command, and end the process without taking the interpreter apart, which takes time."""
    try:
        main()
    except SystemExit as end:
        if threading.active_count() > 1 or not isinstance(end.code, int):
            raise
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            # A stream that was closed before the start is None.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(end.code)


if __name__ == "__main__":
    run()

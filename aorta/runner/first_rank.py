"""Starts a program with more options on local rank 0 than on the others.

    python -m aorta.runner.first_rank N WORD ... PROGRAM SUBCOMMAND ...
        becomes PROGRAM; its words get the N words behind SUBCOMMAND where LOCAL_RANK is 0

Standard library only: it runs before every rank.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def command(words: Sequence[str], local_rank: str | None) -> list[str]:
    """The command that `words` stand for."""
    more = int(words[0])
    extra, rest = words[1 : 1 + more], words[1 + more :]
    return [*rest[:2], *(extra if local_rank == "0" else []), *rest[2:]]


if __name__ == "__main__":
    argv = command(sys.argv[1:], os.environ.get("LOCAL_RANK"))
    os.execvp(argv[0], argv)  # noqa: S606 - an argument list

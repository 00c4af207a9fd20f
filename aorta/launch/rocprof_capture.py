"""The rocprofv3 command line of `scripts/rocprof_capture.sh`, checked against the installed version.

python -m aorta.launch.rocprof_capture OUTPUT_DIR "ARGS"     prints the words, each ended by a zero byte
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from aorta.errors import AortaError, ConfigError, RunError
from aorta.launch.profilers import rocprof_prefix

STEM = "train"
PATIENCE_S = 30
_OURS = ("-d", "--output-directory", "-o", "--output-file")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def capture_prefix(output: Path, text: str, known: frozenset[str]) -> list[str]:
    """`rocprofv3 ... --`, to stand before one rank's python.

    Args:
        output: folder of the traces.
        text: the user's own options, quoted as in a shell; empty takes the default ones.
        known: long options that the installed rocprofv3 has; empty where it did not tell.

    Raises:
        ConfigError: an option that this rocprofv3 does not know, or one that names the output.
    """
    usual = rocprof_prefix(output, STEM)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"ROCPROF_ARGS {text!r}: {error}", "quote it as in a shell") from error
    if not words:
        return usual
    for word in words:
        name = word.partition("=")[0]
        if name in _OURS:
            raise ConfigError(
                f"ROCPROF_ARGS sets {name}: a rank's file needs a name of its own",
                "choose the folder with ROCPROF_OUTPUT_DIR",
            )
        if known and name.startswith("--") and name != "--" and name not in known:
            raise ConfigError(
                f"ROCPROF_ARGS: this rocprofv3 has no option {name}", "see rocprofv3 --help for what it has"
            )
    chosen = ("-f", "--output-format")
    named = any(word.partition("=")[0] in chosen for word in words)
    placed = [*usual[usual.index("-d") : -1]]
    return ["rocprofv3", *words, *([] if named else ["--output-format", "csv"]), *placed, "--"]


def known_options() -> frozenset[str]:
    """Long options in the help text of the installed rocprofv3; empty where it gives none.

    Raises:
        RunError: it is not installed.
    """
    if shutil.which("rocprofv3") is None:
        raise RunError(
            "rocprofv3 is not in PATH", "install rocprofiler-sdk (ROCm 6.2 or newer) or load its module"
        )
    try:
        done = subprocess.run(
            ["rocprofv3", "--help"], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    return frozenset(_OPTION.findall(done.stdout))


def main(arguments: Sequence[str]) -> int:
    """Print the words; errors of ours become one message.

    Returns:
        The exit code.
    """
    output, text = arguments
    try:
        prefix = capture_prefix(Path(output), text, known_options())
    except AortaError as error:
        print(f"rocprof_capture.sh: {error}", file=sys.stderr)
        return error.exit_code
    if "--att" in text.split():
        print(
            "rocprof_capture.sh: --att traces instructions: it needs the separate decoder and is meant for a"
            " single kernel; of a whole training run it writes very much",
            file=sys.stderr,
        )
    sys.stdout.write("".join(f"{word}\0" for word in prefix))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

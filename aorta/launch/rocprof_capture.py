"""The rocprofv3 command line around one rank, checked against the installed version.

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

STEM = "train"
REGIONS = "--selected-regions"
"""rocprofv3 records from a call of `roctxProfilerResume` to one of `roctxProfilerPause`."""
_MARKERS, _PERIODS = "--marker-trace", ("-P", "--collection-period")
PATIENCE_S = 30
_USUAL = (
    "--kernel-trace", "--hip-runtime-trace", "--rccl-trace", "--marker-trace", "--memory-copy-trace",
    "--stats", "--summary",
)  # fmt: skip
_ATT = (
    "--att traces instructions: it needs a separate decoder and is intended for a single kernel; a whole "
    "training run would write too much data"
)
_OUTDATED = {
    "--kernel-symbols": "leave it out: rocprofv3 writes the kernels' names into every kernel trace",
    "--hsa-activity": "leave it out: --kernel-trace and --memory-copy-trace replace it",
    "--hip-activity": "leave it out: --kernel-trace and --memory-copy-trace replace it",
    "--roctx-trace": "use --marker-trace, which is its new name",
}
"""Options of older tools and guides, and what to do instead."""
_OURS = ("-d", "--output-directory", "-o", "--output-file")
_SUMMARIES = frozenset(("--stats", "--summary", "-S"))
_OF_SUMMARIES = _SUMMARIES | {
    "--summary-per-domain", "-D", "--summary-groups", "--summary-output-file", "--summary-units", "-u",
    "--output-format", "-f", "--truncate-kernels", "-T",
}  # fmt: skip
"""Options that trace nothing; without one that does, rocprofv3 ends before the program starts."""
_READ = frozenset(("csv", "json", "rocpd"))
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def rocprof_prefix(
    output: Path,
    stem: str,
    text: str = "",
    known: frozenset[str] = frozenset(),
    *,
    ranged: bool = False,
) -> tuple[list[str], list[str]]:
    """(`rocprofv3 ... --`, notes): what stands before one rank's python, and what was left out of it and why.

    The rank comes from torchrun's RANK: rocprofv3's own `%rank%` is Slurm's process number, which under
    torchrun is the node's. The format is named because its default changed with ROCm 7.

    Args:
        output: folder of the traces.
        stem: start of each file's name; rank, host and process id follow.
        text: the user's own options (ROCPROF_ARGS), quoted as in a shell; empty takes the default ones, of
            which those are left out that this version does not know.
        known: long options that the installed rocprofv3 has; empty where it did not tell.
        ranged: the ranks say when to record, where this version listens to them.

    Raises:
        ConfigError: an option of the user's that this rocprofv3 does not know, or one that names the output.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"ROCPROF_ARGS {text!r}: {error}", "quote it as you would in a shell") from error
    notes = []
    if words:
        _check(words, known)
        if "--att" in words:
            notes.append(_ATT)
    else:
        words = [word for word in _USUAL if not known or word in known]
        notes += [f"this rocprofv3 has no {word}, so it is left out" for word in _USUAL if word not in words]
    if ranged:
        more, note = _regions(words, known)
        words += more
        notes += [note] if note else []
    named = any(word.partition("=")[0] in ("-f", "--output-format") for word in words)
    if named and _READ.isdisjoint(re.findall(r"[a-z0-9]+", " ".join(words).lower())):
        notes.append(f"this format of rocprofv3 is not analysed: one of {', '.join(sorted(_READ))} is")
    name = f"{stem}_rank%env{{RANK}}%_%hostname%_%pid%"
    form = [] if named else ["--output-format", "csv"]
    return ["rocprofv3", *words, *form, "-d", str(output), "-o", name, "--"], notes


def _regions(words: Sequence[str], known: frozenset[str]) -> tuple[list[str], str | None]:
    """Return the options by which the ranks say when to record, or why the whole run is recorded."""
    if any(word.partition("=")[0] in _PERIODS for word in words):
        return [], "ROCPROF_ARGS names collection periods, which are used instead of capture.start_step"
    if REGIONS not in known:
        return [], f"this rocprofv3 has no {REGIONS}: the whole run is recorded"
    # Only with markers rocprofv3 loads the library in which the ranks call it.
    more = [word for word in (_MARKERS, REGIONS) if word not in words and word in known]
    return more, None


def _check(words: Sequence[str], known: frozenset[str]) -> None:
    options = {word.partition("=")[0] for word in words if word.startswith("-")}
    if "--" in words:
        raise ConfigError(
            "ROCPROF_ARGS contains --, after which rocprofv3 expects the program",
            "leave it out: aorta adds the rank's program",
        )
    if options & _SUMMARIES and options <= _OF_SUMMARIES:
        raise ConfigError(
            f"ROCPROF_ARGS {' '.join(words)!r} requests only a summary and no trace, which rocprofv3 refuses",
            "add what to trace, such as --kernel-trace",
        )
    for word in words:
        name = word.partition("=")[0]
        if name in _OURS:
            raise ConfigError(
                f"ROCPROF_ARGS sets {name}: each rank's file needs its own name",
                "leave it out; with scripts/rocprof_capture.sh choose the folder with ROCPROF_OUTPUT_DIR",
            )
        if known and name.startswith("--") and name not in known:
            raise ConfigError(
                f"ROCPROF_ARGS: this rocprofv3 has no option {name}",
                _OUTDATED.get(name, "see rocprofv3 --help for its options"),
            )


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
        prefix, notes = rocprof_prefix(Path(output), STEM, text, known_options())
    except AortaError as error:
        print(f"rocprof_capture.sh: {error}", file=sys.stderr)
        return error.exit_code
    for note in notes:
        print(f"rocprof_capture.sh: {note}", file=sys.stderr)
    sys.stdout.write("".join(f"{word}\0" for word in prefix))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Says why a file that was named on the command line is of no use."""

from __future__ import annotations

import codecs
import json
import re
from pathlib import Path

from aorta.artefacts.files import is_folder, is_there, open_regular, walk
from aorta.errors import ArtefactError
from aorta.readers.sample_files import decoded
from aorta.readers.trace_sqlite import open_database
from aorta.units import plural

_LOOK = 4096
_NAMED = 5
_SUFFIXES = {
    ".qdstrm": "an unfinished nsys stream: convert it to a .nsys-rep with QdstrmImporter, which comes with "
    "nsys",
    ".ncu-rep": "a report of Nsight Compute, which measures single kernels rather than steps",
    ".pickle": "a pickle; it is not opened, because it can run code",
    ".pkl": "a pickle; it is not opened, because it can run code",
    ".pt": "a file of torch.save; it is not opened, because it can run code",
    ".pb": "a profile of XLA or TensorFlow: export it as a JSON trace",
    ".pftrace": "a Perfetto trace: export it as JSON",
    ".perfetto-trace": "a Perfetto trace: export it as JSON",
}
_TEXTS = (
    (
        re.compile(rb"\s*<(?:!doctype|html)", re.IGNORECASE),
        "a web page, as a failed download leaves it",
    ),
    (
        re.compile(rb"version https://git-lfs"),
        "a pointer of Git LFS: fetch the file with `git lfs pull`",
    ),
    (re.compile(rb"\x80[\x02-\x05]"), "a pickle; it is not opened, because it can run code"),
    (re.compile(rb"SQLite format 3\0"), "a database"),
    (re.compile(rb"\x7fELF"), "a program"),
)
_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
EXPECTED = "expected Kineto JSON, nsys exports or reports, rocprofv3 output, or samples of GPUs with times"


def why_unused(path: Path) -> str:
    """Returns the reason why nothing is read from a file, as far as its content tells."""
    if not is_there(path):
        return "it does not exist"
    if is_folder(path):
        files = sorted(walk(path))
        reasons = [f"{file.name}: {why_unused(file)}" for file in files[:_NAMED]]
        return "; ".join(
            [f"a folder of {plural(len(files), 'file')}, and aorta can read none of them", *reasons]
        )
    try:
        with open_regular(path) as stream:
            head = stream.read(_LOOK)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    if not head.strip(b"\0 \r\n\t"):
        return "it is empty" if not head else "it contains only blanks"
    known = next((reason for pattern, reason in _TEXTS if pattern.match(head)), _SUFFIXES.get(path.suffix))
    if known == "a database":
        known = _database(path)
    return known or _text(head)


def _database(path: Path) -> str:
    try:
        with open_database(path) as database:
            tables = ", ".join(sorted(database.tables)[:_NAMED]) or "none"
    except ArtefactError as error:
        return error.message.removeprefix(f"{path}: ")
    return f"an SQLite database without GPU activity; its first tables are {tables}"


def _text(head: bytes) -> str:
    text = decoded(head)
    first = text.strip().splitlines()[0] if text.strip() else ""
    if first.startswith(("{", "[")):
        if head.startswith(_MARKS):
            return "JSON in UTF-16, or with a byte order mark: save it as UTF-8 without one"
        keys = re.findall(r'"([^"\\]{1,40})"\s*:', text)[:_NAMED]
        return f"JSON without traceEvents or rocprofiler-sdk-tool; its first keys are {json.dumps(keys)}"
    printable = sum((sign.isprintable() and sign != "\ufffd") or sign.isspace() for sign in text) / len(text)
    if printable < 0.9:
        return f"its format is not known; {EXPECTED}"
    if "," in first:
        return f"a table without a known column of times; its first line is {first[:80]!r}"
    return f"text that begins with {first[:80]!r}; {EXPECTED}"

"""Takes environment variables, command lines and printed output out of what profilers exported.

What explains the measurement stays (`environment.shown`). SQLite files are rewritten, so that nothing is
left on free pages.
"""

from __future__ import annotations

import json
import mmap
import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import msgspec

from aorta.artefacts.masking import Masker, here, secret_values
from aorta.runner.environment import shown

_NSYS_ENVIRONMENT = "DeviceEnvironment"
_BETWEEN = re.compile("[;\0\n]")
"""Separators of nsys between variables (2023.4: a semicolon): a value with one in it is cut there."""
_ROCPD_PROCESS = "rocpd_info_process"
_JSON_ROOT = "rocprofiler-sdk-tool"
_JSON_COMMAND = ("command", "command_line", "cmdline", "args", "environment", "env")


_PLAIN = (".csv", ".txt")
"""Endings of files of rocprofv3 that hold nothing of the process."""


def scrub(path: Path) -> bool:
    """Scrub an export of nsys or a database or JSON file of rocprofv3 in place.

    Returns:
        Whether nothing of the process is left in the file; False: its format is not known here (`.pftrace`
        and OTF2 hold command lines), or some other JSON.

    Raises:
        OSError, sqlite3.Error, msgspec.DecodeError: it cannot be read or written.
    """
    if path.suffix in (".sqlite", ".db"):
        scrub_database(path)
        return True
    if path.suffix == ".json":
        return scrub_json(path)
    return path.suffix in _PLAIN


def still_in(path: Path, environ: Mapping[str, str]) -> list[str]:
    """Names of the variables of `environ` that hold a secret which stands in a file, wherever a version of a
    profiler has put it.

    Raises:
        OSError: it cannot be read.
    """
    if path.stat().st_size == 0:
        return []
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        held = secret_values(environ).items()
        return [name for name, value in held if data.find(value.encode("utf-8", "surrogateescape")) >= 0]


def scrub_database(path: Path) -> None:
    """The SQLite export of nsys, or a rocpd database."""
    masker = here()
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA secure_delete = ON")
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        with database:
            if "TARGET_INFO_SYSTEM_ENV" in tables:
                _nsys_environment(database)
            if "META_DATA_CAPTURE" in tables:
                _nsys_capture(database)
            if "StringIds" in tables:
                _nsys_strings(database)
            if "ProcessStreams" in tables:
                _nsys_streams(database)
            for table in sorted(tables):
                if table.startswith(_ROCPD_PROCESS):
                    _rocpd_process(database, table)
            for table in sorted(tables):
                _mask_texts(database, table, masker)
        database.execute("VACUUM")


def _mask_texts(database: sqlite3.Connection, table: str, masker: Masker) -> None:
    """Secrets that stand in a text of a table, such as in the name of a process or its command line."""
    quoted = table.replace('"', '""')
    columns = [row[1] for row in database.execute(f'PRAGMA table_info("{quoted}")') if _may_be_text(row[2])]
    for column in (name.replace('"', '""') for name in columns):
        found = database.execute(
            f'SELECT DISTINCT "{column}" FROM "{quoted}" WHERE typeof("{column}") = \'text\''  # noqa: S608
        )
        changed = [(text, value) for (value,) in found if (text := masker.text(value)) != value]
        update = f'UPDATE "{quoted}" SET "{column}" = ? WHERE "{column}" = ?'  # noqa: S608
        database.executemany(update, changed)


def _may_be_text(declared: str) -> bool:
    return not declared or any(word in declared.upper() for word in ("TEXT", "CHAR", "CLOB", "JSON"))


def _nsys_environment(database: sqlite3.Connection) -> None:
    rows = database.execute(
        "SELECT rowid, value FROM TARGET_INFO_SYSTEM_ENV WHERE name = ?", (_NSYS_ENVIRONMENT,)
    ).fetchall()
    for row, value in rows:
        kept = shown(_variables(_BETWEEN.split(str(value or ""))))
        text = ";".join(f"{name}={value}" for name, value in kept.items())
        database.execute("UPDATE TARGET_INFO_SYSTEM_ENV SET value = ? WHERE rowid = ?", (text, row))


def _nsys_strings(database: sqlite3.Connection) -> None:
    """Environments of all processes that nsys could look at, its own and others, stand among the strings:
    variables with zero bytes between.
    """
    query = "SELECT id, value FROM StringIds WHERE instr(CAST(value AS BLOB), X'00') > 0"
    for number, value in database.execute(query).fetchall():
        kept = shown(_variables(str(value).split("\0")))
        text = "\0".join(f"{name}={item}" for name, item in kept.items())
        database.execute("UPDATE StringIds SET value = ? WHERE id = ?", (text, number))


def _variables(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def _nsys_capture(database: sqlite3.Connection) -> None:
    """Command and its arguments, environment and user of each process; the options of the capture stay."""
    rows = database.execute("SELECT rowid, name FROM META_DATA_CAPTURE").fetchall()
    for row, name in rows:
        last = str(name).rpartition(":")[2]
        if last == "COMMAND" or any(word in last for word in ("ARG", "ENV", "USER", "COMMAND_LINE")):
            database.execute("UPDATE META_DATA_CAPTURE SET value = '' WHERE rowid = ?", (row,))


def _nsys_streams(database: sqlite3.Connection) -> None:
    """Remove what the processes printed."""
    ids = [row[0] for row in database.execute("SELECT contentId FROM ProcessStreams")]
    database.executemany("UPDATE StringIds SET value = '' WHERE id = ?", [(number,) for number in ids])
    database.execute("DELETE FROM ProcessStreams")


def _rocpd_process(database: sqlite3.Connection, table: str) -> None:
    columns = {row[1] for row in database.execute(f'PRAGMA table_info("{table}")')}
    if "environment" in columns:
        rows = database.execute(f'SELECT rowid, environment FROM "{table}"').fetchall()  # noqa: S608
        for row, value in rows:
            text = json.dumps(shown(_json_variables(value)))
            database.execute(f'UPDATE "{table}" SET environment = ? WHERE rowid = ?', (text, row))  # noqa: S608
    for column in sorted(columns & {"command", "extdata"}):
        empty = "''" if column == "command" else "'{}'"
        database.execute(f'UPDATE "{table}" SET {column} = {empty}')  # noqa: S608


def _json_variables(value: object) -> dict[str, str]:
    try:
        found = json.loads(str(value))
    except ValueError:
        return {}
    return {str(name): str(text) for name, text in found.items()} if isinstance(found, dict) else {}


def scrub_json(path: Path) -> bool:
    """The JSON output of rocprofv3: its metadata name the command and may hold the environment. False for
    other JSON, which stays as it is.
    """
    top = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
    if _JSON_ROOT not in top:
        return False
    tools = msgspec.json.decode(top[_JSON_ROOT], type=list[dict[str, msgspec.Raw]])
    for tool in tools:
        if "metadata" in tool:
            metadata = _without_commands(msgspec.json.decode(tool["metadata"]))
            tool["metadata"] = msgspec.Raw(msgspec.json.encode(metadata))
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(msgspec.json.encode({**top, _JSON_ROOT: tools}))
    part.replace(path)
    return True


def _without_commands(value: object) -> object:
    if isinstance(value, dict):
        return {
            name: shown(_json_variables(json.dumps(item))) if name in ("environment", "env")
            else type(item)() if name in _JSON_COMMAND and item is not None
            else _without_commands(item)
            for name, item in value.items()
        }  # fmt: skip
    return [_without_commands(item) for item in value] if isinstance(value, list) else value

"""Finds where a report goes, and how the one that it replaces is kept."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aorta.artefacts.files import entries, is_file, is_folder, make_shared_folder, owner_name
from aorta.artefacts.io import read_json, write_text
from aorta.artefacts.names import RESULTS
from aorta.errors import ArtefactError
from aorta.typeable import is_checkout

KEPT = "reports"
"""Folder of earlier reports, below the results."""
FAMILIES = {"BOTTLENECK_ANALYSIS": "bottleneck_analysis", "SWEEP_ANALYSIS": "sweep_analysis"}
"""Each document with the folder of its pictures."""
_STAMP = re.compile(r"\d{8}T\d{6}Z")
_LINK = re.compile(r'(\]\(|(?:href|src)=")((?:\.\./)+)')


class _Dated(msgspec.Struct):
    """Says what every report's JSON says of its inputs: the time of the newest one."""

    generated_wall_ns: int


@dataclass(frozen=True, slots=True)
class KeptReport:
    """A report on disk."""

    folder: Path
    name: str
    generated_wall_ns: int

    @property
    def json(self) -> Path:
        """Its JSON, which marks the folder as aorta's."""
        return self.folder / f"{self.name}.json"

    @property
    def markdown(self) -> Path:
        """Its Markdown."""
        return self.folder / f"{self.name}.md"


def docs_folder(given: Path | None, results: Path) -> Path:
    """Return the folder of the report: as given, `docs/` in aorta's checkout, else above or in the results.

    Where it holds a report of another user's, it is a folder of this user's own below it.
    """
    if given is not None:
        return given
    if is_checkout(Path.cwd()):
        usual = Path("docs")
    else:
        usual = results.parent if results.name == RESULTS.name and results.parent.name else results
    return usual / owner_name(os.getuid()).replace(" ", "_") if _is_of_another(usual) else usual


def _is_of_another(folder: Path) -> bool:
    """True if a report in `folder`, or the pictures of one, belongs to another user."""
    for path in (
        *(folder / f"{name}.json" for name in FAMILIES),
        *(folder / name for name in FAMILIES.values()),
    ):
        try:
            if path.lstat().st_uid != os.getuid():
                return True
        except OSError:
            continue
    return False


def report_in(folder: Path, name: str) -> KeptReport | None:
    """The report `name` in `folder`; None where there is none that can be read."""
    try:
        dated = read_json(folder / f"{name}.json", _Dated)
    except ArtefactError:
        return None
    return KeptReport(folder, name, dated.generated_wall_ns)


def kept_reports(results: Path) -> Iterator[KeptReport]:
    """The earlier reports below `results`, oldest first."""
    for folder in sorted(entries(results / KEPT)):
        if _STAMP.fullmatch(folder.name) and is_folder(folder):
            found = (report_in(folder, name) for name in FAMILIES)
            yield from (one for one in found if one is not None and stamp(one) == folder.name)


def stamp(report: KeptReport) -> str:
    """The time of a report's newest input, as the folder of an earlier report is called."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(report.generated_wall_ns / 1e9))


def keep_earlier(docs: Path, results: Path, name: str, generated_wall_ns: int) -> Path | None:
    """Copy the report `name` in `docs` to where earlier ones are kept, if it is of other inputs.

    Args:
        docs: the folder that the new report goes to.
        results: the base results directory.
        name: of the document, without its suffix.
        generated_wall_ns: the time of the new report's newest input.

    Returns:
        The folder of the copy; None where there was nothing to keep.
    """
    old = report_in(docs, name)
    if old is None or old.generated_wall_ns == generated_wall_ns:
        return None
    folder = results / KEPT / stamp(old)
    if report_in(folder, name) is not None:
        return None
    make_shared_folder(folder.parent)
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(docs.glob(f"{name}.*")):
        if path == old.json or not is_file(path):
            continue
        if path.suffix in (".md", ".html"):
            write_text(folder / path.name, _moved(path.read_text(encoding="utf-8"), docs, folder))
        else:
            shutil.copyfile(path, folder / path.name)
    pictures = docs / FAMILIES[name]
    if is_folder(pictures):
        shutil.copytree(pictures, folder / pictures.name, dirs_exist_ok=True, symlinks=True)
    # Last: it says that the copy is whole.
    shutil.copyfile(old.json, folder / old.json.name)
    return folder


def _moved(text: str, old: Path, new: Path) -> str:
    """The document with links that lead out of `old` made to lead there from `new`."""

    def link(match: re.Match[str]) -> str:
        up = old.resolve().joinpath(match[2]).resolve()
        there = Path(os.path.relpath(up, new.resolve())).as_posix()
        return f"{match[1]}{there}/"

    return _LINK.sub(link, text)


@contextlib.contextmanager
def writing(docs: Path) -> Iterator[None]:
    """While this is entered, a file that cannot be written is told with what to do.

    Raises:
        ArtefactError: one could not be written.
    """
    try:
        yield
    except OSError as error:
        # Of a copy, the second name is the one that is written.
        where = error.filename2 or error.filename or docs
        raise ArtefactError(
            f"{where}: {error.strerror}", "name a folder that can be written with --docs"
        ) from error

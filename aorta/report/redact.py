"""Names of hosts, users and paths taken out of a report before it is sent."""

from __future__ import annotations

import getpass
import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_HOST_FIELDS = frozenset({"host", "nodes"})
_USER = re.compile(r"(?:/home|/users?|/Users|~)/?([A-Za-z_][\w.-]*)")
_ADDRESS = re.compile(
    r"\b(?:\d{1,3}\.){3}\d{1,3}\b|\b(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{1,4}\b"
    r"|(?<![\w:])(?=[0-9a-fA-F:]*::)(?=[a-fA-F:]*\d)[0-9a-fA-F:]{3,39}(?![\w:])"
)
_LINK = re.compile(r"\b[A-Za-z][\w+.-]*://[^\s\"'<>,;]+|\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
"""Addresses of the web, of storage and of people."""
_PATH = re.compile(
    r"(?<![\w<])(?:(?:[A-Za-z]:)?[/\\]|~[\w.-]*/|\.{1,2}/|(?:[\w.+@-]+/){2,})(?:[\w.+@%=-]+[/\\])*([\w.+@%=-]*)"
)
_CODES = frozenset(
    "doing kind severity what basis level label pattern scope key symptom_of finding_kind".split()
)
"""Fields that hold one of a few words of ours, never a name."""
_FREE = frozenset({"evidence"})
"""Fields whose values may have names as keys."""
_NOT_USERS = frozenset({"root"})


class Redactor:
    """Replaces every host, user and path that a report names; the same name always by the same word."""

    def __init__(self, records: Iterable[Any], more_hosts: Iterable[str] = ()) -> None:
        """Args: the records to redact, and further names of hosts."""
        trees = [msgspec.to_builtins(record) for record in records]
        hosts = {name for tree in trees for name in _hosts(tree, inside=False)} | set(more_hosts)
        short = {name.partition(".")[0] for name in hosts if not name[:1].isdigit()}
        text = "\n".join(piece for tree in trees for piece in _strings(tree))
        users = {*_USER.findall(text), getpass.getuser()} - _NOT_USERS
        self._words = {name: f"host{place}" for place, name in enumerate(sorted(filter(None, hosts)))}
        for name in filter(None, short):
            full = next(host for host in sorted(hosts) if host.partition(".")[0] == name)
            self._words.setdefault(name, self._words[full])
        self._words |= {name: f"user{place}" for place, name in enumerate(sorted(users))}
        longest = sorted(self._words, key=len, reverse=True)
        names = "|".join(re.escape(name) for name in longest) or r"(?!)"
        self._named = re.compile(rf"(?<![A-Za-z0-9])(?:{names})(?![A-Za-z0-9])", re.IGNORECASE)
        self._words = {name.lower(): word for name, word in self._words.items()}

    def text(self, value: str) -> str:
        """`value` without hosts, users and addresses, and with the last part of each path alone."""
        shown = _LINK.sub("<address>", value)
        shown = _PATH.sub(lambda match: f"<path>/{match[1]}" if match[1] else "<path>", shown)
        shown = self._named.sub(lambda match: self._words[match[0].lower()], shown)
        return _ADDRESS.sub("<address>", shown)

    def record(self, value: T) -> T:
        """A record, every text in it redacted."""
        return msgspec.convert(self._walk(msgspec.to_builtins(value)), type(value))

    def _field(self, key: str, item: Any) -> Any:
        if key in _FREE and isinstance(item, dict):
            return {name: self._free(value) for name, value in item.items()}
        return item if key in _CODES else self._walk(item)

    def _free(self, tree: Any) -> Any:
        if isinstance(tree, dict):
            return {self.text(name): self._free(value) for name, value in tree.items()}
        return self._walk(tree)

    def _walk(self, tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: self._field(key, item) for key, item in tree.items()}
        if isinstance(tree, (list, tuple)):
            return [self._walk(item) for item in tree]
        return self.text(tree) if isinstance(tree, str) else tree


def _hosts(tree: Any, *, inside: bool) -> Iterator[str]:
    """The names in fields of hosts, at any depth."""
    if isinstance(tree, dict):
        for key, item in tree.items():
            yield from _hosts(item, inside=key in _HOST_FIELDS)
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _hosts(item, inside=inside)
    elif inside and isinstance(tree, str):
        yield tree


def _strings(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        for key, item in tree.items():
            yield str(key)
            yield from _strings(item)
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _strings(item)
    elif isinstance(tree, str):
        yield tree

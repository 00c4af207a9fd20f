"""Masks secrets in what is written or printed, by value and by form. Standard library only.

A value is secret where a variable or an option of such a name holds it, and is masked wherever it stands. A
form is that of a known kind of credential, wherever it came from.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from aorta.artefacts import names

MASK = "***"
_SHORTEST = 6
"""Characters of a value that can be told from other text."""
_LONGEST_WORD = 8
"""Letters of a word of a language, such as a mode: a value that is one is masked only above this length."""

_WORDS = frozenset(
    "key apikey accesskey secretkey token secret password passwd pass pw pwd passphrase credential"
    " credentials auth authorization cookie bearer jwt sas sig signature pat dsn apitoken authtoken"
    " accesstoken webhook connectionstring connstr privatekey secrets cred creds otp sessionid".split()
)
_PAIRS = frozenset(
    {("connection", "string"), ("api", "key"), ("access", "key"), ("private", "key"), ("session", "id")}
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SPLIT = re.compile(r"[^A-Za-z0-9]+")
_NUMBER = re.compile(r"[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?")
_ENVIRONMENT = frozenset({"env", "e", "environment", "setenv", "export"})
_USER = frozenset({"u", "user", "login"})
_HEADER = frozenset({"h", "header", "headers"})
_ALONE = frozenset({"p", "pin"})
"""Options that hold a secret where nothing else is part of their name, as of `--pin-memory`."""

_ASSIGNED = re.compile(
    r"""(?<![\w.\-])(?P<name>-*[A-Za-z_][\w.\-]*)(?P<between>\s?=(?!=)\s?|["']?\s*:\s*)(?P<value>"[^"\n]*"|'[^'\n]*'|[^\s&;,"'<>()\[\]{}|]+)"""
)
_FORMS = re.compile(
    r"(?<=://)[^\s/:@\"'<>]*:[^\s/@\"'<>]+(?=@)"
    r"|(?<![A-Za-z0-9])(?:hf_|sk-|sk_live_|rk_live_|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|npm_|pypi-|dop_v1_"
    r"|ya29\.|AIza|AKIA|ASIA|SG\.|dckr_pat_)[A-Za-z0-9_\-]{8,}"
    r"|(?<=hooks\.slack\.com/services/)\S+|(?<=/api/webhooks/)\S+"
    r"|(?<=[?&]key=)[^\s&#\"'<>]{8,}"
    r"|(?i:<\w*(?:password|passwd|secret|token|apikey)\w*>)[^<\n]+"
    r"|(?<= -u )[^\s:\"',{}\[\]]+:[^\s:\"',{}\[\]]{6,}"
    r"|(?i:(?<=api key )|(?<=api-key )|(?<=token )|(?<=secret )|(?<=password ))[\"']?"
    r"(?=[^\s\"']*[0-9])(?=[^\s\"']*[a-z])(?=[^\s\"']*[A-Z])[A-Za-z0-9_.+/=\-]{12,}"
    r"|(?<![A-Za-z0-9])eyJ[A-Za-z0-9_\-]{8,}(?:\.[A-Za-z0-9_\-]+)*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.|\n)*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|(?<=[Bb]earer )\s*[A-Za-z0-9_.~+/=\-]{6,}"
    r"|(?<=[Aa]uthorization: )\s*(?![Bb]earer )\S+(?: [A-Za-z0-9_.~+/=\-]{6,})?"
)
_LONG = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9]{32,}(?![A-Za-z0-9])")
_MIXED = re.compile(r"(?=\D*\d)(?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])[A-Za-z0-9_.+/=\-]{12,}")
"""A value that reads like a credential. Names that may hold other things, too, are believed beside one."""

_HINT = re.compile(
    r"(?i)(?:key|token|secret|passw|passphrase|pass|pw|pwd|cred|credentials?|auth|authorization|cookie|bearer|jwt"
    r"|sas|sig|signature|pat|dsn|string|otp|session)[\w.\-]*[\"']?\s*[=:]"
)
"""Before each value that `_masked_pairs` may mask; to search it is cheap."""


def secret_name(name: str) -> bool:
    """Return whether a variable, an option or a key of this name usually holds a secret."""
    parts = _parts(name)
    return not _WORDS.isdisjoint(parts) or not _PAIRS.isdisjoint(itertools.pairwise(parts))


def looks_like_token(value: str) -> bool:
    """Return whether a value has the form of a credential, or has 32 and more letters and digits in a row."""
    return _FORMS.search(value) is not None or _LONG.search(value) is not None


def _tellable(value: str) -> bool:
    """Return whether a value can be masked wherever it stands without hitting other text."""
    if len(value) < _SHORTEST or value.startswith(("/", "~/", "./")) or _NUMBER.fullmatch(value):
        return len(value) >= _LONGEST_WORD and value.isdigit()
    return not (value.isalpha() and value in (value.lower(), value.upper()) and len(value) < _LONGEST_WORD)


def secret_values(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables whose values are secret, by their name or their form."""
    return {
        name: value
        for name, value in environ.items()
        if (secret_name(name) and _tellable(value)) or (len(value) >= _SHORTEST and looks_like_token(value))
    }


class Masker:
    """Masks text.

    Args:
        values: secrets that are masked wherever they stand, beside those that their form tells.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        each = {line for value in values for line in (value, *value.splitlines())}
        self.values = sorted(filter(_tellable, each), key=len, reverse=True)
        spelled = {form for value in self.values for form in _spellings(value)}
        ordered = [re.escape(form) for form in sorted(spelled, key=len, reverse=True)]
        self._known = re.compile("|".join(ordered)) if ordered else None
        self._raw = re.compile("|".join(ordered).encode("utf-8", "surrogateescape")) if ordered else None

    def text(self, text: str) -> str:
        """Return the text without secrets."""
        if self._known is not None:
            text = self._known.sub(MASK, text)
        text = _FORMS.sub(MASK, text)
        return _masked_pairs(text) if _HINT.search(text) else text

    def suspects(self, text: str) -> bool:
        """Return whether `text` may hold a secret; False is certain."""
        known = self._known is not None and self._known.search(text) is not None
        return known or _FORMS.search(text) is not None or _HINT.search(text) is not None

    def line(self, line: bytes) -> bytes:
        """Return output of a program without secrets, other bytes as they are."""
        if line.isascii() and self._raw is None and not _suspicious(line):
            return line
        return self.text(line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def command(self, words: Sequence[str]) -> list[str]:
        """Return a command as it may be written down."""
        return [self._word(word) for word in _walk_command(words, lambda _: None)]

    def _word(self, word: str) -> str:
        name, _, value = word.partition("=")
        if looks_like_token(value) and not name.startswith(("{", "http")):
            return f"{name}={MASK}"
        return MASK if looks_like_token(word) else self.text(word)


_MARKS = (
    b"=", b":", b"_", b"-", b"AKIA", b"ASIA", b"eyJ", b"AIza", b"</", b"ey ", b"EY ", b"oken ", b"OKEN ",
    b"ecret ", b"ECRET ", b"assword ", b"ASSWORD ",
)  # fmt: skip


def _suspicious(line: bytes) -> bool:
    return any(mark in line for mark in _MARKS)


def _spellings(value: str) -> set[str]:
    """Return a value as programs write it: as it is, in JSON, in an address, in HTML, in a shell's quotes."""
    # Every command masks, and few have a secret: what spells one is imported when there is one.
    import html
    import json
    import shlex
    from urllib.parse import quote

    return {
        value,
        json.dumps(value)[1:-1],
        repr(value)[1:-1],
        quote(value, safe="", errors="surrogateescape"),
        html.escape(value),
        shlex.quote(value).strip("'") or value,
    }


def _masked_pairs(text: str) -> str:
    """Return text with the value of each `name=value` and `name: value` masked where the name says so."""
    pieces, done = [], 0
    for match in _secret_pairs(text):
        pieces += [text[done : match.end("between")], MASK]
        done = match.end()
    return "".join([*pieces, text[done:]])


def _secret_pairs(text: str) -> Iterator[re.Match[str]]:
    at = 0
    while (match := _ASSIGNED.search(text, at)) is not None:
        if _is_secret(match):
            yield match
            at = match.end()
        else:  # the value may be a pair itself
            at = match.end("between")


def _is_secret(match: re.Match[str]) -> bool:
    parts, value = _parts(match["name"]), match["value"].strip("\"'")
    if value in _PLAIN or _NUMBER.fullmatch(value):
        return False
    if not _SURE.isdisjoint(parts) or not _PAIRS.isdisjoint(itertools.pairwise(parts)):
        return True
    # `key` alone, as of a table or of a configuration, is a word like any other.
    likely = not _LIKELY.isdisjoint(parts[-1:]) or (len(parts) > 1 and parts[-1] == "key")
    if parts[-1:] == ["key"] and _MIXED.fullmatch(value):
        return True
    return match["between"].strip() == "=" and likely and _tellable(value)


_PLAIN = frozenset({MASK, "true", "false", "True", "False", "None", "none", "null", ""})
_SURE = frozenset(
    "password passwd passphrase secret apikey accesskey secretkey apitoken authtoken accesstoken bearer"
    " cookie token authorization credential credentials jwt secrets sessionid".split()
)
_LIKELY = frozenset("auth pw pwd pass sig signature pat dsn sas".split())


def _parts(name: str) -> list[str]:
    """Return the words of a name: of `AccountKey`, `account-key` and `ACCOUNT_KEY` the same."""
    return [part.lower() for word in _SPLIT.split(name) for part in _CAMEL.split(word) if part]


_OPTION = re.compile(r"--[a-z][a-z_.-]*(?:=.*)?|-[A-Za-z]", re.DOTALL)
"""An option, and no value that begins with a dash."""


def _walk_command(words: Sequence[str], found: Callable[[str], None]) -> list[str]:
    """Return the words with the values of secret options masked; `found` gets each such value."""
    shown, pending = [], ""
    for word in words:
        if pending and not _OPTION.fullmatch(word):
            shown.append(_value(pending, word, found))
            pending = ""
            continue
        if word.startswith("-p") and _MIXED.fullmatch(word, 2):  # such as mysql's
            found(word[2:])
            shown.append(f"-p{MASK}")
            continue
        name, equals, value = word.partition("=")
        option = name.lstrip("-") if name.startswith("-") else ""
        if equals and (option or re.fullmatch(r"[A-Za-z_][\w.\-]*", name)):
            kind = _kind(option or name, bool(option))
            shown.append(f"{name}={_value(kind, value, found)}" if kind else word)
        else:
            pending = _kind(option, True) if option else ""
            shown.append(word)
    return shown


def _kind(name: str, option: bool) -> str:
    """Return what a value of this name is: `secret`, `key`, `assignment`, `user`, `header` or nothing."""
    if option and name.lower() in _ENVIRONMENT:
        return "assignment"
    if option and name.lower() in _USER:
        return "user"
    if option and name.lower() in _HEADER:
        return "header"
    if set(_parts(name)) & _WORDS == {"key"} and _PAIRS.isdisjoint(itertools.pairwise(_parts(name))):
        return "key" if _parts(name)[-1] == "key" or option else ""
    return "secret" if secret_name(name) or (option and name.lower() in _ALONE) else ""


def _value(kind: str, value: str, found: Callable[[str], None]) -> str:
    """Return the value of an option as it may be written down."""
    if kind == "key" and _NUMBER.fullmatch(value):
        return value  # such as --num-key-value-heads 8
    before, mark, secret = value.partition("=" if kind == "assignment" else ":")
    if kind in ("secret", "key"):
        before, mark, secret = "", "", value
    elif not mark or (kind == "header" and not secret_name(before)):
        return value
    found(secret.strip())
    return f"{before}{mark}{MASK}"


def argument_values(words: Sequence[str]) -> list[str]:
    """Return the secrets that stand in a command."""
    found: list[str] = []
    _walk_command(words, found.append)
    found += [match["value"].strip("\"'") for word in words for match in _secret_pairs(word)]
    forms = [match[0].strip() for word in words for match in _FORMS.finditer(word)]
    found += [*forms, *(form.partition(":")[2] for form in forms)]
    return list(dict.fromkeys(value for value in found if _tellable(value)))


_REMEMBERED: list[str] = []


def remember(words: Sequence[str]) -> None:
    """Mask the secrets of a command from now on in all that this process writes and prints."""
    for value in argument_values(words):
        if value not in _REMEMBERED:
            _REMEMBERED.append(value)


def here() -> Masker:
    """Return what masks the secrets of this process: its variables and the commands that it remembers."""
    return _masker(tuple(os.environ.items()), tuple(_REMEMBERED))


@functools.lru_cache(maxsize=4)
def _masker(environ: tuple[tuple[str, str], ...], remembered: tuple[str, ...]) -> Masker:
    variables = dict(environ)
    told: list[str] = []
    if names.SECRET_VALUES in variables:
        import json

        with contextlib.suppress(ValueError):
            told = [str(value) for value in json.loads(variables[names.SECRET_VALUES])]
    return Masker([*secret_values(variables).values(), *told, *remembered])


def told_to_children() -> dict[str, str]:
    """Return the variable by which a child of this process masks what this process remembers."""
    if not _REMEMBERED:
        return {}
    import json

    return {names.SECRET_VALUES: json.dumps(_REMEMBERED)}

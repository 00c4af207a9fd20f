#!/usr/bin/env python3
"""Draw random sentences that users meet, as they were at a revision and as they are now.

    python scripts/word_sample.py REVISION [--sentences 50] [--seed 25]

The sentences are those of README.md, docs/ and of the strings in aorta/ that are no docstrings. The one of
today is the most similar one; a sentence that has none was deleted or rewritten as a whole.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEAST_WORDS = 6
SIMILAR = 0.45
_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z0-9`*{])|\n\n")
_PROSE = re.compile(r"[A-Za-z]{2,}")


def main() -> int:
    """Print a table of both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision")
    parser.add_argument("--sentences", type=int, default=50)
    parser.add_argument("--seed", type=int, default=25)
    asked = parser.parse_args()
    before = sorted(set(_at(asked.revision)))
    now = sorted({text for _, text in _today()})
    drawn = random.Random(asked.seed).sample(before, min(asked.sentences, len(before)))  # noqa: S311
    print("| where it was | before | now |\n|---|---|---|")
    for place, text in drawn:
        found = text if text in now else _nearest(text, now)
        print(f"| {place} | {_cell(text)} | {'(the same)' if found == text else _cell(found or '(gone)')} |")
    return 0


def _nearest(text: str, now: list[str]) -> str | None:
    words = set(_PROSE.findall(text.lower()))
    close = sorted(now, key=lambda one: -len(words & set(_PROSE.findall(one.lower()))))[:60]
    best = max(close, key=lambda one: difflib.SequenceMatcher(None, text, one).ratio(), default=None)
    return best if best and difflib.SequenceMatcher(None, text, best).ratio() >= SIMILAR else None


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _at(revision: str) -> Iterator[tuple[str, str]]:
    names = _git("ls-tree", "-r", "--name-only", revision).splitlines()
    for name in filter(_is_read, names):
        yield from _sentences(name, _git("show", f"{revision}:{name}"))


def _today() -> Iterator[tuple[str, str]]:
    for name in filter(_is_read, _git("ls-files").splitlines()):
        yield from _sentences(name, (ROOT / name).read_text(encoding="utf-8"))


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _is_read(name: str) -> bool:
    if name.endswith(".py"):
        return name.startswith("aorta/")
    page = name == "README.md" or (name.startswith("docs/") and name.endswith(".md"))
    return page and not name.startswith("docs/examples/")


def _sentences(name: str, text: str) -> Iterator[tuple[str, str]]:
    for part in _strings(text) if name.endswith(".py") else [_prose(text)]:
        for sentence in _END.split(part):
            plain = " ".join(sentence.split())
            if len(_PROSE.findall(plain)) >= LEAST_WORDS and " " in plain:
                yield name, plain


def _prose(page: str) -> str:
    kept, fenced = [], False
    for line in page.splitlines():
        fenced ^= line.startswith("```")
        out = fenced or line.startswith(("```", "    ", "|", "#", "!", "<"))
        kept.append("" if out else line)
    return "\n".join(kept)


def _strings(code: str) -> Iterator[str]:
    tree = ast.parse(code)
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    inner = {id(part) for node in joined for part in ast.walk(node)}
    inner |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)


if __name__ == "__main__":
    sys.exit(main())

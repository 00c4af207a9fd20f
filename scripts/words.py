#!/usr/bin/env python3
"""Check that docstrings, strings and documents are plain English, as far as rules can say it.

    python scripts/words.py [FILE ...]

Without files it checks the package, README.md and docs/. It prints each place and exits with 1 if there is
one. A docstring does not begin with "Of", "Those", "That of", "With which" or "As many". Rates are said "per
step", not "a step". Sentences of a document average under 20 words. Its prose lines have at most 100 columns.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPENING = re.compile(r"(?:Of|Those|That of|With which|As many)\b")
_QUESTION = re.compile(r"(?:What|Whether|Which|How|Where|When|Who|Whom|Whose|As|By|With|That)\b")
"""First words of a docstring that says what a function is about, and not what it does."""
_AMOUNTS = (
    "ms|seconds?|samples?|launches|steps?|calls?|bytes|kernels?|lines?|rows?|times|one|once|tokens?|GPUs"
    "|CPUs|cores?|jobs?|folders?|files?|processes|MB|GB|GiB|MiB|one (?!that|which|has|as|of)\\w+"
)
_UNITS = "step|rank|node|call|sample|epoch|run|kernel|scenario|second|GPU|process|line|minute|hour"
RATE = re.compile(rf"\b(?:{_AMOUNTS}) an? (?:{_UNITS})\b|\banew\b|\bby turns\b", re.IGNORECASE)
MEAN_WORDS, COLUMNS = 20, 100
LONGEST_STRING = 45
"""Words of a sentence in a string that users see."""
KEPT = (
    "docs/examples/",
    "docs/findings.md",
    "docs/glossary.md",
    "docs/mistakes/",
    "docs/BOTTLENECK_ANALYSIS",
    "docs/bottleneck_analysis/",
    "docs/SWEEP_ANALYSIS",
    "docs/sweep_analysis/",
)
"""Reports of real runs, and pages that are made of strings in the code, which are checked there."""


def main() -> int:
    """Check the files that were named, or all."""
    named = [Path(name).resolve() for name in sys.argv[1:]]
    found = [problem for path in named or _all() for problem in _problems(path)]
    print("\n".join(found) if found else "words: nothing to say")
    return 1 if found else 0


def _all() -> list[Path]:
    code = sorted((ROOT / "aorta").rglob("*.py"))
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [*code, *(page for page in pages if not _rel(page).startswith(KEPT))]


def _rel(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)


def _problems(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    return _in_code(_rel(path), text) if path.suffix == ".py" else _in_page(_rel(path), text)


def _in_code(name: str, text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        for match in RATE.finditer(node.value):
            yield f"{name}:{node.lineno}: {match[0]!r}: say it with 'per', 'again' or 'in turn'"
    yield from _long_strings(name, text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            said = _QUESTION.match(ast.get_docstring(node) or "")
            if said is not None:
                line = getattr(node, "lineno", 1)
                yield f"{name}:{line}: a docstring begins with {said[0]!r}: say what is done or returned"
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            value = node.value.value
            if isinstance(value, str) and (match := OPENING.match(value.strip())):
                yield f"{name}:{node.lineno}: a docstring begins with {match[0]!r}: name the thing first"


def _long_strings(name: str, text: str) -> Iterator[str]:
    """Yields strings with a sentence that is too long; tables of words and programs pass."""
    tree = ast.parse(text)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    shown = [node for node in ast.walk(tree) if isinstance(node, ast.Constant | ast.JoinedStr)]
    for node in shown:
        if isinstance(node, ast.JoinedStr):
            value = "".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in node.values)
        elif isinstance(node.value, str) and id(node) not in parts:
            value = node.value
        else:
            continue
        for sentence in re.split(r"(?<=[.!?:;])\s+|\n\n", value):
            words = re.findall(r"[A-Za-z]{2,}[,.]?", sentence)
            prose = "the " in sentence and not re.search(r"[=<>]|\bSELECT\b|\bimport\b", sentence)
            if prose and len(words) > LONGEST_STRING:
                yield f"{name}:{node.lineno}: a sentence of {len(words)} words, at most {LONGEST_STRING}"


def _in_page(name: str, text: str) -> Iterator[str]:
    prose, fenced = [], False
    for number, line in enumerate(text.splitlines(), start=1):
        fenced ^= line.startswith("```")
        if fenced or line.startswith(("```", "    ", "|", "#", "!", "<")):
            continue
        prose.append(line)
        if len(line) > COLUMNS and " " in line.strip()[:COLUMNS]:
            yield f"{name}:{number}: {len(line)} columns, at most {COLUMNS}"
        for match in RATE.finditer(line):
            yield f"{name}:{number}: {match[0]!r}: say it with 'per', 'again' or 'in turn'"
    sentences = [len(part.split()) for part in re.split(r"(?<=[.!?:;])\s+|\n\n", "\n".join(prose))]
    sentences = [words for words in sentences if words > 2]
    if sentences and sum(sentences) / len(sentences) > MEAN_WORDS:
        yield f"{name}: {sum(sentences) / len(sentences):.1f} words per sentence, at most {MEAN_WORDS}"


if __name__ == "__main__":
    sys.exit(main())

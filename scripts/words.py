#!/usr/bin/env python3
"""Check that docstrings, strings and documents are plain English, as far as rules can say it.

    python scripts/words.py [FILE ...]
    python scripts/words.py --counts [REVISION]

Without files it checks the package, README.md and docs/. It prints each place and exits with 1 if there is
one. A docstring does not begin with "Of", "Those", "That of", "With which" or "As many". Rates are said "per
step", not "a step". Words such as "nobody" and "from which on" are found. Sentences of a document average
under 20 words. Its prose lines have at most 100 columns.

`--counts` prints how long sentences are and how often the phrases above occur, in pages, in strings that are
no docstrings, and in docstrings. A revision such as a tag gives the same for an older version. Sentences of
fewer than six words do not count.
"""

from __future__ import annotations

import ast
import re
import subprocess
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
TRANSLATED = re.compile(r"\b(?:no|some|any|every)body \w+|\bfrom which on\b|\bwhoever\b", re.IGNORECASE)
"""Words for people where a rank, a program or a user is meant, and a limit that is not named."""
MEAN_WORDS, COLUMNS = 20, 100
SHORTEST, LONG = 6, 25
"""Words of a sentence that counts, and words above which it is long."""
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
    """Check the files that were named, or all; or count."""
    if sys.argv[1:2] == ["--counts"]:
        return _counts(*sys.argv[2:3])
    named = [Path(name).resolve() for name in sys.argv[1:]]
    found = [problem for path in named or _all() for problem in _problems(path)]
    print("\n".join(found) if found else "words: nothing to say")
    return 1 if found else 0


def _counts(revision: str | None = None) -> int:
    """Print the counts of a revision, or of the files as they are."""
    found: dict[str, list[str]] = {"pages": [], "strings": [], "docstrings": []}
    for name in _git("ls-tree", "-r", "--name-only", revision or "HEAD").splitlines():
        code = name.startswith("aorta/") and name.endswith(".py")
        page = name == "README.md" or (name.startswith("docs/") and name.endswith(".md"))
        if code or (page and not name.startswith("docs/examples/")):
            path = ROOT / name
            text = (
                _git("show", f"{revision}:{name}") if revision else path.read_text() if path.exists() else ""
            )
            for kind, part in _texts(text) if code else [("pages", _prose(text))]:
                found[kind].append(part)
    print("| | sentences | words per sentence | over 25 words | phrases |\n|---|---:|---:|---:|---:|")
    for kind, parts in found.items():
        sentences = [words for part in parts for words in _lengths(part)]
        long = sum(words > LONG for words in sentences) / len(sentences)
        phrases = sum(len(RATE.findall(part)) for part in parts)
        if kind == "docstrings":
            phrases += sum(1 for part in parts if OPENING.match(part) or _QUESTION.match(part))
        mean = sum(sentences) / len(sentences)
        print(f"| {kind} | {len(sentences):,} | {mean:.1f} | {long:.1%} | {phrases:,} |")
    return 0


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _texts(code: str) -> Iterator[tuple[str, str]]:
    """Yields the strings of a module, docstrings told from others."""
    tree = ast.parse(code)
    bare = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    inner = {id(part) for node in joined for part in ast.walk(node)} | {id(node) for node in bare}
    for node in bare:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield "docstrings", node.value.strip()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield "strings", node.value
    for node in joined:
        yield (
            "strings",
            "".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in node.values),
        )


def _lengths(text: str) -> list[int]:
    """Returns the words of each sentence that counts."""
    parts = re.split(r"(?<=[.!?])\s+|\n\s*\n", text)
    found = [len(re.findall(r"\S*[A-Za-z]\S*", part)) for part in parts]
    return [words for words in found if words >= SHORTEST]


def _prose(page: str) -> str:
    """Returns a page without its tables, listings, headings and pictures; items of a list stand apart."""
    kept, fenced = [], False
    for line in page.splitlines():
        fenced ^= line.startswith("```")
        out = fenced or line.startswith(("```", "    ", "|", "#", "!", "<"))
        kept += ["" if out else re.sub(r"^\s*(?:[-*]|\d+\.) ", "\n", line)]
    return "\n".join(kept)


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
        for match in TRANSLATED.finditer(node.value):
            yield f"{name}:{node.lineno}: {match[0]!r}: name the rank, the program, the user or the limit"
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
        for match in TRANSLATED.finditer(line):
            yield f"{name}:{number}: {match[0]!r}: name the rank, the program, the user or the limit"
    sentences = [len(part.split()) for part in re.split(r"(?<=[.!?:;])\s+|\n\n", "\n".join(prose))]
    sentences = [words for words in sentences if words > 2]
    if sentences and sum(sentences) / len(sentences) > MEAN_WORDS:
        yield f"{name}: {sum(sentences) / len(sentences):.1f} words per sentence, at most {MEAN_WORDS}"


if __name__ == "__main__":
    sys.exit(main())

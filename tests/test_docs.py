"""The documents keep up with the code."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aorta.config.schema import Config

ROOT = Path(__file__).resolve().parents[1]


def leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def test_configuration_lists_every_key_with_its_default() -> None:
    rows = re.findall(
        r"^\| `([\w.]+)` \| (.+?) \|", (ROOT / "docs/configuration.md").read_text(), re.MULTILINE
    )
    documented = {key: msgspec.yaml.decode(default.strip("`").encode()) for key, default in rows}
    documented["optimizer.lr"] = float(documented["optimizer.lr"])  # YAML 1.1 reads 3e-4 as text
    documented["optimizer.betas"] = tuple(documented["optimizer.betas"])
    assert documented == dict(leaves(msgspec.to_builtins(Config())))


@pytest.mark.parametrize(
    "document",
    [ROOT / "README.md", *sorted(set(ROOT.glob("docs/*.md")) - {ROOT / "docs/BOTTLENECK_ANALYSIS.md"})],
    ids=lambda path: path.name,
)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", document.read_text()):
        if not re.match(r"[a-z]+:", target):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"

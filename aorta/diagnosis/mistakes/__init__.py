"""The catalogue of mistakes: one module per mistake, found by being here."""

from __future__ import annotations

from collections.abc import Mapping

from aorta.diagnosis.mistake import MistakeSpec
from aorta.diagnosis.plugins import Plugin, discover

CATALOGUE: Mapping[str, Plugin[MistakeSpec]] = {
    plugin.spec.id: plugin for plugin in discover(__name__, __path__, MistakeSpec)
}

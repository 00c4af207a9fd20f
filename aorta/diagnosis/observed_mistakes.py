"""Mistakes that a run's records and samples show, and the places that its sampled stacks tell."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from aorta.artefacts.mistakes import Mistake, MistakePlace
from aorta.diagnosis.mistakes import CATALOGUE
from aorta.diagnosis.observation import Observation
from aorta.metrics.places import where


def with_observed(seen: Observation) -> Observation:
    """Returns the observation with the mistakes that records and samples show, the best gain first."""
    config = seen.job.config
    intended = config.profiling.intended_mistakes if config is not None else ()
    traced = [item for item in seen.facts.mistakes if not _excused(item, seen)]
    known = {item.id for item in traced}
    found = [_placed(item, seen) for item in traced]
    together = seen.facts.mistakes_together
    for id_, plugin in CATALOGUE.items():
        spec = plugin.spec
        explained = id_ in known.difference(spec.replaces) or not known.isdisjoint(spec.yields_to)
        sign = None if spec.observe is None or explained else spec.observe(seen)
        if sign is None or sign.gain.value < spec.least_gain:
            continue
        found = [other for other in found if other.id not in spec.replaces]
        known = {*known.difference(spec.replaces), id_}
        item = Mistake(
            id=id_,
            title=plugin.page.title,
            ranks=sorted(sign.ranks),
            where=sign.where,
            gain=sign.gain,
            evidence=dict(sign.evidence),
            intended=id_ in intended,
        )
        found.append(_placed(item, seen) if sign.sampled else item)
    if together is not None and not {item.id for item in found}.issuperset(together.ids):
        together = None
    found.sort(key=lambda item: (item.intended, -item.gain.value))
    facts = msgspec.structs.replace(seen.facts, mistakes=found, mistakes_together=together)
    return replace(seen, facts=facts)


def _excused(item: Mistake, seen: Observation) -> bool:
    excused = CATALOGUE[item.id].spec.excused
    return excused is not None and excused(seen)


def _placed(item: Mistake, seen: Observation) -> Mistake:
    """Returns the mistake with its line by sampled stacks, where no stack of a trace told it."""
    parts = CATALOGUE[item.id].spec.parts
    if not parts or not seen.host.stacks or (item.where is not None and item.where.file is not None):
        return item
    found = where(seen.host.stacks, item.ranks, parts)
    if found is None:
        return item
    place = MistakePlace(function=found.function, file=found.file, line=found.line)
    made: Mistake = msgspec.structs.replace(item, where=place)
    return made

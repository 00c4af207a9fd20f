"""Tells how often something happens that happens in some steps only, as far as few captured steps tell it."""

from __future__ import annotations

import numpy as np

from aorta.artefacts.events import Column
from aorta.artefacts.weight import Estimate
from aorta.diagnosis.mistake import ALWAYS

_REGULAR = 0.25
"""A period that two or more occurrences tell may be off by this share."""


def often(steps: Column, within: Column) -> Estimate:
    """The rate at which it happens in the job, over the rate at which it happens in the captured steps.

    Two or more occurrences tell the period. One alone tells only that the period is longer than the stretches
    before and behind it, which bounds the rate from above. The job may have it hardly ever again.

    Args:
        steps: the numbers of all captured steps.
        within: those in which it happens.
    """
    count, found = len(steps), np.searchsorted(steps, within)
    if not 0 < len(found) < count:
        return ALWAYS
    share = len(found) / count
    if len(found) > 1:
        value = (len(found) - 1) / float(found[-1] - found[0]) / share
        return Estimate(value=value, low=value * (1 - _REGULAR), high=value * (1 + _REGULAR))
    shortest = max(int(found[0]), count - 1 - int(found[0])) + 1
    return Estimate(value=1.0, low=0.0, high=count / shortest)

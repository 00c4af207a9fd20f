"""Finds steps that hold something that other steps do not hold: validation, or a checkpoint. Pure."""

from __future__ import annotations

MEMORY = 8
"""Steps that are looked back on."""
USUAL = 2
"""Earlier steps among them that held a thing which belongs to the rhythm of the steps."""
FEW = 3
"""Fewest times after which the share of the time shows if a thing is rare."""
MUCH = 0.2
"""Share of the time: steps that take more of it belong to the training, however few they are."""


class Rare:
    """Tells a thing that now and then falls into a step from one that belongs to every step.

    A forward pass without gradients is validation where it comes between two epochs. In a program with a
    teacher model it is part of each step, and where a policy collects its data, part of each few. A policy
    may make hundreds of updates between two collections: these are no validation if they take much time.
    A program that evaluates may do so for long as well, so the time of an evaluation is not given.
    """

    def __init__(self) -> None:
        self._times = self._took_ns = 0
        self.past = 0
        """A bit per step, the newest lowest. 0: no step of these held it, and another one changes nothing."""

    def happened(
        self, now: bool, *, between_epochs: bool = False, took_ns: int = 0, since_ns: int = 0
    ) -> bool:
        """Return whether the thing happened in this step and is rare.

        Args:
            now: whether it happened in this step.
            between_epochs: the step is the first of an epoch, however short epochs are.
            took_ns: time of this step; 0: its time does not matter.
            since_ns: time of all steps, this one included.
        """
        much = False
        if now:
            self._times += 1
            self._took_ns += took_ns
            much = self._times > FEW and self._took_ns > MUCH * since_ns
        usual = self.past.bit_count() >= USUAL
        self.past = (self.past << 1 | now) & (1 << MEMORY) - 1
        return now and (between_epochs or not (usual or much))

"""A coach that gives all episodes the interface for the failures so far."""

from __future__ import annotations

from collections.abc import Sequence

from coevo_gym.core.seams import Guidance, Ticket
from coevo_gym.methods.seal.profile import FailureProfile
from coevo_gym.methods.seal.shown.interface import FailureInterface


class InterfaceCoach:
    """A coach that shows all episodes the same interface, which changes when the profile evolves.

    Args:
        profile: the memory of failures, with the cues that are on.
        schema_notes: a switch; see
            :class:`~coevo_gym.methods.seal.shown.interface.FailureInterface`.
        error_hints: a switch of the same class.
        cues: True to tell the cues that are on.

    Source: Eq. 8, 9 and 15 of SEAL (arXiv 2605.24426).
    """

    def __init__(
        self, profile: FailureProfile, *, schema_notes: bool, error_hints: bool, cues: bool
    ) -> None:
        self.profile = profile
        self.schema_notes, self.error_hints, self.cues = schema_notes, error_hints, cues
        self._latest = FailureInterface()

    @property
    def interface(self) -> FailureInterface:
        """Return the current interface."""
        on = self.profile.on if self.cues else ()
        wanted = FailureInterface(self.schema_notes, self.error_hints, tuple(sorted(on)))
        if wanted != self._latest:
            self._latest = wanted
        return self._latest

    def guide(self, tickets: Sequence[Ticket]) -> list[Guidance]:
        """Return the guidance of an episode; see :class:`~coevo_gym.core.seams.Coach`."""
        interface = self.interface
        nothing = interface == FailureInterface()
        guidance = Guidance() if nothing else Guidance(interface, interface.cues)
        return [guidance] * len(tickets)

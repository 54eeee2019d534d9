"""Studies of a step's groups: a label for each turn, and the interface that the agent saw."""

from __future__ import annotations

from collections.abc import Sequence

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.notes import INTERFACE, Findings, Note
from coevo_gym.core.task import FrozenDict
from coevo_gym.core.trajectory import Group, Trajectory
from coevo_gym.envs.diagnosis import diagnosable
from coevo_gym.methods.seal.interface import FailureInterface
from coevo_gym.methods.seal.profile import TURN_LABEL, turn_notes


class TurnLabels:
    """A study that notes each user turn, with its label and the episode's success.

    Raises:
        ConfigError: if the benchmark cannot label turns.

    Source: Psi of SEAL (arXiv 2605.24426), Eq. 5 and 6.
    """

    kind = TURN_LABEL

    def __init__(self, benchmark: Benchmark) -> None:
        self._benchmark = diagnosable(benchmark)

    def examine(self, groups: Sequence[Group]) -> Findings:
        """Label the turns of the groups; see :class:`~coevo_gym.core.seams.Study`."""
        return Findings(
            tuple(
                note
                for group in groups
                for index, trajectory in enumerate(group.trajectories)
                for note in turn_notes(
                    self._benchmark.diagnose(trajectory).turns,
                    task_id=group.task.id,
                    group_id=group.id,
                    index=index,
                    success=trajectory.success,
                )
            )
        )


class InterfaceVersions:
    """A study that notes each version of the interface, at the first trajectory that saw it.

    The note's label is the version. Its evidence has ``version``, too; ``says``, a description of
    the version for people; ``cues``, the line of each label that is on; and the switches of
    :class:`~coevo_gym.methods.seal.interface.FailureInterface`.
    """

    kind = INTERFACE

    def __init__(self, *, schema_notes: bool, error_hints: bool) -> None:
        self._schema_notes, self._error_hints = schema_notes, error_hints

    def examine(self, groups: Sequence[Group]) -> Findings:
        """Note the interface versions of the groups; see :class:`~coevo_gym.core.seams.Study`."""
        found: dict[str, Note] = {}
        for group in groups:
            for index, trajectory in enumerate(group.trajectories):
                if trajectory.interface and trajectory.interface not in found:
                    found[trajectory.interface] = self._note(group, index, trajectory)
        return Findings(tuple(found.values()))

    def _note(self, group: Group, index: int, trajectory: Trajectory) -> Note:
        shown = FailureInterface(self._schema_notes, self._error_hints, trajectory.cue_ids)
        return Note(
            kind=self.kind,
            task_id=group.task.id,
            group_id=group.id,
            index=index,
            label=trajectory.interface,
            evidence=FrozenDict(
                version=trajectory.interface,
                says=shown.says,
                cues=FrozenDict({cue.id: cue.text for cue in shown.cues}),
                schema_notes=self._schema_notes,
                error_hints=self._error_hints,
            ),
        )

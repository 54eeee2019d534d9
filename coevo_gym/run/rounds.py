"""Rounds that are carried out once, whoever asks for them."""

from __future__ import annotations

from collections.abc import Callable

from coevo_gym.config import ArmConfig, RunConfig
from coevo_gym.core.evolution import Round, RoundResult, digest
from coevo_gym.core.seams import Evolver
from coevo_gym.curricula.explore.evolver import GatedEvolver
from coevo_gym.curricula.explore.explorer import ScriptedExplorer
from coevo_gym.store.database import RunStore


class StoredEvolver:
    """Keeps the result of every round, and gives it again when the same round is asked for.

    So arms that look for equally many first tasks begin with the same ones, and a resumed run does
    not depend on its explorer saying the same thing twice.

    Tasks that people have let in since (``coevo tasks review``, ``coevo tasks import``) join the
    arm with what its next round finds, each once. They are part of that round's result, which is
    stored; so a run that is resumed gets them with the same round again.

    Args:
        inner: who carries out rounds that were not.
        store: where results are kept.
        by: what the results depend on beside the round, see :func:`carried_out_by`.
        shared: the round that all arms find the same tasks with, whoever they explore with later.
        arm: name of the arm whose rounds they are; "" for those of none.
    """

    def __init__(
        self,
        inner: Evolver,
        store: RunStore,
        *,
        by: str = "",
        shared: Round | None = None,
        arm: str = "",
    ) -> None:
        self.inner, self.store = inner, store
        self._by, self._shared, self._arm = by, shared, arm

    def by(self, round: Round) -> str:
        """What the result of a round depends on beside the round."""
        return "" if round == self._shared else self._by

    def run(self, round: Round) -> RoundResult:
        """See :class:`~coevo_gym.core.seams.Evolver`."""
        known = self.store.result(round, by=self.by(round))
        if known is not None:
            return known
        result = self.inner.run(round)
        if self._arm and round != self._shared:  # arms that are compared begin with the same tasks
            result = self._with_those_let_in(result)
        self.store.add_result(round, result, by=self.by(round))
        return result

    def _with_those_let_in(self, result: RoundResult) -> RoundResult:
        found = {task.id for task in result.accepted}
        joining = [
            (task, verdict)
            for task, verdict in self.store.joining(self._arm)
            if task.id not in found
        ]
        tasks = tuple(task for task, _ in joining)
        verdicts = tuple(verdict for _, verdict in joining if verdict is not None)
        return result.model_copy(
            update={
                "accepted": (*result.accepted, *tasks),
                "verdicts": (*result.verdicts, *verdicts),
            }
        )


class StoredLandings:
    """Remembers when rounds that ran beside training were applied, in the run's database.

    Args:
        store: where.
        arm: name of the arm.
        by: what the result of a round depends on beside it.
    """

    def __init__(self, store: RunStore, arm: str, by: Callable[[Round], str]) -> None:
        self.store, self.arm, self.by = store, arm, by

    def step_of(self, round: Round) -> int | None:
        """See :class:`~coevo_gym.trainers.parts.Landings`."""
        return self.store.landing(self.arm, round, by=self.by(round))

    def remember(self, round: Round, step: int) -> None:
        """See :class:`~coevo_gym.trainers.parts.Landings`."""
        self.store.add_landing(self.arm, round, step, by=self.by(round))


def carried_out_by(config: RunConfig, arm: ArmConfig, evolver: Evolver) -> str:
    """What tells an arm's rounds from equal ones of others that explore or judge in another way.

    Returns:
        A short hash; "" for an arm that explores and judges as the run does.
    """
    explorer = getattr(evolver, "explorer", None)
    usual = type(evolver) is GatedEvolver and type(explorer) is ScriptedExplorer
    gates = _gates(config, arm)
    if usual and arm.explorer == config.explorer and not gates:
        return ""
    settings = [part.model_dump(mode="json") for part in (arm.explorer, arm.settings)]
    kinds = [type(part).__qualname__ for part in (evolver, explorer)]
    return digest([*settings, *kinds, *gates])


def _gates(config: RunConfig, arm: ArmConfig) -> list[object]:
    """What an arm's gates depend on that those of another arm may not."""
    gates, depends = arm.gates, list[object]()
    if gates != config.gates:
        depends.append(gates.model_dump(mode="json"))
    tries = gates.has("solve") or gates.accept == "paper"
    if tries and gates.solve.solver == "policy":
        depends.append(arm.name)  # whose policy tries new tasks
    return depends

"""Self-questioning: finding tasks by exploration and mixing them with native tasks.

The explorer's agent acts in two phases: a few steps in breadth, in which it sees the whole walk,
followed by steps in depth, in which it sees only the latest observations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.random import Generator

from coevo_gym.core.evolution import Round, RoundResult, Signal
from coevo_gym.core.notes import Notes
from coevo_gym.core.seams import Advantage, Agent, Growth
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Cue, Group
from coevo_gym.curricula.explore.explorer import Explorer
from coevo_gym.curricula.explore.walks import Phase, PhasedAgent
from coevo_gym.curricula.growth.signal_growth import MAX_SEED
from coevo_gym.curricula.pool.table import Numbers
from coevo_gym.curricula.selectors.base import TableSelector
from coevo_gym.envs.profile import EnvProfile, PreferenceSettings, require_profiled
from coevo_gym.methods.kit import UNGUIDED_TEMPERATURE, ExplorerModel, Kit, WalkHistory
from coevo_gym.prompts.template import load_cue
from coevo_gym.trainers.token_advantages import map_advantage

PROMPTS = "agentevolver"
"""The folder of the prompt files for a model that explores."""
_EVOLVED = "evolved"


def questioning_explorer(
    kit: Kit, preference: PreferenceSettings, *, breadth_steps: int, depth_window: int
) -> Explorer:
    """Create the explorer for self-questioning; a model is guided by the benchmark's profile.

    See :func:`phased_agent` for ``breadth_steps`` and ``depth_window``.

    Raises:
        ConfigError: if a model explores but the benchmark has no profile.
    """
    if kit.asked is None:
        return kit.explorer()
    inputs = describe_benchmark(require_profiled(kit.benchmark).profile, preference)
    agent = phased_agent(kit.asked, breadth_steps=breadth_steps, depth_window=depth_window)
    return kit.explorer(PROMPTS, inputs=inputs, unguided=agent)


def describe_benchmark(profile: EnvProfile, preference: PreferenceSettings) -> dict[str, Any]:
    """Return the inputs of the prompts that describe a benchmark and the tasks to look for."""
    return {
        "profile": profile.model_dump(mode="json", exclude={"preference"}),
        "preference": preference.apply_to(profile.preference).model_dump(mode="json"),
    }


def phased_agent(asked: ExplorerModel, *, breadth_steps: int, depth_window: int) -> Agent:
    """Create an agent whose walks have a breadth phase followed by a depth phase.

    Args:
        asked: the model that explores.
        breadth_steps: N_b, number of steps in breadth, in which the model sees the whole walk.
        depth_window: N_d, number of latest observations that the model sees afterwards, including
            the current observation.

    Source: AgentEvolver (arXiv 2511.10395), 3.1.
    """
    prompt = load_cue(f"{PROMPTS}/phase")

    def make_phase(name: str, until: int | None, history: WalkHistory) -> Phase:
        text = prompt.render_cue({"phase": name, "steps": breadth_steps, "window": depth_window})
        agent = asked.agent(temperature=UNGUIDED_TEMPERATURE, history=history)
        return Phase(until, agent, Cue(text, "system", f"{prompt.label}:{name}"))

    depth = make_phase("depth", None, WalkHistory("recent", depth_window - 1))
    if not breadth_steps:
        phases = [depth]
    else:
        phases = [make_phase("breadth", breadth_steps, WalkHistory("causal")), depth]
    cues = [[each.until, each.cue.text] for each in phases]
    return PhasedAgent(phases, identity={"phases": cues, "depth_window": depth_window})


class Questioning:
    """A growth rule for the task pool, which starts with a round of unguided exploration.

    This round looks for ``n`` tasks. The growth rule ``later`` plans all later rounds.

    Source: AgentEvolver (arXiv 2511.10395), 3.1 and 3.2.
    """

    def __init__(self, n: int, later: Growth) -> None:
        self._n, self._later = n, later
        self._planned = False

    def record(self, groups: Sequence[Group]) -> list[Signal]:
        """Record finished groups and return the signals detected in them."""
        return self._later.record(groups)

    def plan(self, pool: Sequence[Task], rng: Generator) -> Round | None:
        """Return an unguided round on the first call, and rounds from ``later`` after that.

        If the pool is still empty after the first round, no other round is planned.
        """
        if self._planned:
            return self._later.plan(pool, rng) if len(pool) else None
        self._planned = True
        # A stored result is found by the content of its round, which does not include the known
        # tasks. So the seeds of an empty pool and of one with native tasks have to differ.
        seed = rng.integers(MAX_SEED, size=2)[int(bool(len(pool)))]
        return Round.unguided(self._n, seed=int(seed))

    def apply(self, result: RoundResult) -> None:
        """Pass a round's result to the rule that plans all rounds after the first."""
        self._later.apply(result)

    def note(self, notes: Notes) -> None:
        """Pass a step's notes to the rule that plans all rounds after the first."""
        self._later.note(notes)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the rule that plans all rounds after the first."""
        return self._later.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return {"planned": self._planned, "later": self._later.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`."""
        self._planned = bool(state["planned"])
        self._later.load_state_dict(state["later"])


class MixtureWeights(NamedTuple):
    """The weights of native and evolved tasks in a mixture.

    Attributes:
        n_native: number of native tasks to draw from.
        n_evolved: number of evolved tasks to draw from, starting with the first.
        native_weight: weight of each native task; 0 if there are none.
        evolved_weight: weight of each of the first evolved tasks; 0 if there are none.
    """

    n_native: int
    n_evolved: int
    native_weight: float
    evolved_weight: float


def mixture_weights(
    n_native: int, n_evolved: int, *, lam: float, ratio: float, use_native: bool = True
) -> MixtureWeights:
    """Compute the weights of native and evolved tasks in a mixture.

    Args:
        n_native: number of native tasks, which limits evolved tasks even if native tasks are not
            used.
        n_evolved: number of evolved tasks.
        lam: weight of all evolved tasks together, in [0, 1].
        ratio: maximum evolved tasks per native task; the limit is rounded down.
        use_native: True to also draw native tasks.

    Example:
        >>> mixture_weights(7, 10, lam=0.4, ratio=0.5)[:2]
        (7, 3)

    Source: AgentEvolver (arXiv 2511.10395), Eq. 12, with the counts of its code.
    """
    native = n_native if use_native else 0
    evolved = min(int(n_native * ratio), n_evolved)
    return MixtureWeights(
        native,
        evolved,
        (1.0 - lam) / native if native else 0.0,
        lam / evolved if evolved else 0.0,
    )


class Mixture(TableSelector):
    """A selector that mixes native and evolved tasks in fixed proportions.

    The weights change with each task that joins the pool. All tasks have the same weight if there
    are no native tasks or no evolved tasks to draw.

    Args:
        lam: share of draws that go to evolved tasks, in [0, 1].
        ratio: maximum evolved tasks per native task; later evolved tasks are never drawn.

    Source: AgentEvolver (arXiv 2511.10395), Eq. 12.
    """

    columns: ClassVar = {_EVOLVED: 0.0}
    """The column that is 1 for evolved tasks and 0 for native tasks."""

    def __init__(self, lam: float, ratio: float) -> None:
        super().__init__()
        self._lam, self._ratio = lam, ratio

    def added(self, tasks: Sequence[Task]) -> None:
        """Add new tasks to the table, and record which of them are evolved."""
        super().added(tasks)
        for task in tasks:
            if (row := self.table.row_index(task.id)) is not None:
                self.table[_EVOLVED][row] = float(task.origin == "evolved")

    def weights(self) -> Numbers | None:
        """Return task weights, or None if they are uniform."""
        evolved = self.table[_EVOLVED] > 0
        n_evolved = int(evolved.sum())
        n_native = len(evolved) - n_evolved
        if not n_native or not n_evolved:
            return None
        mix = mixture_weights(n_native, n_evolved, lam=self._lam, ratio=self._ratio)
        if not mix.n_evolved:
            return np.where(evolved, 0.0, 1.0)
        mask = np.cumsum(evolved) <= mix.n_evolved
        of_evolved = np.where(mask, mix.evolved_weight, 0.0)
        return np.where(evolved, of_evolved, mix.native_weight)

    def record_visit(self, row: int, outcomes: Numbers, group: Group) -> None:
        """Do nothing, because outcomes do not affect the weights of tasks."""

    def metrics(self) -> dict[str, float]:
        """Return the share of draws that go to evolved tasks."""
        weights, evolved = self.weights(), self.table[_EVOLVED]
        if not len(evolved):
            return {"evolved_share": 0.0}
        if weights is None:
            return {"evolved_share": float(evolved.mean())}
        return {"evolved_share": float((weights * evolved).sum() / weights.sum())}


class Scaled:
    """A transform that multiplies the advantages of evolved tasks by a non-negative factor.

    Source: AgentEvolver's published code, in which it is off by default.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def __call__(
        self, groups: Sequence[Group], notes: Notes, advantages: list[list[Advantage]]
    ) -> list[list[Advantage]]:
        """Scale the advantages of evolved tasks; see :class:`~coevo_gym.core.seams.Transform`."""
        return [
            [map_advantage(each, lambda a: a * self._factor) for each in judged]
            if group.task.origin == "evolved"
            else judged
            for group, judged in zip(groups, advantages, strict=True)
        ]

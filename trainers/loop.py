"""The loop: gather groups, study them, learn from them; then the round and the evaluation.

Open a step → take tickets → guide → roll out → report → close the step (the curriculum records) →
study (curriculum and memories take notes) → advantages → update; every so many steps run the round
that is due, or apply one that was launched before, and evaluate. The session decides which tasks
are practised; all other parts are Protocols and functions, and the loop orders the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter, process_time
from typing import Any

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import Round, RoundResult
from coevo_gym.core.notes import Notes
from coevo_gym.core.seams import Agent
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.guiding.guiding import Guiding
from coevo_gym.curricula.session.session import CurriculumSession
from coevo_gym.episodes.evaluation import Evaluation
from coevo_gym.episodes.pool import EnvPool
from coevo_gym.trainers.parts import Events, Landings, Learner, LoopConfig, LoopState, Metrics
from coevo_gym.trainers.rollouts.lock_step import Gathered, gather, success_of
from coevo_gym.trainers.rollouts.stream import GroupStream

__all__ = ["Events", "Learner", "Loop", "LoopConfig", "LoopState", "Metrics"]

_PATIENCE_S = 0.2
"""Seconds between checks of the stop flag while waiting for a round."""


class Loop:
    """Trains a policy on what a curriculum gives it, and lets the curriculum evolve.

    Args:
        config: how long, and how often.
        session: gives out the curriculum's tasks, records groups, and runs rounds.
        agent: who acts in training; it samples.
        learner: learns from groups.
        envs: where training episodes run.
        evaluate: evaluates the agent as it is now; None for never.
        events: told what happens.
        landings: remembers when rounds that ran beside training were applied; None to wait for
            each round. With it a round that is due is launched, one at a time, and applied at the
            first step boundary after it is done. A run that is resumed or replayed applies it at
            the remembered boundary, and waits for it if need be: the same tasks are practised.
        guiding: guides episodes and studies groups; None for neither.

    Raises:
        ConfigError: if the config sets no limit.
    """

    def __init__(
        self,
        config: LoopConfig,
        *,
        session: CurriculumSession,
        agent: Agent,
        learner: Learner,
        envs: EnvPool,
        evaluate: Callable[[], Evaluation] | None = None,
        events: Events | None = None,
        landings: Landings | None = None,
        guiding: Guiding | None = None,
    ) -> None:
        if config.max_steps is None and config.max_env_steps is None:
            raise ConfigError("A loop needs an end. Set max_steps, max_env_steps, or both.")
        if session.max_staleness != config.max_staleness:
            raise ConfigError(
                f"The loop lets groups span {config.max_staleness} versions of the policy, and the "
                f"session {session.max_staleness}. Make both with the same max_staleness."
            )
        self.config, self.state, self.guiding = config, LoopState(), guiding or Guiding()
        self.session, self.agent, self.learner, self.envs = session, agent, learner, envs
        self.evaluate, self.events = evaluate, events or Events()
        self.landings, self._was_flying = landings, False
        self._stream: GroupStream | None = None

    @property
    def over(self) -> bool:
        """Whether the budget is spent."""
        return self.config.over(self.state)

    def run(self) -> LoopState:
        """Go on until the budget is spent or ``events.should_stop()``; both at step boundaries."""
        if self.state.step == 0:  # a curriculum without tasks finds its first ones
            self._carry_out(self.session.plan())
        elif self._was_flying:
            self._begin_round()
        self._land()
        self._evaluate(due=self.state.step == 0)
        try:
            while not self.over and not self.events.should_stop():
                self.step()
        finally:
            under_way = self.close()
        if self.over:
            self.state.env_steps += under_way  # nobody runs them again
            self._land(wait=True)
        self._evaluate(due=self.over)
        return self.state

    def step(self) -> Metrics:
        """Take one step of the learner, then the round and the evaluation that are due.

        The metrics hold wall times, and as ``cpu_s`` the processor time of this process in all of
        it.
        """
        config, state, events = self.config, self.state, self.events
        started, processor = perf_counter(), process_time()
        recorded, kept, gathered = self._gather()
        events.on_groups(*recorded)
        gathered["rollout_s"] = perf_counter() - started
        notes = self._study(recorded.groups)
        metrics = self._learn(kept, notes) | gathered
        state.step += 1
        updated = perf_counter()
        self._land()
        evolves = config.evolve_at_last_step or not self.over
        if evolves and _due(state.step, config.evolve_every_steps):
            self._begin_round()
        metrics["round_s"] = perf_counter() - updated
        late = config.spent(state) >= config.evaluate_from
        self._evaluate(due=late and _due(state.step, config.evaluate_every_steps))
        metrics |= self.guiding.metrics() | state.metrics()
        metrics |= {f"curriculum.{k}": v for k, v in self.session.metrics().items()}
        metrics["cpu_s"] = process_time() - processor
        events.on_step(metrics)
        return metrics

    def _gather(self) -> Gathered:
        """Run the episodes of a step, and have the curriculum record their groups."""
        parts = (self.config, self.session, self.agent, self.envs, self.state, self.learner)
        if self.config.rollout == "lock_step":
            return gather(*parts, self.guiding)
        self._stream = self._stream or GroupStream(*parts, self.guiding)
        return self._stream.gather()

    def _study(self, groups: Sequence[Group]) -> Notes:
        """Have studies write notes about all recorded groups; tell curriculum and memories."""
        found = self.guiding.examine(groups)
        self.state.count(found)
        notes = Notes(found.notes)
        if self.guiding.studies:
            self.events.on_notes(notes)
            self.session.note(notes)
        self.guiding.note(notes)
        return notes

    def _learn(self, kept: Sequence[Group], notes: Notes) -> Metrics:
        """Learn from the groups of a step, unless it only studies."""
        if self.config.only_studies(self.state):
            return {"success": success_of(kept), "update_s": 0.0}
        began = perf_counter()
        self.learner.spent = self.config.spent(self.state)
        advantages = self.learner.advantages(kept, notes)
        self.events.on_credit(kept, advantages)
        return {**self.learner.update(kept, advantages), "update_s": perf_counter() - began}

    def run_round(self, round: Round) -> RoundResult:
        """Carry out a round, apply it, and count what it cost."""
        result = self.session.run_round(round)
        self.state.count(result)
        self.events.on_round(round, result)
        return result

    def close(self) -> int:
        """End the episodes that go on beside steps; the next step runs them again.

        Returns:
            Env steps that they had taken; the loop's state has not counted them.
        """
        stream, self._stream = self._stream, None
        return 0 if stream is None else stream.close()

    def state_dict(self) -> dict[str, Any]:
        """Progress, session and memories as JSON; learner and policy keep their own state."""
        return {
            "state": self.state.to_json(),
            "session": self.session.state_dict(),
            "flying": self.session.evolving,
            **self.guiding.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; episodes that are under way end."""
        self.close()
        self.state = LoopState.from_json(state["state"])
        # States from before there were sessions hold the session's parts themselves.
        self.session.load_state_dict(state.get("session", state))
        self._was_flying = state.get("flying", False)  # older states have none
        self.guiding.load_state_dict(state)

    def _carry_out(self, round: Round | None) -> None:
        if round is not None:
            self.run_round(round)

    def _begin_round(self) -> None:
        """Run the round that is due, or launch it where rounds run beside training."""
        round = self.session.plan()
        if round is None or self.landings is None:
            self._carry_out(round)
        else:
            self.session.launch_round(round)

    def _land(self, *, wait: bool = False) -> None:
        """Apply the round that was launched, if this is the boundary for it.

        Args:
            wait: whether to wait for it, because this is the last boundary.
        """
        round = self.session.round_under_way
        if round is None or self.landings is None:
            return
        then = self.landings.step_of(round)
        if wait or (then is not None and self.state.step >= then):
            while not self.session.round_done(_PATIENCE_S) and not self.events.should_stop():
                pass
        elif then is not None:
            return
        if self.session.round_done():
            self.landings.remember(round, self.state.step)
            self.run_round(round)

    def _evaluate(self, *, due: bool) -> None:
        if due and self.evaluate and self.state.evaluated != self.state.step:
            evaluation = self.evaluate()
            self.state.evaluated = self.state.step
            self.events.on_eval(evaluation)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0

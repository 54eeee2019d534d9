"""The loop: it orders calls between the parts, and knows nothing else.

Open a step → take tickets → guide → roll out → report → close the step (the curriculum records) →
study (curriculum and memories take notes) → advantages → update; every so many steps run the round
that is due, or apply one that was launched before, and evaluate. What is practised is the session's
business; all else are Protocols and functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter, process_time
from typing import Any

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import Round, RoundResult
from coevo_gym.core.seams import Agent
from coevo_gym.curricula.guiding.guiding import Guiding
from coevo_gym.curricula.session.session import CurriculumSession
from coevo_gym.episodes.evaluation import Evaluation
from coevo_gym.episodes.pool import EnvPool
from coevo_gym.trainers.parts import Events, Landings, Learner, LoopConfig, LoopState, Metrics
from coevo_gym.trainers.rollouts.gathered import learn, study
from coevo_gym.trainers.rollouts.rollouts import Rollouts
from coevo_gym.trainers.rounds import LoopRounds

__all__ = ["Events", "Learner", "Loop", "LoopConfig", "LoopState", "Metrics"]


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
        landings: when rounds that ran beside training were applied; None to wait for each round.
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
        self.config, self.state, self.guiding = config, LoopState(), guiding or Guiding()
        self.session, self.agent, self.learner, self.envs = session, agent, learner, envs
        self.evaluate, self.events = evaluate, events or Events()
        self.rounds, self.rollouts = LoopRounds(landings), Rollouts(config, self.guiding)

    @property
    def over(self) -> bool:
        """Whether the budget is spent."""
        return self.config.over(self.state)

    def run(self) -> LoopState:
        """Go on until the budget is spent or ``events.should_stop()``; both at step boundaries."""
        self._carry_out(self.rounds.first(self.session, self.state.step))
        self._land()
        self._evaluate(due=self.state.step == 0)
        try:
            while not self.over and not self.events.should_stop():
                self.step()
        finally:
            under_way = self.rollouts.close()
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
        config, state = self.config, self.state
        started, processor = perf_counter(), process_time()
        parts = (self.session, self.agent, self.envs, state, self.learner)
        recorded, kept, gathered = self.rollouts.gather(*parts)
        self.events.on_groups(*recorded)
        gathered["rollout_s"], tell = perf_counter() - started, self.events
        notes = study(self.guiding, self.session, state, recorded.groups, tell.on_notes)
        metrics = {**learn(config, state, self.learner, kept, notes, tell.on_credit), **gathered}
        state.step += 1
        updated = perf_counter()
        self._land()
        evolves = config.evolve_at_last_step or not self.over
        if evolves and _due(state.step, config.evolve_every_steps):
            self._carry_out(self.rounds.asked(self.session))
        metrics["round_s"] = perf_counter() - updated
        late = config.spent(state) >= config.evaluate_from
        self._evaluate(due=late and _due(state.step, config.evaluate_every_steps))
        metrics |= self.guiding.metrics() | state.metrics()
        metrics |= {f"curriculum.{k}": v for k, v in self.session.metrics().items()}
        metrics["cpu_s"] = process_time() - processor
        self.events.on_step(metrics)
        return metrics

    def run_round(self, round: Round) -> RoundResult:
        """Carry out a round, apply it, and count what it cost."""
        result = self.session.run_round(round)
        self.state.count(result)
        self.events.on_round(round, result)
        return result

    def state_dict(self) -> dict[str, Any]:
        """Progress, session and memories as JSON; learner and policy keep their own state."""
        others = {**self.rounds.state_dict(self.session), **self.guiding.state_dict()}
        return {"state": self.state.to_json(), "session": self.session.state_dict(), **others}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; episodes that are under way end."""
        self.rollouts.close()
        self.state = LoopState.from_json(state["state"])
        # States from before there were sessions hold the session's parts themselves.
        self.session.load_state_dict(state.get("session", state))
        self.rounds.load_state_dict(state)
        self.guiding.load_state_dict(state)

    def _carry_out(self, round: Round | None) -> None:
        if round is not None:
            self.run_round(round)

    def _land(self, *, wait: bool = False) -> None:
        stop = self.events.should_stop
        self._carry_out(self.rounds.landing(self.session, self.state.step, stop, wait=wait))

    def _evaluate(self, *, due: bool) -> None:
        if due and self.evaluate and self.state.evaluated != self.state.step:
            evaluation = self.evaluate()
            self.state.evaluated = self.state.step
            self.events.on_eval(evaluation)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0

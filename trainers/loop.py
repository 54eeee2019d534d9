"""The training loop, which learns from groups of episodes and runs rounds and evaluations.

One step: open a step → take tickets → guide → roll out → report → close the step (the curriculum
records the groups) → study (curriculum and memories receive notes) → advantages → update. At
configured intervals the loop also runs a due evolution round, or applies a round launched earlier,
and evaluates. The session selects the tasks. All other parts are Protocols and functions; the loop
only orders their calls.
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
from coevo_gym.curricula.guiding import Guiding
from coevo_gym.curricula.saved import restore_on_error, validate
from coevo_gym.curricula.session.curriculum_session import CurriculumSession
from coevo_gym.episodes.env_pool import EnvPool
from coevo_gym.episodes.evaluation import Evaluation
from coevo_gym.trainers.protocols import (
    Events,
    GroupFilter,
    Learner,
    LoopConfig,
    LoopState,
    Metrics,
    RoundSteps,
)
from coevo_gym.trainers.rollouts import (
    Gathered,
    GroupStream,
    RolloutParts,
    run_step_episodes,
    success_rate_of,
)

__all__ = ["Events", "Learner", "Loop", "LoopConfig", "LoopState", "Metrics"]

_PATIENCE_S = 0.2
"""Seconds between checks of the stop flag while waiting for a round."""


class Loop:
    """A loop that trains a policy on tasks from a curriculum and lets the curriculum evolve.

    Args:
        config: budget and intervals.
        session: session that hands out the curriculum's tasks, records groups and runs rounds.
        agent: agent that acts in training; it samples its actions.
        learner: learner that trains on the groups.
        envs: pool of envs for training episodes.
        evaluate: function that evaluates the current agent; None to never evaluate.
        events: hooks called during the run.
        round_steps: record of the steps at which rounds running beside training were applied; None
            to wait for each round. With a record, a due round is launched (one at a time) and
            applied at the first step boundary after it has finished. A resumed or replayed run
            applies the round at the recorded boundary, waiting for it if necessary, so that it
            trains on the same tasks.
        guiding: guidance for episodes and studies of groups; None for neither.
        group_filter: decides which groups are learned from; None for ``max_resamples``.
        seed: seed for the envs.

    Raises:
        ConfigError: if the config has no limit, or the session has a different ``max_staleness``.
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
        round_steps: RoundSteps | None = None,
        guiding: Guiding | None = None,
        group_filter: GroupFilter | None = None,
        seed: int = 0,
    ) -> None:
        if config.max_steps is None and config.max_env_steps is None:
            raise ConfigError("The loop has no limit. Set max_steps, max_env_steps, or both.")
        if session.max_staleness != config.max_staleness:
            raise ConfigError(
                f"The loop's max_staleness is {config.max_staleness}, but the session's is "
                f"{session.max_staleness}. Use the same value for both."
            )
        if group_filter is not None and (config.max_resamples or config.rollout == "async"):
            raise ConfigError(
                "The method's group filter needs whole batches, played in lock step. Set "
                "loop.max_resamples = 0 and loop.rollout = 'lock_step'."
            )
        self.config, self.state, self.guiding = config, LoopState(), guiding or Guiding()
        self.group_filter = group_filter
        self.session, self.agent, self.learner, self.envs = session, agent, learner, envs
        self.evaluate, self.events, self.seed = evaluate, events or Events(), seed
        self.round_steps, self._round_was_running = round_steps, False
        self._stream: GroupStream | None = None

    @property
    def is_over(self) -> bool:
        """True if the training budget is spent."""
        return self.config.is_over(self.state)

    def run(self) -> LoopState:
        """Run until the budget is spent or ``events.should_stop()`` returns True between steps."""
        if self.state.step == 0:  # a curriculum without tasks creates its initial tasks
            if round := self.session.plan():
                self.run_round(round)
        elif self._round_was_running:
            self._run_or_launch_round()
        self._apply_background_round()
        self._evaluate(due=self.state.step == 0)
        try:
            while not self.is_over and not self.events.should_stop():
                self.step()
        finally:
            under_way = self.close()
        if self.is_over:
            self.state.env_steps += under_way  # these episodes will not be run again
            self._apply_background_round(wait=True)
        self._evaluate(due=self.is_over)
        return self.state

    def step(self) -> Metrics:
        """Take one learner step, then run an evolution round and an evaluation if they are due.

        The metrics include wall times, and the processor time of this process as ``cpu_s``.
        """
        config, state, events = self.config, self.state, self.events
        started, processor = perf_counter(), process_time()
        recorded, groups, rollout_metrics = self._run_step_episodes()
        state.add_rollout_tokens(recorded.groups)
        events.on_groups(*recorded)
        rollout_metrics["rollout_s"] = perf_counter() - started
        notes = self._study_groups(recorded.groups)
        metrics = self._learn(groups, notes) | rollout_metrics
        state.step += 1
        updated = perf_counter()
        self._apply_background_round()
        evolves = config.evolve_at_last_step or not self.is_over
        if evolves and _is_due(state.step, config.evolve_every_steps):
            self._run_or_launch_round()
        metrics["round_s"] = perf_counter() - updated
        late = config.spent_share(state) >= config.evaluate_from
        self._evaluate(due=late and _is_due(state.step, config.evaluate_every_steps))
        metrics |= self.guiding.take_metrics() | state.metrics()
        metrics |= {f"curriculum.{k}": v for k, v in self.session.metrics().items()}
        metrics["cpu_s"] = process_time() - processor
        events.on_step(metrics)
        return metrics

    def _run_step_episodes(self) -> Gathered:
        """Run a step's episodes and let the curriculum record their groups."""
        parts = RolloutParts(
            self.config,
            self.session,
            self.agent,
            self.envs,
            self.state,
            self.learner,
            self.guiding,
            self.seed,
            self.group_filter,
        )
        if self.config.rollout == "lock_step":
            return run_step_episodes(parts)
        self._stream = self._stream or GroupStream(parts)
        return self._stream.run_step_episodes()

    def _study_groups(self, groups: Sequence[Group]) -> Notes:
        """Write analysis notes on all recorded groups, for the curriculum and the memories."""
        findings = self.guiding.examine(groups)
        self.state.add_cost(findings)
        notes = Notes(findings.notes)
        if self.guiding.studies:
            self.events.on_notes(notes)
            self.session.note(notes)
        self.guiding.update_memories(notes)
        if changes := self.guiding.advice_changes():
            self.events.on_advice(changes)
        return notes

    def _learn(self, groups: Sequence[Group], notes: Notes) -> Metrics:
        """Learn from a step's groups, unless the step only runs studies."""
        if self.config.is_study_only(self.state):
            return {"success": success_rate_of(groups), "update_s": 0.0}
        began = perf_counter()
        self.learner.spent = self.config.spent_share(self.state)
        advantages = self.learner.advantages(groups, notes)
        self.events.on_credit(groups, advantages)
        metrics = self.learner.update(groups, advantages)
        self.state.add_gradient_tokens(metrics)
        return {**metrics, "update_s": perf_counter() - began}

    def run_round(self, round: Round) -> RoundResult:
        """Run an evolution round, apply its result and count its cost."""
        result = self.session.run_round(round)
        self.state.add_cost(result)
        self.events.on_round(round, result)
        return result

    def close(self) -> int:
        """Stop all running episodes. The next step restarts them.

        Returns:
            Number of env steps these episodes had taken; the loop's state does not include them.
        """
        stream, self._stream = self._stream, None
        return 0 if stream is None else stream.abandon_episodes()

    def state_dict(self) -> dict[str, Any]:
        """Return the progress, session and memories as JSON, without the learner or the policy."""
        return {
            "state": self.state.to_json(),
            "session": self.session.state_dict(),
            "flying": self.session.is_evolving,
            **self.guiding.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`, stopping any running episodes."""
        self.close()
        with restore_on_error(self.guiding.state_dict, self.guiding.load_state_dict):
            progress = LoopState.from_json(state["state"])
            is_running = validate(bool, state["flying"])
            self.guiding.load_state_dict(state)
            self.session.load_state_dict(state["session"])
        self.state, self._round_was_running = progress, is_running

    def _run_or_launch_round(self) -> None:
        """Run the round that is due, or start it in the background if rounds are concurrent."""
        round = self.session.plan()
        if round is None:
            return
        if self.round_steps is None:
            self.run_round(round)
        else:
            self.session.launch_round(round)

    def _apply_background_round(self, *, wait: bool = False) -> None:
        """Apply the background round's result if it is due. With ``wait``, wait for it first."""
        round = self.session.round_under_way
        if round is None or self.round_steps is None:
            return
        then = self.round_steps.step_of(round)
        if wait or (then is not None and self.state.step >= then):
            while not self.session.wait_for_round(_PATIENCE_S) and not self.events.should_stop():
                pass
        elif then is not None:
            return
        if self.session.wait_for_round():
            self.round_steps.remember(round, self.state.step)
            self.run_round(round)

    def _evaluate(self, *, due: bool) -> None:
        if due and self.evaluate and self.state.evaluated != self.state.step:
            evaluation = self.evaluate()
            self.state.evaluated = self.state.step
            self.events.on_eval(evaluation)


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0

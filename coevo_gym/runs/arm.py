"""Training of one arm of a run, including its checkpoints and records."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from statistics import fmean
from time import monotonic
from typing import TYPE_CHECKING, Any

from coevo_gym.core.advice import AdviceState
from coevo_gym.core.errors import StoreError
from coevo_gym.core.evolution import Round, RoundResult, Signal, Verdict
from coevo_gym.core.notes import Notes
from coevo_gym.core.seams import Advantage
from coevo_gym.core.stats import SOLVED
from coevo_gym.core.trajectory import Group
from coevo_gym.core.waiting import format_duration
from coevo_gym.curricula.guiding import Guiding
from coevo_gym.curricula.pool_curriculum import PoolCurriculum
from coevo_gym.curricula.session.curriculum_session import CurriculumSession, Seeds
from coevo_gym.episodes.env_pool import EnvPool
from coevo_gym.episodes.evaluation import Evaluation
from coevo_gym.methods.kit import OnVerdict
from coevo_gym.runs.assembly import Assembly, raise_restore_errors, weights_hash
from coevo_gym.runs.config import ArmConfig
from coevo_gym.runs.evals.final import FINAL_SCORE
from coevo_gym.runs.evolving.answers import count_answers
from coevo_gym.runs.evolving.rounds import StoredEvolver, StoredRoundSteps, wrap_evolver
from coevo_gym.runs.manifest import record_interface
from coevo_gym.runs.progress_reports import ProgressSink
from coevo_gym.runs.stop import Stopped
from coevo_gym.runs.table import WARMUP
from coevo_gym.store.checkpoint import Checkpoint, Checkpoints
from coevo_gym.store.database import RunStore
from coevo_gym.store.folder import RunFolder, append_line, read_lines, rewrite_keeping_lines
from coevo_gym.trainers.loop import Loop
from coevo_gym.trainers.protocols import Events, Metrics, training_success

if TYPE_CHECKING:
    from coevo_gym.trainers.update.optimizer import AveragedWeights

_REPORTED = (
    "step",
    "after_env_steps",
    "success_rate",
    "mean_score",
    "episodes",
    "warmup_tasks_success",
    "pool_tasks_success",
)
"""Metrics of each evaluation that a run's summary contains."""


class Arm:
    """One arm of a run. It is trained with the arm's method, and can be saved and restored.

    Attributes:
        settings: the settings of the arm.
        assembly: the assembly that creates the run's parts.
        events: the listener for the training loop; set after construction.
        evaluated: the agent for evaluations; use it within :meth:`use_averaged_weights`.
    """

    events: ArmEvents

    def __init__(
        self,
        settings: ArmConfig,
        assembly: Assembly,
        envs: EnvPool,
        store: RunStore,
        on_verdict: OnVerdict,
    ) -> None:
        config, self.name, self.policy = assembly.config, settings.name, assembly.policy
        self._on_verdict, self._closed = on_verdict, False
        self.asked = assembly.explorer_model(settings)
        self.analyst = assembly.analyst_model(settings)
        self._stop_asking = assembly.models.stop
        method = assembly.method(settings, self._forward_verdict_or_stop)
        agent = assembly.agent(self.policy)
        self.learner = assembly.make_learner(method.learner, method.credit)
        # The reference is the policy that the arm starts from. It is saved once for all arms, so a
        # checkpoint contains only its hash.
        refers = getattr(self.learner, "has_reference", False)
        self.start = weights_hash(self.policy) if refers else ""
        self.first_round = method.first_round
        self.evolver: StoredEvolver | None = None
        if method.evolver is not None:
            self.evolver = wrap_evolver(
                method.evolver,
                store,
                config,
                settings,
                policy=self.policy,
                native=assembly.train_tasks,
                shared=method.first_round,
                on_known=self._count_usage,
            )
        round_steps = None
        if self.evolver is not None and settings.evolver.overlap:
            mode, models = config.tape.mode, assembly.models
            tape = models.store if self.asked is not None else None
            writes = mode in ("record", "fill")
            round_steps = StoredRoundSteps(
                store, self.name, self.evolver.settings_hash, tape, writes=writes
            )

        evaluated = assembly.evaluation_agent(self.policy)

        def evaluate() -> Evaluation:
            with self.use_averaged_weights():
                return assembly.evaluate(evaluated)

        self.assembly, self.settings, self.evaluated = assembly, settings, evaluated
        order = settings.loop.seed_of_order
        draws = assembly.seed(f"ledger, order {order}" if order else "ledger")
        self.loop = Loop(
            settings.loop,
            session=CurriculumSession(
                method.curriculum,
                self.evolver,
                group_size=config.rollout.group_size,
                max_staleness=settings.loop.max_staleness,
                seed=Seeds(draws=draws, rounds=config.seed),
            ),
            agent=agent,
            learner=self.learner,
            envs=envs,
            evaluate=evaluate,
            round_steps=round_steps,
            guiding=Guiding(method.coach, method.studies, method.memories),
            group_filter=method.group_filter,
            seed=config.seed,
        )

    def use_averaged_weights(self) -> AbstractContextManager[None]:
        """Return a context manager that switches to the policy's averaged weights, if any."""
        average: AveragedWeights | None = getattr(self.learner, "average", None)
        return average.use_in_policy() if average else nullcontext()

    def evaluate_trained_tasks(self) -> dict[str, float]:
        """Measure success rates on some of the warm-up tasks and some of the pool's tasks.

        Uses the first ``evaluation.n_trained`` tasks of each by id, and omits a rate without tasks.
        """
        n = self.assembly.config.evaluation.n_trained
        if not n:
            return {}
        curriculum = self.loop.session.curriculum
        pool = curriculum.pool.tasks if isinstance(curriculum, PoolCurriculum) else ()
        sets = {"warmup_tasks": self.assembly.warmup_tasks(), "pool_tasks": pool}
        with self.use_averaged_weights():
            return {
                f"{name}_success": self.assembly.evaluate(
                    self.evaluated, sorted(tasks, key=lambda task: task.id)[:n]
                ).success_rate
                for name, tasks in sets.items()
                if tasks
            }

    def weights_hash(self) -> str:
        """Return the SHA-256 hash of the evaluated weights' bytes."""
        with self.use_averaged_weights():
            return weights_hash(self.policy)

    def max_env_steps_left(self) -> tuple[int, str]:
        """Return the maximum number of env steps left, both as an int and as text."""
        config, state = self.loop.config, self.loop.state
        if config.max_steps is None:
            left = (config.max_env_steps or 0) - state.env_steps
            return left, f"{left:,} env steps"
        left, each = config.max_steps - state.step, self.assembly.max_steps
        episodes = config.groups_per_step * self.assembly.config.rollout.group_size
        words = f"{left:,} learner steps × {episodes:,} episodes × up to {each} env steps"
        return left * episodes * each, words

    def summarise(self) -> dict[str, Any]:
        """Summarise the arm's results as JSON, for the run's summary."""
        state, numbers = self.loop.state, self.loop.session.metrics()
        return {
            "steps": state.step,
            "env_steps": state.env_steps,
            "episodes": state.episodes,
            "rounds": int(numbers.get("rounds", 0)),
            "pool_size": int(numbers.get("pool_size", 0)),
            "weights": self.weights_hash(),
            "evaluations": [
                {name: measures[name] for name in _REPORTED if name in measures}
                for measures in self.events.evaluations()
            ],
            "curriculum": numbers,
            "answers": count_answers(state.usage),
        }

    def close(self) -> None:
        """Cancel a round that is running in parallel with training, and wait until it has stopped.

        The round stops at its next draft or model call. Requests in flight are abandoned; answers
        received before are on the tape.
        """
        self._closed = True
        if self.loop.session.is_evolving:
            self._stop_asking()
        self.loop.session.discard_round()

    def _count_usage(self, result: RoundResult) -> None:
        if self.asked is not None:
            self.asked.meter.count_round_once(result.round_id, result.usage)

    def _forward_verdict_or_stop(self, verdict: Verdict) -> None:
        if self._closed:
            raise Stopped
        self._on_verdict(verdict)

    def save(self, checkpoints: Checkpoints) -> None:
        """Save everything that is needed to resume the arm."""
        state = {
            "policy": self.policy.state_dict(),
            "learner": self.learner.state_dict(reference=False),
            "start": self.start,
            "loop": json.dumps(self.loop.state_dict()),
            "evaluation": self.events.evaluation,
            "lines": self.events.n_lines,
            "asked": None if self.asked is None else self.asked.state_dict(),
            "analyst": None if self.analyst is None else self.analyst.state_dict(),
        }
        checkpoints.save(self.loop.state.step, state)

    def load(self, saved: Checkpoint) -> None:
        """Restore the state that :meth:`save` wrote.

        Raises:
            StoreError: if the checkpoint does not match the arm, or was saved by an arm with other
                initial weights (its reference).
        """
        if saved.state["start"] != self.start:
            raise StoreError(
                f"The initial weights of this run have changed since {saved.path} was saved: "
                f"the checkpoint in {saved.path.parent.with_name(WARMUP)} was lost or replaced. "
                "Restore it, or start over with --overwrite."
            )
        with raise_restore_errors(saved, self.policy):
            self.policy.load_state_dict(saved.state["policy"])
            self.learner.load_state_dict(saved.state["learner"])
            self.loop.load_state_dict(json.loads(saved.state["loop"]))
            self.events.evaluation = dict(saved.state["evaluation"])
            for name, asked in (("asked", self.asked), ("analyst", self.analyst)):
                if asked is not None and saved.state[name]:
                    asked.load_state_dict(saved.state[name])


@dataclass
class ArmEvents(Events):
    """A listener that records the events of an arm's training loop.

    Attributes:
        stop: returns True to stop at the next step boundary.
        checkpoints: the arm's checkpoints.
        on_cost: called after the arm's cost has increased.
        send: called with each line of metrics, for sinks.
        evaluation: results of the latest evaluation.
        n_lines: number of the arm's lines of metrics.
    """

    arm: Arm
    folder: RunFolder
    store: RunStore
    progress: ProgressSink
    stop: Callable[[], bool]
    checkpoints: Checkpoints
    on_cost: Callable[[], None]
    send: Callable[[Mapping[str, Any]], None]
    evaluation: dict[str, float] = field(default_factory=dict)
    n_lines: int = field(default=0, init=False)
    _interfaces: set[str] = field(default_factory=set, init=False)
    _step_began: float = field(default_factory=monotonic, init=False)
    _last_took_s: float | None = field(default=None, init=False)

    def on_groups(self, groups: Sequence[Group], signals: Sequence[Signal]) -> None:
        """Store the groups of the current step."""
        step = self.arm.loop.state.step + 1
        self.store.add_groups(self.arm.name, step, groups, signals)
        versions = dict.fromkeys(t.interface for group in groups for t in group.trajectories)
        for version in versions:
            if version and version not in self._interfaces:
                record_interface(self.folder, self.arm.name, version, step)
                self._interfaces.add(version)

    def on_notes(self, notes: Notes) -> None:
        """Store the notes written about the current step's groups."""
        self.store.add_notes(self.arm.name, self.arm.loop.state.step + 1, notes)

    def on_advice(self, changes: Mapping[str, Sequence[AdviceState]]) -> None:
        """Store the advice that each memory added or changed in the current step."""
        self.store.add_advice(self.arm.name, self.arm.loop.state.step + 1, changes)

    def on_credit(self, groups: Sequence[Group], advantages: Sequence[Sequence[Advantage]]) -> None:
        """Store the advantages of the step's groups, for the viewer."""
        self.store.add_advantages(self.arm.name, self.arm.loop.state.step + 1, groups, advantages)

    def on_round(self, round: Round, result: RoundResult) -> None:
        """Store the result of a round."""
        state, numbers = self.arm.loop.state, self.arm.loop.session.metrics()
        pool_size = int(numbers.get("pool_size", 0))
        place = (self.arm.name, state.step, state.env_steps, pool_size)
        self.store.add_round(
            *place,
            round,
            result,
            by=self.arm.evolver.settings_hash(round) if self.arm.evolver else "",
        )
        self.on_cost()
        self._log("round", round=round.id, accepted=len(result.accepted), pool_size=pool_size)

    def on_eval(self, evaluation: Evaluation) -> None:
        """Record an evaluation of the current policy."""
        tried = [[line.success for line in lines] for lines in evaluation.by_task.values()]
        state = self.arm.loop.state
        self.store.add_evaluation(
            self.arm.name,
            state.step,
            [line.database_row for line in evaluation.lines],
            evaluation.episodes,
        )
        self.record_evaluation(
            {**evaluation.metrics(), **self.arm.evaluate_trained_tasks()},
            solved="".join("1" if fmean(outcomes) >= SOLVED else "0" for outcomes in tried),
        )
        self.progress.say(
            f"  {self.arm.name}, step {state.step}, {state.env_steps:,} env steps: solves "
            f"{evaluation.success_rate:.1%} of {len(tried)} held-out tasks"
        )

    def record_evaluation(self, numbers: Mapping[str, float], solved: str = "") -> None:
        """Record the results of an evaluation. Its env steps do not count as the arm's.

        ``solved`` has one digit per task, in order: 1 if at least half of its episodes succeeded.
        """
        self.evaluation = dict(numbers)
        self._log("eval", solved=solved, **{f"eval.{k}": value for k, value in numbers.items()})

    def evaluations(self) -> list[dict[str, float]]:
        """Return the results of all evaluations so far, each with its learner step and env steps.

        The first evaluation is the warm-up's. Results are read from the metrics file, so a resumed
        run still has all of them.
        """
        rows: dict[int, dict[str, float]] = {}
        for line in read_lines(self.folder.metrics):
            if line.get("event") == "eval" and line.get("arm") == self.arm.name:
                numbers = {
                    key.removeprefix("eval."): value
                    for key, value in line.items()
                    if key.startswith("eval.")
                }
                place = {"step": line["step"], "after_env_steps": line["env_steps"]}
                rows[line["step"]] = place | numbers
        return list(rows.values()) or [{"step": self.arm.loop.state.step, **self.evaluation}]

    def on_step(self, metrics: Metrics) -> None:
        """Record the step's metrics, and save a checkpoint if one is due."""
        self._log("step", **metrics)
        state = self.arm.loop.state
        self.on_cost()
        done = state.env_steps if self.arm.loop.config.max_steps is None else state.step
        success = training_success(metrics)
        facts = {"success": "unknown" if success is None else f"{success:.0%}"}
        if "degenerate_share" in metrics:
            facts["mixed_groups"] = f"{1 - metrics['degenerate_share']:.0%}"
        self.progress.update(done, **facts, **self._pool_facts(metrics))
        if state.step % self.arm.assembly.config.store.checkpoint_every_steps == 0:
            self.arm.save(self.checkpoints)
        self._step_began, began = monotonic(), self._step_began
        self._last_took_s = self._step_began - began

    def describe_current_step(self) -> str:
        """Describe how long the current step has been running and how long the last step took."""
        began = f"step {self.arm.loop.state.step + 1} of {self.arm.name} began "
        began += f"{format_duration(monotonic() - self._step_began)} ago"
        if self._last_took_s is None:
            return f"{began}; no step has been timed yet"
        return f"{began}; the last one took {format_duration(self._last_took_s)}"

    def _pool_facts(self, metrics: Metrics) -> dict[str, str]:
        """Return the pool size and the number of rounds, or the size of a fixed task set."""
        size = f"{metrics.get('curriculum.pool_size', 0.0):.0f}"
        if self.arm.settings.curriculum.growth.kind == "none":
            return {"fixed_task_set": size}
        return {"pool": size, "rounds": f"{metrics.get('curriculum.rounds', 0.0):.0f}"}

    def should_stop(self) -> bool:
        """Return True if the loop should stop at this step boundary."""
        return self.stop()

    def delete_records_after(self, step: int, n_lines: int = 0) -> None:
        """Delete the records of all steps after ``step``, or all records if ``step`` is -1.

        The arm's final scores are kept. Of its other lines of metrics, only the first ``n_lines``
        are kept, because an evaluation and a round may have been logged after the checkpoint.

        Warns if records of earlier steps are missing because a file was damaged or deleted.
        """
        self.store.delete_after(self.arm.name, step)
        self.n_lines = 0

        def keep(line: Mapping[str, Any]) -> bool:
            if line.get("arm") != self.arm.name:
                return True
            if line.get("step", 0) > step:
                return False
            if line.get("event") == FINAL_SCORE:
                return True
            if self.n_lines == n_lines:
                return False
            self.n_lines += 1
            return True

        if self.folder.metrics.exists():
            rewrite_keeping_lines(self.folder.metrics, keep)
        if missing := self._steps_without_record(step):
            self.progress.say(
                f"warning: {self.folder.metrics} has no record of {self.arm.name} at step "
                f"{_format_ranges(missing)}: the file was damaged or deleted. The run continues, "
                "but its report and its table will lack these values."
            )

    def _steps_without_record(self, last: int) -> list[int]:
        """Return the steps, up to ``last``, that lack a step record or an evaluation record."""
        events: dict[str, set[int]] = {"step": set(), "eval": set()}
        for line in read_lines(self.folder.metrics):
            if line.get("arm") == self.arm.name and line.get("event") in events:
                events[line["event"]].add(line["step"])
        evaluated = set(self.store.evaluation_steps(self.arm.name))
        return sorted((set(range(1, last + 1)) - events["step"]) | (evaluated - events["eval"]))

    def _log(self, event: str, **numbers: Any) -> None:
        state = self.arm.loop.state
        line = {
            "event": event,
            "arm": self.arm.name,
            "step": state.step,
            "env_steps": state.env_steps,
        }
        whole = line | numbers | line
        append_line(self.folder.metrics, whole)
        self.n_lines += 1
        self.send(whole)


def _format_ranges(numbers: Sequence[int]) -> str:
    """Format ascending numbers as ranges, such as ``"1-3, 7"``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]}-{part[-1]}" if part[1:] else str(part[0]) for part in parts)

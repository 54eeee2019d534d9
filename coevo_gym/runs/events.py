"""Records of an arm in training: store, metrics, checkpoints, progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from time import monotonic
from typing import Any

from coevo_gym.core.advice import AdviceState
from coevo_gym.core.evolution import Round, RoundResult, Signal
from coevo_gym.core.notes import Notes
from coevo_gym.core.seams import Advantage
from coevo_gym.core.stats import SOLVED
from coevo_gym.core.trajectory import Group
from coevo_gym.core.waiting import duration
from coevo_gym.episodes.evaluation import Evaluation
from coevo_gym.runs.manifest import note_interface
from coevo_gym.runs.progress import ProgressSink
from coevo_gym.store.database import RunStore
from coevo_gym.store.folder import RunFolder, append_line, keep_lines, read_lines
from coevo_gym.trainers.loop import Loop
from coevo_gym.trainers.protocols import Events, Metrics, training_success


@dataclass
class ArmEvents(Events):
    """Listener for the loop of one arm.

    Attributes:
        arm: name of the arm.
        folder: folder of the run.
        store: database of the run.
        loop: the loop.
        progress: progress display.
        stop: returns True to stop at the next step boundary.
        save: writes a checkpoint.
        every_steps: steps between checkpoints.
        by: identity of whatever carries out rounds, on which their results depend.
        max_steps: most steps of the arm, or None.
        evolves: True if the arm explores after its first task set.
        on_trained: returns success on trained tasks by type; called at evaluations.
        on_cost: called when the cost of the arm has grown.
        send: called with each line of metrics, for sinks.
        evaluation: numbers of the latest evaluation.
    """

    arm: str
    folder: RunFolder
    store: RunStore
    loop: Loop
    progress: ProgressSink
    stop: Callable[[], bool]
    save: Callable[[], object]
    every_steps: int
    by: Callable[[Round], str] = lambda round: ""
    max_steps: int | None = None
    evolves: bool = True
    on_trained: Callable[[], Mapping[str, float]] = dict
    on_cost: Callable[[], None] = lambda: None
    send: Callable[[Mapping[str, Any]], None] = lambda line: None
    evaluation: dict[str, float] = field(default_factory=dict)
    _interfaces: set[str] = field(default_factory=set, init=False)
    _step_began: float = field(default_factory=monotonic, init=False)
    _last_took_s: float | None = field(default=None, init=False)

    def on_groups(self, groups: Sequence[Group], signals: Sequence[Signal]) -> None:
        """Store the groups of the current step, whose number is the last step's plus 1."""
        step = self.loop.state.step + 1
        self.store.add_groups(self.arm, step, groups, signals)
        shown = dict.fromkeys(t.interface for group in groups for t in group.trajectories)
        for version in shown:
            if version and version not in self._interfaces:
                note_interface(self.folder, self.arm, version, step)
                self._interfaces.add(version)

    def on_notes(self, notes: Notes) -> None:
        """Store the notes about the groups of the step."""
        self.store.add_notes(self.arm, self.loop.state.step + 1, notes)

    def on_advice(self, changes: Mapping[str, Sequence[AdviceState]]) -> None:
        """Store the changes of advice in the step."""
        self.store.add_advice(self.arm, self.loop.state.step + 1, changes)

    def on_credit(self, groups: Sequence[Group], advantages: Sequence[Sequence[Advantage]]) -> None:
        """Store the advantages of the step's groups, for the viewer."""
        self.store.add_advantages(self.arm, self.loop.state.step + 1, groups, advantages)

    def on_round(self, round: Round, result: RoundResult) -> None:
        """Store the result of a round."""
        state, numbers = self.loop.state, self.loop.session.metrics()
        pool_size = int(numbers.get("pool_size", 0))
        place = (self.arm, state.step, state.env_steps, pool_size)
        self.store.add_round(*place, round, result, by=self.by(round))
        self.on_cost()
        self._log("round", round=round.id, accepted=len(result.accepted), pool_size=pool_size)

    def on_eval(self, evaluation: Evaluation) -> None:
        """Record an evaluation of the current policy."""
        tried = [[line.success for line in lines] for lines in evaluation.by_task.values()]
        state = self.loop.state
        self.store.add_evaluation(
            self.arm, state.step, [line.ended for line in evaluation.lines], evaluation.episodes
        )
        self.note_evaluation(
            {**evaluation.metrics(), **self.on_trained()},
            solved="".join("1" if fmean(outcomes) >= SOLVED else "0" for outcomes in tried),
        )
        self.progress.say(
            f"  {self.arm}, step {state.step}, {state.env_steps:,} env steps: solves "
            f"{evaluation.success_rate:.1%} of {len(tried)} held-out tasks"
        )

    def note_evaluation(self, numbers: Mapping[str, float], solved: str = "") -> None:
        """Record the numbers of an evaluation; its env steps do not count for the arm.

        Args:
            numbers: its numbers.
            solved: one digit per task, in order: 1 if at least half of its episodes succeeded.
        """
        self.evaluation = dict(numbers)
        self._log("eval", solved=solved, **{f"eval.{k}": value for k, value in numbers.items()})

    def evaluations(self) -> list[dict[str, float]]:
        """Return the numbers of all evaluations so far, with their step and env steps.

        The first is the warm-up's. They are read from the metrics file, so that an interrupted run
        has all of them.
        """
        found: dict[int, dict[str, float]] = {}
        for line in read_lines(self.folder.metrics):
            if line.get("event") == "eval" and line.get("arm") == self.arm:
                numbers = {
                    key.removeprefix("eval."): value
                    for key, value in line.items()
                    if key.startswith("eval.")
                }
                place = {"step": line["step"], "after_env_steps": line["env_steps"]}
                found[line["step"]] = place | numbers
        return list(found.values()) or [{"step": self.loop.state.step, **self.evaluation}]

    def on_step(self, metrics: Metrics) -> None:
        """Record the numbers of the step, and save a checkpoint if one is due."""
        self._log("step", **metrics)
        state = self.loop.state
        self.on_cost()
        done = state.env_steps if self.max_steps is None else state.step
        success = training_success(metrics)
        facts = {"success": "unknown" if success is None else f"{success:.0%}"}
        if "degenerate_share" in metrics:
            facts["mixed_groups"] = f"{1 - metrics['degenerate_share']:.0%}"
        self.progress.update(done, **facts, **self._pool(metrics))
        if state.step % self.every_steps == 0:
            self.save()
        self._step_began, began = monotonic(), self._step_began
        self._last_took_s = self._step_began - began

    def step_under_way(self) -> str:
        """Describe the step that a stop waits for, and about how long it will take."""
        began = f"step {self.loop.state.step + 1} of {self.arm} began "
        began += f"{duration(monotonic() - self._step_began)} ago"
        if self._last_took_s is None:
            return f"{began}; no step has been timed yet"
        return f"{began}; the last one took {duration(self._last_took_s)}"

    def _pool(self, metrics: Metrics) -> dict[str, str]:
        """Describe the pool; the round that finds a fixed task set is not mentioned."""
        size = f"{metrics.get('curriculum.pool_size', 0.0):.0f}"
        if not self.evolves:
            return {"fixed_task_set": size}
        return {"pool": size, "rounds": f"{metrics.get('curriculum.rounds', 0.0):.0f}"}

    def should_stop(self) -> bool:
        """Return True to stop the loop at this step boundary."""
        return self.stop()

    def rewind(self, step: int) -> None:
        """Delete the records after a step; -1 deletes all.

        Warns about earlier steps without a record, whose file was damaged or deleted.
        """
        self.store.rewind(self.arm, step)

        def keep(line: Mapping[str, Any]) -> bool:
            return line.get("arm") != self.arm or line.get("step", 0) <= step

        if self.folder.metrics.exists():
            keep_lines(self.folder.metrics, keep)
        if missing := self._without_record(step):
            self.progress.say(
                f"warning: {self.folder.metrics} has no record of {self.arm} at step "
                f"{_ranges(missing)}: the file was damaged or deleted. The run goes on, but its "
                "report and its table lack these numbers."
            )

    def _without_record(self, last: int) -> list[int]:
        """Return the steps up to ``last`` that lack the line of the step or of its evaluation."""
        events: dict[str, set[int]] = {"step": set(), "eval": set()}
        for line in read_lines(self.folder.metrics):
            if line.get("arm") == self.arm and line.get("event") in events:
                events[line["event"]].add(line["step"])
        evaluated = set(self.store.evaluation_steps(self.arm))
        return sorted((set(range(1, last + 1)) - events["step"]) | (evaluated - events["eval"]))

    def _log(self, event: str, **numbers: Any) -> None:
        state = self.loop.state
        line = {"event": event, "arm": self.arm, "step": state.step, "env_steps": state.env_steps}
        whole = line | numbers | line
        append_line(self.folder.metrics, whole)
        self.send(whole)


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text, such as ``"1-3, 7"``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]}-{part[-1]}" if part[1:] else str(part[0]) for part in parts)

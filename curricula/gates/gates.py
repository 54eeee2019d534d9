"""Gates: the checks that a proposed task must pass before it is used for training.

Each gate is one check with a name. A draft passes through the gates in the order of
:func:`default_gates` and gets a verdict: accepted, or rejected by one gate with a reason. Gates do
not use the reward of the task that the draft was explored from. Only gates that the user turns on
query a language model, after execution has proven the task; its answers never affect rewards.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pydantic import ValidationError

from coevo_gym.core.benchmark import Benchmark, Clue, Effect, Evidence, require_proposable
from coevo_gym.core.errors import (
    BuildError,
    CoevoError,
    ConfigError,
    EnvBackendError,
    ModelError,
)
from coevo_gym.core.evolution import Check, Context, Draft, Proposal, Verdict
from coevo_gym.core.inquiry import Advisor
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.task import OPEN, Split, Task, UnknownWorld, World
from coevo_gym.core.trajectory import EndReason, Trajectory
from coevo_gym.curricula.gates.candidate import (
    Candidate,
    Gate,
    HoldTask,
    Rejected,
    describe_size_problem,
)
from coevo_gym.curricula.gates.judge import JudgeGate, ask_judge
from coevo_gym.curricula.gates.minimise import minimise_solution
from coevo_gym.curricula.gates.settings import GatesConfig, HoldConfig, describe_off_problem
from coevo_gym.curricula.gates.solve import SolveGate, Solver, try_task
from coevo_gym.curricula.gates.sources import contains_phrase, mentions
from coevo_gym.curricula.growth.evidence import exchanges_of, opening_of
from coevo_gym.curricula.pool.embed import words
from coevo_gym.curricula.pool.known import KnownTasks


@dataclass(frozen=True, slots=True)
class HoldGate:
    """A gate that holds tasks for review if they match a rule. It runs after all other checks."""

    benchmark: Benchmark
    known: KnownTasks
    rules: HoldConfig
    name: str = "hold"

    def check(self, candidate: Candidate) -> Candidate:
        """Check the task against the rules; see :class:`Gate`."""
        if reasons := list(self._hold_reasons(candidate)):
            raise HoldTask("; ".join(reasons))
        return candidate

    def _hold_reasons(self, candidate: Candidate) -> Iterator[str]:
        task, rules = candidate.the_task, self.rules
        if task.benchmark in rules.benchmarks:
            yield f"all new tasks of {task.benchmark} are held"
        if rules.first_of_scenario and not self.known.has_scenario(task.scenario):
            yield f"it is the first task of scenario {task.scenario!r}"
        if isinstance(candidate.proposal, Proposal):
            confidence, least = candidate.proposal.confidence, rules.below_confidence
            if confidence < least:
                yield f"the model's confidence is {confidence:.2f}, below {least}"
        if rules.pattern:
            texts = (self.benchmark.evidence(task).said, *task.solution)
            match = re.search(rules.pattern, "\n".join(texts), re.IGNORECASE)
            if match:
                yield f"it contains {match[0]!r:.100}"


@dataclass(frozen=True, slots=True)
class DraftGate:
    """A gate that turns a model's proposal into a draft and rejects invalid Unicode."""

    benchmark: Benchmark
    name: str = "draft"

    def check(self, candidate: Candidate) -> Candidate:
        """Turn the proposal into a draft; see :class:`Gate`."""
        proposal, context = candidate.proposal, candidate.context
        if not isinstance(proposal, Proposal):
            return replace(candidate, said="came as a draft")
        if context is None:
            raise Rejected("the proposal has no context: the previously explored task is missing")
        try:
            draft = require_proposable(self.benchmark).draft(proposal, context)
            _ = draft.id
        except BuildError as error:
            raise Rejected(str(error)) from error
        except UnicodeEncodeError as error:
            raise Rejected("the draft contains text that is not valid Unicode") from error
        return replace(candidate, draft=draft)


@dataclass(frozen=True, slots=True)
class ConfidenceGate:
    """A gate that rejects proposals if the model's confidence is too low."""

    threshold: float
    name: str = "confidence"

    def check(self, candidate: Candidate) -> Candidate:
        """Compare the confidence with the threshold; see :class:`Gate`."""
        proposal = candidate.proposal
        if not isinstance(proposal, Proposal):
            return replace(candidate, said="came as a draft")
        if proposal.confidence < self.threshold:
            confidence = f"the model's confidence is {proposal.confidence:.2f}"
            raise Rejected(f"{confidence}, below {self.threshold}")
        return replace(candidate, said=f"{proposal.confidence:.2f}")


@dataclass(frozen=True, slots=True)
class LexicalGate:
    """A gate that rejects instructions that share too many words with a known instruction."""

    known: KnownTasks
    jaccard: float
    name: str = "lexical"

    def check(self, candidate: Candidate) -> Candidate:
        """Compare the instruction with the most similar known one; see :class:`Gate`."""
        alike = self.known.most_similar(candidate.the_draft)
        if alike is None:
            return candidate
        task, jaccard = alike
        shared = f"{jaccard:.0%} of its words with {task.name}"
        if jaccard >= self.jaccard:
            raise Rejected(f"the instruction shares {shared}")
        return replace(candidate, said=shared)


OWN_ENDS = frozenset({EndReason.SOLVED, EndReason.FAILED, EndReason.AGENT_DONE})
"""End reasons of episodes that finished by themselves."""


@dataclass(frozen=True, slots=True)
class PaperGate:
    """A gate that lets a solver try each task once, with the reference solution as a hint.

    The task passes with a score above 0, or if a judge approves an episode that ended by itself.
    """

    benchmark: Benchmark
    solver: Solver
    advisor: Advisor
    name: str = "paper"

    def check(self, candidate: Candidate) -> Candidate:
        """Let a solver try the task, with the reference solution as a hint; see :class:`Gate`."""
        tried = try_task(self.solver, candidate.the_task, 1, tip=True)
        if not tried.ended:
            raise Rejected(f"it could not be tried: {tried.problem}", env_steps=tried.env_steps)
        (rollout,) = tried.ended
        problem, remark = self._judge(candidate, rollout)
        if problem:
            raise Rejected(problem, env_steps=tried.env_steps)
        return replace(candidate, said=remark, env_steps=candidate.env_steps + tried.env_steps)

    def _judge(self, candidate: Candidate, rollout: Trajectory) -> tuple[str, str]:
        """Return the reason to reject a rollout ("" to accept it), and the remark if accepted."""
        if rollout.score > 0:
            return "", f"scores {rollout.score:.2f}"
        if rollout.end_reason not in OWN_ENDS:
            return f"its solver did not finish: {rollout.end_reason}", ""
        answer = ask_judge(
            self.advisor,
            candidate,
            self.benchmark,
            exchanges_of(rollout),
            opening=opening_of(rollout),
            reference=candidate.the_task.solution,
        )
        if answer.value is None:
            return f"scores 0, and the judge gave no answer: {answer.problem}", ""
        if not answer.value.success:
            return f"scores 0, and the judge rejects it: {answer.value.reason}", ""
        return "", f"the judge accepts it: {answer.value.reason}"


NO_REFERENCE = "has no reference solution; its benchmark has accepted it"
"""Remark of the gates that check a reference, for a task without a reference."""
BLANK = frozenset({"", "-", "n/a", "na", "nan", "nil", "none", "null", "undefined", "unknown"})
"""Answers without content."""
_SHOWN = 100


@dataclass(frozen=True, slots=True)
class SubstanceGate:
    """A gate that rejects trivial tasks, and instructions that reveal or do not fit the solution.

    It rejects a task if its reference contains unnecessary steps, if its reference neither changes
    nor reads the engine's state, if its instruction contains the answer or the whole reference, if
    its answer has no content, or if its instruction is unrelated to what is verified.
    """

    benchmark: Benchmark
    name: str = "substance"

    def check(self, candidate: Candidate) -> Candidate:
        """Check the instruction, the answer and the effects; see :class:`Gate`."""
        task = candidate.the_task
        evidence = self.benchmark.evidence(task)
        problem = _describe_giveaway(evidence, task.solution) or _describe_omission(evidence.clues)
        if problem:
            raise Rejected(problem)
        if not task.solution:
            return replace(candidate, said=NO_REFERENCE)
        played, steps = candidate.replay, 0
        if not candidate.minimal or played is None:
            short = minimise_solution(self.benchmark, candidate.the_draft, task)
            played, steps = short.replay, short.env_steps
            if short.dropped:
                reason = f"in its reference, the step {_quote(short.dropped[0])} is not needed"
                raise Rejected(reason, env_steps=steps)
        if not {Effect.READ, Effect.CHANGED} & {*played.effects}:
            reason = "its reference changes nothing in the engine and reads nothing from it"
            raise Rejected(reason, env_steps=steps)
        return replace(candidate, env_steps=candidate.env_steps + steps)


def _describe_giveaway(evidence: Evidence, solution: Sequence[str]) -> str:
    """Describe the problem if an answer is empty or the instruction gives away the solution."""
    for answer in evidence.answers:
        if answer.strip().casefold() in BLANK:
            return f"its answer has no content: {answer!r}"
        if contains_phrase(evidence.said, answer):
            return f"its instruction contains the answer: {_quote(answer)}"
    actions = [action for action in solution if len(words(action)) > 1]
    if (
        actions
        and not evidence.extractive
        and all(contains_phrase(evidence.said, action) for action in actions)
    ):
        return f"its instruction contains the whole solution: {_quote(actions[0])}"
    return ""


def _describe_omission(clues: Sequence[Clue]) -> str:
    """Describe the problem if the instruction omits part of the solution."""
    for clue in clues:
        if not any(mentions(clue.said, name) for name in clue.names):
            return f"its instruction is unrelated to its solution: it does not mention {clue.about}"
    return ""


def _quote(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


logger = logging.getLogger(__name__)

MIN_STEPS = 3
TRACE_CAP = 20_000
SAID_CAP = 2_000
_SETTINGS = GatesConfig()


@dataclass(frozen=True, slots=True)
class ParseGate:
    """A gate that parses the input: a model's proposal, a draft, or a draft's JSON text."""

    name: str = "parse"

    def check(self, candidate: Candidate) -> Candidate:
        """Parse the input into a draft; see :class:`Gate`."""
        proposal = candidate.proposal
        if isinstance(proposal, Proposal):
            if problem := describe_size_problem(proposal):
                raise Rejected(problem)
            return candidate
        try:
            draft = proposal if isinstance(proposal, Draft) else Draft.model_validate_json(proposal)
            _ = draft.id  # fails if a world contains text that UTF-8 cannot encode
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(map(str, first["loc"]))
            reason = f"{field}: {first['msg']}" if field else first["msg"]
            raise Rejected(f"the text is not valid draft JSON: {reason}") from error
        except UnicodeEncodeError as error:
            raise Rejected("the draft contains text that is not valid Unicode") from error
        return replace(candidate, draft=draft)


@dataclass(frozen=True, slots=True)
class SchemaGate:
    """A gate that checks a draft's benchmark, world, instruction and number of actions."""

    benchmark: Benchmark
    min_steps: int = MIN_STEPS
    name: str = "schema"

    def check(self, candidate: Candidate) -> Candidate:
        """Check the fields of the draft; see :class:`Gate`."""
        draft = candidate.the_draft
        if draft.benchmark != self.benchmark.name:
            raise Rejected(f"the draft is for {draft.benchmark!r}, not for {self.benchmark.name!r}")
        world = draft.world
        if isinstance(world, UnknownWorld) or type(world) is not _expected_world_type(draft):
            raise Rejected(f"the draft's world does not belong to {self.benchmark.name}")
        if not draft.instruction.strip():
            raise Rejected("the instruction is empty")
        if len(draft.solution) < self.min_steps:
            raise Rejected(
                f"the solution has {len(draft.solution)} actions; the minimum is {self.min_steps}"
            )
        return candidate


@dataclass(frozen=True, slots=True)
class SplitLeakGate:
    """A gate that rejects drafts and built tasks from the validation or test split."""

    benchmark: Benchmark
    name: str = "split_leak"

    def check(self, candidate: Candidate) -> Candidate:
        """Check the splits of the draft and the built task; see :class:`Gate`."""
        self._require_train(candidate.the_draft.scenario)
        task = candidate.task
        if task is not None:
            self._require_train(task.scenario)
            if task.split is not Split.TRAIN:
                raise Rejected(f"the resulting task is a {task.split} task, not a training task")
            if self.benchmark.side_of(task) is not Split.TRAIN:
                raise Rejected("the resulting task is a copy of a validation or test task")
        return candidate

    def _require_train(self, scenario: str) -> None:
        split = self.benchmark.split_of(scenario)
        if split is not Split.TRAIN:
            raise Rejected(f"scenario {scenario!r} is a {split} scenario, not a training scenario")


@dataclass(frozen=True, slots=True)
class NearDuplicateGate:
    """A gate that rejects copies of known instructions; see :meth:`KnownTasks.find_original`."""

    known: KnownTasks
    name: str = "near_duplicate"

    def check(self, candidate: Candidate) -> Candidate:
        """Compare the instruction with the known instructions; see :class:`Gate`."""
        original = self.known.find_original(candidate.the_draft)
        if original is not None:
            raise Rejected(f"the instruction is the same as that of {original.name}")
        return candidate


@dataclass(frozen=True, slots=True)
class BuildGate:
    """A gate that runs the actions in a new engine and builds a verifiable task from the result."""

    benchmark: Benchmark
    name: str = "build"

    def check(self, candidate: Candidate) -> Candidate:
        """Build the task; see :class:`Gate`."""
        draft = candidate.the_draft
        steps = len(draft.solution)
        try:
            task = self.benchmark.build(draft)
        except BuildError as error:
            raise Rejected(str(error), env_steps=steps) from error
        if task.origin == OPEN:
            raise Rejected("the resulting task has no goal", env_steps=steps)
        return replace(candidate, task=task, env_steps=candidate.env_steps + steps)


@dataclass(frozen=True, slots=True)
class LengthGate:
    """A gate that rejects tasks whose reference solution is too short once it is minimised.

    The shortened reference becomes the task's reference.
    """

    benchmark: Benchmark
    min_steps: int = MIN_STEPS
    name: str = "length"

    def check(self, candidate: Candidate) -> Candidate:
        """Minimise the reference solution and check its length; see :class:`Gate`."""
        short = minimise_solution(self.benchmark, candidate.the_draft, candidate.the_task)
        if len(short.steps) < self.min_steps:
            dropped = f" ({short.dropped[0]!r} is not needed)" if short.dropped else ""
            raise Rejected(
                f"solving the task takes too few actions: {len(short.steps)}{dropped}; the minimum "
                f"is {self.min_steps}",
                env_steps=short.env_steps,
            )
        return replace(
            candidate,
            task=short.task,
            minimal=True,
            replay=short.replay if short.steps == short.task.solution else None,
            env_steps=candidate.env_steps + short.env_steps,
        )


@dataclass(frozen=True, slots=True)
class DuplicateGate:
    """A gate that rejects built tasks that are already known."""

    known: KnownTasks
    name: str = "duplicate"

    def check(self, candidate: Candidate) -> Candidate:
        """Check that the task is new; see :class:`Gate`."""
        if self.known.has(candidate.the_task.id):
            raise Rejected(f"the task already exists as {candidate.the_task.name}")
        return candidate


@dataclass(frozen=True, slots=True)
class ReplayGate:
    """A gate that replays the solution twice, and rejects tasks whose replays fail or differ."""

    benchmark: Benchmark
    name: str = "replay"

    def check(self, candidate: Candidate) -> Candidate:
        """Replay the reference solution twice; see :class:`Gate`."""
        task = candidate.the_task
        steps = 0
        first = candidate.replay  # replayed during minimisation
        if first is None:
            first = self.benchmark.replay(task, task.solution)
            steps += len(first.errors)
        second = self.benchmark.replay(task, task.solution)
        steps += len(second.errors)
        for number, error in enumerate(first.errors, start=1):
            if error:
                action = task.solution[number - 1]
                raise Rejected(f"action {number}, {action!r}, failed: {error}", env_steps=steps)
        if first != second:
            raise Rejected("two replays of the solution gave different results", env_steps=steps)
        return replace(candidate, replay=first, env_steps=candidate.env_steps + steps)


@dataclass(frozen=True, slots=True)
class PrefixGate:
    """A gate that requires the reference solution to score 1 only after its last action."""

    name: str = "prefix"

    def check(self, candidate: Candidate) -> Candidate:
        """Check the score after each action of the reference solution; see :class:`Gate`."""
        if not candidate.the_task.solution:
            return replace(candidate, said=NO_REFERENCE)
        _, *earlier, last = (0.0, *candidate.the_replay.scores[1:])
        if last < 1.0:
            raise Rejected(f"the reference solution scores {last:.2f} at the end, not 1")
        for number, score in enumerate(earlier, start=1):
            if score >= 1.0:
                raise Rejected(
                    f"the task is already solved after action {number} of {len(earlier) + 1}"
                )
        return candidate


@dataclass(frozen=True, slots=True)
class EmptyAgentGate:
    """A gate that rejects tasks that are solved without any action."""

    benchmark: Benchmark
    name: str = "empty_agent"

    def check(self, candidate: Candidate) -> Candidate:
        """Check that the task is not already solved at its start; see :class:`Gate`."""
        begun = candidate.the_replay.scores[0]
        idle = self.benchmark.replay(candidate.the_task, ()).scores[-1]
        if max(begun, idle) >= 1.0:
            raise Rejected("the task is solved without any action")
        return candidate


def default_gates(
    benchmark: Benchmark,
    known: KnownTasks | Iterable[Task] = (),
    *,
    min_steps: int | None = None,
    settings: GatesConfig = _SETTINGS,
    solver: Solver | None = None,
    advisor: Advisor | None = None,
) -> tuple[Gate, ...]:
    """Return all gates in the order in which drafts pass through them, cheapest first.

    Args:
        benchmark: the benchmark that builds and replays tasks.
        known: known tasks, such as the pool, for the duplicate checks. Pass a :class:`KnownTasks`
            if you want to add tasks as they are accepted.
        min_steps: minimum number of actions in a reference; None for the benchmark's own
            ``min_steps``, or 3.
        settings: the gates to turn off, the optional gates to add, and the thresholds.
        solver: solver that tries new tasks; required if ``settings`` enables such a gate.
        advisor: model that judges new tasks; required if ``settings`` enables such a gate.

    Raises:
        ConfigError: if ``settings.off`` names a required gate, or a required solver or advisor is
            missing.
    """
    known = known if isinstance(known, KnownTasks) else KnownTasks(known)
    if min_steps is None:
        min_steps = int(getattr(benchmark, "min_steps", MIN_STEPS))
    if problem := describe_off_problem(settings.off):
        raise ConfigError(problem)
    split_leak = SplitLeakGate(benchmark)
    gates: tuple[Gate, ...] = (
        ParseGate(),
        DraftGate(benchmark),
        SchemaGate(benchmark, min_steps),
        split_leak,
        NearDuplicateGate(known),
        ConfidenceGate(settings.confidence),
        LexicalGate(known, settings.lexical or 1.0),
        BuildGate(benchmark),
        split_leak,
    )
    if settings.accept == "paper":
        if solver is None or advisor is None:
            raise ConfigError(
                "gates.accept = 'paper' needs a solver to try new tasks and a model to "
                "judge them: pass a solver and an advisor."
            )
        gates += DuplicateGate(known), PaperGate(benchmark, solver, advisor)
    else:
        gates += (
            LengthGate(benchmark, min_steps),
            DuplicateGate(known),
            ReplayGate(benchmark),
            PrefixGate(),
            EmptyAgentGate(benchmark),
            SubstanceGate(benchmark),
            *_model_gates(benchmark, settings, solver, advisor),
        )
    gates += (HoldGate(benchmark, known, settings.hold),)
    return tuple(gate for gate in gates if settings.has_gate(gate.name))


def _model_gates(
    benchmark: Benchmark, settings: GatesConfig, solver: Solver | None, advisor: Advisor | None
) -> Iterator[Gate]:
    """Yield the enabled gates that query a model."""
    if settings.has_gate("solve"):
        if solver is None:
            raise ConfigError("gates.solve needs a solver to try new tasks: pass a solver.")
        yield SolveGate(solver, settings.solve)
    if settings.has_gate("judge"):
        if advisor is None:
            raise ConfigError("gates.judge needs a model to judge new tasks: pass an advisor.")
        yield JudgeGate(benchmark, advisor)


class GateResult(NamedTuple):
    """The result of passing one proposal through the gates.

    Attributes:
        verdict: the verdict; if the proposal was rejected, it includes the gate and the reason.
        task: the built task if it was accepted; otherwise None.
        env_steps: env steps used to build, replay and try the task.
        held: the built task if it passed all checks and waits for human review; otherwise None.
    """

    verdict: Verdict
    task: Task | None
    env_steps: int
    held: Task | None = None


def run_gates(
    gates: Sequence[Gate], proposal: Proposal | Draft | str, *, context: Context | None = None
) -> GateResult:
    """Pass a proposal through the gates until one rejects it.

    Args:
        gates: the gates, in order.
        proposal: a model's proposal, a draft, or the raw JSON text of a draft.
        context: the context that the explorer was given; required to draft a model's proposal.

    Raises:
        EnvBackendError: if an engine failed.
        ModelError: if a gate's model is unavailable. All other errors become verdicts.
    """
    draft = proposal if isinstance(proposal, Draft) else None
    candidate, checks = Candidate(proposal, draft, context=context), list[Check]()
    gate, reason, steps = "build", "", 0
    task: Task | None = None
    held_task: Task | None = None
    try:
        for current in gates:
            gate = current.name
            candidate = current.check(candidate)
            checks.append(Check(gate, clean_text(candidate.said, SAID_CAP)))
            candidate = replace(candidate, said="")
        task, gate = candidate.the_task, ""
    except Rejected as rejected:
        reason, steps = str(rejected), rejected.env_steps
        held_task = candidate.task if isinstance(rejected, HoldTask) else None
    except (EnvBackendError, ModelError, MemoryError):
        raise
    except CoevoError as error:
        reason = str(error)
    except Exception as error:
        # A draft that crashes a check is rejected; the traceback helps the author of the check.
        trace = clean_text(traceback.format_exc(), TRACE_CAP)  # the trace may quote the draft
        context_id = context.id if context else ""
        logger.error("gate=%s context=%s\n%s", gate, context_id, trace)
        reason = f"{gate} failed: {type(error).__name__}: {error}"
    verdict = candidate.verdict(checks=tuple(checks), gate=gate, reason=reason)
    return GateResult(verdict, task, candidate.env_steps + steps, held_task)


def _expected_world_type(draft: Draft) -> type[World]:
    return type(Draft.model_validate(draft.model_dump(mode="json")).world)

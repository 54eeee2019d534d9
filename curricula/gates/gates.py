"""Gates: what a proposed task has to pass before anyone practises it.

Each gate is one check with a name. A draft meets them in the order of :func:`default_gates` and
ends as a verdict: accepted, or rejected by one gate for a reason. None looks at the reward of the
task that the draft was explored from. Language models are asked by those gates alone that somebody
has turned on, after execution has proven the task; what they say rewards nothing.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pydantic import ValidationError

from coevo_gym.core.benchmark import Benchmark
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
from coevo_gym.curricula.gates.candidate import Candidate, Gate, Held, Rejected, oversized
from coevo_gym.curricula.gates.hold import HoldGate
from coevo_gym.curricula.gates.judge import JudgeGate
from coevo_gym.curricula.gates.minimise import minimised
from coevo_gym.curricula.gates.paper import PaperGate
from coevo_gym.curricula.gates.proposed import ConfidenceGate, DraftGate, LexicalGate
from coevo_gym.curricula.gates.settings import OPTIONAL as OPTIONAL
from coevo_gym.curricula.gates.settings import GatesConfig, not_optional
from coevo_gym.curricula.gates.solve import SolveGate, Solver
from coevo_gym.curricula.gates.substance import SubstanceGate
from coevo_gym.curricula.pool.known import KnownTasks

logger = logging.getLogger(__name__)

MIN_STEPS = 3
TRACE_CAP = 20_000
SAID_CAP = 2_000
_SETTINGS = GatesConfig()


@dataclass(frozen=True, slots=True)
class ParseGate:
    """What came in is what a model may propose, or a draft, or JSON of one that UTF-8 can hold."""

    name: str = "parse"

    def check(self, candidate: Candidate) -> Candidate:
        """See :class:`Gate`."""
        proposal = candidate.proposal
        if isinstance(proposal, Proposal):
            return _of_fair_size(candidate, proposal)
        try:
            draft = proposal if isinstance(proposal, Draft) else Draft.model_validate_json(proposal)
            _ = draft.id  # fails where a world holds text that is not UTF-8
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(map(str, first["loc"]))
            reason = f"{field}: {first['msg']}" if field else first["msg"]
            raise Rejected(f"not the JSON of a draft: {reason}") from error
        except UnicodeEncodeError as error:
            raise Rejected("the draft holds text that is not valid Unicode") from error
        return replace(candidate, draft=draft)


@dataclass(frozen=True, slots=True)
class SchemaGate:
    """The draft is of this benchmark, says something, and takes some doing."""

    benchmark: Benchmark
    min_steps: int = MIN_STEPS
    name: str = "schema"

    def check(self, candidate: Candidate) -> Candidate:
        """See :class:`Gate`."""
        draft = candidate.the_draft
        if draft.benchmark != self.benchmark.name:
            raise Rejected(f"is a draft for {draft.benchmark!r}, not for {self.benchmark.name!r}")
        if isinstance(draft.world, UnknownWorld) or type(draft.world) is not _world_type(draft):
            raise Rejected(f"its world is not a world of {self.benchmark.name}")
        if not draft.instruction.strip():
            raise Rejected("the instruction is empty")
        if len(draft.solution) < self.min_steps:
            raise Rejected(f"has {len(draft.solution)} actions, fewer than {self.min_steps}")
        return candidate


@dataclass(frozen=True, slots=True)
class SplitLeakGate:
    """Neither the draft nor the task built from it touches validation or test."""

    benchmark: Benchmark
    name: str = "split_leak"

    def check(self, candidate: Candidate) -> Candidate:
        """See :class:`Gate`."""
        self._require_train(candidate.the_draft.scenario)
        task = candidate.task
        if task is not None:
            self._require_train(task.scenario)
            if task.split is not Split.TRAIN:
                raise Rejected(f"the built task is a {task.split} task")
            if self.benchmark.side_of(task) is not Split.TRAIN:
                raise Rejected("the built task is a copy of a validation or test task")
        return candidate

    def _require_train(self, scenario: str) -> None:
        split = self.benchmark.split_of(scenario)
        if split is not Split.TRAIN:
            raise Rejected(f"scenario {scenario!r} is a {split} scenario")


@dataclass(frozen=True, slots=True)
class NearDuplicateGate:
    """Its instruction does not repeat a known one; see :meth:`KnownTasks.copied_by`."""

    known: KnownTasks
    name: str = "near_duplicate"

    def check(self, candidate: Candidate) -> Candidate:
        """See :class:`Gate`."""
        original = self.known.copied_by(candidate.the_draft)
        if original is not None:
            raise Rejected(f"its instruction repeats that of {original.name}")
        return candidate


@dataclass(frozen=True, slots=True)
class BuildGate:
    """Its actions run in a fresh engine, and what they did can be verified."""

    benchmark: Benchmark
    name: str = "build"

    def check(self, candidate: Candidate) -> Candidate:
        """See :class:`Gate`."""
        draft = candidate.the_draft
        steps = len(draft.solution)
        try:
            task = self.benchmark.build(draft)
        except BuildError as error:
            raise Rejected(str(error), env_steps=steps) from error
        if task.origin == OPEN:
            raise Rejected("nothing is asked for in the built task", env_steps=steps)
        return replace(candidate, task=task, env_steps=candidate.env_steps + steps)


@dataclass(frozen=True, slots=True)
class LengthGate:
    """Its reference takes some doing, once the steps that it does not need are gone.

    What is left of it is the reference that the task keeps.
    """

    benchmark: Benchmark
    min_steps: int = MIN_STEPS
    name: str = "length"

    def check(self, candidate: Candidate) -> Candidate:
        """See :class:`Gate`."""
        short = minimised(self.benchmark, candidate.the_draft, candidate.the_task)
        if len(short.steps) < self.min_steps:
            dropped = f"; {short.dropped[0]!r} is not needed" if short.dropped else ""
            raise Rejected(
                f"needs {len(short.steps)} actions, fewer than {self.min_steps}{dropped}",
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
    """The built task is not known yet."""

    known: KnownTasks
    name: str = "duplicate"

    def check(self, candidate: Candidate) -> Candidate:
        """See :class:`Gate`."""
        if self.known.has(candidate.the_task.id):
            raise Rejected(f"is the known task {candidate.the_task.name}")
        return candidate


@dataclass(frozen=True, slots=True)
class ReplayGate:
    """Its reference runs twice without an error, and ends in the same state."""

    benchmark: Benchmark
    name: str = "replay"

    def check(self, candidate: Candidate) -> Candidate:
        """See :class:`Gate`."""
        task = candidate.the_task
        steps = 0
        first = candidate.replay  # of the search for what is needed of it
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
            raise Rejected("two replays of the reference went differently", env_steps=steps)
        return replace(candidate, replay=first, env_steps=candidate.env_steps + steps)


@dataclass(frozen=True, slots=True)
class PrefixGate:
    """Its reference scores 1 with its last action, and not before."""

    name: str = "prefix"

    def check(self, candidate: Candidate) -> Candidate:
        """See :class:`Gate`."""
        _, *earlier, last = (0.0, *candidate.the_replay.scores[1:])
        if last < 1.0:
            raise Rejected(f"its reference scores {last:.2f} at the end, not 1")
        for number, score in enumerate(earlier, start=1):
            if score >= 1.0:
                raise Rejected(f"is solved after {number} of {len(earlier) + 1} actions")
        return candidate


@dataclass(frozen=True, slots=True)
class EmptyAgentGate:
    """Doing nothing does not solve it."""

    benchmark: Benchmark
    name: str = "empty_agent"

    def check(self, candidate: Candidate) -> Candidate:
        """See :class:`Gate`."""
        begun = candidate.the_replay.scores[0]
        idle = self.benchmark.replay(candidate.the_task, ()).scores[-1]
        if max(begun, idle) >= 1.0:
            raise Rejected("is solved without any action")
        return candidate


def default_gates(
    benchmark: Benchmark,
    known: KnownTasks | Iterable[Task] = (),
    *,
    min_steps: int = MIN_STEPS,
    off: Collection[str] = (),
    settings: GatesConfig = _SETTINGS,
    solver: Solver | None = None,
    advisor: Advisor | None = None,
) -> tuple[Gate, ...]:
    """All gates, cheapest first, in the order in which a draft meets them.

    Args:
        benchmark: builds and replays.
        known: what counts as a duplicate, such as the pool. Pass a :class:`KnownTasks` to let it
            grow with what is accepted.
        min_steps: fewest actions that a reference needs.
        off: names of gates to leave out, of :data:`OPTIONAL`, beside those of the settings.
        settings: which gates there are beside the usual ones, and how strict they are.
        solver: who tries tasks; needed if the settings say that somebody does.
        advisor: who judges; needed if the settings say that somebody does.

    Raises:
        ConfigError: if a gate is to be left out that cannot be, or a model is needed and none is
            given.
    """
    known = known if isinstance(known, KnownTasks) else KnownTasks(known)
    off = {*off, *settings.off}
    if problem := not_optional(off):
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
                "gates.accept = 'paper' needs somebody who tries new tasks, and a model to ask "
                "about them: give a solver and an advisor."
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
            *_asking(benchmark, settings, off, solver, advisor),
        )
    gates += (HoldGate(benchmark, known, settings.hold),)
    return tuple(gate for gate in gates if settings.has(gate.name) and gate.name not in off)


def _asking(
    benchmark: Benchmark,
    settings: GatesConfig,
    off: Collection[str],
    solver: Solver | None,
    advisor: Advisor | None,
) -> Iterator[Gate]:
    """The gates that ask a model about a task that is proven."""
    if settings.has("solve") and "solve" not in off:
        if solver is None:
            raise ConfigError("gates.solve needs somebody who tries new tasks: give a solver.")
        yield SolveGate(solver, settings.solve)
    if settings.has("judge") and "judge" not in off:
        if advisor is None:
            raise ConfigError("gates.judge needs a model to ask: give an advisor.")
        yield JudgeGate(benchmark, advisor)


class GateResult(NamedTuple):
    """The end of one proposal.

    Attributes:
        verdict: accepted, or rejected where and why.
        task: the built task, if accepted.
        env_steps: env steps that building, replaying and trying it took.
        held: the built task, if it passed everything and waits for a person to release it.
    """

    verdict: Verdict
    task: Task | None
    env_steps: int
    held: Task | None = None


def run_gates(
    gates: Sequence[Gate], proposal: Proposal | Draft | str, *, context: Context | None = None
) -> GateResult:
    """Take a proposal through gates until one rejects it.

    Args:
        gates: in order.
        proposal: what a model proposes, a draft, or the raw JSON text of one.
        context: what its explorer was told; what a model proposes cannot be drafted without one.

    Raises:
        EnvBackendError: if an engine failed.
        ModelError: if a model that a gate asks cannot be asked at all. Anything else that goes
            wrong is a verdict.
    """
    draft = proposal if isinstance(proposal, Draft) else None
    candidate, checks = Candidate(proposal, draft, context=context), list[Check]()
    gate, reason, steps = "build", "", 0
    task: Task | None = None
    held: Task | None = None
    try:
        for current in gates:
            gate = current.name
            candidate = current.check(candidate)
            checks.append(Check(gate, clean_text(candidate.said, SAID_CAP)))
            candidate = replace(candidate, said="")
        task, gate = candidate.the_task, ""
    except Rejected as rejected:
        reason, steps = str(rejected), rejected.env_steps
        held = candidate.task if isinstance(rejected, Held) else None
    except (EnvBackendError, ModelError, MemoryError):
        raise
    except CoevoError as error:
        reason = str(error)
    except Exception as error:
        # A draft that breaks a check is a bad draft; the traceback is for whoever wrote the check.
        trace = clean_text(traceback.format_exc(), TRACE_CAP)  # may quote what broke the check
        context_id = context.id if context else ""
        logger.error("gate=%s context=%s\n%s", gate, context_id, trace)
        reason = f"{gate} failed: {type(error).__name__}: {error}"
    verdict = candidate.verdict(checks=tuple(checks), gate=gate, reason=reason)
    return GateResult(verdict, task, candidate.env_steps + steps, held)


def _of_fair_size(candidate: Candidate, proposal: Proposal) -> Candidate:
    if problem := oversized(proposal):
        raise Rejected(problem)
    return candidate


def _world_type(draft: Draft) -> type[World]:
    """The world model of the draft's benchmark: what its JSON is read back as."""
    return type(Draft.model_validate(draft.model_dump(mode="json")).world)

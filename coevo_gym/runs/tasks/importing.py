"""Functions for importing tasks from a file. Each task has to pass the gates.

Each line of the file is a task, a draft, or a proposal. The ``source`` of a proposal is the name of
the training task to start from. The import does not trust the claims in a line: it runs the
actions, and derives the verifier of the new task from their effects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from coevo_gym.core.benchmark import Benchmark, find_any_task
from coevo_gym.core.errors import (
    BenchmarkNotInstalled,
    ConfigError,
    EnvBackendError,
    SplitLeakError,
    TaskError,
)
from coevo_gym.core.evolution import Context, Draft, Proposal, Verdict
from coevo_gym.core.task import Task
from coevo_gym.core.task_file import decode_line, task_lines
from coevo_gym.curricula.explore.evolver import MAX_ATTEMPTS
from coevo_gym.curricula.gates.candidate import Gate
from coevo_gym.curricula.gates.gates import GateResult, default_gates, run_gates
from coevo_gym.curricula.pool.known import KnownTasks
from coevo_gym.curricula.pool.task_pool import require_train_split, require_trainable
from coevo_gym.envs.held_out import benchmark_of
from coevo_gym.runs.manifest import read_manifest
from coevo_gym.runs.tasks.review import timestamp
from coevo_gym.store.database import RunStore
from coevo_gym.store.folder import RunFolder
from coevo_gym.store.reader import RunReader
from coevo_gym.store.rows import Decision

IMPORTED = "imported"
"""The context kind of imported tasks, which do not come from a signal."""


@dataclass(frozen=True)
class ImportedLine:
    """The result of importing one line of a file.

    Attributes:
        line: number of the line in the file, from 1.
        problem: reason why the line did not reach the gates; "" if it did.
        verdict: verdict of the gates; None if the line did not reach them.
        task: the new task; None if it was not accepted.
    """

    line: int
    problem: str = ""
    verdict: Verdict | None = None
    task: Task | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        verdict = self.verdict
        return {
            "line": self.line,
            "accepted": self.task is not None,
            "gate": verdict.gate if verdict else "",
            "reason": verdict.reason if verdict else self.problem,
            "name": self.task.name if self.task else "",
            "id": self.task.id if self.task else "",
            "checks": [check.gate for check in verdict.checks] if verdict else [],
        }


@dataclass(frozen=True)
class _Candidate:
    """The task parsed from one line of an import file."""

    content: Draft | Proposal
    benchmark: str
    context: Context | None = None
    named: Task | None = None


class Importer:
    """An importer that validates each line of a file separately. Bad lines do not affect others.

    Args:
        run: the run whose pool the tasks are for: they must be new tasks of its benchmark. None to
            write a file of tasks. Duplicates within a file are always rejected.

    Raises:
        StoreError: if the run cannot be read.
    """

    def __init__(self, run: RunFolder | None = None) -> None:
        self._reader = RunReader(run.database) if run else None
        settings = read_manifest(run)[1].benchmark if run else None
        self._benchmark = settings.name if settings else None
        self._hold_out = settings.hold_out if settings else 0.0
        self._known = KnownTasks(_known_tasks(self._reader) if self._reader else ())
        self._gates: dict[str, tuple[Gate, ...]] = {}
        self._sources: dict[str, Task] = {}

    def judge(self, path: Path) -> Iterator[ImportedLine]:
        """Yield the result of judging each non-empty line, in order.

        Raises:
            TaskError: if the file cannot be read.
            BenchmarkNotInstalled: if the benchmark of a line is not installed.
        """
        for number, line in task_lines(path):
            yield self._judge_line(number, line)

    def _judge_line(self, number: int, line: bytes) -> ImportedLine:
        try:
            candidate = self._parse_line(line)
            result = self._run_gates(candidate)
        except BenchmarkNotInstalled:
            raise
        except (TaskError, SplitLeakError) as error:
            return ImportedLine(number, problem=str(error))
        except EnvBackendError as error:
            return ImportedLine(number, problem=f"not judged because its engine failed: {error}")
        if result.task is None:
            return ImportedLine(number, verdict=result.verdict)
        task = _add_provenance(result, candidate)
        self._known.add(task)
        return ImportedLine(number, verdict=result.verdict, task=task)

    def _parse_line(self, line: bytes) -> _Candidate:
        """Parse a line into a candidate task."""
        try:
            data = json.loads(decode_line(line))
            kind = _kind_of(data)
            candidate = _READERS[kind](self, data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(map(str, first["loc"]))
            reason = ": ".join(filter(None, (field, first["msg"])))
            raise TaskError(f"the line is not a valid {kind}: {reason}") from error
        except UnicodeError as error:
            raise TaskError("the line contains text that is not valid Unicode") from error
        except RecursionError as error:
            raise TaskError("the line is nested too deeply") from error
        except json.JSONDecodeError as error:
            raise TaskError(f"the line is not valid JSON: {error}") from error
        except TaskError:
            raise
        except ValueError as error:  # an integer with thousands of digits
            raise TaskError("the line contains a number that is too large") from error
        if self._benchmark not in (None, candidate.benchmark):
            raise TaskError(
                f"the benchmark is {candidate.benchmark}, but the run trains on {self._benchmark}"
            )
        return candidate

    def _read_task(self, data: Mapping[str, Any]) -> _Candidate:
        task = Task.model_validate(data)
        if task.origin == "open":
            raise TaskError(
                "the line describes an open task, but only tasks with a goal can be imported"
            )
        require_train_split(task, "import")  # a gate checks the content of the built task
        # A reference may do several things in one action; the gates count its effects.
        solution = self._benchmark_of(task.benchmark).demonstration(task)
        draft = Draft(
            benchmark=task.benchmark,
            scenario=task.scenario,
            instruction=task.instruction,
            world=task.world,
            solution=solution,
            subset=task.subset,
            parents=task.parents,
        )
        return _Candidate(draft, task.benchmark, named=task)

    def _read_draft(self, data: Mapping[str, Any]) -> _Candidate:
        draft = Draft.model_validate(data)
        return _Candidate(draft, draft.benchmark)

    def _read_proposal(self, data: Mapping[str, Any]) -> _Candidate:
        name = data.get("source")
        if not isinstance(name, str):
            raise TaskError(
                'the proposal has no "source" field with the name of the task to start from'
            )
        proposal = Proposal.model_validate({k: v for k, v in data.items() if k != "source"})
        source = self._source_task(name)
        return _Candidate(proposal, source.benchmark, Context(kind=IMPORTED, task=source))

    def _source_task(self, name: str) -> Task:
        """Return the training task that a proposal starts from."""
        if name not in self._sources:
            id = self._reader.task_id(name) if self._reader else None
            task = self._reader.task(id) if self._reader and id else None
            self._sources[name] = task or find_any_task(name)
        source = self._sources[name]
        return require_trainable(source, "draft from", self._benchmark_of(source.benchmark))

    def _benchmark_of(self, name: str) -> Benchmark:
        """Return a benchmark that holds out the same scenarios as the run did."""
        return benchmark_of(name, self._hold_out if name == self._benchmark else 0.0)

    def _run_gates(self, candidate: _Candidate) -> GateResult:
        """Run a candidate task through the gates."""
        name = candidate.benchmark
        if name not in self._gates:
            self._gates[name] = default_gates(self._benchmark_of(name), self._known)
        for _ in range(MAX_ATTEMPTS - 1):
            try:
                return run_gates(self._gates[name], candidate.content, context=candidate.context)
            except BenchmarkNotInstalled:
                raise
            except EnvBackendError:
                continue  # a fault of the engine says nothing about the candidate
        return run_gates(self._gates[name], candidate.content, context=candidate.context)


_READERS: Mapping[str, Callable[[Importer, Mapping[str, Any]], _Candidate]] = {
    "task": Importer._read_task,
    "draft": Importer._read_draft,
    "proposal": Importer._read_proposal,
}


def add_to_run(folder: RunFolder, judged: Iterable[ImportedLine]) -> int:
    """Add accepted tasks to a run. Each arm receives the tasks in its next round.

    Returns:
        The number of tasks.

    Raises:
        ConfigError: if a task was not accepted.
        StoreError: if the tasks cannot be written; in this case, none are added.
    """
    tasks, decisions, at = list[Task](), list[Decision](), timestamp()
    for one in judged:
        if one.task is None:
            raise ConfigError(f"Cannot add the task on line {one.line}: it was rejected.")
        tasks.append(one.task)
        decisions.append(Decision(one.task.id, "imported", "", at, one.verdict))
    if tasks:
        with closing(RunStore(folder.database)) as store:
            store.add_decisions(decisions, tasks)
    return len(tasks)


def _known_tasks(reader: RunReader) -> list[Task]:
    """Return a run's tasks, including those that are on hold or imported but not yet added."""
    known = [*reader.pool_tasks(), *(draft.task for draft in reader.tasks_on_hold())]
    imported = [id for id, decision in reader.decisions().items() if decision.what == "imported"]
    return [*known, *(task for id in imported if (task := reader.task(id)) is not None)]


def _kind_of(data: Any) -> str:
    if isinstance(data, Mapping):
        for field, kind in (("verifier", "task"), ("world", "draft"), ("turns", "proposal")):
            if field in data:
                return kind
    raise TaskError(
        "the line is not a task (with a world and a verifier), a draft (with a world) or a "
        "proposal (with turns, actions and a source)"
    )


def _add_provenance(result: GateResult, candidate: _Candidate) -> Task:
    """Return the validated task, with its provenance added."""
    task, original, context = result.task, candidate.named, candidate.context
    assert task is not None
    origin = dict(original.provenance) if original else {}
    grew_from = (context.task.id,) if context else ()
    update: dict[str, Any] = {
        "origin": "evolved",
        "parents": tuple(dict.fromkeys((*grew_from, *task.parents))),
        "provenance": {"kind": IMPORTED, "draft": result.verdict.draft_id, **origin},
    }
    if original is not None and original.origin == "evolved" and original.id == task.id:
        update["name"] = original.name
    return task.model_copy(update=update)

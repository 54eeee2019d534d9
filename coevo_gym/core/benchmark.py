"""What a benchmark supplies, and the register of benchmarks.

A benchmark is one folder under ``coevo_gym/envs`` with an object that satisfies
:class:`Benchmark`. It is registered by strings and imported on demand, so ``import coevo_gym``
stays light, and an env's spec can be rebuilt in another process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib import import_module
from typing import NamedTuple, Protocol, cast

import gymnasium
from numpy.random import Generator

from coevo_gym.core.errors import BenchmarkNotInstalled, CoevoError, SplitLeakError, TaskError
from coevo_gym.core.evolution import Context, Draft
from coevo_gym.core.task import Split, Task, register_models, strictest
from coevo_gym.core.trajectory import Step, Trajectory, View


class Effect(StrEnum):
    """What an action of a replay did."""

    NOTHING = "nothing"
    """It left the engine as it was, and got nothing new out of it."""
    READ = "read"
    """It got something out of the engine, and left it as it was."""
    CHANGED = "changed"
    """It changed the state of the engine."""
    CLOSED = "closed"
    """It did no more than to end a turn, or the episode."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What a list of actions does to a task in a fresh engine.

    Attributes:
        errors: error text of each action, "" where it worked; length n.
        scores: score in [0, 1] if the episode ended here; ``scores[0]`` before any action, so
            length n + 1.
        fingerprint: hash of how it ended, with all that the verdict depends on.
        effects: what each action did; length n.
        states: hash of the engine's state before any action and after each; length n + 1.
        shown: what the agent was told after each action; length n.
        listed: the actions that the engine listed as possible before any action and after each;
            length n + 1, or none where the engine lists none.
    """

    errors: tuple[str, ...]
    scores: tuple[float, ...]
    fingerprint: str
    effects: tuple[Effect, ...]
    states: tuple[str, ...]
    shown: tuple[str, ...]
    listed: tuple[frozenset[str], ...] = ()

    @property
    def solves(self) -> bool:
        """Whether all actions worked, and the last one solved the task, not an earlier one."""
        return not any(self.errors) and self.scores[-1] >= 1.0 > max(self.scores[:-1], default=1.0)


class Clue(NamedTuple):
    """One thing that a verdict depends on, and that the agent has to be told.

    Attributes:
        about: what it is, in words.
        names: phrases that tell of it; one of them will do.
        said: what the agent is told, where one of them should stand.
    """

    about: str
    names: tuple[str, ...]
    said: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a task's verdict depends on, as text.

    Attributes:
        said: all that the agent is told by whoever sets the task.
        clues: what the words have to lead to.
        answers: what solves the task if it is only said or copied, and so must not be in the words.
    """

    said: str
    clues: tuple[Clue, ...]
    answers: tuple[str, ...] = ()


class Benchmark(Protocol):
    """All that the curriculum, the agents and the trainers know of a benchmark."""

    name: str
    env_id: str

    @property
    def subsets(self) -> tuple[str, ...]:
        """Names of the parts that native tasks at hand may be asked for by."""
        ...

    def tasks(self, split: Split, subset: str | None = None) -> Sequence[Task]:
        """Native tasks of a split, always in the same order."""
        ...

    def split_of(self, scenario: str) -> Split:
        """The side of the border a scenario lies on, also one without native tasks."""
        ...

    def side_of(self, task: Task) -> Split:
        """The side of the border that a task lies on by what it is, whatever split it claims.

        Its scenario decides, and so does its content: a copy of a validation or test task under
        another scenario, or with another name, lies where that task lies. This is asked at each
        reset, so it has to be quick from the second time on.

        Raises:
            TaskError: if the task is malformed, or its scenario unknown.
        """
        ...

    def drafts(self, trace: Trajectory, context: Context, rng: Generator) -> Sequence[Draft]:
        """Abstract what an explorer did into drafts, without an LLM."""
        ...

    def build(self, draft: Draft) -> Task:
        """Run the draft's actions in a fresh env and derive the verifier from what happened.

        Raises:
            BuildError: with the reason, if they do not prove a task.
        """
        ...

    def replay(self, task: Task, actions: Sequence[str], *, to_error: bool = False) -> Replay:
        """Run actions in a fresh engine, with the score after each.

        Args:
            task: the task.
            actions: what to do; the replay is as long as what was done.
            to_error: stop at the first action that fails, which counts as done.
        """
        ...

    def evidence(self, task: Task) -> Evidence:
        """What the verdict on a task depends on, without running anything."""
        ...

    def choices(self, view: View) -> tuple[str, ...]:
        """Actions that a scorer may choose from; sees only what the policy sees."""
        ...

    def demonstration(self, task: Task) -> tuple[str, ...]:
        """The task's solution in steps that :meth:`choices` may offer, for imitation."""
        ...

    def symbol(self, step: Step) -> str:
        """The step's symbols in a behaviour pattern (for rare signals), separated by spaces.

        Most benchmarks give one; "" for a step that shows no behaviour, "!" for one that failed.
        """
        ...


@dataclass(frozen=True, slots=True)
class BenchmarkSpec:
    """How to find a benchmark; every field is a string, nothing is imported.

    Attributes:
        name: short name, such as ``"webshop"``.
        env_id: Gymnasium id, such as ``"CoEvolve-WebShop-v0"``.
        benchmark: ``"module:OBJECT"`` of the :class:`Benchmark`.
        env: ``"module:Class"`` of the env; its module also has ``make_vec(num_envs, **kwargs)``.
        world: ``"module:Class"`` of its world model.
        verifier: ``"module:Class"`` of its verifier model.
        title: one line for people.
        setup: module with ``install(source: Path | None) -> Path`` and
            ``installation() -> Installation``; perhaps ``download() -> Path``, too. "" if there is
            nothing to install.
        escapes: ``"module:function"`` that gives the benchmark's own
            :class:`~coevo_gym.escapes.Suite` of attempts to get out of its sandbox; "" for none.
    """

    name: str
    env_id: str
    benchmark: str
    env: str
    world: str
    verifier: str
    title: str
    setup: str = ""
    escapes: str = ""


_SPECS: dict[str, BenchmarkSpec] = {}


def register_benchmark(spec: BenchmarkSpec) -> None:
    """Make a benchmark known here and its env known to Gymnasium; doing so twice is fine."""
    _SPECS[spec.name] = spec
    register_models(spec.name, world=spec.world, verifier=spec.verifier)
    if spec.env_id not in gymnasium.registry:
        gymnasium.register(
            spec.env_id,
            entry_point=spec.env,
            vector_entry_point=spec.env.partition(":")[0] + ":make_vec",
        )


def benchmark_specs() -> tuple[BenchmarkSpec, ...]:
    """All registered benchmarks, in order of registration."""
    return tuple(_SPECS.values())


def get_benchmark(name: str) -> Benchmark:
    """Import and return a benchmark by name.

    Raises:
        TaskError: if no benchmark of that name is registered.
    """
    if name not in _SPECS:
        raise TaskError(f"Unknown benchmark {name!r}. Registered: {', '.join(sorted(_SPECS))}.")
    module, _, attribute = _SPECS[name].benchmark.partition(":")
    return cast(Benchmark, getattr(import_module(module), attribute))


def side_by_id(benchmark: Benchmark, task: Task) -> Split:
    """:meth:`Benchmark.side_of` for a benchmark whose tasks are copied as they are: by id."""
    held_out = _held_out(benchmark)  # type: ignore[arg-type]  # benchmarks hash by identity
    return strictest(benchmark.split_of(task.scenario), held_out.get(task.id, Split.TRAIN))


@lru_cache(maxsize=16)
def _held_out(benchmark: Benchmark) -> Mapping[str, Split]:
    """The split of each native validation and test task, by id."""
    found: dict[str, Split] = {}
    for subset in (None, *benchmark.subsets):
        for split in (Split.VAL, Split.TEST):
            try:
                found |= {task.id: split for task in benchmark.tasks(split, subset)}
            except TaskError:
                continue  # this subset has no task in this split
    return found


def check_claim(task: Task, side: Split, action: str) -> None:
    """Refuse a task that claims to be a training task and is none.

    Args:
        task: the task.
        side: where it lies, by :meth:`Benchmark.side_of`.
        action: what was about to be done with it, for the message ("explore from").

    Raises:
        SplitLeakError: if it is a copy of a validation or test task. Nothing turns this off.
    """
    if task.split is Split.TRAIN and side is not Split.TRAIN:
        raise SplitLeakError(
            f"Refusing to {action} {task.name}: it claims to be a training task, but by its "
            f"scenario or its content it is a {side} task. Evaluate on the task as it came, with "
            f"split={str(side)!r}; nobody may train on it."
        )


def find_task(benchmark: str, name_or_id: str) -> Task:
    """The native task with this name or id.

    Raises:
        TaskError: if there is none.
    """
    found = get_benchmark(benchmark)
    for subset in (None, *found.subsets):
        for split in Split:
            try:
                tasks = found.tasks(split, subset)
            except TaskError:
                continue  # this subset has no task in this split
            except BenchmarkNotInstalled:
                if subset is None:
                    raise
                continue  # this subset is not at hand
            for task in tasks:
                if name_or_id in (task.name, task.id):
                    return task
    raise TaskError(
        f"{benchmark} has no task {name_or_id!r}. `coevo tasks {benchmark}` lists their names."
    )


def find_any_task(name_or_id: str) -> Task:
    """The native task of any benchmark with this name or id.

    Raises:
        TaskError: if no benchmark that is installed has one.
        CoevoError: if its name says whose it is, and that benchmark is not installed.
    """
    owner = name_or_id.partition("/")[0]
    if owner in _SPECS:
        return find_task(owner, name_or_id)
    for name in _SPECS:
        try:
            return find_task(name, name_or_id)
        except CoevoError:
            continue  # it has no such task, or is not installed
    raise TaskError(
        f"No benchmark at hand has a task {name_or_id!r}. `coevo tasks BENCHMARK` lists their "
        "names; a task that evolved is found in its run, with --run."
    )

"""What a benchmark supplies, and the register of benchmarks.

A benchmark is one folder under ``coevo_gym/envs``, or a package of somebody else's, with an object
that satisfies :class:`Benchmark`. It is registered by strings and imported on demand, so ``import
coevo_gym`` stays light, and an env's spec can be rebuilt in another process.

Other people's are found by the entry-point group :data:`GROUP`: an entry point has the benchmark's
name, and names its :class:`BenchmarkSpec`, or a function that returns one or registers it. They are
loaded when somebody asks for that name, or for all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib import import_module
from typing import NamedTuple, Protocol, cast

import gymnasium
from numpy.random import Generator

from coevo_gym.core.errors import (
    BenchmarkNotInstalled,
    CoevoError,
    ConfigError,
    SplitLeakError,
    TaskError,
)
from coevo_gym.core.evolution import Context, Draft, Proposal
from coevo_gym.core.registry import BrokenPlugin, Plugins
from coevo_gym.core.task import Split, Task, find_models_by, register_models, strictest
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
        opening: what the agent was told before any action, beyond the request itself; or "".
    """

    errors: tuple[str, ...]
    scores: tuple[float, ...]
    fingerprint: str
    effects: tuple[Effect, ...]
    states: tuple[str, ...]
    shown: tuple[str, ...]
    listed: tuple[frozenset[str], ...] = ()
    opening: str = ""

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
            TaskError: if the task is malformed, its scenario is unknown, or its world belongs to
                another scenario.
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

    def tags(self, task: Task | Draft) -> tuple[str, ...]:
        """What it is about, as sorted ``kind:value``; see :mod:`coevo_gym.envs.tags`."""
        ...

    def demonstration(self, task: Task) -> tuple[str, ...]:
        """The task's solution in steps that :meth:`choices` may offer, for imitation."""
        ...

    def symbol(self, step: Step) -> str:
        """The step's symbols in a behaviour pattern (for rare signals), separated by spaces.

        Most benchmarks give one; "" for a step that shows no behaviour, "!" for one that failed.
        It must return a string for any step, also for one without calls or extras: workers of a
        served session report steps that no env of this process has seen.
        """
        ...


class Proposable(Benchmark, Protocol):
    """A benchmark that a model can explore, and propose tasks for; see :func:`proposable`.

    It may also have ``operations(task)``; see :func:`operations_of`.
    """

    def open(self, task: Task) -> Task:
        """The same world with nothing asked for: what unguided exploration is shown.

        Nothing that its agent is shown tells what the task was; see ``coevo_gym.envs.proposals``.
        """
        ...

    def draft(self, proposal: Proposal, context: Context) -> Draft:
        """The draft that a proposal stands for, in the world of its context's task.

        Whether it holds is for :meth:`build` to find out, so this is cheap. A proposal may say
        anything at all, and nothing in it is trusted.

        Raises:
            BuildError: with the reason, if it stands for none.
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
        prompt: ``"package:file.j2"`` of the words in which a language model is told about it; ""
            for none, or for one beside those of ``coevo_gym.prompts`` that has its name.
        terms: on what terms its tasks may be passed on, in a sentence or two; told by every export.
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
    prompt: str = ""
    terms: str = ""


GROUP = "coevo_gym.benchmarks"
"""The entry-point group of other packages' benchmarks."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_PLACE = re.compile(r"[\w.]+:\w+")
_SPECS: dict[str, BenchmarkSpec] = {}


def register_benchmark(spec: BenchmarkSpec) -> None:
    """Make a benchmark known here and its env known to Gymnasium; doing so twice is fine.

    Raises:
        ConfigError: if a field is not as it should be, or another benchmark has its name or env id.
    """
    _check(spec)
    _SPECS[spec.name] = spec
    register_models(spec.name, world=spec.world, verifier=spec.verifier)
    if spec.env_id not in gymnasium.registry:
        gymnasium.register(
            spec.env_id,
            entry_point=spec.env,
            vector_entry_point=spec.env.partition(":")[0] + ":make_vec",
        )


def _check(spec: BenchmarkSpec) -> None:
    if not _NAME.fullmatch(spec.name):
        raise ConfigError(
            f"A benchmark's name has small letters, digits and underscores, actual: {spec.name!r}"
        )
    for field in ("benchmark", "env", "world", "verifier"):
        if not _PLACE.fullmatch(getattr(spec, field)):
            raise ConfigError(
                f"The {field} of benchmark {spec.name!r} must be written as 'module:Name', actual: "
                f"{getattr(spec, field)!r}"
            )
    before = _SPECS.get(spec.name, spec)
    if before != spec:
        raise ConfigError(
            f"There is a benchmark {spec.name!r} already ({before.benchmark}), so that of "
            f"{spec.benchmark} needs another name."
        )
    known = gymnasium.registry.get(spec.env_id)
    if known is not None and known.entry_point != spec.env:
        raise ConfigError(
            f"There is an env {spec.env_id!r} already ({known.entry_point}), so that of benchmark "
            f"{spec.name!r} needs another id."
        )


def _take(name: str, found: object) -> None:
    """Register what an entry point names."""
    made = found() if callable(found) else found
    if isinstance(made, BenchmarkSpec):
        register_benchmark(made)
    elif made is not None:
        raise ConfigError(
            "it must name a BenchmarkSpec, or a function that returns one or registers it, actual: "
            f"{type(made).__name__}"
        )
    if name not in _SPECS:
        got = f"there is {made.name!r}" if isinstance(made, BenchmarkSpec) else "it registers none"
        raise ConfigError(f"an entry point has the name of its benchmark, but {got}")


_PLUGINS = Plugins(GROUP, _take)
find_models_by(_PLUGINS.load)


def benchmark_specs() -> tuple[BenchmarkSpec, ...]:
    """All benchmarks: those registered so far, in that order, and those of other packages.

    A plug-in that cannot be used is logged as a warning, once, and left out.
    """
    _PLUGINS.load_all()
    return tuple(_SPECS.values())


def broken_benchmarks() -> tuple[BrokenPlugin, ...]:
    """The benchmarks of other packages that cannot be used, with the reasons."""
    return _PLUGINS.load_all()


def find_spec(name: str) -> BenchmarkSpec | None:
    """The benchmark of this name, or None; of other packages' only that one is loaded."""
    if name not in _SPECS:
        _PLUGINS.load(name)
    return _SPECS.get(name)


def get_benchmark(name: str) -> Benchmark:
    """Import and return a benchmark by name.

    Raises:
        TaskError: if no benchmark of that name is registered.
    """
    spec = find_spec(name)
    if spec is None:
        if plugin := _PLUGINS.broken(name):
            raise TaskError(str(plugin))
        known = ", ".join(sorted(spec.name for spec in benchmark_specs()))
        raise TaskError(f"Unknown benchmark {name!r}. Registered: {known}.")
    module, _, attribute = spec.benchmark.partition(":")
    return cast(Benchmark, getattr(import_module(module), attribute))


def proposable(benchmark: Benchmark) -> Proposable:
    """The benchmark, if models can explore it; benchmarks from before there were any cannot.

    Raises:
        ConfigError: if it has no ``draft`` or no ``open``.
    """
    if missing := [name for name in ("draft", "open") if not hasattr(benchmark, name)]:
        raise ConfigError(
            f"A model cannot explore {benchmark.name}: its benchmark has no {missing[0]}(). Set "
            'explorer.kind = "scripted", or give it the two members of '
            "coevo_gym.core.benchmark.Proposable."
        )
    return cast(Proposable, benchmark)


def operations_of(benchmark: Benchmark, task: Task) -> tuple[str, ...]:
    """Return the names of what can be called in a task's world.

    Args:
        benchmark: asked for its ``operations(task)``, which a benchmark may have.
        task: only its world matters.

    Returns:
        The names, each once; () if the benchmark has no such member.
    """
    if not hasattr(benchmark, "operations"):
        return ()
    names: tuple[str, ...] = benchmark.operations(task)
    return names


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
        for split in (Split.TRAIN, Split.VAL, Split.TEST):
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
    if find_spec(owner) is not None:
        return find_task(owner, name_or_id)
    for spec in benchmark_specs():
        try:
            return find_task(spec.name, name_or_id)
        except CoevoError:
            continue  # it has no such task, or is not installed
    raise TaskError(
        f"No benchmark at hand has a task {name_or_id!r}. `coevo tasks BENCHMARK` lists their "
        "names; a task that evolved is found in its run, with --run."
    )

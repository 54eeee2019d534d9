"""The benchmark interface and the registry of benchmarks.

A benchmark is one folder under ``coevo_gym/envs``, or a third-party package, with an object that
satisfies :class:`Benchmark`. Benchmarks are registered as strings and imported on demand, so
``import coevo_gym`` stays light, and an env's spec can be rebuilt in another process.

Third-party benchmarks are discovered through the entry-point group :data:`GROUP`. The name of the
entry point is the benchmark's name; its object is the :class:`BenchmarkSpec`, or a function that
returns or registers a spec. An entry point is loaded when its benchmark or all benchmarks are
requested.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, cast

import gymnasium
from numpy.random import Generator

from coevo_gym.core.errors import (
    BenchmarkNotInstalled,
    CoevoError,
    ConfigError,
    SplitLeakError,
    TaskError,
)
from coevo_gym.core.evolution import Context, Draft, Proposal, Walk
from coevo_gym.core.panel import PanelTask, hash_content
from coevo_gym.core.registry import BrokenPlugin, Plugins, did_you_mean, load_object
from coevo_gym.core.task import (
    Split,
    Task,
    first_non_train,
    register_model_finder,
    register_models,
)
from coevo_gym.core.trajectory import Step, Trajectory, View


class Effect(StrEnum):
    """The effect of one action in a replay."""

    NOTHING = "nothing"
    """The action left the engine unchanged and returned no new information."""
    READ = "read"
    """The action returned information and left the engine unchanged."""
    CHANGED = "changed"
    """The action changed the state of the engine."""
    CLOSED = "closed"
    """The action only ended a turn or the episode."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of running a list of actions on a task in a fresh engine.

    Attributes:
        errors: error message for each action, "" if it worked; length n.
        scores: score in [0, 1] that the episode would get if it ended before any action
            (``scores[0]``), or after each action; length n + 1.
        fingerprint: hash of the final state, including everything the verdict depends on.
        effects: effect of each action; length n.
        states: hash of the engine's state before any action and after each action; length n + 1.
        shown: text shown to the agent after each action; length n.
        listed: possible actions, as listed by the engine, before any action and after each
            action; length n + 1, or empty if the engine does not list actions.
        opening: text shown to the agent before any action, beyond the request itself; or "".
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
        """Return True if all actions worked and only the last one solved the task."""
        return not any(self.errors) and self.scores[-1] >= 1.0 > max(self.scores[:-1], default=1.0)


class Clue(NamedTuple):
    """A fact that the agent must be told because it affects the verdict.

    Attributes:
        about: a description of the fact.
        names: phrases that express the fact; the text must contain at least one of them.
        said: the text that must contain one of the phrases.
    """

    about: str
    names: tuple[str, ...]
    said: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """The information that a task's verdict depends on, as text.

    Attributes:
        said: all the text that the agent gets from the task.
        clues: facts that the text must convey.
        answers: strings that the text must not contain, because repeating them would solve the
            task.
        extractive: True if the text may contain the reference solution, as it does when an answer
            is a part of a passage.
    """

    said: str
    clues: tuple[Clue, ...]
    answers: tuple[str, ...] = ()
    extractive: bool = False


class PanelEntry(NamedTuple):
    """A task's panel entry: keys that identify it in other code bases, and its content, unhashed.

    Attributes:
        place: values by which other code finds the task, as JSON.
        parts: the parts of the task's content, as text or JSON values.
    """

    place: Mapping[str, Any]
    parts: Mapping[str, Any]


class Benchmark(Protocol):
    """The benchmark interface for curricula, agents and trainers.

    It may also have a method ``scenarios_of(task)``, see :func:`scenarios_of`, the attributes
    ``grows``, ``starts_full`` and ``asks_once``, see :func:`grows`,
    :func:`starts_with_native_tasks` and :func:`asks_once`, a method ``propose(context, rng)``, see
    :func:`proposes_tasks`, methods ``tools()`` and ``action_of(call)``, see :func:`tools_of`,
    methods ``panel_entry(task)`` and ``data_versions(task)``, see :func:`panel_entry_of` and
    :func:`data_versions_of`, and two more attributes. ``min_steps`` is the minimum number of
    actions in the reference of a new task. For ``seen_subsets``, see :func:`seen_subsets`.
    """

    name: str
    env_id: str

    @property
    def subsets(self) -> tuple[str, ...]:
        """The names of the benchmark's subsets of native tasks."""
        ...

    def tasks(self, split: Split, subset: str | None = None) -> Sequence[Task]:
        """Return the benchmark's own tasks in a split, always in the same order."""
        ...

    def split_of(self, scenario: str) -> Split:
        """Return the split of a scenario, even if the benchmark has no tasks for the scenario."""
        ...

    def side_of(self, task: Task) -> Split:
        """Determine a task's split from its scenario and content, ignoring its ``split`` field.

        The scenario and the content both count: a copy of a validation or test task belongs to that
        task's split, even with another scenario or name. Every reset calls this method, so it must
        be fast from the second call on.

        Raises:
            TaskError: if the task is malformed, its scenario is unknown, or its world belongs to
                another scenario.
        """
        ...

    def drafts(self, trace: Trajectory, context: Context, rng: Generator) -> Sequence[Draft]:
        """Turn an explorer's trajectory into drafts, without an LLM."""
        ...

    def build(self, draft: Draft) -> Task:
        """Run the draft's actions in a fresh env and derive the verifier from the result.

        Raises:
            BuildError: if the actions do not prove a task; the message contains the reason.
        """
        ...

    def replay(self, task: Task, actions: Sequence[str], *, to_error: bool = False) -> Replay:
        """Run actions in a fresh engine and score the state after each action.

        With ``to_error``, the replay stops after the first action that fails. It has one entry per
        action that was run.
        """
        ...

    def evidence(self, task: Task) -> Evidence:
        """Return the information that a task's verdict depends on, without running the task."""
        ...

    def choices(self, view: View) -> tuple[str, ...]:
        """Return the actions that a scorer may choose from, using only the policy's view."""
        ...

    def tags(self, task: Task | Draft) -> tuple[str, ...]:
        """Return the task's topics as sorted ``kind:value`` tags (:mod:`coevo_gym.envs.tags`)."""
        ...

    def demonstration(self, task: Task) -> tuple[str, ...]:
        """Return a demonstration: actions that solve the task. :meth:`choices` must offer them."""
        ...

    def symbol(self, step: Step) -> str:
        """Encode a step as space-separated symbols. Behaviour patterns consist of symbols.

        The patterns are used to detect rare signals. Most benchmarks return one symbol, or "" for a
        step without behaviour and "!" for a failed step. The method must return a string for any
        step, even one without calls or extras, because the workers of a served session may report
        steps of an env that never ran in this process.
        """
        ...


class Proposable(Benchmark, Protocol):
    """A benchmark in which a model can explore and propose tasks; see :func:`require_proposable`.

    It may also have the methods ``operations(task)``, see :func:`operations_of`, and
    ``restrictions(task, walks, split_of)``, see :func:`restrictions_of`.
    """

    def open(self, task: Task) -> Task:
        """Return a copy of a task without its goal, for unguided exploration.

        The texts shown to its agent do not reveal the original task; see
        ``coevo_gym.envs.proposals``.
        """
        ...

    def draft(self, proposal: Proposal, context: Context) -> Draft:
        """Create the draft that a proposal describes, in the world of the explored task.

        The method is cheap, because :meth:`build` checks the draft later. A proposal is untrusted
        text and may contain anything.

        Raises:
            BuildError: if the proposal does not describe a draft; the message contains the reason.
        """
        ...


@dataclass(frozen=True, slots=True)
class BenchmarkSpec:
    """A benchmark's name, title and import paths. The parts are imported on demand.

    Attributes:
        name: short name, such as ``"webshop"``.
        env_id: Gymnasium id, such as ``"CoEvolve-WebShop-v0"``.
        benchmark: ``"module:OBJECT"`` of the :class:`Benchmark`.
        env: ``"module:Class"`` of the env; its module also has ``make_vec(num_envs, **kwargs)``.
        world: ``"module:Class"`` of its world model.
        verifier: ``"module:Class"`` of its verifier model.
        title: one-line description.
        setup: module with ``install(source: Path | None) -> Path`` and
            ``installation() -> Installation``, and optionally ``download() -> Path``; "" if there
            is nothing to install.
        prompt: ``"package:file.j2"`` of the prompt that describes the benchmark to a language
            model; "" for the prompt in ``coevo_gym.prompts`` with its name, if there is one.
        terms: terms for redistributing its tasks, in a sentence or two; every export prints them.
    """

    name: str
    env_id: str
    benchmark: str
    env: str
    world: str
    verifier: str
    title: str
    setup: str = ""
    prompt: str = ""
    terms: str = ""


GROUP = "coevo_gym.benchmarks"
"""The entry-point group of third-party benchmarks."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_PLACE = re.compile(r"[\w.]+:\w+")
_SPECS: dict[str, BenchmarkSpec] = {}


def register_benchmark(spec: BenchmarkSpec) -> None:
    """Register a benchmark, and register its env with Gymnasium. Repeated calls have no effect.

    Raises:
        ConfigError: if a field is invalid, or another benchmark has the same name or env id.
    """
    _check_spec(spec)
    _SPECS[spec.name] = spec
    register_models(spec.name, world=spec.world, verifier=spec.verifier)
    if spec.env_id not in gymnasium.registry:
        gymnasium.register(
            spec.env_id,
            entry_point=spec.env,
            vector_entry_point=spec.env.partition(":")[0] + ":make_vec",
        )


def _check_spec(spec: BenchmarkSpec) -> None:
    if not _NAME.fullmatch(spec.name):
        raise ConfigError(
            "A benchmark's name must consist of lowercase letters, digits and underscores and "
            f"begin with a letter, got {spec.name!r}"
        )
    for field in ("benchmark", "env", "world", "verifier"):
        if not _PLACE.fullmatch(getattr(spec, field)):
            raise ConfigError(
                f"Field {field!r} of benchmark {spec.name!r} must have the form 'module:Name', "
                f"got {getattr(spec, field)!r}"
            )
    before = _SPECS.get(spec.name, spec)
    if before != spec:
        raise ConfigError(
            f"Benchmark {spec.name!r} is already registered ({before.benchmark}). Choose another "
            f"name for {spec.benchmark}."
        )
    known = gymnasium.registry.get(spec.env_id)
    if known is not None and known.entry_point != spec.env:
        raise ConfigError(
            f"Env {spec.env_id!r} is already registered ({known.entry_point}). Choose another env "
            f"id for benchmark {spec.name!r}."
        )


def _register_entry_point(name: str, target: object) -> None:
    """Register the benchmark that an entry point provides."""
    spec = target() if callable(target) else target
    if isinstance(spec, BenchmarkSpec):
        register_benchmark(spec)
    elif spec is not None:
        raise ConfigError(
            "the entry point must name a BenchmarkSpec, or a function that returns or registers a "
            f"spec, got {type(spec).__name__}"
        )
    if name not in _SPECS:
        got = repr(spec.name) if isinstance(spec, BenchmarkSpec) else "no benchmark"
        raise ConfigError(f"the entry point must provide a benchmark named {name!r}, got {got}")


_PLUGINS = Plugins(GROUP, _register_entry_point)
register_model_finder(_PLUGINS.load)


def benchmark_specs() -> tuple[BenchmarkSpec, ...]:
    """Return all benchmarks: registered benchmarks in order, then those from other packages.

    A plug-in that cannot be loaded is skipped and logged once as a warning.
    """
    _PLUGINS.load_all()
    return tuple(_SPECS.values())


def broken_benchmarks() -> tuple[BrokenPlugin, ...]:
    """Return the third-party benchmarks that cannot be loaded, and the reasons."""
    return _PLUGINS.load_all()


def find_spec(name: str) -> BenchmarkSpec | None:
    """Return the benchmark with this name, or None. Load at most one plug-in."""
    if name not in _SPECS:
        _PLUGINS.load(name)
    return _SPECS.get(name)


def find_spec_by_any_name(name: str) -> BenchmarkSpec | None:
    """Return the benchmark with this name or env id, ignoring case, or None."""
    for spec in benchmark_specs():
        if name.lower() in (spec.name.lower(), spec.env_id.lower()):
            return spec
    return None


def require_spec_by_any_name(name: str) -> BenchmarkSpec:
    """Return the benchmark with this name or env id, ignoring case.

    Raises:
        TaskError: if the benchmark does not exist.
    """
    spec = find_spec_by_any_name(name)
    if spec is None:
        names = [spec.name for spec in benchmark_specs()]
        raise TaskError(
            f"Unknown benchmark {name!r}. {did_you_mean(name.lower(), names)}"
            f"Choose one of: {', '.join(names)}."
        )
    return spec


def get_benchmark(name: str) -> Benchmark:
    """Import and return a benchmark by name.

    Raises:
        TaskError: if no benchmark of that name is registered.
    """
    spec = find_spec(name)
    if spec is None:
        if plugin := _PLUGINS.find_broken(name):
            raise TaskError(str(plugin))
        known = ", ".join(sorted(spec.name for spec in benchmark_specs()))
        raise TaskError(f"Unknown benchmark {name!r}. Registered: {known}.")
    return cast(Benchmark, load_object(spec.benchmark))


def require_proposable(benchmark: Benchmark) -> Proposable:
    """Return the benchmark after checking that it supports model-driven exploration.

    Raises:
        ConfigError: if ``draft`` or ``open`` is missing.
    """
    if missing := [name for name in ("draft", "open") if not hasattr(benchmark, name)]:
        raise ConfigError(
            f"A model cannot explore {benchmark.name}: the benchmark has no {missing[0]}(). Set "
            'explorer.kind = "scripted", or implement both methods of '
            "coevo_gym.core.benchmark.Proposable."
        )
    return cast(Proposable, benchmark)


def operations_of(benchmark: Benchmark, task: Task) -> tuple[str, ...]:
    """Return the distinct names of the operations that can be called in a task's world.

    Return () if the benchmark has no method ``operations(task)``.
    """
    if not hasattr(benchmark, "operations"):
        return ()
    names: tuple[str, ...] = benchmark.operations(task)
    return names


def tools_of(benchmark: Benchmark) -> str:
    """Return the tools for all tasks of a benchmark, as JSON text for a request's ``tools``.

    This is the result of the benchmark's method ``tools()``, or ``"[]"`` without one. A call of a
    tool is an action in Hermes notation, or the result of the benchmark's method
    ``action_of(call)``, if it has one.
    """
    return str(benchmark.tools()) if hasattr(benchmark, "tools") else "[]"


def scenarios_of(benchmark: Benchmark, task: Task) -> frozenset[str]:
    """Return a task's scenario, together with the scenarios that its content belongs to.

    The benchmark's method ``scenarios_of(task)``, if it has one, returns the latter: the scenarios
    of its native tasks with the same goal. They are ignored if the task's own scenario is among
    them.
    """
    scenarios = benchmark.scenarios_of(task) if hasattr(benchmark, "scenarios_of") else ()
    return frozenset({task.scenario, *(() if task.scenario in scenarios else scenarios)})


def seen_subsets(benchmark: Benchmark) -> tuple[str, ...]:
    """Return the subsets whose held-out tasks use training scenarios by definition.

    This is the benchmark's attribute ``seen_subsets``, or () without one.
    """
    return tuple(getattr(benchmark, "seen_subsets", ()))


def grows(benchmark: Benchmark) -> bool:
    """Return True if exploration can find new tasks, according to the benchmark's ``grows``.

    The default is True. Without growth, curricula practise the benchmark's own training tasks.
    """
    return bool(getattr(benchmark, "grows", True))


def starts_with_native_tasks(benchmark: Benchmark) -> bool:
    """Return True if a pool starts with the benchmark's own training tasks.

    This is the case if ``starts_full`` is True, or the benchmark does not grow.
    """
    return bool(getattr(benchmark, "starts_full", False)) or not grows(benchmark)


def asks_once(benchmark: Benchmark) -> bool:
    """Return True if an episode has one request and ends at the first answer that has no call.

    This is the case if the benchmark's ``asks_once`` is True.
    """
    return bool(getattr(benchmark, "asks_once", False))


def proposes_tasks(benchmark: Benchmark) -> bool:
    """Return True if the benchmark itself proposes new tasks, without exploration.

    Its method ``propose(context, rng)`` returns drafts. If the method raises a ``BuildError``, the
    context is skipped.
    """
    return grows(benchmark) and hasattr(benchmark, "propose")


def restrictions_of(benchmark: Benchmark, task: Task, walks: Sequence[Walk]) -> tuple[str, ...]:
    """Return rules, as sentences, for the tasks that a model may propose after these walks.

    They cover what a model cannot see in its walks, such as products that belong to the test split.
    Return () if the benchmark has no method ``restrictions``.

    Args:
        benchmark: the benchmark.
        task: the task whose world was explored.
        walks: the walks in this world.
    """
    if not hasattr(benchmark, "restrictions"):
        return ()
    rules: tuple[str, ...] = benchmark.restrictions(task, walks, benchmark.split_of)
    return rules


def entry_of_whole_task(task: Task) -> PanelEntry:
    """Return a panel entry without a place, whose only part is the task's entire content."""
    models = (model.model_dump(mode="json") for model in (task.world, task.verifier))
    return PanelEntry({}, {"task": [task.instruction, *models]})


def panel_entry_of(benchmark: Benchmark, task: Task) -> PanelEntry:
    """Return a task's panel entry: keys that identify it in other code bases, and its content.

    For native tasks, this is the result of the benchmark's method ``panel_entry(task)``, if it has
    one. Otherwise, it is the result of :func:`entry_of_whole_task`.
    """
    if task.origin != "native" or not hasattr(benchmark, "panel_entry"):
        return entry_of_whole_task(task)
    entry: PanelEntry = benchmark.panel_entry(task)
    return entry


def panel_task_of(benchmark: Benchmark, task: Task) -> PanelTask:
    """Return a task's line in a panel, with a hash of each part of the task's content."""
    place, parts = panel_entry_of(benchmark, task)
    hashes = {name: hash_content(content) for name, content in parts.items()}
    return PanelTask(id=task.name, scenario=task.scenario, place=place, parts=hashes)


def data_versions_of(benchmark: Benchmark, task: Task) -> dict[str, str]:
    """Return the versions and hashes of the data from which a native task is made.

    Return {} if the benchmark has no method ``data_versions(task)``.

    Raises:
        BenchmarkNotInstalled: if the data is not installed.
    """
    return dict(benchmark.data_versions(task)) if hasattr(benchmark, "data_versions") else {}


def side_by_scenario_and_id(benchmark: Benchmark, task: Task) -> Split:
    """Determine a task's split from its scenarios and id; see also :meth:`Benchmark.side_of`."""
    held_out = _held_out_splits(benchmark)  # type: ignore[arg-type]  # benchmarks hash by identity
    sides = map(benchmark.split_of, scenarios_of(benchmark, task))
    return first_non_train(*sides, held_out.get(task.id, Split.TRAIN))


@lru_cache(maxsize=16)
def _held_out_splits(benchmark: Benchmark) -> Mapping[str, Split]:
    """Map the ids of the benchmark's own validation and test tasks to their splits."""
    splits: dict[str, Split] = {}
    for subset in (None, *benchmark.subsets):
        for split in (Split.VAL, Split.TEST):
            try:
                splits |= {task.id: split for task in benchmark.tasks(split, subset)}
            except TaskError:
                continue  # this subset has no task in this split
    return splits


def check_split_claim(task: Task, side: Split, action: str) -> None:
    """Reject a task that claims to be a training task but belongs to another split.

    Args:
        task: the task.
        side: the split that it belongs to, from :meth:`Benchmark.side_of`.
        action: the rejected action, for the message ("explore from").

    Raises:
        SplitLeakError: if it is a copy of a validation or test task. This cannot be turned off.
    """
    if task.split is Split.TRAIN and side is not Split.TRAIN:
        raise SplitLeakError(
            f"Refusing to {action} {task.name}: it claims to be a training task, but its scenario "
            f"or content belongs to a {side} task. You cannot train on it. To evaluate on it, use "
            f"the original task with split={str(side)!r}."
        )


def find_task(benchmark: str, name_or_id: str) -> Task:
    """Find one of a benchmark's own tasks by name or id.

    Raises:
        TaskError: if there is no such task.
    """
    source = get_benchmark(benchmark)
    for subset in (None, *source.subsets):
        for split in (Split.TRAIN, Split.VAL, Split.TEST):
            try:
                tasks = source.tasks(split, subset)
            except TaskError:
                continue  # this subset has no task in this split
            except BenchmarkNotInstalled:
                if subset is None:
                    raise
                continue  # this subset is not installed
            for task in tasks:
                if name_or_id in (task.name, task.id):
                    return task
    raise TaskError(
        f"{benchmark} has no task {name_or_id!r}. `coevo tasks {benchmark}` lists all names."
    )


def find_any_task(name_or_id: str) -> Task:
    """Find a task by name or id in all installed benchmarks.

    Raises:
        TaskError: if no installed benchmark has such a task.
        CoevoError: if the name contains its benchmark, and that benchmark is not installed.
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
        f"No installed benchmark has a task {name_or_id!r}. To select an evolved task, also pass "
        "--run with its run folder. To list native tasks, run `coevo tasks BENCHMARK`."
    )

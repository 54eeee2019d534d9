"""Native tasks: the 800 official multi-turn entries, assigned to splits by index."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from coevo_gym.core.benchmark import PanelEntry
from coevo_gym.core.errors import ConfigError, SplitLeakError, TaskError
from coevo_gym.core.evolution import Draft
from coevo_gym.core.task import (
    Split,
    Task,
    Verifier,
    canonical_json,
    first_non_train,
    fold_strings,
    freeze,
)
from coevo_gym.core.tool_calls import write_hermes
from coevo_gym.envs.bfcl.engine.official_calls import parse_truth
from coevo_gym.envs.bfcl.engine.toolbox import bind_arguments
from coevo_gym.envs.bfcl.engine.wheel import CATEGORIES, SHA256, VERSION, require_package
from coevo_gym.envs.bfcl.world import BFCLVerifier, BFCLWorld
from coevo_gym.envs.tags import asks_nothing, tags_from

CLOSING = "Done."
"""The reference solution's message without calls, which ends a turn."""
SCHEMES = ("index", "agentevolver", "all200")
N_INDICES = 200
_REMEMBERED = 1024
"""Maximum number of worlds and configs whose keys are cached."""


def scenario_of(index: int) -> str:
    """Return the scenario of an official index, such as ``multi_turn_7`` for 7."""
    return f"multi_turn_{index}"


def split_of(scenario: str) -> Split:
    """Return the split of a scenario, as listed in this package.

    Raises:
        TaskError: if the scenario does not exist.
    """
    number = scenario.rpartition("_")[2]
    index = int(number[:4]) if number.isdecimal() else -1  # more digits are compared below
    if index not in _split_by_index() or scenario_of(index) != scenario:
        raise TaskError(
            f"BFCL has no scenario {scenario!r}. Valid scenarios are multi_turn_0 to "
            "multi_turn_199."
        )
    return _split_by_index()[index]


def side_of(task: Task, scheme: str = "index") -> Split:
    """Determine the split that a scheme assigns to a task. ``task.split`` is not used.

    The task counts as a copy of the official entries with its index, and of those with the same
    initial state, user messages or reference calls. The result is the first of their splits that is
    not ``train``, or ``train`` if there is none.

    Raises:
        BenchmarkNotInstalled: if the official package is not installed.
        TaskError: if the scenario does not exist, or none of its entries has this initial state.
    """
    world = task.world
    assert isinstance(world, BFCLWorld)
    split_of(task.scenario)  # raises if the scenario does not exist
    own, copied = _index_of(task.scenario), _matching_indices(_lookup_keys(world, task.verifier))
    side = first_non_train(*(scheme_split(index, scheme) for index in (own, *sorted(copied))))
    if side is Split.TRAIN and not has_initial_state(task.scenario, world):
        raise TaskError(f"no official BFCL entry in {task.scenario} has this initial state")
    return side


def scenarios_of(task: Task) -> frozenset[str]:
    """Return the scenarios of the official entries with the same messages or reference calls.

    Raises:
        BenchmarkNotInstalled: if the official package is not installed.
    """
    assert isinstance(task.world, BFCLWorld)
    keys = _lookup_keys(task.world, task.verifier)
    return frozenset(map(scenario_of, _matching_indices(key for key in keys if key[0] != "config")))


def _matching_indices(keys: Iterable[Key]) -> set[int]:
    """Return the indices of the official entries that match any of the keys."""
    return {index for key in keys for index in _indices_by_key().get(key, ())}


def has_initial_state(scenario: str, world: BFCLWorld) -> bool:
    """Return True if an official entry of the scenario starts in the same state as a world."""
    return _initial_state(world) in _initial_states().get(scenario, ())


def _index_of(scenario: str) -> int:
    return int(scenario.rpartition("_")[2])


Key = tuple[str, object]


def _initial_state(world: BFCLWorld) -> tuple[object, ...]:
    """Return everything that determines the initial state of a world's backends."""
    return _canonical_config(world.config), world.classes, world.long_context


@lru_cache(maxsize=_REMEMBERED)
def _canonical_config(text: str) -> str:
    """Return a JSON config in canonical form, with its keys in a fixed order."""
    return canonical_json(json.loads(text))


@lru_cache(maxsize=_REMEMBERED)
def _lookup_keys(world: BFCLWorld, verifier: Verifier) -> tuple[Key, ...]:
    """Return keys for finding the official entry that a task was copied from.

    The keys are the whole config, all messages, and all calls, because single messages and calls
    occur both in training and in held-out entries. Empty turns are left out, so that the four
    entries with the same index have the same keys.
    """
    turns = verifier.turns if isinstance(verifier, BFCLVerifier) else ()
    calls = tuple(tuple(map(_normalise_call, turn)) for turn in turns if turn)
    texts = tuple(filter(None, fold_strings(world.turns)))
    keys: tuple[Key, ...] = (
        ("config", _canonical_config(world.config)),
        ("messages", texts),
        ("calls", calls),
    )
    return tuple(key for key in keys if key[1])


def _normalise_call(code: str) -> object:
    """Return a reference call in normalised form, so that equivalent calls are equal."""
    try:
        call = bind_arguments(parse_truth(code))
        return fold_strings(call.name), freeze(fold_strings(call.arguments))
    except (TaskError, TypeError, KeyError, ValueError):
        return fold_strings(code)


@lru_cache(maxsize=1)
def _indices_by_key() -> Mapping[Key, frozenset[int]]:
    """Map each lookup key to the indices of the official entries that match it."""
    by_key: defaultdict[Key, set[int]] = defaultdict(set)
    for task in chain.from_iterable(map(_entries, CATEGORIES)):
        assert isinstance(task.world, BFCLWorld)
        for key in _lookup_keys(task.world, task.verifier):
            by_key[key].add(_index_of(task.scenario))
    return {key: frozenset(indices) for key, indices in by_key.items()}


@lru_cache(maxsize=1)
def _initial_states() -> Mapping[str, frozenset[tuple[object, ...]]]:
    """Map each scenario to the initial states of its official entries."""
    by_scenario: defaultdict[str, set[tuple[object, ...]]] = defaultdict(set)
    for task in chain.from_iterable(map(_entries, CATEGORIES)):
        assert isinstance(task.world, BFCLWorld)
        by_scenario[task.scenario].add(_initial_state(task.world))
    return {scenario: frozenset(starts) for scenario, starts in by_scenario.items()}


@lru_cache(maxsize=1)
def _split_by_index() -> Mapping[int, Split]:
    lists = json.loads(Path(__file__).with_name("splits.json").read_text(encoding="utf-8"))
    return {index: Split(name) for name, indices in lists.items() for index in indices}


def scheme_split(index: int, scheme: str) -> Split:
    """Return the split of an official entry under the given scheme.

    Raises:
        ConfigError: if the scheme is unknown.
    """
    if scheme == "index":
        return _split_by_index()[index]
    if scheme == "agentevolver":
        return Split.TRAIN if index < N_INDICES // 2 else Split.VAL
    if scheme == "all200":
        return Split.TEST
    raise ConfigError(f"Unknown scheme {scheme!r}. Choose one of: {', '.join(SCHEMES)}.")


def native_tasks(split: Split, subset: str | None = None, scheme: str = "index") -> Sequence[Task]:
    """Return the official entries of a split, category by category.

    Args:
        split: the split.
        subset: a category: ``base``, ``miss_func``, ``miss_param`` or ``long_context``; None for
            all four.
        scheme: ``"index"``: the committed split; ``"agentevolver"``: indices 0 to 99 are train, the
            others val, as in AgentEvolver's data preparation; ``"all200"``: all indices are test,
            as the leaderboard and CoEvolve report it.

    Raises:
        BenchmarkNotInstalled: if the official package is not installed.
        ConfigError: if the scheme is unknown.
        TaskError: if subset is unknown, or has no task in this split.
        SplitLeakError: if training tasks are requested under a scheme that has none.
    """
    if subset is not None and subset not in CATEGORIES:
        raise TaskError(f"BFCL has no subset {subset!r}. Choose one of: {', '.join(CATEGORIES)}.")
    tasks = _select_tasks(split, subset, scheme)
    if not tasks and split is Split.TRAIN:
        raise SplitLeakError(
            f"Under scheme {scheme!r}, every BFCL task is a test task and must not be used for "
            "training or exploration. Create the env with split='test', or choose another scheme."
        )
    if not tasks:
        raise TaskError(f"BFCL has no {split} tasks under scheme {scheme!r}.")
    return tasks


@lru_cache(maxsize=64)
def _select_tasks(split: Split, subset: str | None, scheme: str) -> tuple[Task, ...]:
    categories = CATEGORIES if subset is None else (subset,)
    tasks = [relabel(task, scheme) for name in categories for task in _entries(name)]
    return tuple(task for task in tasks if task.split is split)


def relabel(task: Task, scheme: str) -> Task:
    """Return a task with the split that the given scheme assigns to it."""
    side = scheme_split(_index_of(task.scenario), scheme)
    return task if task.split is side else task.model_copy(update={"split": side})


@lru_cache(maxsize=len(CATEGORIES))
def _entries(category: str) -> tuple[Task, ...]:
    """Return the 200 official entries in a category, with their splits."""
    file = f"BFCL_v4_multi_turn_{category}.json"
    data = require_package() / "data"
    entries = _read_json_lines(data / file)
    answers = _read_json_lines(data / "possible_answer" / file)
    return tuple(
        _create_task(index, category, entry, answer["ground_truth"])
        for index, (entry, answer) in enumerate(zip(entries, answers, strict=True))
    )


def _read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _create_task(
    index: int, category: str, entry: Mapping[str, Any], truth: list[list[str]]
) -> Task:
    # Like the official code, this ignores ``excluded_function`` and ``path``.
    turns = ["\n".join(message["content"] for message in turn) for turn in entry["question"]]
    missed: Mapping[str, list[str]] = entry.get("missed_function", {})
    held_out = [(int(turn), names) for turn, names in missed.items()]
    return Task(
        benchmark="bfcl",
        name=f"bfcl/{entry['id']}",
        split=_split_by_index()[index],
        subset=category,
        scenario=scenario_of(index),
        instruction=turns[0],
        world=BFCLWorld(
            config=entry["initial_config"],
            classes=entry["involved_classes"],
            turns=turns,
            held_out=held_out,
            unlisted=_functions_called_early(held_out, truth),
            long_context=category == "long_context",
        ),
        verifier=BFCLVerifier(turns=truth),
        solution=solution_of(truth),
    )


def _functions_called_early(
    held_out: Sequence[tuple[int, list[str]]], truth: list[list[str]]
) -> list[str]:
    """Return the functions that the reference solution calls before the turn that adds them.

    The original runs them at any time, so this reference (miss_func_49) must work here too.
    """
    return [
        name
        for turn, names in held_out
        for name in names
        if any(parse_truth(call).name == name for calls in truth[:turn] for call in calls)
    ]


def solution_of(truth: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the reference solution as messages: each turn's calls, then a closing message."""
    messages: list[str] = []
    for turn in truth:
        if turn:
            messages.append(write_hermes([bind_arguments(parse_truth(call)) for call in turn]))
        messages.append(CLOSING)
    return tuple(messages)


def panel_entry(task: Task) -> PanelEntry:
    """Return a BFCL task's panel entry: its official id and category, and its content.

    The place is the official id and category. The content is the user's messages, the setting (the
    category, the initial state as text, the backends and the functions that are held out) and the
    reference calls, as in the official files.
    """
    world, verifier = task.world, task.verifier
    assert isinstance(world, BFCLWorld)
    assert isinstance(verifier, BFCLVerifier)
    place = {"category": task.subset, "entry": task.name.partition("/")[2]}
    setting = [task.subset, world.config, world.classes, dict(map(_to_official, world.held_out))]
    messages = [task.instruction, *world.turns[1:]]  # the instruction is the first message
    parts = {"answer": verifier.turns, "messages": messages, "setting": setting}
    return PanelEntry(place, parts)


def _to_official(held_out: tuple[int, tuple[str, ...]]) -> tuple[str, tuple[str, ...]]:
    """Convert a held-out turn to the format of the official field ``missed_function``."""
    turn, names = held_out
    return str(turn), names


def data_versions(task: Task) -> dict[str, str]:
    """Return the version of the official package, and a hash of the files used from it."""
    return {"bfcl-eval": VERSION, "files": SHA256}


FEW = 3
"""Maximum number of turns that count as few; one turn has its own tag."""


def tags_of(task: Task | Draft) -> tuple[str, ...]:
    """Return an ``api:`` tag for each backend, and ``turns:one``, ``turns:few`` or ``turns:many``.

    The backends are those offered to the agent, not those called by the reference: the agent has to
    find out which ones to call.
    """
    world = task.world
    assert isinstance(world, BFCLWorld)
    pairs = [("api", name) for name in world.classes]
    if not asks_nothing(task):
        n = len(world.turns)
        pairs.append(("turns", "one" if n == 1 else "few" if n <= FEW else "many"))
    return tags_from(pairs)

"""Native tasks: the official games, or built-in games if the official ones are not installed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache

from coevo_gym.core.benchmark import PanelEntry
from coevo_gym.core.errors import DataError, TaskError
from coevo_gym.core.evolution import Draft
from coevo_gym.core.panel import hash_content
from coevo_gym.core.task import Split, Task, first_non_train
from coevo_gym.envs.alfworld.builtin import (
    BUILTIN_SPLIT,
    BuiltinGame,
    builtin_domain,
    builtin_games,
    builtin_grammar,
)
from coevo_gym.envs.alfworld.data import GAME_FILE, RELEASE, Entry, Games, open_games
from coevo_gym.envs.alfworld.goals import CLEAN, COOL, HEAT, LOOK, PICK, TWO, RoomGoal, replace_goal
from coevo_gym.envs.alfworld.world import ALFWorldVerifier, ALFWorldWorld
from coevo_gym.envs.tags import tags_from
from coevo_gym.provision import data_folder

BUILTIN = "builtin"
_FOLDER = "json_2.1.1"
"""Name of the folder that ALFWorld's own code unpacks the games of every release to."""
SUBSETS = ("train", "valid_seen", "valid_unseen", "valid_train", BUILTIN)
UNSEEN = frozenset({10, 219, 308, 424})
"""Scenes of the official games that do not occur in any training game."""
_OFFICIAL_SPLIT = {
    "train": Split.TRAIN,
    "valid_seen": Split.VAL,
    "valid_unseen": Split.TEST,
    "valid_train": Split.TRAIN,
}
_INIT = re.compile(r"\(:init(.*?)\(:goal", re.DOTALL)
_FACT = re.compile(r"\(([^()]+)\)")


def scenario_of(game: str) -> str:
    """Return a game's scenario, such as ``FloorPlan308`` or ``builtin/FloorPlan7``."""
    if game.startswith(f"{BUILTIN}/"):
        return game.rpartition("/")[0]
    return f"FloorPlan{game.split('/')[1].rpartition('-')[2]}"


def split_of(scenario: str) -> Split:
    """Return the split of a scene.

    The scenes of ``valid_seen`` are training scenes, as the name says; :func:`is_held_out_copy`
    keeps its tasks out of training.

    Raises:
        TaskError: if the scene is unknown.
    """
    kind, _, name = scenario.rpartition("/")
    number = name.removeprefix("FloorPlan")
    if not number.isdecimal() or kind not in ("", BUILTIN):
        raise TaskError(f"ALFWorld has no scene {scenario!r}.")
    if not kind:
        return Split.TEST if int(number) in UNSEEN else Split.TRAIN
    if int(number) not in BUILTIN_SPLIT:
        raise TaskError(f"ALFWorld has no built-in scene {scenario!r}.")
    return BUILTIN_SPLIT[int(number)]


def side_of(task: Task) -> Split:
    """Determine a task's split from its scenario, game and goal. ``task.split`` is not used.

    Raises:
        BenchmarkNotInstalled: if the task is from an official game that is not installed.
        DataError: if the installed games are not the games that the task was created from.
        TaskError: if the scene or game is unknown, or the game is in another scene.
    """
    world = task.world
    assert isinstance(world, ALFWorldWorld)
    side = first_non_train(split_of(task.scenario), side_of_game(world))
    if side is Split.TRAIN and isinstance(world.goal, RoomGoal) and is_held_out_copy(world):
        return Split.VAL  # only validation games are held out in training scenes
    if side is Split.TRAIN and task.scenario != scenario_of(world.game):
        raise TaskError(f"the game {world.game} does not belong to scenario {task.scenario!r}")
    return side


def side_of_game(world: ALFWorldWorld) -> Split:
    """Determine a game's split from its scene and subset. Raises the errors of :func:`side_of`."""
    if world.digest == BUILTIN:
        _require_builtin_game(world.game)  # raises if the game is unknown
        return split_of(scenario_of(world.game))
    entry = _require_entry(world)
    subset = entry.id.partition("/")[0]
    return first_non_train(split_of(scenario_of(entry.id)), _OFFICIAL_SPLIT[subset])


def native_tasks(split: Split, subset: str | None = None) -> Sequence[Task]:
    """Return the native tasks of a split, always in the same order.

    Args:
        split: the split. With official games, ``train`` consists of the training games, ``val`` of
            valid_seen, ``test`` of valid_unseen.
        subset: ``train``, ``valid_seen``, ``valid_unseen``, ``valid_train`` (more games in training
            scenes, used only on request), ``builtin``; None for the installation's default.

    Raises:
        TaskError: if the subset is unknown, or has no tasks in this split.
        BenchmarkNotInstalled: if the subset is official and the games are not installed.
    """
    if subset is not None and subset not in SUBSETS:
        raise TaskError(f"ALFWorld has no subset {subset!r}. Choose one of: {', '.join(SUBSETS)}.")
    if subset == BUILTIN or (subset is None and data_folder("alfworld") is None):
        return _builtin_tasks(split)
    subset = subset or next(name for name, side in _OFFICIAL_SPLIT.items() if side is split)
    if _OFFICIAL_SPLIT[subset] is not split:
        raise TaskError(
            f"The subset {subset} belongs to split {_OFFICIAL_SPLIT[subset]}, not {split}."
        )
    return _official_tasks(open_games(), subset)


@lru_cache(maxsize=8)
def _official_tasks(games: Games, subset: str) -> tuple[Task, ...]:
    split, digest = _OFFICIAL_SPLIT[subset], games.digest[:16]
    return tuple(
        _create_task(entry.id, entry.task, entry.walkthrough, split, subset, digest)
        for entry in games.entries(subset)
    )


@lru_cache(maxsize=3)
def _builtin_tasks(split: Split) -> tuple[Task, ...]:
    return tuple(
        _create_task(game.id, game.task, game.solution, split, BUILTIN, BUILTIN)
        for game in builtin_games()
        if BUILTIN_SPLIT[game.scene] is split
    )


def _create_task(
    game: str, words: str, solution: tuple[str, ...], split: Split, subset: str, digest: str
) -> Task:
    return Task(
        benchmark="alfworld",
        name=f"alfworld/{game}",
        split=split,
        subset=subset,
        scenario=scenario_of(game),
        instruction=words,
        world=ALFWorldWorld(game=game, digest=digest),
        verifier=ALFWorldVerifier(),
        solution=solution,
    )


def goal_of(world: ALFWorldWorld) -> RoomGoal:
    """Return the goal of a world.

    Raises:
        TaskError: if the world has no goal.
    """
    if isinstance(world.goal, RoomGoal):
        return world.goal
    if world.goal is not None:
        raise TaskError(f"This task in {world.game} has no goal. Open tasks can only be explored.")
    if world.digest == BUILTIN:
        return _require_builtin_game(world.game).goal
    return _require_entry(world).goal


def scene_definition(world: ALFWorldWorld) -> tuple[str, str, str]:
    """Return a world's domain, grammar and problem. Raises the same errors as :func:`side_of`."""
    if world.digest == BUILTIN:
        parts = (builtin_domain(), builtin_grammar(), _require_builtin_game(world.game).problem())
    else:
        games = _require_games(world)
        parts = (games.domain, games.grammar, games.problem(_require_entry(world).id))
    domain, grammar, problem = parts
    if isinstance(world.goal, RoomGoal):
        problem = replace_goal(problem, world.goal)
    return domain, grammar, problem


def is_held_out_copy(world: ALFWorldWorld) -> bool:
    """Return True if a validation or test game has this world's scene, initial state and goal."""
    return world.digest != BUILTIN and _world_key(world) in _held_out_keys(_require_games(world))


@lru_cache(maxsize=2)
def _held_out_keys(games: Games) -> frozenset[tuple[str, str, str]]:
    return frozenset(
        _world_key(ALFWorldWorld(game=entry.id, digest=games.digest[:16]))
        for subset in ("valid_seen", "valid_unseen")
        for entry in games.entries(subset)
    )


def _world_key(world: ALFWorldWorld) -> tuple[str, str, str]:
    """Return a key for a world: its scene, a hash of its initial state, and its goal."""
    *_, problem = scene_definition(world)
    facts = sorted(" ".join((name, *objects)) for name, objects in facts_of(problem))
    state = hashlib.sha256("\n".join(facts).encode()).hexdigest()
    return scenario_of(world.game), state, goal_of(world).model_dump_json().lower()


def facts_of(problem: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the initial facts of a PDDL problem as (predicate, objects) pairs in lower case."""
    match = _INIT.search(problem)
    parts = (fact.lower().split() for fact in _FACT.findall(match[1] if match else ""))
    return [(name, tuple(objects)) for name, *objects in parts]


def _require_games(world: ALFWorldWorld) -> Games:
    games = open_games()
    if games.digest[:16] != world.digest:
        raise DataError(
            f"The task was created from the ALFWorld games {world.digest}, but the installed games "
            f"are {games.digest[:16]}. Install the matching games, or choose tasks created from "
            "the installed games."
        )
    return games


def _require_entry(world: ALFWorldWorld) -> Entry:
    entry = _entries_by_id(_require_games(world)).get(world.game)
    if entry is None:
        raise TaskError(f"ALFWorld has no game {world.game!r}.")
    return entry


@lru_cache(maxsize=2)
def _entries_by_id(games: Games) -> dict[str, Entry]:
    return {e.id: e for name in _OFFICIAL_SPLIT for e in games.entries(name)}


def _require_builtin_game(id: str) -> BuiltinGame:
    game = _builtin_by_id().get(id)
    if game is None:
        raise TaskError(f"ALFWorld has no built-in game {id!r}.")
    return game


@lru_cache(maxsize=1)
def _builtin_by_id() -> dict[str, BuiltinGame]:
    return {game.id: game for game in builtin_games()}


def panel_entry(task: Task) -> PanelEntry:
    """Return a game's panel entry: keys that identify it in other code bases, and its content.

    The place is the game's file below the data folder of ALFWorld's own code (``$ALFWORLD_DATA``);
    built-in games have none. The content is the PDDL problem and the task in words.

    Raises:
        TaskError: if the task has no goal, or there is no such game.
        DataError: if the task was created from other games than those installed.
    """
    world = task.world
    assert isinstance(world, ALFWorldWorld)
    *_, problem = scene_definition(world)
    place = {} if world.digest == BUILTIN else {"game": f"{_FOLDER}/{world.game}/{GAME_FILE}"}
    return PanelEntry(place, {"instruction": task.instruction, "problem": problem})


def data_versions(task: Task) -> dict[str, str]:
    """Return the games' release and hash, and the hash of the PDDL domain that they share.

    Raises:
        DataError: if the task was created from other games than those installed.
    """
    world = task.world
    assert isinstance(world, ALFWorldWorld)
    domain, *_ = scene_definition(world)
    if world.digest == BUILTIN:
        return {"domain": hash_content(domain), "games": BUILTIN}
    games = _require_games(world)
    return {"domain": hash_content(domain), "games": games.digest, "release": RELEASE}


GOALS = {PICK: "pick", LOOK: "look", CLEAN: "clean", HEAT: "heat", COOL: "cool", TWO: "two"}
"""A one-word name for each kind of goal."""


def tags_of(task: Task | Draft) -> tuple[str, ...]:
    """Return a task's scene, goal and object tags. Raises the same errors as :func:`side_of`."""
    world = task.world
    assert isinstance(world, ALFWorldWorld)
    pairs = [("scene", task.scenario)]
    if world.goal != "nothing":
        pairs += _tag_pairs(goal_of(world))
    return tags_from(pairs)


def goal_tags(goal: RoomGoal) -> tuple[str, ...]:
    """Return the tags for a goal. They do not include a scene tag."""
    return tags_from(_tag_pairs(goal))


def _tag_pairs(goal: RoomGoal) -> list[tuple[str, str]]:
    return [("goal", GOALS[goal.kind]), ("object", goal.object.lower())]

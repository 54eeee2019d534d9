"""Built-in tasks and scenes that use the room layouts shipped with ALFWorld.

The layouts define the furniture and objects of a room, and a fixed seed places the objects. Goals
that are unmet at first but can be reached are selected from the facts alone. Therefore the list of
games is generated without starting the engine, and is the same on every machine.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cached_property, lru_cache
from importlib.resources import files
from itertools import chain, islice
from typing import NamedTuple

from coevo_gym.core.task import Split
from coevo_gym.envs.alfworld.engine.translation import import_fast_downward
from coevo_gym.envs.alfworld.goals import (
    KINDS,
    LOOK,
    RoomGoal,
    describe_goal,
    replace_goal,
    shortest_plan,
)

SEED = 20
TASKS_A_KIND = 3
"""Maximum number of tasks per kind and scene."""

_SCENES = {
    Split.TRAIN: (1, 2, 4, 7, 13, 20, 201, 203, 209, 215, 301, 304, 309, 313, 401, 404, 409, 415),
    Split.VAL: (5, 23, 218, 318, 419),
    Split.TEST: (10, 28, 224, 326, 427),
}
BUILTIN_SPLIT = {scene: split for split, scenes in _SCENES.items() for scene in scenes}
"""The split of each built-in scene, by floor plan.

Numbers below 200 are kitchens, 200 to 299 living rooms, 300 to 399 bedrooms, others bathrooms.
"""

_FURNITURE_NOT_LISTED = {"StoveBurner": 4}
"""Number of pieces of furniture that the layouts do not list; the default is one."""
_LAMP_STANDS = ("SideTable", "Desk", "Dresser", "CoffeeTable", "Shelf", "DiningTable")
_ABLE = ("Cleanable", "Coolable", "Heatable", "Sliceable", "Toggleable")
_NAMED_IN_DOMAIN = {
    "otype": ("ButterKnife", "Knife"),
    "rtype": ("Fridge", "Microwave", "SinkBasin"),
}

_START = "loc_bar_099"

Fact = tuple[str, tuple[str, ...]]


class BuiltinGame(NamedTuple):
    """A task in a built-in scene, with an id such as ``builtin/FloorPlan7/3``.

    ``scene`` is the number of the floor plan; ``task`` describes the goal.
    """

    id: str
    scene: int
    goal: RoomGoal
    task: str

    def problem(self) -> str:
        """Return the scene's PDDL problem with the game's own goal."""
        return replace_goal(_room(self.scene).problem(), self.goal)

    @property
    def solution(self) -> tuple[str, ...]:
        """The commands that reach the goal."""
        return tuple(shortest_plan(self.goal, _room(self.scene).facts))


@lru_cache(maxsize=1)
def builtin_games() -> tuple[BuiltinGame, ...]:
    """Return all built-in games, sorted by scene.

    Raises:
        BenchmarkNotInstalled: if ALFWorld is not installed.
    """
    return tuple(chain.from_iterable(_draw_games(scene) for scene in sorted(BUILTIN_SPLIT)))


@lru_cache(maxsize=1)
def builtin_domain() -> str:
    """Return the PDDL domain for built-in games."""
    return _read_package_file("data/alfred.pddl")


@lru_cache(maxsize=1)
def builtin_grammar() -> str:
    """Return the grammar for built-in games."""
    return _read_package_file("data/alfred.twl2")


def _draw_games(scene: int) -> Iterator[BuiltinGame]:
    """Yield a few games of each kind for a scene."""
    room, rng = _room(scene), random.Random(f"{SEED}/goals/{scene}")  # noqa: S311
    goals: list[RoomGoal] = []
    for kind in KINDS:
        pairs = room.goal_pairs(kind)
        rng.shuffle(pairs)
        field = "toggle" if kind == LOOK else "receptacle"
        wanted = (RoomGoal.model_validate({"kind": kind, "object": a, field: b}) for a, b in pairs)
        goals += islice((goal for goal in wanted if shortest_plan(goal, room.facts)), TASKS_A_KIND)
    for number, goal in enumerate(goals, start=1):
        task = describe_goal(goal, variant=number)
        yield BuiltinGame(f"builtin/FloorPlan{scene}/{number}", scene, goal, task)


class _Room:
    """A furnished room.

    Objects are named so that ALFWorld calls ``Mug_bar_99`` mug 1, and ``Mug_bar_98`` mug 2, because
    ALFWorld numbers the objects of a type from the last id to the first.

    Attributes:
        receptacles: type of each receptacle, by receptacle id.
        things: type of each object, by object id.
        place: id of the receptacle that contains each object, by object id.
    """

    def __init__(self, scene: int) -> None:
        rng = random.Random(f"{SEED}/things/{scene}")  # noqa: S311
        types = json.loads(_read_package_file(f"gen/layouts/FloorPlan{scene}-objects.json"))
        ids = json.loads(_read_package_file(f"gen/layouts/FloorPlan{scene}-openable.json"))
        fits, _, _ = _constants()
        counts = Counter(_type_of(id) for id in sorted(ids))
        self.receptacles = {
            _object_id(type_, number): type_
            for type_ in sorted({*types, *counts} & fits.keys())
            for number in range(1, 1 + (counts[type_] or _FURNITURE_NOT_LISTED.get(type_, 1)))
        }
        places: defaultdict[str, list[str]] = defaultdict(list)
        for id, type_ in self.receptacles.items():
            places[type_].append(id)
        self.things: dict[str, str] = {}
        self.place: dict[str, str] = {}
        for type_ in sorted(types):
            if _is_lamp(type_):
                wanted, number = [stand for stand in _LAMP_STANDS if stand in places][:1], 1
            else:
                wanted = [furniture for furniture in places if type_ in fits[furniture]]
                number = rng.randint(1, 3)
            for i in range(1, number + 1) if wanted else ():
                self.things[_object_id(type_, i)] = type_
                self.place[_object_id(type_, i)] = rng.choice(places[rng.choice(wanted)])

    def goal_pairs(self, kind: str) -> list[tuple[str, str]]:
        """Return the possible goals of a kind, as (object type, lamp or receptacle type) pairs."""
        lamps = sorted(type_ for type_ in self.things.values() if _is_lamp(type_))
        things = sorted({*self.things.values()}.difference(lamps))
        if kind == LOOK:
            return [(thing, lamp) for thing in things for lamp in lamps]
        existing = {(type_, self.receptacles[self.place[id]]) for id, type_ in self.things.items()}
        return [
            (thing, furniture)
            for thing in things
            for furniture in sorted({*self.receptacles.values()})
            if thing in _constants().fits[furniture] and (thing, furniture) not in existing
        ]

    @cached_property
    def facts(self) -> frozenset[Fact]:
        """The initial facts, in the format of ``Game.facts()``."""
        return frozenset(
            (name.lower(), tuple(_display_name(item) for item in items))
            for name, items in self._pddl_facts()
        )

    def problem(self) -> str:
        """Return the room's PDDL problem with an empty goal."""
        otypes = sorted({*self.things.values(), *_NAMED_IN_DOMAIN["otype"]})
        rtypes = sorted({*self.receptacles.values(), *_NAMED_IN_DOMAIN["rtype"]})
        objects = {
            "agent": ["agent1"],
            "location": [_START, *self._locations.values()],
            "otype": [f"{type_}Type" for type_ in otypes],
            "rtype": [f"{type_}Type" for type_ in rtypes],
            "object": [*self.things],
            "receptacle": [*self.receptacles],
        }
        declared = "\n  ".join(f"{' '.join(ids)} - {type_}" for type_, ids in objects.items())
        facts = "\n  ".join(f"({name} {' '.join(items)})" for name, items in self._pddl_facts())
        return f"""(define (problem room) (:domain alfred)
(:objects
  {declared}
)
(:init
  (= (total-cost) 0)
  {facts}
)
(:goal (and)))
"""

    @cached_property
    def _locations(self) -> dict[str, str]:
        """The location of each receptacle."""
        return {
            id: _object_id("loc", number) for number, id in enumerate(self.receptacles, start=2)
        }

    def _pddl_facts(self) -> Iterator[Fact]:
        fits, able, openable = _constants()
        location = self._locations
        yield "atLocation", ("agent1", _START)
        for id, type_ in self.receptacles.items():
            yield "receptacleType", (id, f"{type_}Type")
            yield "receptacleAtLocation", (id, location[id])
            if type_ in openable:
                yield "openable", (id,)
        for id, type_ in self.things.items():
            yield "objectType", (id, f"{type_}Type")
            yield "inReceptacle", (id, self.place[id])
            yield "objectAtLocation", (id, location[self.place[id]])
            if not _is_lamp(type_):
                yield "pickupable", (id,)
            for name in _ABLE:
                if type_ in able[name]:
                    yield name.lower(), (id,)
        for furniture in sorted({*self.receptacles.values()}):
            for type_ in sorted({*self.things.values()} & fits[furniture]):
                yield "canContain", (f"{furniture}Type", f"{type_}Type")


_room = lru_cache(maxsize=64)(_Room)


class _Constants(NamedTuple):
    """ALFWorld's constants: objects that furniture can hold, and actions that objects support."""

    fits: dict[str, set[str]]
    able: dict[str, set[str]]
    openable: set[str]


@lru_cache(maxsize=1)
def _constants() -> _Constants:
    import_fast_downward()  # raises an error with install instructions
    from alfworld.gen import constants

    movable = constants.MOVABLE_RECEPTACLES_SET
    fits = {
        type_: objects
        for type_, objects in constants.VAL_RECEPTACLE_OBJECTS.items()
        if type_ not in movable
    }
    return _Constants(fits, constants.VAL_ACTION_OBJECTS, constants.OPENABLE_CLASS_SET)


def _read_package_file(path: str) -> str:
    """Read a text file from the ``alfworld`` package."""
    import_fast_downward()
    return files("alfworld").joinpath(path).read_text()


def _is_lamp(type_: str) -> bool:
    return type_ in _constants().able["Toggleable"]


def _type_of(id: str) -> str:
    """Return the type named in a layout id, such as ``Sink|-01.99|+01.14|-00.98|SinkBasin``."""
    first, *_, last = id.split("|")
    return last if last.endswith("Basin") else first


def _object_id(type_: str, number: int) -> str:
    """Return the id of the object that ALFWorld displays with this type and number."""
    name, basin, _ = type_.partition("Basin")
    return f"{name}_bar_{100 - number:03d}" + (f"_bar_{type_}" if basin else "")


def _display_name(item: str) -> str:
    """Return the name that ALFWorld shows for an object."""
    name, *rest = item.lower().split("_bar_")
    if not rest:
        return name
    return f"{name}{'basin' if len(rest) > 1 else ''} {100 - int(rest[0])}"

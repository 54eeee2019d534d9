"""Goals: what a household task asks for, how it is said, how far it is met, and a way to meet it.

A goal is one of ALFWorld's six kinds filled with the types of things. Nothing here starts the
engine: progress and plans come from the facts that hold.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Any, NamedTuple

from pydantic import field_validator, model_validator

from coevo_gym.core.task import FrozenModel
from coevo_gym.envs.alfworld.engine.translation import fast_downward

PICK = "pick_and_place_simple"
LOOK = "look_at_obj_in_light"
CLEAN = "pick_clean_then_place_in_recep"
HEAT = "pick_heat_then_place_in_recep"
COOL = "pick_cool_then_place_in_recep"
TWO = "pick_two_obj_and_place"

KINDS = (PICK, LOOK, CLEAN, HEAT, COOL, TWO)
"""The six kinds of task, by ALFWorld's names."""

Facts = Iterable[tuple[str, tuple[str, ...]]]
"""What holds: (predicate, objects), all lower case, as ``Game.facts()`` says it."""


class Change(NamedTuple):
    """What three of the kinds do to an object before they put it down.

    Attributes:
        verb: the command.
        appliance: type of the receptacle that does it, in lower case.
        able: predicate of the objects it can be done to.
        done: predicate of the objects it was done to.
    """

    verb: str
    appliance: str
    able: str
    done: str


CHANGES = {
    CLEAN: Change("clean", "sinkbasin", "cleanable", "isclean"),
    HEAT: Change("heat", "microwave", "heatable", "ishot"),
    COOL: Change("cool", "fridge", "coolable", "iscool"),
}


PROGRESS = frozenset(
    (
        *("objecttype", "receptacletype", "inreceptacle", "receptacleatlocation"),
        *("atlocation", "holds", "istoggled"),
        *(change.done for change in CHANGES.values()),
    )
)
"""The predicates that :func:`conditions` reads."""


class Goal(FrozenModel):
    """What a task asks for; any object of the named type will do.

    Attributes:
        kind: one of :data:`KINDS`.
        object: type of what is handled, as PDDL names it without "Type": ``Mug``, ``CellPhone``.
        receptacle: type of where it goes; "" for a look.
        toggle: type of the lamp of a look; "" for the others.
    """

    kind: str
    object: str
    receptacle: str = ""
    toggle: str = ""

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind not in KINDS:
            raise ValueError(f"unknown kind {kind!r}; choose one of: {', '.join(KINDS)}")
        return kind

    @field_validator("object", "receptacle", "toggle")
    @classmethod
    def _named(cls, name: str) -> str:
        if not re.fullmatch("[A-Za-z]{0,40}", name):
            raise ValueError(f"{name!r} is not the name of a type: up to 40 letters, such as Mug")
        return name

    @model_validator(mode="after")
    def _filled(self) -> Goal:
        wanted, other = ("toggle", "receptacle") if self.kind == LOOK else ("receptacle", "toggle")
        for field in ("object", wanted):
            if not getattr(self, field):
                raise ValueError(f"{self.kind} needs {field}")
        if getattr(self, other):
            raise ValueError(f"{self.kind} has no {other}; leave it empty")
        return self

    @property
    def types(self) -> tuple[str, ...]:
        """The types that it names."""
        return tuple(filter(None, (self.object, self.receptacle, self.toggle)))


def pddl(goal: Goal) -> str:
    """The goal as a ``(:goal ...)`` section, from ALFWorld's own templates."""
    text: str = _in_library(goal)["pddl"].replace("#", "-")
    filled = text.format(obj=goal.object, recep=goal.receptacle, toggle=goal.toggle)
    return filled[_goal_section(filled)]


def with_goal(problem: str, goal: Goal) -> str:
    """A problem with this goal in place of its own."""
    section = _goal_section(problem)
    return problem[: section.start] + pddl(goal) + problem[section.stop :]


def _goal_section(text: str) -> slice:
    """Where the ``(:goal ...)`` of a text is, up to the parenthesis that closes it."""
    start = text.find("(:goal")
    depth = 0
    for mark in re.finditer("[()]", text[start:]) if start >= 0 else ():
        depth += 1 if mark[0] == "(" else -1
        if not depth:
            return slice(start, start + mark.end())
    raise ValueError("The problem has no complete (:goal ...) section")


WORDINGS = 2
"""Ways in which ALFWorld says a goal of each kind."""


def words(goal: Goal, variant: int = 0) -> str:
    """The goal as ALFWorld's games ask for it, from its own templates.

    New tasks are said as the benchmark says its own, so that a policy which is trained on them
    reads the words that it is evaluated on.

    Args:
        goal: what is wanted.
        variant: which of the :data:`WORDINGS`, counted on from any number.

    Example:
        >>> words(Goal(kind="pick_clean_then_place_in_recep", object="Mug", receptacle="Cabinet"))
        'put a clean mug in cabinet'
    """
    template: str = _in_library(goal)["templates"][variant % WORDINGS]
    names = {"obj": goal.object, "recep": goal.receptacle, "toggle": goal.toggle}
    return template.format(**{part: name.lower() for part, name in names.items()})


def _in_library(goal: Goal) -> dict[str, Any]:
    """What ALFWorld knows of a kind of goal."""
    fast_downward()  # says how to install what is missing
    from alfworld.gen.goal_library import gdict

    found: dict[str, Any] = gdict[goal.kind]
    return found


def is_plain(text: str) -> bool:
    """Whether a text has only what the words of a task need: a-z, 0-9, space, and , ' -."""
    return re.fullmatch("[a-z][a-z0-9 ,'-]{0,199}", text) is not None


def conditions(goal: Goal, facts: Facts) -> tuple[int, int]:
    """How far a goal is met.

    Returns:
        (met, total) conditions, for the one object (or place, for two objects) that is furthest:
        it is there (1); it is there, and clean, hot or cold (2); it is in the hand, and the lamp
        is on where the agent is (2); two are in one place (2).
    """
    return _conditions(goal, _State(facts))


def met(goals: Iterable[Goal], facts: Facts) -> list[Goal]:
    """Those of some goals that are met."""
    state = _State(facts)
    found = ((goal, *_conditions(goal, state)) for goal in goals)
    return [goal for goal, n_met, n_total in found if n_met == n_total]


def _conditions(goal: Goal, state: _State) -> tuple[int, int]:
    things = state.of_type(goal.object)
    placed = {thing for thing in things if state.is_in(thing, goal.receptacle)}
    if goal.kind == PICK:
        return min(len(placed), 1), 1
    if goal.kind == TWO:
        counts = Counter(place for thing in placed for place in state.places[thing])
        targets = state.of_type(goal.receptacle)
        return min(max((counts[place] for place in targets), default=0), 2), 2
    if goal.kind == LOOK:
        lit = any(
            state.holds("istoggled", lamp) and state.is_here(lamp)
            for lamp in state.of_type(goal.toggle)
        )
        return any(thing == state.hand for thing in things) + lit, 2
    done = CHANGES[goal.kind].done
    return max((state.holds(done, thing) + (thing in placed) for thing in things), default=0), 2


def plan(goal: Goal, facts: Facts) -> list[str]:
    """The commands that meet a goal, the fewest of those that fetch each object in turn.

    Args:
        goal: what is wanted.
        facts: all that holds now; the agent's hand is empty.

    Returns:
        The commands; none if the goal is met already or cannot be met this way.
    """
    state = _State(facts)
    met, total = _conditions(goal, state)
    if met == total or state.hand:
        return []
    return min(_plans(goal, state), key=len, default=[])


def _plans(goal: Goal, state: _State) -> Iterator[list[str]]:
    """A plan for each choice of objects and places."""
    spots = [
        (thing, place)
        for thing in state.of_type(goal.object)
        if state.holds("pickupable", thing)
        for place in state.places[thing]
    ]
    if goal.kind == LOOK:
        for lamp in state.of_type(goal.toggle):
            for lamp_place in state.places[lamp]:
                for spot in spots:
                    yield _Walk(state).take(*spot).look(lamp, lamp_place).commands
        return
    for target in state.of_type(goal.receptacle) if state.fits(goal) else ():
        if goal.kind == PICK:
            for spot in spots:
                yield _Walk(state).take(*spot).put(spot[0], target).commands
        elif goal.kind == TWO:
            inside = [thing for thing, place in spots if place == target]
            outside = [spot for spot in spots if spot[0] not in inside]
            for chosen in combinations(outside, 2 - len(inside)):
                walk = _Walk(state)
                for spot in chosen:
                    walk.take(*spot).put(spot[0], target)
                if len(dict(chosen)) == len(chosen):
                    yield walk.commands
        else:
            change = CHANGES[goal.kind]
            able = [spot for spot in spots if state.holds(change.able, spot[0])]
            for appliance in state.of_type(change.appliance):
                for thing, place in able:
                    walk = _Walk(state).take(thing, place).change(thing, change.verb, appliance)
                    if not state.is_in(thing, goal.receptacle, apart_from=place):
                        walk.put(thing, target)
                    yield walk.commands


def _type(name: str) -> str:
    """A type as the facts name it."""
    return f"{name}type".lower()


class _State:
    """The facts by what is asked of them."""

    def __init__(self, facts: Facts) -> None:
        true: defaultdict[str, list[tuple[str, ...]]] = defaultdict(list)
        for name, objects in sorted(facts):
            true[name].append(objects)
        self._by_type: defaultdict[str, list[str]] = defaultdict(list)
        for thing, type_ in true["objecttype"] + true["receptacletype"]:
            self._by_type[type_].append(thing)
        # Some official scenes have an object in two places; taking it leaves it in the other.
        self.places: defaultdict[str, list[str]] = defaultdict(list)
        for thing, place in true["inreceptacle"]:
            self.places[thing].append(place)
        self.location = {place: location for place, location in true["receptacleatlocation"]}
        self.here = next((location for _, location in true["atlocation"]), "")
        self.hand = next((thing for _, thing in true["holds"]), "")
        self._facts = {(name, *objects) for name in true for objects in true[name]}

    def of_type(self, name: str) -> list[str]:
        """The things of a type, ``mug 2`` before ``mug 10``."""
        return sorted(self._by_type[_type(name)], key=lambda thing: (len(thing), thing))

    def holds(self, *fact: str) -> bool:
        """Whether a predicate holds of some objects."""
        return fact in self._facts

    def fits(self, goal: Goal) -> bool:
        """Whether receptacles of the wanted type may hold such objects."""
        return self.holds("cancontain", _type(goal.receptacle), _type(goal.object))

    def is_in(self, thing: str, type_: str, apart_from: str = "") -> bool:
        """Whether a thing is in a receptacle of a type."""
        return any(
            self.holds("receptacletype", place, _type(type_))
            for place in self.places[thing]
            if place != apart_from
        )

    def is_here(self, thing: str) -> bool:
        """Whether a thing is in a receptacle where the agent is."""
        return any(self.location[place] == self.here for place in self.places[thing])


class _Walk:
    """A plan while it is written: where it has led and what it has opened."""

    def __init__(self, state: _State) -> None:
        self._state = state
        self._here = state.here
        self._opened: set[str] = set()
        self.commands: list[str] = []

    def take(self, thing: str, place: str) -> _Walk:
        return self._reach(place)._do(f"take {thing} from {place}")

    def change(self, thing: str, verb: str, appliance: str) -> _Walk:
        return self._go(appliance)._do(f"{verb} {thing} with {appliance}")

    def put(self, thing: str, place: str) -> _Walk:
        return self._reach(place)._do(f"move {thing} to {place}")

    def look(self, lamp: str, place: str) -> _Walk:
        self._go(place)
        return self if self._state.holds("istoggled", lamp) else self._do(f"use {lamp}")

    def _reach(self, place: str) -> _Walk:
        """Go where a receptacle is, and see that it is open."""
        self._go(place)
        closed = self._state.holds("openable", place) and not self._state.holds("opened", place)
        if closed and place not in self._opened:
            self._opened.add(place)
            self._do(f"open {place}")
        return self

    def _go(self, place: str) -> _Walk:
        """Go where a receptacle is; several may be in one spot."""
        location = self._state.location[place]
        if location != self._here:
            self._here = location
            self._do(f"go to {place}")
        return self

    def _do(self, command: str) -> _Walk:
        self.commands.append(command)
        return self

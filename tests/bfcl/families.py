"""Families of rollouts: the ground truth of an entry with something done to it.

Each takes the entry, its calls turn by turn, and a random generator, and returns the calls that an
agent makes instead. It returns the same calls where it has nothing to do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from coevo_gym.core.tool_calls import Call
from tests.bfcl.official import Entry, entries

Calls = list[list[Call]]
Family = Callable[[Entry, Calls, random.Random], Calls]

FAMILIES: dict[str, Family] = {}

READS = {
    "GorillaFileSystem": Call("ls", {"a": True}),
    "MathAPI": Call("add", {"a": 1, "b": 2}),
    "MessageAPI": Call("view_messages_sent", {}),
    "TwitterAPI": Call("posting_get_login_status", {}),
    "TicketAPI": Call("ticket_get_login_status", {}),
    "TradingBot": Call("get_current_time", {}),
    "TravelAPI": Call("list_all_airports", {}),
    "VehicleControlAPI": Call("displayCarStatus", {"option": "fuel"}),
}
WRITES = {
    "GorillaFileSystem": Call("mkdir", {"dir_name": "extra"}),
    "MathAPI": Call("add", {"a": 1, "b": 2}),
    "MessageAPI": Call("add_contact", {"user_name": "Extra"}),
    "TwitterAPI": Call("authenticate_twitter", {"username": "extra", "password": "extra"}),
    "TicketAPI": Call("ticket_login", {"username": "extra", "password": "extra"}),
    "TradingBot": Call("add_to_watchlist", {"stock": "ZETA"}),
    "TravelAPI": Call(
        "authenticate_travel",
        dict.fromkeys(["client_id", "client_secret", "refresh_token", "grant_type"], "extra")
        | {"user_first_name": "Ex", "user_last_name": "Tra"},
    ),
    "VehicleControlAPI": Call("gallon_to_liter", {"gallon": 1}),
}
DRAWS = {
    "VehicleControlAPI": Call("get_current_speed", {}),
    "TravelAPI": Call(
        "verify_traveler_information",
        dict.fromkeys(["first_name", "last_name", "passport_number"], "Extra")
        | {"date_of_birth": "1990-01-01"},
    ),
}
"""A call that draws a random number or reads the date."""


def family(make: Family) -> Family:
    FAMILIES[make.__name__] = make
    return make


def pick_call(rng: random.Random, turns: Calls) -> tuple[int, int]:
    """The place of some call."""
    return rng.choice([(t, i) for t, calls in enumerate(turns) for i in range(len(calls))])


def change_arguments(call: Call, change: Callable[[Any], Any]) -> Call:
    return Call(call.name, {name: change(value) for name, value in call.arguments.items()})


def change_values(change: Callable[[Any], Any]) -> Family:
    """Change every argument of every call."""
    return lambda _, turns, __: [
        [change_arguments(call, change) for call in calls] for calls in turns
    ]


def insert_one_of(calls: dict[str, Call]) -> Family:
    """One of these calls somewhere, of a backend in use."""

    def insert(entry: Entry, turns: Calls, rng: random.Random) -> Calls:
        known = [calls[name] for name in entry.world.classes if name in calls]
        if known:
            turn = rng.choice(turns)
            turn.insert(rng.randint(0, len(turn)), rng.choice(known))
        return turns

    return insert


# Calls in another order.


@family
def reversed_turns(_: Entry, turns: Calls, __: random.Random) -> Calls:
    return [calls[::-1] for calls in turns]


@family
def shuffled_within_turns(_: Entry, turns: Calls, rng: random.Random) -> Calls:
    return [rng.sample(calls, len(calls)) for calls in turns]


@family
def shuffled_turns(_: Entry, turns: Calls, rng: random.Random) -> Calls:
    return rng.sample(turns, len(turns))


@family
def shuffled_over_the_episode(_: Entry, turns: Calls, rng: random.Random) -> Calls:
    every = [call for calls in turns for call in calls]
    rng.shuffle(every)
    return [[every.pop() for _ in calls] for calls in turns]


@family
def two_turns_swapped(_: Entry, turns: Calls, rng: random.Random) -> Calls:
    if len(turns) > 1:
        i = rng.randrange(len(turns) - 1)
        turns[i : i + 2] = turns[i + 1], turns[i]
    return turns


@family
def one_call_a_turn_later(_: Entry, turns: Calls, rng: random.Random) -> Calls:
    turn, index = pick_call(rng, turns)
    if turn + 1 < len(turns):
        turns[turn + 1].insert(0, turns[turn].pop(index))
    return turns


@family
def one_call_a_turn_earlier(_: Entry, turns: Calls, rng: random.Random) -> Calls:
    turn, index = pick_call(rng, turns)
    if turn:
        turns[turn - 1].append(turns[turn].pop(index))
    return turns


@family
def a_turn_made_in_the_next_one(_: Entry, turns: Calls, rng: random.Random) -> Calls:
    turn, _ = pick_call(rng, turns)
    if turn + 1 < len(turns):
        turns[turn : turn + 2] = [], turns[turn] + turns[turn + 1]
    return turns


@family
def a_turn_made_in_the_one_before(_: Entry, turns: Calls, rng: random.Random) -> Calls:
    turn, _ = pick_call(rng, turns)
    if turn:
        turns[turn - 1 : turn + 1] = turns[turn - 1] + turns[turn], []
    return turns


@family
def everything_in_the_first_turn(_: Entry, turns: Calls, __: random.Random) -> Calls:
    return [[call for calls in turns for call in calls], *([] for _ in turns[1:])]


@family
def everything_in_the_last_turn(_: Entry, turns: Calls, __: random.Random) -> Calls:
    return [*([] for _ in turns[1:]), [call for calls in turns for call in calls]]


@family
def a_turn_early_with_a_read_in_its_place(entry: Entry, turns: Calls, rng: random.Random) -> Calls:
    turn, _ = pick_call(rng, turns)
    if turn:
        read = READS[entry.world.classes[0]]
        turns[turn - 1 : turn + 1] = turns[turn - 1] + turns[turn], [read]
    return turns


# Calls missing or repeated.


@family
def first_call_dropped(_: Entry, turns: Calls, rng: random.Random) -> Calls:
    turn, _ = pick_call(rng, turns)
    turns[turn].pop(0)
    return turns


@family
def last_call_dropped(_: Entry, turns: Calls, rng: random.Random) -> Calls:
    turn, _ = pick_call(rng, turns)
    turns[turn].pop()
    return turns


@family
def some_call_dropped(_: Entry, turns: Calls, rng: random.Random) -> Calls:
    turn, index = pick_call(rng, turns)
    turns[turn].pop(index)
    return turns


@family
def silent_in_one_turn(_: Entry, turns: Calls, rng: random.Random) -> Calls:
    turns[pick_call(rng, turns)[0]] = []
    return turns


@family
def every_call_twice(_: Entry, turns: Calls, __: random.Random) -> Calls:
    return [[call for call in calls for _ in range(2)] for calls in turns]


@family
def last_call_twice(_: Entry, turns: Calls, rng: random.Random) -> Calls:
    turn, _ = pick_call(rng, turns)
    turns[turn].append(turns[turn][-1])
    return turns


@family
def a_turn_repeated_in_the_next_one(_: Entry, turns: Calls, rng: random.Random) -> Calls:
    turn, _ = pick_call(rng, turns)
    if turn + 1 < len(turns):
        turns[turn + 1] = turns[turn] + turns[turn + 1]
    return turns


@family
def all_turns_before_repeated(_: Entry, turns: Calls, __: random.Random) -> Calls:
    return [[call for calls in turns[: i + 1] for call in calls] for i in range(len(turns))]


# Calls too many.

FAMILIES["a_read_too_many"] = insert_one_of(READS)
FAMILIES["a_change_too_many"] = insert_one_of(WRITES)
FAMILIES["a_random_number_too_many"] = insert_one_of(DRAWS)
FAMILIES["an_unknown_function"] = insert_one_of(
    dict.fromkeys(READS, Call("do_everything", {"a": 1}))
)
FAMILIES["a_private_function"] = insert_one_of(
    dict.fromkeys(READS, Call("_load", {"scenario": {}}))
)


@family
def a_function_of_another_backend(entry: Entry, turns: Calls, rng: random.Random) -> Calls:
    others = [READS[name] for name in READS if name not in entry.world.classes]
    turn, index = pick_call(rng, turns)
    turns[turn].insert(index, rng.choice(others))
    return turns


@family
def a_change_that_is_undone(entry: Entry, turns: Calls, rng: random.Random) -> Calls:
    if "GorillaFileSystem" in entry.world.classes:
        turn, _ = pick_call(rng, turns)
        turns[turn] += [Call("mkdir", {"dir_name": "x"}), Call("rmdir", {"dir_name": "x"})]
    return turns


@family
def calls_where_none_can_be_made(entry: Entry, turns: Calls, rng: random.Random) -> Calls:
    """In the turns without a reference, which miss_func and miss_param have."""
    for turn, calls in enumerate(turns):
        if not calls:
            calls.append(rng.choice([WRITES, READS])[rng.choice(entry.world.classes)])
            calls += rng.choice([[], turns[turn + 1] if turn + 1 < len(turns) else []])
    return turns


@family
def one_turn_early_and_a_failing_call_when_it_is_due(
    _: Entry, turns: Calls, __: random.Random
) -> Calls:
    """The right guess before the user has said enough."""
    for turn in range(len(turns) - 1):
        if not turns[turn]:
            turns[turn : turn + 2] = turns[turn + 1], [Call("fail", {})]
    return turns


# Other arguments.


@family
def a_failing_call_before_the_right_one(_: Entry, turns: Calls, rng: random.Random) -> Calls:
    turn, index = pick_call(rng, turns)
    turns[turn].insert(index, Call(turns[turn][index].name, {"nonsense": True}))
    return turns


@family
def an_argument_dropped(_: Entry, turns: Calls, rng: random.Random) -> Calls:
    turn, index = pick_call(rng, turns)
    name, arguments, _ = turns[turn][index]
    items = list(arguments.items())
    rng.shuffle(items)
    turns[turn][index] = Call(name, dict(items[1:]))
    return turns


@family
def an_argument_misnamed(_: Entry, turns: Calls, rng: random.Random) -> Calls:
    turn, index = pick_call(rng, turns)
    name, arguments, _ = turns[turn][index]
    renamed = {f"{key}_": value for key, value in arguments.items()}
    turns[turn][index] = Call(name, renamed)
    return turns


@family
def an_argument_too_many(_: Entry, turns: Calls, rng: random.Random) -> Calls:
    turn, index = pick_call(rng, turns)
    name, arguments, _ = turns[turn][index]
    turns[turn][index] = Call(name, {**arguments, "extra": 1})
    return turns


@family
def arguments_in_another_order(_: Entry, turns: Calls, __: random.Random) -> Calls:
    return [
        [Call(call.name, dict(reversed(list(call.arguments.items())))) for call in calls]
        for calls in turns
    ]


@family
def one_value_of_another_kind(_: Entry, turns: Calls, rng: random.Random) -> Calls:
    turn, index = pick_call(rng, turns)
    odd = rng.choice([None, True, 0, -1.5, "", [], [None], {}, {"a": [1]}, "'", "\\", "ü\n"])
    turns[turn][index] = change_arguments(turns[turn][index], lambda _: odd)
    return turns


def as_numbers(value: Any) -> Any:
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


FAMILIES |= {
    "numbers_as_texts": change_values(lambda v: str(v) if is_int(v) or isinstance(v, float) else v),
    "texts_as_numbers": change_values(as_numbers),
    "ints_as_floats": change_values(lambda v: float(v) if is_int(v) else v),
    "floats_as_ints": change_values(lambda v: int(v) if isinstance(v, float) else v),
    "flags_as_ints": change_values(lambda v: int(v) if isinstance(v, bool) else v),
    "texts_in_capitals": change_values(lambda v: v.upper() if isinstance(v, str) else v),
    "texts_in_small_letters": change_values(lambda v: v.lower() if isinstance(v, str) else v),
    "texts_with_a_space": change_values(lambda v: f"{v} " if isinstance(v, str) else v),
    "values_in_lists": change_values(lambda v: [v]),
    "lists_reversed": change_values(lambda v: v[::-1] if isinstance(v, list) else v),
}


# Anything.


@family
def the_calls_of_another_entry(entry: Entry, turns: Calls, rng: random.Random) -> Calls:
    other = rng.choice(entries(entry.task.subset)).turns
    return [list(other[i]) if i < len(other) else [] for i in range(len(turns))]


@family
def several_of_these(entry: Entry, turns: Calls, rng: random.Random) -> Calls:
    for make in rng.sample(SIMPLE, 3):
        if any(turns):
            turns = make(entry, turns, rng)
    return turns


SIMPLE: Sequence[Family] = [
    make for name, make in FAMILIES.items() if name != several_of_these.__name__
]

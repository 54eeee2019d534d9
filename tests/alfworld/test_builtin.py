"""Built-in games: one list everywhere, and each game is won by its own plan."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from coevo_gym.core.task import NATIVE_SPLITS, Split
from coevo_gym.envs.alfworld.builtin import (
    BUILTIN_SPLIT,
    BuiltinGame,
    _room,
    builtin_domain,
    builtin_games,
    builtin_grammar,
)
from coevo_gym.envs.alfworld.engine.game import Game, open_scene
from coevo_gym.envs.alfworld.goals import KINDS, count_conditions, is_plain

GAMES = builtin_games()
A_FEW = GAMES[:: len(GAMES) // 11][:12]


def started(game: BuiltinGame) -> Game:
    scene = open_scene(builtin_domain(), builtin_grammar(), game.problem())
    return Game(scene, game.task)


def check(game: BuiltinGame) -> None:
    """The solution wins with its last command, and the facts say so too."""
    running = started(game)
    assert not running.won
    assert count_conditions(game.goal, running.facts())[0] == 0
    for number, command in enumerate(game.solution, start=1):
        assert command in running.admissible, (game.id, command)
        running.step(command)
        met, total = count_conditions(game.goal, running.facts())
        assert running.won == (met == total) == (number == len(game.solution)), game.id


def test_the_list_of_built_in_games_has_the_recorded_hash() -> None:
    text = repr([(*game, game.problem(), game.solution) for game in GAMES])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "f1f7d83785b25e17"


def test_built_in_games_are_distinct_and_have_plain_instructions() -> None:
    assert len(GAMES) >= 200
    assert len({game.id for game in GAMES}) == len(GAMES)
    assert len({(game.scene, game.goal) for game in GAMES}) == len(GAMES)
    assert all(is_plain(game.task) for game in GAMES)


@pytest.mark.parametrize("split", NATIVE_SPLITS)
def test_every_split_has_every_kind_of_goal_and_of_room(split: Split) -> None:
    games = [game for game in GAMES if BUILTIN_SPLIT[game.scene] is split]
    assert {game.goal.kind for game in games} == {*KINDS}
    assert {game.scene // 100 for game in games} == {0, 2, 3, 4}


def test_about_three_in_five_scenes_are_for_training() -> None:
    count = Counter(BUILTIN_SPLIT.values())
    assert (count[Split.TRAIN], count[Split.VAL], count[Split.TEST]) == (18, 5, 5)
    assert {game.scene for game in GAMES} == BUILTIN_SPLIT.keys()


@pytest.mark.parametrize("game", A_FEW[:4], ids=lambda game: game.id)
def test_the_facts_of_a_room_are_those_of_the_engine(game: BuiltinGame) -> None:
    assert {(name, objects) for name, objects in started(game).facts()} == _room(game.scene).facts


@pytest.mark.parametrize("game", A_FEW, ids=lambda game: game.id)
def test_the_solution_wins_with_its_last_command(game: BuiltinGame) -> None:
    check(game)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_solution_wins_with_its_last_command() -> None:
    for game in GAMES:
        check(game)

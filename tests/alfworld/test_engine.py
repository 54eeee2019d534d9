"""The engine says what TextWorld's own env says, for many games at once."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
from mementos.core import _memento_cache
from textworld import EnvInfos
from textworld.envs.pddl import PddlEnv
from textworld.logic import Proposition

from coevo_gym.envs.alfworld.builtin import builtin_domain, builtin_games, builtin_grammar
from coevo_gym.envs.alfworld.data import UNKNOWN, open_games
from coevo_gym.envs.alfworld.engine import game
from coevo_gym.envs.alfworld.engine.game import NOTHING, Game, open_scene
from tests.quick import sample_params

BUILTIN = builtin_games()[::40][:5]
N_STEPS = 30
Problem = tuple[str, str, str]


def builtin(index: int = 0) -> Problem:
    return builtin_domain(), builtin_grammar(), BUILTIN[index].problem()


def stock_env(problem: Problem, words: str) -> Any:
    """TextWorld's own env, as ALFWorld makes it."""
    domain, grammar, pddl = problem
    env = AlfredDemangler()(PddlEnv(EnvInfos(won=True, admissible_commands=True)))
    env.load(
        {
            "pddl_domain": domain,
            "grammar": grammar.replace(UNKNOWN, words),
            "pddl_problem": pddl,
            "walkthrough": [],
            "solvable": True,
        }
    )
    return env


def commands(game: Game, seed: int, walkthrough: tuple[str, ...] = ()) -> Iterator[str]:
    """Random commands, some of them nonsense, after part of a walkthrough."""
    rng = random.Random(seed)
    yield from walkthrough[: rng.randrange(len(walkthrough) + 1)]
    while True:
        yield rng.choice([*game.admissible, "fly to moon", " look "])


def assert_equal(problem: Problem, words: str, walkthrough: tuple[str, ...], seed: int) -> None:
    arguments = list(sys.argv)
    stock = stock_env(problem, words)
    state = stock.reset()
    sys.argv = arguments  # which the stock env overwrites
    game = Game(open_scene(*problem), words)
    other = Game(open_scene(*problem), words)  # what it does must not matter
    acting = commands(game, seed, walkthrough)
    for step in range(N_STEPS):
        assert game.observation == state.feedback
        assert list(game.admissible) == state["admissible_commands"]
        assert game.won == state["won"]
        command = next(acting)
        state, _, _ = stock.step(command)
        game.step(command)
        if step % 3 == 0:
            other.step(other.admissible[step % len(other.admissible)])
    assert sys.argv == arguments


needs_the_stock_env = pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="TextWorld's own env fails on Python 3.13"
)


@needs_the_stock_env
@pytest.mark.parametrize("index", sample_params(range(len(BUILTIN)), 3))
def test_built_in_games_run_as_in_the_stock_engine(index: int) -> None:
    assert_equal(builtin(index), BUILTIN[index].task, BUILTIN[index].solution, index)


@needs_the_stock_env
@pytest.mark.parametrize("index", sample_params(range(20), 5))
def test_official_games_run_as_in_the_stock_engine(index: int, official_games: Path) -> None:
    games = open_games()
    entries = [*games.entries("train")[::250], *games.entries("valid_unseen")[::22]][:20]
    entry = entries[index]
    problem = games.domain, games.grammar, games.problem(entry.id)
    assert_equal(problem, entry.task, entry.walkthrough, index)


def play(
    index: int, n: int = N_STEPS, between: Callable[[], object] = lambda: None
) -> list[tuple[str, tuple[str, ...], bool]]:
    """A random episode, as it went, with something else done between its steps."""
    game = Game(open_scene(*builtin(index)), BUILTIN[index].task)
    acting, seen = commands(game, index), []
    for _ in range(n):
        between()
        game.step(next(acting))
        seen.append((game.observation, game.admissible, game.won))
    return seen


def test_games_in_concurrent_threads_do_not_affect_each_other() -> None:
    alone = [play(index) for index in range(3)]
    results: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda i=i: results.update({i: play(i % 3)})) for i in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[i] for i in range(6)] == [*alone, *alone]


def test_games_do_not_load_the_planner_library() -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("libdownward")

    play(0, 1)
    before = mapped()
    for index in range(5):
        play(index, 2)
    assert mapped() == before


def test_an_instruction_is_never_evaluated_as_code() -> None:
    hostile = "put {__import__('os').getpid()} #intro# [1] in {1+1} | & \" \\"
    game = Game(open_scene(*builtin()), hostile)
    assert f"Your task is to: {hostile}" in game.observation


def test_a_game_changes_neither_the_global_random_state_nor_arguments() -> None:
    random.seed(5)
    state, arguments = random.getstate(), list(sys.argv)
    play(1, 5)
    assert random.getstate() == state
    assert sys.argv == arguments


def test_an_inadmissible_command_changes_nothing() -> None:
    game = Game(open_scene(*builtin()), "x")
    before = game.admissible, game.facts()
    game.step("go to the moon 1")
    assert game.last_action == ""
    assert game.observation == NOTHING
    assert (game.admissible, game.facts()) == before


def test_cached_facts_of_closed_scenes_are_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Proposition("belongs_to_no_scene", [])
    monkeypatch.setattr(game, "MAX_FACTS", 0)
    open_scene.cache_clear()
    open_scene(*builtin())
    assert _memento_cache
    assert gone not in _memento_cache.values()


def test_a_running_game_does_not_change_when_cached_facts_are_discarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    undisturbed = play(0)
    monkeypatch.setattr(game, "MAX_FACTS", 0)
    open_scene.cache_clear()
    assert play(0, between=lambda: open_scene.__wrapped__(*builtin(1))) == undisturbed

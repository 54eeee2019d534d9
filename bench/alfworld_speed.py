"""Speed and memory of CoEvolve-ALFWorld-v0 and of the original engine, in the same run.

Uses the official games if they are installed, and the built-in ones otherwise.

Run: python bench/alfworld_speed.py
"""

from __future__ import annotations

import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import gymnasium as gym

import coevo_gym
from coevo_gym.core.task import Task
from coevo_gym.envs.alfworld.data import UNKNOWN
from coevo_gym.envs.alfworld.engine.game import Game, open_scene
from coevo_gym.envs.alfworld.env import ALFWorldEnv
from coevo_gym.envs.alfworld.tasks import scene_definition
from coevo_gym.envs.alfworld.world import ALFWorldWorld

N_STOCK, N_GAMES, N_RESETS, N_STEPS = 4, 50, 200, 30
PAGE = 4096


def cpu_seconds(run: Callable[[], Any]) -> float:
    """Return the CPU seconds that a function call takes."""
    started = time.process_time()
    run()
    return time.process_time() - started


def problem_of(task: Task) -> tuple[str, str, str]:
    return scene_definition(cast(ALFWorldWorld, task.world))


def stock_steps_per_s(tasks: Sequence[Task]) -> float:
    """Return the steps per CPU second of TextWorld's own env, created as in ALFWorld."""
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld import EnvInfos
    from textworld.envs.pddl import PddlEnv

    env = AlfredDemangler()(PddlEnv(EnvInfos(won=True, admissible_commands=True)))
    rng, spent, steps = random.Random(0), 0.0, 0
    for task in tasks:
        domain, grammar, problem = problem_of(task)
        words = grammar.replace(UNKNOWN, task.instruction)
        env.load({"pddl_domain": domain, "grammar": words, "pddl_problem": problem})
        state = env.reset()
        for _ in range(N_STEPS):
            command = rng.choice(state["admissible_commands"])
            started = time.process_time()
            state, _, _ = env.step(command)
            spent += time.process_time() - started
            steps += 1
    return steps / spent


def own_steps_per_s(tasks: Sequence[Task]) -> float:
    """Return the steps per CPU second of an env from ``gym.make``, with goal conditions checked."""
    env = cast(ALFWorldEnv, gym.make("CoEvolve-ALFWorld-v0", max_steps=10_000).unwrapped)
    rng, spent, steps = random.Random(0), 0.0, 0
    for task in tasks:
        _, info = env.reset(options={"task": task})
        over = False
        for _ in range(N_STEPS):
            if over:
                break
            command = rng.choice(info["admissible"])
            started = time.process_time()
            _, _, over, _, info = env.step(command)
            spent += time.process_time() - started
            steps += 1
    return steps / spent


def lockstep_steps_per_s(tasks: Sequence[Task]) -> float:
    """Return the steps per CPU second of episodes that take turns, as in a trainer."""
    envs = [gym.make("CoEvolve-ALFWorld-v0").unwrapped for _ in tasks]
    rng = random.Random(0)
    live = [(env, env.reset(options={"task": t})[1]) for env, t in zip(envs, tasks, strict=True)]
    started, steps = time.process_time(), 0
    for _ in range(N_STEPS):
        ended = [(env, env.step(rng.choice(info["admissible"]))) for env, info in live]
        steps += len(ended)
        live = [(env, step[-1]) for env, step in ended if not step[2]]
    return steps / (time.process_time() - started)


def resident_megabytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1e6


def count_planner_libraries() -> int:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split()[-2] for line in lines if "libdownward" in line})


def main() -> None:
    tasks = list(coevo_gym.tasks("alfworld"))
    chosen = tasks[:: max(1, len(tasks) // N_GAMES)][:N_GAMES]
    for task in chosen:
        open_scene(*problem_of(task))  # fill the cache on disk
    open_scene.cache_clear()
    first = [cpu_seconds(lambda t=t: open_scene(*problem_of(t))) for t in chosen[:10]]
    warm = [
        cpu_seconds(lambda t=t: Game(open_scene(*problem_of(t)), t.instruction))
        for t in chosen[:10]
    ]
    env = gym.make("CoEvolve-ALFWorld-v0", disable_env_checker=True)
    env.reset(options={"task": chosen[0]})
    before, mapped = resident_megabytes(), count_planner_libraries()
    for number in range(N_RESETS):
        env.reset(options={"task": chosen[number % len(chosen)]})
    grown, still = resident_megabytes() - before, count_planner_libraries()
    own, stock = own_steps_per_s(chosen[:20]), stock_steps_per_s(chosen[:N_STOCK])
    turns = lockstep_steps_per_s(chosen[:20])
    rows = [
        ("steps per CPU second, goal conditions on", f"{own:,.0f}", ">= 200"),
        ("same, 20 games taking turns", f"{turns:,.0f}", ">= 200"),
        ("original engine, steps per CPU second", f"{stock:,.0f}", ""),
        ("ratio", f"{own / stock:.0f} x", ">= 12 x"),
        (
            "first load of a cached game, median",
            f"{statistics.median(first) * 1e3:.0f} ms",
            "<= 100",
        ),
        ("warm reset, median", f"{statistics.median(warm) * 1e3:.1f} ms", "<= 20 ms"),
        (f"growth over {N_RESETS} resets of {N_GAMES} games", f"{grown:.0f} MB", "< 60 MB"),
        ("loaded planner libraries before, after", f"{mapped}, {still}", "equal"),
    ]
    print(f"Python {platform.python_version()}, {platform.machine()}, {time.strftime('%Y-%m-%d')}")
    for name, value, wanted in rows:
        print(f"{name:44} {value:>12}  {wanted}")


if __name__ == "__main__":
    main()

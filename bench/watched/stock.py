"""The original engines, stepped as their users do."""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from coevo_gym.core.task import Task
from watched.usage import usage

Played = tuple[int, float]
"""Number of steps, and the memory in MB while all envs are live."""

_APPWORLD = """
import json, sys
from appworld import AppWorld

worlds = [AppWorld(base, experiment_name=f"stock-{number}")
          for number, base in enumerate(json.loads(sys.argv[1]))]
steps = 0
for world in worlds:
    for code in json.loads(sys.argv[2]):
        world.execute(code)
        steps += 1
print(steps, flush=True)
sys.stdin.read()
"""


def step_alfworld(tasks: Sequence[Task], n_envs: int, n_steps: int) -> Played:
    """Step TextWorld's envs, created as in ALFWorld, in turn with random commands."""
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from textworld import EnvInfos
    from textworld.envs.pddl import PddlEnv

    from coevo_gym.envs.alfworld.data import UNKNOWN
    from coevo_gym.envs.alfworld.tasks import scene_definition
    from coevo_gym.envs.alfworld.world import ALFWorldWorld

    rng, steps, live = random.Random(0), 0, []
    for number in range(n_envs):
        task = tasks[number % len(tasks)]
        domain, grammar, problem = scene_definition(cast(ALFWorldWorld, task.world))
        words = grammar.replace(UNKNOWN, task.instruction)
        env = AlfredDemangler()(PddlEnv(EnvInfos(won=True, admissible_commands=True)))
        env.load({"pddl_domain": domain, "grammar": words, "pddl_problem": problem})
        live.append((env, env.reset()))
    for _ in range(n_steps):
        for place, (env, state) in enumerate(live):
            after, _, _ = env.step(rng.choice(state["admissible_commands"]))
            live[place] = env, after
            steps += 1
    return steps, usage().memory_mb


def step_bfcl(tasks: Sequence[Task], n_envs: int, n_steps: int) -> Played:
    """Step the official executor, with one reference call per step."""
    from coevo_gym.envs.bfcl.engine.wheel import import_official
    from coevo_gym.envs.bfcl.world import BFCLVerifier, BFCLWorld

    execute = import_official(
        "eval_checker.multi_turn_eval.multi_turn_utils"
    ).execute_multi_turn_func_call
    steps = 0
    for number in range(n_envs):
        task = tasks[number % len(tasks)]
        world, verifier = cast(BFCLWorld, task.world), cast(BFCLVerifier, task.verifier)
        begun: tuple[Any, ...] = (
            json.loads(world.config),
            list(world.classes),
            f"stock_{number}",
            task.name.rpartition("/")[2],
        )
        for text in [text for turn in verifier.turns for text in turn][:n_steps]:
            execute([text], *begun, world.long_context)
            steps += 1
    return steps, usage().memory_mb


def step_appworld(tasks: Sequence[Task], n_envs: int, n_steps: int) -> Played:
    """Step the bare engine in one process per env, because its worlds share global state."""
    from coevo_gym.envs.appworld.engine.prefix import engine_environment, engine_python
    from coevo_gym.envs.appworld.tasks import ensure_root_of_world
    from coevo_gym.envs.appworld.world import AppWorldWorld

    codes = ["me = apis.supervisor.show_profile()"] * n_steps
    with tempfile.TemporaryDirectory() as folder:
        worlds = [cast(AppWorldWorld, task.world) for task in tasks]
        (Path(folder) / "data").symlink_to(ensure_root_of_world(worlds[0]) / "data")
        live = []
        for number in range(n_envs):
            base = worlds[number % len(worlds)].base
            command = [str(engine_python()), "-s", "-c", _APPWORLD]
            live.append(
                subprocess.Popen(
                    [*command, json.dumps([base]), json.dumps(codes)],
                    env=engine_environment(Path(folder)),
                    cwd=folder,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        steps = sum(int(process.stdout.readline()) for process in live if process.stdout)
        memory = usage().memory_mb
        for process in live:
            process.communicate()
    return steps, memory


STOCK: dict[str, Callable[[Sequence[Task], int, int], Played]] = {
    "alfworld": step_alfworld,
    "bfcl": step_bfcl,
    "appworld": step_appworld,
}

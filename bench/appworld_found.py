"""Transfer of training to held-out scenarios in AppWorld's built-in world.

The tiny policy can only choose calls that are built from its observations. Native tasks need other
calls, so it solves none of them, and they cannot show an effect of training. This benchmark
therefore uses tasks that the policy can solve: a scripted explorer finds them, without guidance, in
all training scenarios. 30% of the scenarios are held out. The policy imitates the tasks found in
the other scenarios, and each arm trains there, from its own initial tasks. All policies are
evaluated on the tasks found in the held-out scenarios, except those with the same instruction as an
imitated task.

Results are stored in `runs/appworld_found` or --folder. Run the command again to resume. Once the
tasks are found, several processes may run different seeds in the same folder.

Run: python bench/appworld_found.py [--seeds 1-8] [--env-steps 8000]     # 20 minutes per seed
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from statistics import mean

from rich.console import Console

from coevo_gym.core.stats import paired_difference, sign_flip_test
from coevo_gym.core.task import Split, Task
from coevo_gym.core.task_file import read_tasks, write_tasks
from coevo_gym.envs.held_out import benchmark_of
from coevo_gym.episodes.evaluation import evaluate
from coevo_gym.runs.assembly import Assembly, load_evaluation_weights
from coevo_gym.runs.config import load_config
from coevo_gym.runs.config.table_files import parse_seeds
from coevo_gym.runs.display import RunProgress
from coevo_gym.runs.manifest import read_manifest
from coevo_gym.runs.table import RANDOM, WARMUP
from coevo_gym.runs.train import resume, train
from coevo_gym.store.checkpoint import Checkpoints
from coevo_gym.store.folder import RunFolder, read_json

Rates = list[tuple[float, float]]
"""Success on found tasks and on native tasks in held-out scenarios, for each seed."""

HOLD_OUT = 0.3
N_FOUND = 110
ARMS = ("static", "coevolve_rbc")


def find_tasks(path: Path, n: int, progress: RunProgress) -> Sequence[Task]:
    """Return the tasks that an explorer finds in all training scenarios, cached in a file."""
    if not path.is_file():
        progress.say(f"Exploring until {n} tasks are found (about 10 minutes for {N_FOUND}) ...")
        config = load_config("quickstart", sets=["benchmark.name=appworld", "seed=77"]).config
        assembly = Assembly(config)
        parts = assembly.kit(None)
        result = parts.evolver(parts.explorer()).run(assembly.first_round(n))
        write_tasks(path, result.accepted)
    return read_tasks(path)


def train_arms(
    folder: RunFolder, seed: int, demonstrations: Path, env_steps: int, progress: RunProgress
) -> None:
    """Train all arms in the scenarios that are not held out."""
    if folder.manifest.is_file():
        resume(folder, progress, lambda: False)  # type: ignore[arg-type]
        return
    sets = {
        "benchmark.name": "appworld",
        "benchmark.hold_out": HOLD_OUT,
        "evaluation.split": "held_out",
        "evaluation.n_tasks": 57,
        "warmup.n_tasks": 0,
        "warmup.demonstrations": demonstrations,
        "curriculum.initial_size": len(read_tasks(demonstrations)),
        "curriculum.growth.max_contexts": 8,
        "curriculum.growth.drafts": 24,
        "curriculum.growth.every_groups": 48,
        "loop.max_env_steps": env_steps,
        "loop.groups_per_step": 8,
        "loop.evaluate_every_steps": 0,
        "arms": ",".join(ARMS),
        "seed": seed,
    }
    resolved = load_config("quickstart", sets=[f"{key}={value}" for key, value in sets.items()])
    train(folder, resolved, progress, lambda: False)  # type: ignore[arg-type]


def success_rates(folder: RunFolder, tasks: Sequence[Task]) -> Iterator[tuple[str, float, float]]:
    """Yield each policy's name, and its success on found and on native held-out tasks."""
    config = read_manifest(folder)[1]
    assembly = Assembly(config)
    everywhere = config.benchmark.model_copy(update={"hold_out": 0.0})
    native = {row["name"]: row["success"] for row in read_json(folder.summary)["table"]}
    with closing(
        Assembly(config.model_copy(update={"benchmark": everywhere})).make_env_pool()
    ) as envs:
        floor = evaluate(assembly.random_agent(), tasks, envs, seed=config.seed)
        yield RANDOM, floor.success_rate, native[RANDOM]
        for name in (WARMUP, *ARMS):
            saved = Checkpoints(folder.checkpoints / name).load_latest()
            assert saved is not None
            load_evaluation_weights(assembly.policy, saved.state)
            agent = assembly.agent(assembly.policy).greedy()
            rate = evaluate(agent, tasks, envs, seed=config.seed).success_rate
            yield name, rate, native[name]


def main() -> None:
    """Run all missing seeds, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--seeds", default="1-8", help="number of seeds, a range (1-2) or a list (3,)"
    )
    parser.add_argument("--env-steps", type=int, default=8_000, help="env steps per arm")
    parser.add_argument("--tasks", type=int, default=N_FOUND, help="number of tasks to find")
    parser.add_argument("--folder", type=Path, default=Path("runs/appworld_found"))
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    rates: dict[str, Rates] = {}
    with RunProgress(Console()) as progress:
        tasks = find_tasks(folder / "found.jsonl", arguments.tasks, progress)
        side_of = benchmark_of("appworld", HOLD_OUT).side_of
        demonstrations = [task for task in tasks if side_of(task) is Split.TRAIN]
        instructions = {task.instruction for task in demonstrations}
        aside = [
            task
            for task in tasks
            if side_of(task) is Split.HELD_OUT and task.instruction not in instructions
        ]
        write_tasks(folder / "shown.jsonl", demonstrations)
        for seed in parse_seeds(arguments.seeds, range(1, 9)):
            run = RunFolder(folder / f"seed-{seed}")
            train_arms(run, seed, folder / "shown.jsonl", arguments.env_steps, progress)
            for name, rate, native in success_rates(run, aside):
                rates.setdefault(name, []).append((rate, native))
    scenarios = len({task.scenario for task in aside})
    print(f"{len(demonstrations)} tasks to imitate, {len(aside)} in {scenarios} held-out scenarios")
    print("| policy | found held-out tasks | by seed | native held-out tasks |")
    print("|---|---|---|---|")
    for name, of in rates.items():
        each = ", ".join(f"{rate:.1%}" for rate, _ in of)
        of_found, of_native = mean(rate for rate, _ in of), mean(native for _, native in of)
        print(f"| {name} | {of_found:.1%} | {each} | {of_native:.1%} |")
    for one, other in ((ARMS[0], WARMUP), (ARMS[1], WARMUP), (ARMS[1], ARMS[0])):
        print(f"{one} minus {other}: {_format_difference(rates[one], rates[other])}")


def _format_difference(ours: Rates, others: Rates) -> str:
    """Return the difference in success on found tasks, in percentage points, paired by seed."""
    ours_found, others_found = [rate for rate, _ in ours], [rate for rate, _ in others]
    if len(ours) < 2:
        return f"{100 * (ours_found[0] - others_found[0]):+.1f} points, one seed"
    difference = paired_difference(ours_found, others_found)
    p = sign_flip_test([one - other for one, other in zip(ours_found, others_found, strict=True)])
    low, high = 100 * difference.low, 100 * difference.high
    return (
        f"{100 * difference.mean:+.1f} points [{low:+.1f}, {high:+.1f}], "
        f"ahead in {difference.wins} of {len(ours)} seeds, p = {p:.3f}"
    )


if __name__ == "__main__":
    main()

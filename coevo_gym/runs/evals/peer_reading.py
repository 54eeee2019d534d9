"""Results on a panel, read as verl-agent's evaluations would have reported them.

verl-agent and its forks validate 31 times on tasks that are drawn anew each time, and papers report
the last of these evaluations or the best one. A panel plays each of its tasks in each evaluation,
so its outcomes contain an answer to the question: which numbers would the same policies have had?

Only evaluations are imitated. Nothing trains on a validation task, so a reading does not contain
the gain, if any, of a policy that has practised the tasks on which it is validated.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coevo_gym.core.errors import ConfigError
from coevo_gym.envs.alfworld.peer_draws import VALIDATION_SEED_OFFSET, draw_games
from coevo_gym.runs.evals.best_of_n import MIN_SAMPLES, fit_beta
from coevo_gym.runs.evals.comparison import Side
from coevo_gym.runs.panels.panel_files import find_panel

EVALUATIONS = 31
"""Evaluations of a run with verl-agent's scripts: before training, and after every fifth of 150
iterations."""
SIZES: Mapping[str, tuple[int, ...]] = {"alfworld": (128,), "webshop": (128, 256)}
"""Episodes per evaluation, by benchmark. On WebShop, GRPO's script has 128, and GiGPO's 256."""
SIMULATIONS = 1_000
"""Number of simulated runs; the error of the means is then about 0.1 points."""
_GAMES = "alfworld"
"""The benchmark whose drawing rule is repeated exactly."""
_GAME_PANELS = ("alfworld-valid-seen-140", "alfworld-valid-unseen-134")
"""Panels with all games that validation workers draw from, for each of the two sets of games."""
_ADVICE = "--samples 8 (coevo eval) or evaluation.samples = 8 (a run)"

Counts = NDArray[np.int64]


class PeerReading(NamedTuple):
    """The result of a policy or run, as evaluations on drawn tasks would have reported it.

    All numbers but the first two are shares in [0, 1].

    Attributes:
        tasks: episodes per evaluation on drawn tasks.
        evaluations: number of evaluations.
        panel_last: success on the whole panel in the last evaluation.
        panel_best: success on the whole panel in the best evaluation.
        last: mean success of the last evaluation on drawn tasks, over simulated runs.
        last_sd: standard deviation of one such evaluation.
        best: mean success of the best evaluation on drawn tasks.
        rise: ``best`` minus ``panel_last``.
    """

    tasks: int
    evaluations: int
    panel_last: float
    panel_best: float
    last: float
    last_sd: float
    best: float
    rise: float

    @classmethod
    def mean(cls, readings: Sequence[PeerReading]) -> PeerReading:
        """Return the mean of the readings of repeats. The number of evaluations is the largest."""
        means = (float(np.mean(values)) for values in list(zip(*readings, strict=True))[2:])
        return cls(readings[0].tasks, max(one.evaluations for one in readings), *means)


def read_as_peer(
    evaluations: Sequence[Side], *, simulations: int = SIMULATIONS, seed: int = 0
) -> tuple[PeerReading, ...]:
    """Simulate the evaluations that verl-agent would have made of the same policies.

    In each simulated run, every evaluation plays the tasks that verl-agent's rules draw for it. A
    task that is drawn m times takes m of its stored episodes, each once. The mean of the results,
    over panels, is then that of true evaluations, and so is the mean of their best: repeated use of
    one episode would move them, because evaluations with equal episodes vary together.

    A single evaluation is read as :data:`EVALUATIONS` evaluations of a policy that does not change.
    It has too few episodes for that, so the rates of the tasks are drawn from their posterior
    distribution, as in :func:`~coevo_gym.runs.evals.best_of_n.best_of_n_rise`.

    Args:
        evaluations: evaluations of one run in order, or a single evaluation.
        simulations: number of simulated runs, at least 2.
        seed: seed of the simulation.

    Returns:
        One reading for each size of an evaluation in :data:`SIZES`.

    Raises:
        ConfigError: if the benchmark, its tasks or the number of episodes do not allow it.
    """
    ids = _tasks_to_draw(evaluations)
    wins = np.array([[sum(side.outcomes[id]) for id in ids] for side in evaluations])
    tries = np.array([[len(side.outcomes[id]) for id in ids] for side in evaluations])
    n = len(evaluations) if len(evaluations) > 1 else EVALUATIONS
    benchmark = evaluations[0].benchmark
    return tuple(
        _simulate(wins, tries, size, _make_draw(benchmark, size, n, len(ids)), simulations, seed)
        for size in SIZES[benchmark]
    )


def describe_peer_readings(benchmark: str, *, unchanging: bool) -> tuple[str, ...]:
    """Return sentences that explain the readings of a benchmark.

    Args:
        benchmark: name of the benchmark.
        unchanging: True if a reading is of a single evaluation.
    """
    if benchmark == _GAMES:
        draw = (
            "Redrawn evaluations have the 128 games that verl-agent's validation workers deal with "
            "the seeds 1000 to 1127, several of them more than once. The order of the workers' "
            "list depends on the disk, so each simulated run has an order of its own."
        )
    else:
        draw = (
            "Redrawn evaluations have as many goals as verl-agent's, drawn with replacement from "
            "this panel. verl-agent draws from all 6,910 goals, so this imitates the size of an "
            "evaluation and its repetitions only."
        )
    return (
        draw,
        f"Redrawn numbers are means over {SIMULATIONS:,} simulated runs, with the standard "
        "deviation of one evaluation. The rise is the best redrawn evaluation minus the last one "
        "on the panel. Only evaluations are imitated: what training on validation tasks would add "
        "is not measured.",
        *(
            [
                f"A single evaluation is read as {EVALUATIONS} evaluations of a policy that does "
                "not change."
            ]
            if unchanging
            else []
        ),
    )


def _tasks_to_draw(evaluations: Sequence[Side]) -> list[str]:
    """Return the ids of the tasks that evaluations are redrawn from, in a fixed order.

    Raises:
        ConfigError: if the benchmark has no known draws, tasks are missing, or episodes are.
    """
    first = evaluations[0]
    if first.benchmark not in SIZES:
        raise ConfigError(
            f"{first.name} is a result on {first.benchmark}, and verl-agent's draws are only known "
            f"for {' and '.join(SIZES)}. Print the table without --as."
        )
    ids = (
        _game_ids(first)
        if first.benchmark == _GAMES
        else sorted({id for side in evaluations for id in side.outcomes})
    )
    for side in evaluations:
        missing = [id for id in ids if id not in side.outcomes]
        if missing:
            tasks = ChainMap(*(dict(one.tasks) for one in evaluations))
            raise ConfigError(
                f"{side.name} has no result on {len(missing)} of the {len(ids)} tasks that other "
                f"evaluations have, such as {tasks[missing[0]].name}. Evaluate all of them on the "
                "same tasks."
            )
        few = min(ids, key=lambda id: len(side.outcomes[id]))
        if len(side.outcomes[few]) < MIN_SAMPLES:
            raise ConfigError(
                f"{side.name} has too few episodes per task ({len(side.outcomes[few])} of "
                f"{side.tasks[few].name}): redrawn evaluations need at least {MIN_SAMPLES}. "
                f"Evaluate with {_ADVICE}."
            )
    return ids


def _game_ids(side: Side) -> list[str]:
    """Return the ids of the games that verl-agent would draw, in the order of their panel.

    Raises:
        ConfigError: if the result is not on these games, or not on all of them.
    """
    by_name = {side.tasks[id].name: id for id in side.outcomes}
    panels = [find_panel(name) for name in _GAME_PANELS]
    panel = max(panels, key=lambda one: sum(entry.id in by_name for entry in one.tasks))
    missing = [entry.id for entry in panel.tasks if entry.id not in by_name]
    if len(missing) == len(panel.tasks):
        raise ConfigError(
            f"{side.name} is a result on other games than those of valid_seen or valid_unseen, "
            f"such as {next(iter(by_name))}. Evaluate on a panel with all of them: "
            f"{' or '.join(f'--panel {name}' for name in _GAME_PANELS)}."
        )
    if missing:
        raise ConfigError(
            f"{side.name} has no result on {len(missing)} of the {len(panel.tasks)} games that "
            f"verl-agent draws from, such as {missing[0]}. Evaluate on all of them: --panel "
            f"{panel.name}."
        )
    return [by_name[entry.id] for entry in panel.tasks]


Draw = Callable[[np.random.Generator], Counts]
"""A function that returns how often each evaluation plays each task: (evaluations, tasks)."""


def _make_draw(benchmark: str, size: int, evaluations: int, tasks: int) -> Draw:
    """Return the draw of one simulated run."""
    if benchmark == _GAMES:
        counts = count_games(tasks, workers=size, evaluations=evaluations)
        return lambda rng: counts[:, rng.permutation(tasks)]
    shares = np.full(tasks, 1 / tasks)
    return lambda rng: rng.multinomial(size, shares, size=evaluations)


def count_games(games: int, *, workers: int, evaluations: int) -> Counts:
    """Count how often each evaluation of an ALFWorld run with ``env.seed`` 0 plays each game.

    Args:
        games: number of games in the workers' list.
        workers: number of validation workers.
        evaluations: number of evaluations, each of which resets all workers once.

    Returns:
        (evaluations, games) number of episodes.

    Example:
        >>> count_games(5, workers=2, evaluations=2).tolist()  # they deal 2 and 3, then 1 and 0
        [[0, 0, 1, 1, 0], [1, 1, 0, 0, 0]]
    """
    resets = draw_games(
        range(games), seed=VALIDATION_SEED_OFFSET, groups=workers, resets=evaluations
    )
    return np.array([np.bincount(reset, minlength=games) for reset in resets])


def _simulate(
    wins: Counts, tries: Counts, size: int, draw: Draw, simulations: int, seed: int
) -> PeerReading:
    """Simulate runs.

    Args:
        wins: (evaluations, tasks) successful episodes.
        tries: (evaluations, tasks) episodes.
        size: episodes per redrawn evaluation.
        draw: the draw of a run.
        simulations: number of runs.
        seed: seed of the simulation.
    """
    levels = (wins / tries).mean(axis=1)  # (evaluations,)
    spread = fit_beta(wins[-1].tolist(), tries[-1].tolist())
    rng = np.random.default_rng(seed)
    single = len(levels) == 1
    last, best, noise = (np.empty(simulations) for _ in range(3))
    for i in range(simulations):
        counts = draw(rng)
        # The policy of the last evaluation, as if it did not change; its true rate is the mean.
        rates = rng.beta(spread.alpha + wins[-1], spread.beta + tries[-1] - wins[-1])
        solved = rng.binomial(counts if single else counts[-1:], rates)
        excess = solved.sum(axis=1) / size - rates.mean()
        results = levels[0] + excess if single else _replay(wins, tries, counts, rng)
        results = np.clip(results, 0, 1)
        last[i], best[i], noise[i] = results[-1], results.max(), excess[-1]
    highest = float(best.mean())
    return PeerReading(
        tasks=size,
        evaluations=len(results),
        panel_last=float(levels[-1]),
        panel_best=float(levels.max()),
        last=float(last.mean()),
        last_sd=float(noise.std(ddof=1)),
        best=highest,
        rise=highest - float(levels[-1]),
    )


def _replay(
    wins: Counts, tries: Counts, counts: Counts, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the success of evaluations that take stored episodes of the tasks in ``counts``.

    An episode is only taken twice if a task is drawn more often than it has episodes.
    """
    every, rest = np.divmod(counts, tries)
    solved = every * wins + rng.hypergeometric(wins, tries - wins, rest)
    success: NDArray[np.float64] = solved.sum(axis=1) / counts.sum(axis=1)
    return success

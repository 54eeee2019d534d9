"""Audits by rule, which redraw the tasks that a verl-agent run trains and validates on.

No model is involved and nothing of the run is read but its settings, since its rules and the
benchmark's data determine every task.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from coevo_gym.core.errors import BenchmarkNotInstalled, ConfigError
from coevo_gym.envs.alfworld.data import open_games
from coevo_gym.envs.alfworld.peer_draws import VALIDATION_SEED_OFFSET, draw_games
from coevo_gym.envs.alfworld.tasks import scenario_of
from coevo_gym.envs.webshop.engine.goals import ShoppingGoal, catalogue_goals
from coevo_gym.envs.webshop.official import load_official_catalogue
from coevo_gym.envs.webshop.peer_draws import PeerGoal, draw_goals
from coevo_gym.provision import data_folder
from coevo_gym.runs.audits.peer_recipe import EvalDataset, PeerBenchmark, PeerRecipe

SIMULATIONS = 1_000
"""Number of simulated policies; the error of the simulated rises is then about 0.1 points."""
LATE = 10
"""Number of last evaluations from which a late best is chosen."""

SMALL = "1k"
"""Name of the catalogue that verl-agent uses by default."""

Key = Callable[[Any], Hashable]


@dataclass(frozen=True, slots=True)
class TrainingDraws:
    """The tasks that a run trains on.

    Attributes:
        draws: number of groups in the run.
        distinct: number of different tasks among them.
        most: number of groups of the task that is drawn most often.
        pool: number of different tasks that could be drawn.
    """

    draws: int
    distinct: int
    most: int
    pool: int


@dataclass(frozen=True, slots=True)
class EvaluationDraws:
    """The tasks of one evaluation.

    Attributes:
        iteration: training iteration after which it takes place, 0 for before training.
        tasks: number of episodes.
        distinct: number of different tasks.
        most: number of episodes of the task that is played most often.
        shared: different tasks that the evaluation before has, too; None for the first.
        trained: kind of match to the number of episodes whose task had been trained on by then.
    """

    iteration: int
    tasks: int
    distinct: int
    most: int
    shared: int | None
    trained: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class DrawNoise:
    """The noise, in percentage points, in evaluations of a policy that never changes.

    Attributes:
        rate: assumed mean success rate over all tasks, in (0, 1). The rates of the tasks have a
            Beta distribution with the parameters 2 ``rate`` and 2 (1 - ``rate``).
        error: standard error of one evaluation.
        fixed_error: standard error if as many different, fixed tasks were played instead.
        rise: expected excess of the best evaluation over the policy's rate.
        late_rise: the same for the best of the last :data:`LATE`.
    """

    rate: float
    error: float
    fixed_error: float
    rise: float
    late_rise: float


@dataclass(frozen=True, slots=True)
class PeerAudit:
    """The result of an audit by rule.

    Attributes:
        recipe: the settings.
        order: note on the order of the games or goals that was assumed.
        training: the training tasks.
        evaluations: the evaluations, in order.
        noise: the noise of an evaluation; None if there are no evaluations.
    """

    recipe: PeerRecipe
    order: str
    training: TrainingDraws
    evaluations: tuple[EvaluationDraws, ...]
    noise: DrawNoise | None


class RecipeDraws(NamedTuple):
    """All tasks that a run draws, and the criteria by which two tasks match.

    Attributes:
        training: for each iteration, the task of each group.
        evaluations: for each evaluation, the task of each episode.
        training_pool: number of different tasks that training could draw.
        validation_pool: the different tasks that validation could draw.
        matches: name of a match to a task's key; tasks with equal keys match. The first one says
            which tasks count as different.
        order: note on the assumed order.
    """

    training: list[tuple[Any, ...]]
    evaluations: list[tuple[Any, ...]]
    training_pool: int
    validation_pool: Sequence[Hashable]
    matches: Mapping[str, Key]
    order: str


def audit_recipe(recipe: PeerRecipe, *, rate: float = 0.75) -> PeerAudit:
    """Redraw a run's tasks, and count the overlap between its evaluations and its training.

    Args:
        recipe: the settings of the run.
        rate: mean success rate that the noise is simulated for, in (0, 1).

    Raises:
        BenchmarkNotInstalled: if the benchmark's official data is missing.
        ConfigError: if more different tasks are to be drawn than there are.
    """
    draws = draw_recipe(recipe)
    identity = next(iter(draws.matches.values()))
    counts = Counter(identity(task) for batch in draws.training for task in batch)
    training = TrainingDraws(
        draws=counts.total(),
        distinct=len(counts),
        most=max(counts.values()),
        pool=draws.training_pool,
    )
    played = [[identity(task) for task in tasks] for tasks in draws.evaluations]
    return PeerAudit(
        recipe=recipe,
        order=draws.order,
        training=training,
        evaluations=tuple(_count_evaluations(draws, recipe.evaluated_at)),
        noise=simulate_noise(played, draws.validation_pool, rate=rate) if played else None,
    )


def draw_recipe(recipe: PeerRecipe) -> RecipeDraws:
    """Draw all tasks of a run. Raises the same errors as :func:`audit_recipe`."""
    draw = {PeerBenchmark.ALFWORLD: _draw_alfworld, PeerBenchmark.WEBSHOP: _draw_webshop}
    return draw[recipe.benchmark](recipe)


def _draw_alfworld(recipe: PeerRecipe) -> RecipeDraws:
    games = open_games()
    subset = "valid_seen" if recipe.eval_dataset is EvalDataset.SEEN else "valid_unseen"
    train = [entry.id for entry in games.entries("train")]
    validation = [entry.id for entry in games.entries(subset)]
    training = draw_games(train, seed=recipe.seed, groups=recipe.groups, resets=recipe.iterations)
    resets = draw_games(
        validation,
        seed=recipe.seed + VALIDATION_SEED_OFFSET,
        groups=recipe.val_batch,
        resets=_validation_resets(recipe),
    )
    return RecipeDraws(
        training=training,
        evaluations=_join_resets(resets, recipe),
        training_pool=len(train),
        validation_pool=validation,
        matches={
            "same game": lambda game: game,
            "same goal in the same room": lambda game: game.split("/")[1],
            "same room": scenario_of,
        },
        order="The list of games is sorted here. verl-agent takes it in the order of a directory "
        "walk, which differs between disks, so other games may be drawn there. Only the matches of "
        "goals and rooms depend on the order; the other counts do not.",
    )


def _draw_webshop(recipe: PeerRecipe) -> RecipeDraws:
    folder = data_folder("webshop")
    if folder is None:
        raise BenchmarkNotInstalled(
            "The official WebShop products, which the goals are made from, are not installed. Run "
            "`coevo install webshop --from DIR`, or set COEVO_WEBSHOP_DATA to a folder with them."
        )
    catalogue = load_official_catalogue(folder)
    if catalogue.name != SMALL:
        raise ConfigError(
            f"The audit needs the catalogue of 1,000 products, but {folder} has {catalogue.name}. "
            "Install items_shuffle_1000.json and items_ins_v2_1000.json."
        )
    training = draw_goals(
        catalogue,
        training=True,
        seed=recipe.seed,
        groups=recipe.groups,
        resets=recipe.iterations,
    )
    resets = draw_goals(
        catalogue,
        training=False,
        seed=recipe.seed + VALIDATION_SEED_OFFSET,
        groups=recipe.val_batch,
        resets=_validation_resets(recipe),
    )
    pool = {_without_cap(goal) for goal in catalogue_goals(catalogue)}
    return RecipeDraws(
        training=training,
        evaluations=_join_resets(resets, recipe),
        training_pool=len(pool),
        validation_pool=tuple(pool),
        matches={
            "same goal": _without_cap,
            "same goal and price limit": lambda goal: goal,
            "same product": lambda goal: goal.asin,
        },
        order="",
    )


def _without_cap(goal: PeerGoal | ShoppingGoal) -> Hashable:
    return goal.asin, goal.options


def _validation_resets(recipe: PeerRecipe) -> int:
    return len(recipe.evaluated_at) * (recipe.val_tasks // recipe.val_batch)


def _join_resets(resets: list[tuple[Any, ...]], recipe: PeerRecipe) -> list[tuple[Any, ...]]:
    """Return the tasks of each evaluation, joining resets if an evaluation has several."""
    each = recipe.val_tasks // recipe.val_batch
    return [tuple(itertools.chain(*resets[i : i + each])) for i in range(0, len(resets), each)]


def _count_evaluations(draws: RecipeDraws, at: Sequence[int]) -> Iterator[EvaluationDraws]:
    identity = next(iter(draws.matches.values()))
    trained: dict[str, set[Hashable]] = {name: set() for name in draws.matches}
    done, before = 0, None
    for iteration, tasks in zip(at, draws.evaluations, strict=True):
        new = list(itertools.chain(*draws.training[done:iteration]))
        done = iteration
        for name, key in draws.matches.items():
            trained[name].update(map(key, new))
        counts = Counter(map(identity, tasks))
        yield EvaluationDraws(
            iteration=iteration,
            tasks=len(tasks),
            distinct=len(counts),
            most=max(counts.values()),
            shared=None if before is None else len(before & counts.keys()),
            trained={
                name: sum(key(task) in trained[name] for task in tasks)
                for name, key in draws.matches.items()
            },
        )
        before = set(counts)


def simulate_noise(
    evaluations: Sequence[Sequence[Hashable]],
    pool: Sequence[Hashable],
    *,
    rate: float,
    simulations: int = SIMULATIONS,
    seed: int = 0,
) -> DrawNoise:
    """Simulate evaluations of unchanging policies on the tasks that were drawn.

    Each simulated policy has a success rate for every task of the pool, from a Beta distribution,
    and plays each drawn task with its rate. Its true rate is the mean over the pool. In contrast to
    :func:`coevo_gym.runs.evals.best_of_n.best_of_n_rise`, the evaluations have different tasks, and
    some tasks several times.

    Args:
        evaluations: for each evaluation, the task of each episode; all have the same length.
        pool: the different tasks that could be drawn; contains all that were.
        rate: mean success rate, in (0, 1).
        simulations: number of policies.
        seed: seed of the simulation.

    Raises:
        ConfigError: if the rate is out of range.
    """
    if not 0 < rate < 1:
        raise ConfigError(f"The success rate must be in (0, 1), got {rate}.")
    alpha, beta = 2 * rate, 2 * (1 - rate)
    number = {task: i for i, task in enumerate(pool)}
    indices = np.array([[number[task] for task in tasks] for tasks in evaluations])  # (E, n)
    rng = np.random.default_rng(seed)
    excess = np.empty((simulations, len(indices)))
    for i in range(simulations):
        rates = rng.beta(alpha, beta, size=len(pool))
        solved = rng.random(indices.shape) < rates[indices]
        excess[i] = solved.mean(axis=1) - rates.mean()
    within = alpha * beta / ((alpha + beta) * (alpha + beta + 1))  # mean of p (1 - p)
    return DrawNoise(
        rate=rate,
        error=100 * float(np.sqrt((excess**2).mean())),
        fixed_error=100 * math.sqrt(within / indices.shape[1]),
        rise=100 * float(excess.max(axis=1).mean()),
        late_rise=100 * float(excess[:, -LATE:].max(axis=1).mean()),
    )

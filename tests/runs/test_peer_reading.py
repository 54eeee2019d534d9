"""Results read as verl-agent's evaluations: draws, means, the best, refusals and the command."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from coevo_gym.core.errors import ConfigError
from coevo_gym.runs.audits.peer_audit import simulate_noise
from coevo_gym.runs.audits.peer_recipe import PeerBenchmark, shipped_recipe
from coevo_gym.runs.evals.comparison import Side
from coevo_gym.runs.evals.ledger import Ledger, make_ledger
from coevo_gym.runs.evals.ledger_text import PEER_TITLE, as_csv, as_html, as_markdown
from coevo_gym.runs.evals.peer_reading import (
    EVALUATIONS,
    SIZES,
    PeerReading,
    count_games,
    describe_peer_readings,
    read_as_peer,
)
from coevo_gym.runs.panels.panel_files import find_panel
from coevo_gym.store.reader import EvaluatedTask
from tests.runs.conftest import Coevo

SEEN = [entry.id for entry in find_panel("alfworld-valid-seen-140").tasks]
GOALS = [f"webshop/1k/synthetic/{i}" for i in range(200)]


def side(
    names: Sequence[str],
    wins: Sequence[int],
    samples: int,
    *,
    benchmark: str = "alfworld",
    name: str = "mine",
) -> Side:
    """A result with the first episodes of each task successful; ids differ from the names."""
    outcomes = {
        f"id of {task}": [i < n for i in range(samples)]
        for task, n in zip(names, wins, strict=True)
    }
    tasks = {
        f"id of {task}": EvaluatedTask(f"id of {task}", task, "val", "", "", "Do it.", ())
        for task in names
    }
    return Side(name, "static", benchmark, "val", outcomes, tasks, identity=name, seed=1)


def history(rates: np.ndarray, samples: int, evaluations: int, seed: int) -> list[Side]:
    """Evaluations of a policy that does not change, on the games of valid_seen."""
    rng = np.random.default_rng(seed)
    wins = rng.binomial(samples, rates, size=(evaluations, len(rates)))
    return [side(SEEN, row.tolist(), samples, name=f"at {i}") for i, row in enumerate(wins)]


def beta_quantiles(tasks: int) -> np.ndarray:
    """Rates with the distribution that the audit assumes at a mean of 0.75."""
    draws = np.random.default_rng(0).beta(1.5, 0.5, size=400 * tasks)
    return np.quantile(draws, (np.arange(tasks) + 0.5) / tasks)


def published_noise() -> float:
    """The rise that the audit simulates for the evaluations that are read here."""
    counts = count_games(140, workers=128, evaluations=EVALUATIONS)
    plays = [np.repeat(np.arange(140), row).tolist() for row in counts]
    return simulate_noise(plays, range(140), rate=0.75).rise


def test_the_draws_are_those_of_the_worked_examples() -> None:
    (first,) = {tuple(row) for row in count_games(5, workers=1, evaluations=1).tolist()}
    assert first == (0, 0, 1, 0, 0)
    games = [int(row.argmax()) for row in count_games(5, workers=1, evaluations=10)]
    assert games == [2, 1, 0, 4, 3, 0, 2, 4, 1, 3]  # seed 1000
    both = count_games(5, workers=2, evaluations=10)
    assert (both.sum(axis=1) == 2).all()
    assert (both >= count_games(5, workers=1, evaluations=10)).all()


def test_the_draws_have_the_published_counts() -> None:
    counts = count_games(140, workers=128, evaluations=EVALUATIONS)
    assert (counts.sum(axis=1) == 128).all()
    different = (counts > 0).sum(axis=1)
    assert (different[0], different.min(), different.max(), round(different.mean())) == (
        *(91, 78, 93),
        84,
    )
    shared = [int(((a > 0) & (b > 0)).sum()) for a, b in pairwise(counts)]
    assert (shared[0], min(shared), max(shared)) == (62, 41, 62)
    assert counts.max() == 6


def test_sizes_and_the_number_of_evaluations_are_those_of_the_audit() -> None:
    for benchmark in PeerBenchmark:
        recipe = shipped_recipe(benchmark, {})
        assert recipe.val_tasks == SIZES[benchmark][0]
        assert len(recipe.evaluated_at) == EVALUATIONS
        assert recipe.seed == 0
    assert set(SIZES) == {*PeerBenchmark}


@pytest.mark.parametrize("evaluations", [1, 12])
def test_with_equal_rates_the_mean_is_the_panel_s(evaluations: int) -> None:
    sides = [side(SEEN, [3] * 140, 4) for _ in range(evaluations)]
    (reading,) = read_as_peer(sides)
    assert reading.evaluations == (EVALUATIONS if evaluations == 1 else evaluations)
    assert reading.panel_last == reading.panel_best == 0.75
    assert reading.last == pytest.approx(0.75, abs=0.004)
    assert reading.last_sd == pytest.approx(np.sqrt(0.75 * 0.25 / 128), rel=0.1)
    assert reading.rise == pytest.approx(reading.best - 0.75)
    assert reading.best > 0.78


def test_the_mean_is_the_panel_s_for_unequal_rates_too() -> None:
    wins = [8 * (i % 3 == 0) for i in range(140)]
    for sides in ([side(SEEN, wins, 8)], [side(SEEN, wins, 8)] * 5):
        (reading,) = read_as_peer(sides)
        assert reading.last == pytest.approx(reading.panel_last, abs=0.006)


def test_the_best_of_31_rises_as_the_audit_simulates() -> None:
    rates = beta_quantiles(140)
    one = side(SEEN, np.round(100 * rates).astype(int).tolist(), 100)
    (reading,) = read_as_peer([one])
    assert 100 * reading.rise == pytest.approx(published_noise(), abs=0.4)


def test_a_run_of_a_policy_that_does_not_change_rises_as_the_audit_simulates() -> None:
    """Four episodes per task are enough, because none is used twice for one evaluation."""
    rates = beta_quantiles(140)
    readings = [
        read_as_peer(history(rates, 4, EVALUATIONS, seed), simulations=100, seed=seed)[0]
        for seed in range(30)
    ]
    rises = [100 * (one.best - rates.mean()) for one in readings]
    error = np.std(rises, ddof=1) / np.sqrt(len(rises))
    assert error < 0.25
    assert np.mean(rises) == pytest.approx(published_noise(), abs=0.3 + 2 * error)
    # Their own policy is the same, so the spread of the last evaluation is that of the audit.
    assert 100 * np.mean([one.last_sd for one in readings]) == pytest.approx(3.8, abs=0.3)


def test_a_single_evaluation_with_four_episodes_per_task_rises_as_much() -> None:
    rates = beta_quantiles(140)
    rises = [
        100 * read_as_peer(history(rates, 4, 1, seed), simulations=100, seed=seed)[0].rise
        for seed in range(20)
    ]
    error = np.std(rises, ddof=1) / np.sqrt(len(rises))
    assert np.mean(rises) == pytest.approx(published_noise(), abs=0.3 + 2 * error)


def test_each_evaluation_is_redrawn_from_its_own_outcomes() -> None:
    none, half, every = (side(SEEN, [n] * 140, 4) for n in (0, 2, 4))
    (rising,) = read_as_peer([none, half, every])
    assert rising == PeerReading(128, 3, 1.0, 1.0, 1.0, rising.last_sd, 1.0, 0.0)
    assert rising.last_sd < 0.001
    (falling,) = read_as_peer([every, half, none])
    assert (falling.panel_last, falling.panel_best) == (0, 1)
    assert (falling.last, falling.best, falling.rise) == (0, 1, 1)


def test_a_reading_does_not_depend_on_the_order_of_stored_tasks_and_is_reproducible() -> None:
    wins = [i % 5 for i in range(140)]
    first, again = side(SEEN, wins, 4), side(SEEN[::-1], wins[::-1], 4)
    assert read_as_peer([first]) == read_as_peer([again])
    assert read_as_peer([first]) != read_as_peer([first], seed=1)


def test_on_webshop_both_sizes_are_drawn_with_replacement() -> None:
    wins = [4 * (i % 2) for i in range(200)]  # half of the goals are always solved
    for sides in (
        [side(GOALS, wins, 4, benchmark="webshop")],
        [side(GOALS, wins, 4, benchmark="webshop")] * 6,
    ):
        small, large = read_as_peer(sides)
        assert (small.tasks, large.tasks) == (128, 256)
        for reading in (small, large):
            assert reading.last == pytest.approx(0.5, abs=0.006)
            # Not 0, as it would be if all goals were played: which ones are drawn is the noise.
            assert reading.last_sd == pytest.approx(np.sqrt(0.25 / reading.tasks), rel=0.1)
        assert small.rise > large.rise > 0


def test_a_panel_smaller_than_an_evaluation_repeats_its_goals() -> None:
    (reading, _) = read_as_peer([side(GOALS[:3], [0, 2, 4], 4, benchmark="webshop")] * 4)
    assert reading.last == pytest.approx(0.5, abs=0.01)


def test_other_results_are_refused_with_one_clear_error() -> None:
    toy = side(["a"], [1], 4, benchmark="toy")
    with pytest.raises(ConfigError, match=r"mine is a result on toy, and verl-agent's draws are"):
        read_as_peer([toy])
    builtin = side(["alfworld/builtin/kitchen/1"], [1], 4)
    with pytest.raises(ConfigError, match=r"other games than .*such as alfworld/builtin/kitchen/1"):
        read_as_peer([builtin])
    fewer = side(SEEN[:128], [1] * 128, 4)
    with pytest.raises(
        ConfigError, match=r"no result on 12 of the 140 games .*--panel alfworld-valid-seen-140\."
    ):
        read_as_peer([fewer])
    whole = side(SEEN, [1] * 140, 4, name="whole")
    with pytest.raises(ConfigError, match="mine has no result on 12 of the 140 tasks that other"):
        read_as_peer([whole, fewer])
    few = side(SEEN, [1] * 140, 3)
    with pytest.raises(
        ConfigError, match=rf"mine has too few episodes per task \(3 of {SEEN[0]}\).*at least 4\."
    ):
        read_as_peer([whole, few])


def test_the_games_of_valid_unseen_are_drawn_from_134() -> None:
    unseen = [entry.id for entry in find_panel("alfworld-valid-unseen-134").tasks]
    (reading,) = read_as_peer([side(unseen, [2] * 134, 4)])
    assert reading.last == pytest.approx(0.5, abs=0.006)
    with pytest.raises(ConfigError, match=r"1 of the 134 games .*alfworld-valid-unseen-134"):
        read_as_peer([side(unseen[1:], [2] * 133, 4)])


# In a table.


def make_table(*histories: Sequence[Side]) -> Ledger:
    by_name: Mapping[str, Sequence[Side]] = {sides[-1].name: sides for sides in histories}
    return make_ledger([("", sides[-1]) for sides in histories], histories=by_name)


def test_repeats_share_a_row_with_their_mean() -> None:
    falling = [side(SEEN, [4] * 140, 4), side(SEEN, [0] * 140, 4, name="a")]
    rising = [side(SEEN, [0] * 140, 4), side(SEEN, [4] * 140, 4, name="b")]
    by_name = {"a": falling, "b": rising}
    table = make_ledger([("x", falling[-1]), ("x", rising[-1])][:1], histories=by_name)
    assert [row.label for row in table.peer] == ["x"]
    assert table.peer[0].mean.rise == 1
    mean = PeerReading.mean([*read_as_peer(falling), *read_as_peer(rising)])
    assert (mean.panel_last, mean.panel_best, mean.best, mean.rise) == (0.5, 1, 1, 0.5)


def test_the_texts_contain_the_readings() -> None:
    table = make_table([side(SEEN, [4] * 140, 4), side(SEEN, [0] * 140, 4, name="a")])
    text = as_markdown(table)
    assert f"**{PEER_TITLE}**" in text
    assert "| static | 128 | 2 | 0.0 | 100.0 | 0.0 ± 0.0 | 100.0 | +100.0 |" in text
    assert "what training on validation tasks would add is not measured" in text
    assert "A single evaluation" not in text
    rows = list(csv.DictReader(io.StringIO(as_csv(table))))
    assert [row["kind"] for row in rows] == ["measured", "verl-agent"]
    assert (rows[0]["success"], rows[0]["rise"]) == ("0.0", "")
    peer = rows[1]
    assert (peer["policy"], peer["tasks"], peer["evaluations"]) == ("static", "128", "2")
    assert [float(peer[name]) for name in ("panel_last", "last", "best", "rise")] == [0, 0, 1, 1]
    page = as_html(table)
    assert f"<h2>{PEER_TITLE.replace(chr(39), '&#x27;')}</h2>" in page
    assert "<td>+100.0</td>" in page
    plain = make_ledger([("", side(SEEN, [0] * 140, 4))])
    assert plain.peer == ()
    assert PEER_TITLE not in as_markdown(plain) + as_html(plain)
    assert "rise" not in as_csv(plain)


def test_the_explanations_say_what_is_imitated_and_what_is_not() -> None:
    remarks = make_table([side(SEEN, [1] * 140, 4)]).remarks
    assert remarks == describe_peer_readings("alfworld", unchanging=True)
    games = " ".join(remarks)
    assert "with the seeds 1000 to 1127" in games
    assert "A single evaluation is read as 31 evaluations" in games
    goals = " ".join(describe_peer_readings("webshop", unchanging=False))
    assert "imitates the size of an evaluation and its repetitions only" in goals
    assert "single" not in goals


# As a user runs it.


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("peer")


RUN = """
name = "shop"
arms = ["static"]
benchmark.name = "webshop"
benchmark.subset = "builtin"
policy.tiny = { buckets = 512, dim = 16, hidden = 32 }
warmup = { n_tasks = 4, max_epochs = 1 }
curriculum.initial_size = 2
rollout.group_size = 2
loop = { max_steps = 2, groups_per_step = 1, evaluate_every_steps = 1 }
evaluation = { n_tasks = 3, samples = 4, temperature = 1.0 }
"""


def test_a_run_is_read_evaluation_by_evaluation(coevo: Coevo, beside: Path) -> None:
    (beside / "shop.toml").write_text(RUN)
    coevo("train", "shop.toml")
    table = json.loads(coevo("panel", "table", "shop", "--as", "verl-agent", "--json"))
    assert [row["mean"]["tasks"] for row in table["peer"]] == [128, 256]
    reading = table["peer"][0]["mean"]
    assert reading["evaluations"] == 3  # before training, and after each of two steps
    assert reading["panel_last"] == table["rows"][0]["success"]
    assert table["peer"][0]["repeats"] == [reading]
    assert 0 <= reading["panel_last"] <= reading["panel_best"] <= 1
    assert reading["rise"] == pytest.approx(reading["best"] - reading["panel_last"])
    text = coevo("panel", "table", "shop", "--as", "verl-agent")
    assert PEER_TITLE in text
    assert "best redrawn, %" in text
    before = json.loads(coevo("panel", "table", "shop:warm-up", "--as", "verl-agent", "--json"))
    assert before["peer"][0]["mean"]["evaluations"] == EVALUATIONS
    for form in ("--md", "--csv", "--html"):
        assert "verl-agent" in coevo("panel", "table", "shop", "--as=verl-agent", form)
    assert json.loads(coevo("panel", "table", "shop", "--json"))["peer"] == []


def test_an_evaluation_is_read_as_31(coevo: Coevo) -> None:
    sets = ("--set=evaluation.n_tasks=3", "--set=benchmark.subset=builtin")
    for samples in (1, 4):
        options = (f"--samples={samples}", f"--name=at-{samples}")
        coevo("eval", "webshop", "--policy=random", *sets, *options)
    table = json.loads(coevo("panel", "table", "at-4", "--as=verl-agent", "--json"))
    assert table["peer"][0]["mean"]["evaluations"] == EVALUATIONS
    text = coevo("panel", "table", "at-1", "--as=verl-agent", code=2)
    assert "too few episodes per task (1 of webshop/builtin/" in text
    assert "--samples 8" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--as verl", "'verl' is not"),
        ("--as verl-agent --best", "Pass only one of --best and --as"),
    ],
)
def test_every_mistake_prints_one_clear_error(coevo: Coevo, arguments: str, message: str) -> None:
    text = coevo("panel", "table", "shop", *arguments.split(), code=2)
    assert message in " ".join(text.replace("│", " ").split())
    assert "Traceback" not in text

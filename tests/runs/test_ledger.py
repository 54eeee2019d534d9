"""The table of several policies: hand-computed numbers, refusals, texts and the command."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.panel import EvalProtocol, Panel, PanelTask, hash_content
from coevo_gym.core.task import Split
from coevo_gym.runs.evals.best_of_n import best_of_n_rise
from coevo_gym.runs.evals.comparison import Side
from coevo_gym.runs.evals.ledger import Ledger, make_ledger
from coevo_gym.runs.evals.ledger_text import as_csv, as_html, as_markdown
from coevo_gym.runs.panels.known import known_numbers
from coevo_gym.store.reader import EvaluatedTask
from tests.runs.conftest import Coevo


def side(
    name: str, outcomes: Mapping[str, Sequence[bool]], *, policy: str = "", **keywords: Any
) -> Side:
    """A result with its own identity, unless another one is fields."""
    tasks = {id: EvaluatedTask(id, f"task {id}", "val", "", "", f"Do {id}.", ()) for id in outcomes}
    fields = {"identity": policy or name, "seed": 1, **keywords}
    benchmark, split = fields.pop("benchmark", "toy"), fields.pop("split", "val")
    return Side(name, policy or name, benchmark, split, outcomes, tasks, **fields)


def first_of_40(n: int) -> dict[str, list[bool]]:
    """Outcomes on 40 tasks, of which the first n succeed."""
    return {str(i): [i < n] for i in range(40)}


def ledger(*sides: Side, **keywords: Any) -> Ledger:
    return make_ledger([("", one) for one in sides], **keywords)


def protocol(max_steps: int) -> EvalProtocol:
    """A protocol with a step limit, and a seed that differs, too."""
    return EvalProtocol(parts={"max_steps": max_steps, "seed": max_steps})


def panel(name: str, *ids: str, content: str = "") -> Panel:
    """A panel of tasks with the given ids."""
    tasks = tuple(PanelTask(id=id, scenario=id, parts={"x": hash_content(content)}) for id in ids)
    return Panel(name=name, benchmark="toy", split=Split.VAL, data={}, tasks=tasks)


def three_models() -> list[Side]:
    solved = {("a", 1): 20, ("a", 2): 21, ("b", 1): 24, ("b", 2): 26, ("c", 1): 10, ("c", 3): 12}
    return [
        side(f"{name}{seed}", first_of_40(n), policy=name, seed=seed)
        for (name, seed), n in solved.items()
    ]


def test_three_models_with_two_repeats_give_the_numbers_of_the_formulas() -> None:
    a, b, c = ledger(*three_models()).rows
    assert [row.label for row in (a, b, c)] == ["a", "b", "c"]
    assert [(row.tasks, row.results) for row in (a, b, c)] == [
        (40, ("a1", "a2")), (40, ("b1", "b2")), (40, ("c1", "c3")),
    ]  # fmt: skip
    assert a.means == (0.5, 0.525)
    assert [a.success, b.success, c.success] == pytest.approx([0.5125, 0.625, 0.275])
    # Wilson with 20.5 of 40: (20.5 + z²/2 ± z √(40 · 0.5125 · 0.4875 + z²/4)) / (40 + z²)
    assert [a.low, a.high] == pytest.approx([0.363442, 0.659368], abs=1e-6)
    # Student's t with 1 degree of freedom: 0.5125 ± 12.7062 · (0.025 / √2) / √2
    assert a.repeat_sd == pytest.approx(0.0176777, abs=1e-7)
    assert [a.repeat_low, a.repeat_high] == pytest.approx([0.353673, 0.671327], abs=1e-6)
    assert a.difference is None
    assert b.difference is not None
    assert c.difference is not None
    # Bonett and Price: 3 tasks differ by 1 and 3 by 0.5, and one is added on each side.
    assert b.difference.mean == pytest.approx(0.1125)
    assert [b.difference.low, b.difference.high] == pytest.approx([0.000036, 0.214249], abs=1e-6)
    # The seeds' differences are 0.1 and 0.125: 0.1125 ± 12.7062 · 0.0125.
    ends = [b.difference.repeat_low, b.difference.repeat_high]
    assert ends == pytest.approx([-0.046328, 0.271328], abs=1e-6)
    assert c.difference.mean == pytest.approx(-0.2375)
    assert c.difference.repeat_low is None  # its seeds are not those of the first row


def test_tasks_with_several_episodes_count_by_their_shares() -> None:
    one = side("a", {"x": [True, False], "y": [True, True, False, False], "z": [True]})
    (row,) = ledger(one).rows
    assert row.success == pytest.approx(2 / 3)
    assert (row.repeat_sd, row.repeat_low, row.repeat_high) == (None, None, None)


def test_an_interval_over_repeats_stays_between_0_and_1() -> None:
    sides = [side(f"a{n}", first_of_40(n), policy="a", seed=n) for n in (5, 35)]
    (row,) = ledger(*sides).rows
    assert (row.repeat_low, row.repeat_high) == (0.0, 1.0)


def test_other_settings_make_another_row_with_a_footnote() -> None:
    sides = [
        side(f"a{n}", first_of_40(20 + n), policy="a", seed=n, protocol=protocol(n)) for n in (8, 9)
    ]
    first, second = ledger(*sides).rows
    assert (first.label, second.label) == ("a (a8)", "a (a9)")
    assert second.notes == ("max_steps is 9, but 8 in the first row.",)
    assert first.notes == ()
    with pytest.raises(ConfigError, match="a9 and a8 have the same label, but differ in max_steps"):
        make_ledger([("same", one) for one in sides])


def test_repeats_differ_in_the_seed_of_their_protocol() -> None:
    parts = {"max_steps": 8}
    sides = [
        side(
            f"a{seed}",
            first_of_40(20),
            policy="a",
            seed=seed,
            protocol=EvalProtocol(parts={**parts, "seed": seed}),
        )
        for seed in (1, 2)
    ]
    (row,) = ledger(*sides).rows
    assert len(row.means) == 2


def test_a_label_makes_results_repeats() -> None:
    sides = [side("x", first_of_40(20), seed=1), side("y", first_of_40(30), seed=2)]
    (row,) = make_ledger([("mine", one) for one in sides]).rows
    assert (row.label, row.means) == ("mine", (0.5, 0.75))


def test_rows_with_other_tasks_have_no_difference_and_a_footnote() -> None:
    a = side("a", {"x": [True], "y": [False]})
    b = side("b", {"x": [True], "z": [False], "w": [True]})
    second = ledger(a, b).rows[1]
    assert second.difference is None
    (note,) = second.notes
    assert "(2 are only here, 1 only there), so there is no difference" in note


def test_repeats_are_averaged_over_the_tasks_that_all_have() -> None:
    a = side("a1", {"x": [True], "y": [False]}, policy="a")
    b = side("a2", {"x": [False], "z": [True]}, policy="a", seed=2)
    (row,) = ledger(a, b).rows
    assert (row.tasks, row.success) == (1, 0.5)
    assert row.notes == ("2 tasks are left out, because not all repeats have a result on them.",)
    c = side("a3", {"q": [True]}, policy="a", seed=3)
    with pytest.raises(ConfigError, match="The repeats a1, a3 have no tasks in common"):
        ledger(a, c)


def test_trained_policies_carry_a_footnote_about_seeds() -> None:
    one = side("a", {"x": [True]}, trained=True, origin="runs/1")
    assert "One training run" in ledger(one).rows[0].notes[0]
    again = side("b", {"x": [False]}, policy="a", seed=2, trained=True, origin="runs/1")
    note = "All repeats evaluate one training run, so no interval includes training seeds."
    assert ledger(one, again).rows[0].notes == (note,)
    other = side("b", {"x": [False]}, policy="a", seed=2, trained=True, origin="runs/2")
    assert ledger(one, other).rows[0].notes == ()


def test_one_result_twice_is_refused_and_an_equal_seed_is_a_footnote() -> None:
    a = side("a1", first_of_40(20), policy="a")
    with pytest.raises(ConfigError, match="a1 and a2 have the same seed and the same outcomes"):
        ledger(a, side("a2", first_of_40(20), policy="a"))
    (row,) = ledger(a, side("a2", first_of_40(22), policy="a")).rows
    assert "Some repeats have the same seed" in row.notes[0]
    assert len(ledger(a, side("a2", first_of_40(20), policy="a", seed=2)).rows[0].means) == 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"benchmark": "shop"}, "a was evaluated on toy, but b on shop. Print a table for each"),
        ({"split": "test"}, "a was evaluated on val, but b on test. Print a table for each split"),
    ],
)
def test_other_benchmarks_and_splits_are_refused(changed: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ledger(side("a", {"x": [True]}), side("b", {"x": [True]}, **changed))


def test_unequal_declared_panels_are_refused_with_their_tasks() -> None:
    easy, hard = panel("easy", "x", "y"), panel("hard", *"0123456x")
    a = side("a", {"x": [True], "y": [True]}, panel=easy)
    b = side("b", {str(i): [True] for i in range(7)} | {"x": [True]}, panel=hard)
    with pytest.raises(ConfigError) as error:
        ledger(a, b)
    text = str(error.value)
    assert (
        f"a was evaluated on the panel {easy.reference}, but b was evaluated on {hard.reference}: "
        in text
    )
    assert "1 tasks only in easy (y); 7 tasks only in hard (0, 1, 2, … and 4 more)." in text
    changed = side("b", a.outcomes, panel=panel("easy", "x", "y", content="other"))
    with pytest.raises(ConfigError, match=r"2 tasks with other content \(x, y\)"):
        ledger(a, changed)
    renamed = side("b", a.outcomes, panel=panel("other-name", "x", "y"))
    automatic = side("c", a.outcomes)
    assert ledger(automatic, a, renamed).panel == easy.reference
    assert as_markdown(ledger(a)).startswith(f"**toy, val tasks of the panel {easy.reference}**")


def checkpoints(samples: int, seeds: Sequence[int] = (1,)) -> list[Side]:
    """Three evaluations of a training run on 30 tasks; the second one is the best."""
    return [
        side(
            f"run {seed}, step {step}",
            {str(i): [(i + j) % 5 < good for j in range(samples)] for i in range(30)},
            policy="arm",
            seed=seed,
            trained=True,
            origin=f"runs/{seed}",
        )
        for seed in seeds
        for step, good in ((0, 2), (10, 4), (20, 3))
    ]


def test_the_best_evaluation_carries_the_rise_that_the_choice_causes() -> None:
    table = ledger(*checkpoints(samples=5), best=True)
    (row,) = table.rows
    assert row.results == ("run 1, step 10",)
    assert row.success == pytest.approx(0.8)
    rise = best_of_n_rise([4] * 30, [5] * 30, n=3, samples_per_evaluation=5)
    assert "the best of 3 evaluations on these tasks. This choice alone raises" in row.notes[0]
    assert f"by {rise.points:.1f} points (simulated" in row.notes[0]
    assert rise.points > 1
    assert "choose a checkpoint by its success on validation tasks" in table.remarks[0]


def test_with_fewer_than_four_samples_the_rise_cannot_be_told() -> None:
    table = ledger(*checkpoints(samples=3), best=True)
    assert "cannot be told: that needs at least 4 episodes per task" in table.rows[0].notes[0]
    assert table.remarks


def test_the_best_is_chosen_for_each_training_run() -> None:
    (row,) = ledger(*checkpoints(samples=5, seeds=(1, 2)), best=True).rows
    assert row.results == ("run 1, step 10", "run 2, step 10")
    assert "each the best of 3 evaluations" in row.notes[0]


def test_one_evaluation_is_no_choice() -> None:
    table = ledger(checkpoints(samples=5)[0], best=True)
    assert "There is only one evaluation to choose from." in table.rows[0].notes
    assert table.remarks == ()


def test_published_numbers_are_listed_apart_and_change_no_row() -> None:
    sides = [side("a", first_of_40(20), benchmark="webshop")]
    plain, known = ledger(*sides), ledger(*sides, known=True)
    assert known.rows == plain.rows
    assert known.known == known_numbers("webshop")
    assert plain.known == ()
    assert ledger(*three_models(), known=True).remarks == (
        "This package lists no published numbers of toy.",
    )
    rows = list(csv.DictReader(io.StringIO(as_csv(known))))
    assert [row["kind"] for row in rows] == ["measured"] + ["published"] * 56
    assert (rows[1]["success"], rows[1]["tasks"]) == ("0.052", "128 or 256")
    text = as_markdown(known)
    assert text.count('<span style="color:gray">GiGPO paper arXiv 2505.10978 Table 1</span>') == 16
    assert "The source does not say which split was played." in text
    page = as_html(known)
    assert page.count('<tr class="published">') == 56
    assert "goal position &lt; 500" in page


def test_texts_contain_the_numbers_and_hostile_names_do_no_harm() -> None:
    sides = [*three_models(), side('=<b>"|evil', first_of_40(5))]
    table = ledger(*sides)
    text = as_markdown(table)
    assert "| b |  | 40 | 2 | 62.5 [47.0, 75.8] | [30.7, 94.3] | +11.2 [+0.0, +21.4] |" in text
    rows = {row["policy"]: row for row in csv.DictReader(io.StringIO(as_csv(table)))}
    assert float(rows["b"]["difference"]) == pytest.approx(0.1125)
    assert rows["b"]["source"] == "b1; b2"
    assert "'=<b>\"|evil" in rows
    page = as_html(table)
    assert "<td>=&lt;b&gt;&quot;|evil</td>" in page
    assert "<script" not in page


# As a user runs it.


@pytest.fixture
def beside(finished: Path, tmp_path: Path) -> Path:
    """A folder with the finished run in it, to which evaluations may be added."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "toy-run").symlink_to(finished)
    return tmp_path


def printed(coevo: Coevo, *arguments: str) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(coevo("panel", "table", *arguments, "--json"))
    return table


def test_the_command_puts_arms_and_evaluations_into_one_table(coevo: Coevo, beside: Path) -> None:
    ten = "--set=evaluation.n_tasks=10"
    for seed in (0, 1):
        coevo("eval", "toy", "--policy=random", ten, f"--set=seed={seed}", f"--name=random-{seed}")
    table = printed(coevo, "toy-run:static", "toy-run", "random-0", "evals/random-1/summary.json")
    assert [(row["label"], len(row["means"])) for row in table["rows"]] == [
        ("static", 1), ("coevolve", 1), ("random", 2),
    ]  # fmt: skip
    comparison = json.loads(coevo("compare", "toy-run", "--json"))
    static, evolved, _ = table["rows"]
    assert static["success"] == comparison["success_a"]
    difference = evolved["difference"]
    assert (difference["mean"], difference["low"], difference["high"]) == pytest.approx(
        (comparison["difference"], comparison["low"], comparison["high"])
    )
    text = coevo("panel", "table", "toy-run:static", "toy-run")
    assert "One training run" in text
    assert "runs/toy-run, static at step 6" in text
    markdown = coevo("panel", "table", "mine=toy-run:static", "--md")
    assert "| mine | 1 | 10 |" in markdown
    assert "<h1>" in coevo("panel", "table", "toy-run", "--html")
    assert coevo("panel", "table", "toy-run", "--csv").startswith("kind,policy")


def test_an_evaluation_repeats_the_run_that_it_evaluates(coevo: Coevo) -> None:
    coevo("eval", "toy-run", "--policy=static", "--name=again")
    text = coevo("panel", "table", "toy-run:static", "again", code=2)
    assert "have the same seed and the same outcomes" in text


def test_the_best_of_a_run_is_chosen_among_its_evaluations(coevo: Coevo) -> None:
    table = printed(coevo, "toy-run:static", "--best")
    (row,) = table["rows"]
    assert "the best of 2 evaluations" in row["notes"][0]
    assert "cannot be told" in row["notes"][0]
    assert "coevo eval RUN --split test" in coevo("panel", "table", "toy-run:static", "--best")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("toy-rn", "Did you mean 'toy-run'?"),
        ("toy-run:nosuch", "has no arm 'nosuch'"),
        ("=toy-run", "has no label before '='"),
        ("toy-run --md --csv", "Pass only one of --md, --csv, --html and --json."),
        ("toy-run toy-run", "have the same seed and the same outcomes"),
        ("here:static", "evals/here is an evaluation, which has no arm 'static'."),
    ],
)
def test_every_mistake_prints_one_clear_error(coevo: Coevo, arguments: str, message: str) -> None:
    if "here" in arguments:
        coevo("eval", "toy", "--policy=random", "--set=evaluation.n_tasks=1", "--name=here")
    text = coevo("panel", "table", *arguments.split(), code=2)
    assert message in text
    assert "Traceback" not in text

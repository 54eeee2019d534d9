"""The report on a reproduction: a run of a published recipe beside the published values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from coevo_gym.core.errors import StoreError
from coevo_gym.core.panel import Panel
from coevo_gym.core.stats import Rate, success_rate
from coevo_gym.runs.config import arm_configs
from coevo_gym.runs.evals.comparison import Side, success_share
from coevo_gym.runs.evals.evaluation import make_citation
from coevo_gym.runs.evals.ledger import BestOfN, choose_best, describe_choices
from coevo_gym.runs.evals.sides import evaluations_by_step, final_result
from coevo_gym.runs.manifest import read_manifest
from coevo_gym.runs.panels.known import KnownNumber
from coevo_gym.runs.panels.panel_files import is_panel
from coevo_gym.runs.planning.plan import settings_of
from coevo_gym.runs.reproductions import (
    ComparedSetting,
    Recipe,
    Scale,
    SpreadVerdict,
    find_recipe,
    judge_result,
)
from coevo_gym.runs.table import WARMUP
from coevo_gym.store.folder import RunFolder, read_json, write_atomic, write_json
from coevo_gym.view.export.curve import Line, Point, chart_colours, draw_chart
from coevo_gym.view.export.gathering import load_template

_SIZE = (760.0, 320.0)


class ScoredPoint(NamedTuple):
    """The result of an evaluation.

    Attributes:
        step: learner step, 0 for the model before training.
        rate: the success rate over the panel's tasks.
        cite: the line to cite.
    """

    step: int
    rate: Rate
    cite: str


@dataclass(frozen=True)
class PanelResult:
    """The results on a panel beside the published values.

    Attributes:
        panel: the panel.
        points: the results in the order of their steps.
        choice: the best evaluation after training has begun; None on a panel that is played once.
        published: the published values.
        verdict: the last result beside the published values, in sentences.
    """

    panel: Panel
    points: tuple[ScoredPoint, ...]
    choice: BestOfN | None
    published: tuple[KnownNumber, ...]
    verdict: str

    @property
    def best_and_last(self) -> str:
        """The best evaluation beside the last one, in sentences; "" on a panel played once."""
        if self.choice is None:
            return ""
        best = success_rate([*map(success_share, self.choice.side.outcomes.values())]).success
        last = self.points[-1].rate.success
        gap = 100 * (best - last)
        return (
            f"The last evaluation has {last:.1%}, the best {best:.1%}, {gap:.1f} points more. "
            f"{describe_choices([self.choice])}"
        )


@dataclass(frozen=True)
class Reproduction:
    """A finished run of a published recipe.

    Attributes:
        run: name of the run.
        recipe: the recipe.
        scale: its scale.
        settings: the original's settings beside the run's.
        results: the results on each panel; the one of the evaluations during training is first.
    """

    run: str
    recipe: Recipe
    scale: Scale
    settings: tuple[ComparedSetting, ...]
    results: tuple[PanelResult, ...]

    @property
    def verdicts(self) -> list[str]:
        """The verdict on each panel, and caveats."""
        lines = [f"{result.panel.name}: {result.verdict}" for result in self.results]
        if self.scale is Scale.TINY:
            lines.insert(
                0,
                "This run has the scale tiny: another model, few steps and a panel of "
                f"{len(self.results[0].panel.tasks)} tasks made for it. It shows that everything "
                "works, and says nothing about the published values.",
            )
        return [*lines, self.recipe.remark] if self.recipe.remark else lines


def begin_reproduction(folder: RunFolder, recipe: Recipe, scale: Scale) -> None:
    """Note in a new run's folder what it reproduces."""
    write_json(folder.reproduction, {"recipe": recipe.name, "scale": scale.value})


def begun_reproduction(folder: RunFolder) -> tuple[Recipe, Scale] | None:
    """Return what a run reproduces; None if it reproduces nothing.

    Raises:
        StoreError: if the file that says so is damaged.
    """
    if not folder.reproduction.is_file():
        return None
    content = read_json(folder.reproduction)
    try:
        return find_recipe(content["recipe"]), Scale(content["scale"])
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"{folder.reproduction} does not name a recipe and a scale: {error}. Restore the file, "
            "or delete it to treat the run as any other run."
        ) from error


def read_reproduction(folder: RunFolder) -> Reproduction:
    """Collect the results of a finished reproduction.

    Raises:
        StoreError: if a file is missing or damaged.
        ConfigError: if evaluations are missing.
    """
    begun = begun_reproduction(folder)
    if begun is None:
        raise StoreError(f"{folder.path} reproduces no recipe: {folder.reproduction} is missing.")
    recipe, scale = begun
    _, config = read_manifest(folder)
    (arm,) = arm_configs(config).values()
    settings = tuple(recipe.compare(settings_of(config, arm), scale))
    sides = evaluations_by_step(folder, arm.name)
    compared = _Compared(recipe, scale, [row.name for row in settings if row.differs])
    results = [compared.result(folder, sides, trained=[*sides.values()][1:])]
    for name, entry in zip(config.evaluation.final_set_names, config.evaluation.final, strict=True):
        if is_panel(entry):
            before, after = (final_result(folder, one, name) for one in (WARMUP, arm.name))
            last = max(sides)
            results.append(compared.result(folder, {0: before, last: after}))
    return Reproduction(folder.path.name, recipe, scale, settings, tuple(results))


class _Compared(NamedTuple):
    """A recipe to compare results with, and the settings in which the run differs from it."""

    recipe: Recipe
    scale: Scale
    differing: Sequence[str]

    def result(
        self, folder: RunFolder, sides: Mapping[int, Side], *, trained: Sequence[Side] = ()
    ) -> PanelResult:
        """Return the results on a panel, by learner step."""
        points = tuple(_score(folder, step, side) for step, side in sides.items())
        panel = next(iter(sides.values())).panel
        assert panel is not None  # every preset of a recipe names one
        published = self.recipe.numbers(panel.name, self.scale)
        return PanelResult(
            panel=panel,
            points=points,
            choice=choose_best(trained) if trained else None,
            published=published,
            verdict=self._describe_verdict(points[-1].rate, published),
        )

    def _describe_verdict(self, rate: Rate, published: Sequence[KnownNumber]) -> str:
        """Return the verdict on a result, in sentences."""
        result = f"{rate.success:.1%}"
        if not published:
            return f"{result}. There is no published value to compare it with."
        values = [number.value for number in published]
        spread = f"{min(values):g}% to {max(values):g}% in {len(values)} sources"
        if self.scale is Scale.TINY:
            return f"{result}. The published values of the full recipe are {spread}."
        verdict, points = judge_result(100 * rate.success, tuple(published))
        if verdict is SpreadVerdict.WITHIN:
            return f"{result} is within the spread of the published values, {spread}."
        reaches = 100 * rate.low <= max(values) and 100 * rate.high >= min(values)
        return (
            f"{result} is {verdict} the published values, {spread}, by {points:.1f} points. Its "
            f"95% interval over tasks, {rate.low:.1%} to {rate.high:.1%}, "
            f"{'reaches' if reaches else 'does not reach'} them. These differences could explain "
            f"it: {', '.join(self.differing)}."
        )


def _score(folder: RunFolder, step: int, side: Side) -> ScoredPoint:
    rate = success_rate([*map(success_share, side.outcomes.values())])
    samples = max(map(len, side.outcomes.values()))
    at = f" at step {step}" if step else ""
    assert side.panel is not None
    cite = make_citation(
        side.panel,
        side.protocol,
        rate,
        samples=samples,
        policy=f"{folder.path.name} {side.policy}{at}",
    )
    return ScoredPoint(step, rate, str(cite))


def write_reproduction(folder: RunFolder) -> Reproduction:
    """Write the HTML report on a finished reproduction to its folder.

    Returns:
        What the report contains.

    Raises:
        StoreError: if a file is missing or damaged, or cannot be written.
    """
    reproduction = read_reproduction(folder)
    page = load_template("reproduction.html").render(
        one=reproduction,
        charts=[_draw(result) for result in reproduction.results],
        colours=chart_colours(),
    )
    write_atomic(folder.reproduction_report, page.encode("utf-8", "replace"))
    return reproduction


def _draw(result: PanelResult) -> str:
    """Draw a panel's results over the learner steps, beside the published values."""
    points = [
        Point(point.step, point.rate.success, point.rate.low, point.rate.high)
        for point in result.points
    ]
    lines = [Line("this run", points), *_published_lines(result, points[-1].x)]
    return draw_chart(
        lines,
        f"Success on {result.panel.name} over learner steps",
        "learner steps",
        "success",
        size=_SIZE,
    )


def _published_lines(result: PanelResult, last: float) -> Iterator[Line]:
    """Yield the lowest and the highest published value as horizontal lines."""
    values = [number.value / 100 for number in result.published]
    for name, value in {"lowest": min, "highest": max}.items() if values else ():
        yield Line(f"{name} published value", [Point(0, value(values)), Point(last, value(values))])

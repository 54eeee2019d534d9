"""Recipes of published results that can be trained again, compared with them setting by setting.

```python
from coevo_gym.runs.reproductions import find_recipe, recipe_names

print(recipe_names())
recipe = find_recipe("gigpo-alfworld-1.5b")
print(recipe.preset, *(f"{number.value:g}" for number in recipe.numbers("alfworld-valid-seen-140")))
```
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.registry import suggest
from coevo_gym.core.task import FrozenModel
from coevo_gym.runs.panels.known import KnownNumber, known_numbers

_FILE = Path(__file__).with_suffix(".toml")

TINY = "the scale tiny"
"""The reason for a difference that the scale ``tiny`` makes."""
TINY_TASKS = 20
"""Number of tasks in the panel of the scale ``tiny``."""


class Scale(StrEnum):
    """Sizes of a reproduction."""

    FULL = "full"
    TINY = "tiny"


class OriginalSetting(FrozenModel):
    """A setting of the recipes.

    Attributes:
        name: the setting in words.
        theirs: value or description in the original.
        source: the file of the original that says so.
        key: dotted key of the setting here, or "".
        ours: description of the run here, if the setting has no key.
        tiny: its description at the scale ``tiny``, if that differs.
        why: why the two differ, or "".
        of: tag of the recipes that have the setting; "" for all of them.
        other: other values of the original, by recipe.
    """

    name: str
    theirs: Any
    source: str
    key: str = ""
    ours: str = ""
    tiny: str = ""
    why: str = ""
    of: str = ""
    other: dict[str, Any] = Field(default={}, alias="in")


class ComparedSetting(NamedTuple):
    """A setting of the original beside the one of a run.

    Attributes:
        name: the setting in words.
        theirs: the original's, as text.
        ours: the run's, as text.
        differs: True if the two are not the same.
        why: why they differ, or "".
        source: the file of the original.
        key: dotted key of the setting here, or "".
    """

    name: str
    theirs: str
    ours: str
    differs: bool
    why: str
    source: str
    key: str


class Recipe(FrozenModel):
    """A recipe of published results.

    Attributes:
        name: its name.
        about: the method, the benchmark and the model.
        preset: the preset that follows it.
        script: its launch script in the original's repository.
        tags: names of the sets of settings that it has.
        published: for each panel, the group of published numbers to compare its result with.
        remark: a caveat about the published numbers, or "".
        ran: date and machine of a run at full scale; "" if there was none yet.
    """

    name: str
    about: str
    preset: str
    script: str
    tags: tuple[str, ...]
    published: dict[str, str]
    remark: str = ""
    ran: str = ""

    def numbers(self, panel: str, scale: Scale = Scale.FULL) -> tuple[KnownNumber, ...]:
        """Return the published numbers that stand beside a result on a panel.

        At the scale ``tiny``, these are the numbers of the panel that its own stands for.
        """
        groups = self.published
        group = next(iter(groups.values())) if scale is Scale.TINY else groups.get(panel)
        return tuple(number for number in known_numbers() if group and number.group == group)

    def compare(
        self, settings: Mapping[str, Any], scale: Scale = Scale.FULL
    ) -> Iterator[ComparedSetting]:
        """Yield each setting of the original beside the one of a run, and why they differ.

        Args:
            settings: the run's settings by dotted key.
            scale: the run's scale.
        """
        tiny = scale is Scale.TINY
        for setting in _read().settings:
            if setting.of and setting.of not in self.tags:
                continue
            theirs = _to_text(setting.other.get(self.name, setting.theirs))
            why = setting.why
            if setting.key:
                ours = _to_text(settings[setting.key])
                differs = ours != theirs
                why = TINY if tiny and setting.key in tiny_settings() else "changed for this run"
            elif tiny and setting.tiny:
                ours, differs, why = setting.tiny, True, TINY
            else:
                ours, differs = setting.ours, bool(why)
            source = self.script if setting.source == "script" else setting.source
            yield ComparedSetting(
                setting.name, theirs, ours, differs, why * differs, source, setting.key
            )


class _File(NamedTuple):
    """The content of the file of recipes."""

    recipes: Mapping[str, Recipe]
    settings: tuple[OriginalSetting, ...]
    tiny: Mapping[str, Any]


@lru_cache
def _read() -> _File:
    data = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    recipes = [Recipe.model_validate(one) for one in data["recipe"]]
    settings = tuple(OriginalSetting.model_validate(one) for one in data["setting"])
    return _File({recipe.name: recipe for recipe in recipes}, settings, data["tiny"]["set"])


def recipe_names() -> list[str]:
    """Return the names of all recipes, in the order of their file."""
    return [*_read().recipes]


def find_recipe(name: str) -> Recipe:
    """Return the recipe with a name.

    Raises:
        ConfigError: if there is none.
    """
    recipes = _read().recipes
    if name not in recipes:
        raise ConfigError(f"There is no recipe {name!r}. {suggest(name, recipe_names())}")
    return recipes[name]


def tiny_settings() -> Mapping[str, Any]:
    """Return the settings that the scale ``tiny`` changes, by dotted key."""
    return _read().tiny


def _to_text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float | int) else str(value)


class SpreadVerdict(StrEnum):
    """A result's place among published values."""

    WITHIN = "within"
    BELOW = "below"
    ABOVE = "above"


def judge_result(percent: float, published: tuple[KnownNumber, ...]) -> tuple[SpreadVerdict, float]:
    """Compare a result with the spread of published values.

    Args:
        percent: the result.
        published: the published numbers, at least one.

    Returns:
        The verdict, and the distance to the nearest published value in points, 0 if within.

    Example:
        >>> judge_result(70.0, find_recipe("grpo-alfworld-1.5b").numbers("alfworld-valid-seen-140"))
        (<SpreadVerdict.BELOW: 'below'>, 2.8)
    """
    values = [number.value for number in published]
    if percent < min(values):
        return SpreadVerdict.BELOW, round(min(values) - percent, 1)
    if percent > max(values):
        return SpreadVerdict.ABOVE, round(percent - max(values), 1)
    return SpreadVerdict.WITHIN, 0.0

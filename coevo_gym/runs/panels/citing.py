"""A check of citations, which verifies as much of a cited result as the line allows.

Example:
    >>> from coevo_gym.core.panel import Citation, Panel, PanelTask, hash_content
    >>> task = PanelTask(id="shop/1", scenario="B01", parts={"instruction": hash_content("buy it")})
    >>> panel = Panel(name="one", benchmark="shop", split="test", data={}, tasks=(task,))
    >>> line = (
    ...     f"{panel.reference}: success 100.0 % [20.7, 100.0], 1 tasks x 1, "
    ...     "protocol 0123456789ab, scripted, coevo_gym 0.1.0"
    ... )
    >>> [check.part for check in check_citation(Citation.parse(line), panel) if check.holds]
    ['panel', 'success', 'interval', 'tasks']
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.panel import CITED_DIGITS, Citation, Panel
from coevo_gym.core.registry import did_you_mean
from coevo_gym.core.stats import wilson_interval
from coevo_gym.runs.panels.panel_files import find_panel, shipped_names

_ROUNDING = 0.05 + 1e-9
"""Maximum rounding error of a percentage with one digit after the point."""


class CitedPart(NamedTuple):
    """A part of a citation.

    Attributes:
        part: name of the part.
        value: the part's text in the line.
        holds: True if the part agrees with the panel and the other parts, False if it contradicts
            them, and None if the line alone cannot tell.
        about: the meaning of the part, and the result of the check.
    """

    part: str
    value: str
    holds: bool | None
    about: str


def find_cited_panel(citation: Citation) -> Panel:
    """Return the shipped panel that a citation names.

    Raises:
        ConfigError: if there is no such panel.
    """
    names = shipped_names()
    if citation.panel not in names:
        raise ConfigError(
            f"No shipped panel is named {citation.panel!r}. {did_you_mean(citation.panel, names)}"
            "If the line is about a panel of your own, also pass its file."
        )
    return find_panel(citation.panel)


def check_citation(citation: Citation, panel: Panel) -> Iterator[CitedPart]:
    """Yield the parts of a citation, each compared with a panel and with the other parts."""
    reference = f"{citation.panel}@{citation.panel_hash}"
    yield CitedPart("panel", reference, *_check_panel(citation, panel))
    yield CitedPart("success", f"{citation.success:.1f} %", *_check_success(citation))
    interval = f"[{citation.low:.1f}, {citation.high:.1f}]"
    yield CitedPart("interval", interval, *_check_interval(citation))
    yield CitedPart("tasks", str(citation.tasks), *_check_tasks(citation, panel))
    yield CitedPart("samples", str(citation.samples), None, "Episodes per task.")
    yield CitedPart(
        "protocol",
        citation.protocol,
        None,
        "Hash of how the tasks were played. Compare it with another line's; the evaluation's "
        "folder has the settings.",
    )
    yield CitedPart("policy", citation.policy, None, "What played, as the evaluation names it.")
    yield CitedPart("version", citation.version, None, "Version of coevo_gym that wrote the line.")


def _check_panel(citation: Citation, panel: Panel) -> tuple[bool, str]:
    if panel.hash.startswith(citation.panel_hash):
        return True, f"The hash is that of {panel.name}: {panel.about}"
    own = panel.hash[:CITED_DIGITS]
    return False, f"The hash of {panel.name} is {own}: the result is on other tasks or other data."


def _check_success(citation: Citation) -> tuple[bool, str]:
    meaning = "Mean over the tasks of the share of their episodes that succeeded."
    if citation.tasks < 1 or not 0 <= citation.success <= 100:
        return False, f"{meaning} It must be between 0 and 100, of at least one task."
    if citation.samples == 1:
        low, high = (_rounded(citation, side) * citation.tasks for side in (-1, 1))
        if math.floor(high) < math.ceil(low):
            return False, f"{meaning} No number of {citation.tasks} tasks is this share."
        return True, f"{meaning} It is {math.floor(high)} of {citation.tasks}."
    return True, meaning


def _check_interval(citation: Citation) -> tuple[bool, str]:
    meaning = "95% Wilson interval over the tasks."
    if citation.tasks < 1 or not 0 <= citation.success <= 100:
        return False, f"{meaning} It cannot be computed from the other parts."
    lowest, highest = (
        wilson_interval(_rounded(citation, side) * citation.tasks, citation.tasks)
        for side in (-1, 1)
    )
    wanted = ((citation.low, lowest[0], highest[0]), (citation.high, lowest[1], highest[1]))
    if all(100 * least - _ROUNDING <= end <= 100 * most + _ROUNDING for end, least, most in wanted):
        return True, f"{meaning} It fits the success rate and the number of tasks."
    low, high = wilson_interval(citation.success / 100 * citation.tasks, citation.tasks)
    return False, (
        f"{meaning} For this success rate and number of tasks, it is [{100 * low:.1f}, "
        f"{100 * high:.1f}]."
    )


def _rounded(citation: Citation, side: int) -> float:
    """Return the smallest (-1) or largest (1) share that rounds to the success rate."""
    return min(1.0, max(0.0, (citation.success + side * _ROUNDING) / 100))


def _check_tasks(citation: Citation, panel: Panel) -> tuple[bool, str]:
    total = len(panel.tasks)
    if citation.tasks > total or citation.tasks < 1:
        return False, f"Tasks with a result. The panel has {total}."
    if citation.tasks < total:
        lost = total - citation.tasks
        return True, f"Tasks with a result: {lost} of the panel's {total} have none."
    return True, "All tasks of the panel have a result."

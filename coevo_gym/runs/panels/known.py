"""Published results on the benchmarks, each with its source, its protocol and any caveats.

```python
from coevo_gym.runs.panels.known import known_numbers

for number in known_numbers("appworld")[:2]:
    print(number.method, number.value, number.split, number.source)
```
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field

from coevo_gym.core.task import FrozenModel, Name

NOT_SAID = "not said"
"""Split of a number whose source does not specify the split."""
_NUMBERS = Path(__file__).with_name("known_numbers.jsonl")
_GROUPS = Path(__file__).with_name("known_groups.jsonl")
_Row = TypeVar("_Row", bound=FrozenModel)

KnownBenchmark = Literal["alfworld", "appworld", "bfcl", "webshop"]
KnownSplit = Literal[
    "valid_seen",
    "valid_unseen",
    "AgentGym's test list",
    "goal position < 500",
    "multi_turn_base",
    "multi_turn",
    "test_normal",
    "not said",
]
"""Name of a task list; ``multi_turn`` is BFCL's four multi-turn categories."""


class KnownNumber(FrozenModel):
    """A published result in percent.

    Attributes:
        id: number of the row, from 1.
        benchmark: name of the benchmark.
        method: the method, as its source names it.
        model: the model that plays.
        metric: the measure, as its source names it; TGC is AppWorld's task goal completion.
        value: the result in percent.
        sd: its standard deviation in points, if printed; usually over training seeds.
        split: the list of tasks, or "not said".
        n_tasks: number of tasks or draws in one evaluation; several numbers if the source leaves
            open which, none if it is not said.
        protocol: rules for drawing and playing the tasks, as far as they are known.
        source: the paper, table, page or thread.
        read_in: the text in which the number was read.
        unclear: open questions and contradictions, or "".
        group: name shared by the rows that are meant to be the same number, or "".
    """

    id: int = Field(ge=1)
    benchmark: KnownBenchmark
    method: Name
    model: Name
    metric: Literal["success", "accuracy", "TGC", "pass@1", "avg@4", "avg@8"]
    value: float = Field(ge=0, le=100)
    sd: float | None = Field(default=None, ge=0)
    split: KnownSplit
    n_tasks: tuple[int, ...] = ()
    protocol: str = ""
    source: Name = Field(min_length=1)
    read_in: Literal[
        "the paper's table",
        "notes that quote the paper's table",
        "notes that quote the paper's table; the scripts were read",
        "a page and notes that quote the paper's table",
        "the project's README or files",
        "the published file",
        "an issue thread",
    ]
    unclear: str = ""
    group: str = ""

    @property
    def printed(self) -> str:
        """The value, with its standard deviation if there is one, as text."""
        value = _format_number(self.value)
        return value if self.sd is None else f"{value} ± {_format_number(self.sd)}"

    @property
    def tasks(self) -> str:
        """The number of tasks and their split as text."""
        n = " or ".join(f"{n:,}" for n in self.n_tasks) or NOT_SAID
        return n if self.split == n else f"{n} ({self.split_in_words})"

    @property
    def split_in_words(self) -> str:
        """The split as text."""
        return "split not said" if self.split == NOT_SAID else self.split

    @property
    def caveats(self) -> Iterator[str]:
        """The unclear points about the number, in one sentence each."""
        if self.split == NOT_SAID:
            yield "The source does not say which split was played."
        if self.unclear:
            yield f"{self.unclear[0].upper()}{self.unclear[1:]}."


def _format_number(value: float) -> str:
    """Format a number with one decimal place, or with two if it has more than one."""
    return f"{value:.1f}" if round(value, 1) == value else f"{value:.2f}"


class KnownGroup(FrozenModel):
    """Numbers that are meant to be the same, and the reasons why they differ.

    Attributes:
        group: name of the group in the rows.
        title: description of the number.
        reasons: known or likely reasons for the differences.
    """

    group: Name
    title: Name
    reasons: Name


@lru_cache
def known_numbers(benchmark: str | None = None) -> tuple[KnownNumber, ...]:
    """Return the published numbers for a benchmark, or for all benchmarks, in order of their ids.

    A benchmark without published numbers has none.
    """
    rows = _read(_NUMBERS, KnownNumber)
    return tuple(row for row in rows if benchmark is None or row.benchmark == benchmark)


@lru_cache
def known_groups() -> tuple[tuple[KnownGroup, tuple[KnownNumber, ...]], ...]:
    """Return each group of numbers that are meant to be the same, with its rows."""
    return tuple(
        (group, tuple(row for row in known_numbers() if row.group == group.group))
        for group in _read(_GROUPS, KnownGroup)
    )


def _read(path: Path, row: type[_Row]) -> list[_Row]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [row.model_validate(json.loads(line)) for line in lines]

"""Panels, protocols and citations, which together state exactly what a number measures.

A *panel* is a fixed list of tasks and says what is played. It stores a hash of each task's content,
and what other code needs to find the task, but no content. An *evaluation protocol* says how the
tasks are played. Both have a hash over readable parts, and a *citation* is one line with both
hashes and the result. Nothing in this module reads or writes files.

Example:
    >>> task = PanelTask(id="shop/1", scenario="B01", parts={"instruction": hash_content("buy it")})
    >>> panel = Panel(name="one", benchmark="shop", split="test", data={}, tasks=(task,))
    >>> Panel.from_json(panel.to_json(), "one.json") == panel
    True
    >>> panel.tasks[0].hash[:8], panel.hash[:8]
    ('f8623184', 'b256709c')
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationError

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import (
    FrozenDict,
    FrozenModel,
    JsonObject,
    Name,
    Split,
    canonical_json,
    pattern_validator,
    thaw,
)

FORMAT = "coevo_gym panel 1"
"""The first value in a panel file. A change of the file's format changes its number."""
CITED_DIGITS = 12
"""Number of digits of each hash in a citation."""

Sha256 = Annotated[str, pattern_validator(r"[0-9a-f]{64}", "must be 64 lowercase hex digits")]
"""A SHA-256 hash in lowercase hex as a pydantic field."""
PanelName = Annotated[
    str,
    pattern_validator(
        r"[a-z0-9][a-z0-9._-]*",
        "must consist of lowercase letters, digits, '.', '_' and '-', and begin with a letter or a "
        "digit",
    ),
]
"""The name of a panel as a pydantic field."""


def is_panel_file(name: str) -> bool:
    """Return True if a panel is given as the path of its file, rather than by name."""
    return name.endswith(".json")


def hash_content(content: Any) -> str:
    """Return the SHA-256 of a string's UTF-8 bytes, or of any other JSON value's canonical text.

    Canonical JSON has sorted keys and no spaces, and its characters are not escaped.
    """
    text = content if isinstance(content, str) else canonical_json(content)
    return hashlib.sha256(text.encode()).hexdigest()


class PanelTask(FrozenModel):
    """A task in a panel.

    Attributes:
        id: name of the task in this package.
        scenario: the unit that is never shared between splits, such as a product or a room.
        place: values by which other code finds the task, such as a file or a position.
        parts: hash of each part of the task's content, by name; see :func:`hash_content`.
    """

    id: Name
    scenario: str
    place: JsonObject = FrozenDict()
    parts: Mapping[str, Sha256] = Field(min_length=1)

    @property
    def hash(self) -> str:
        """The hash of the task's content, computed from :attr:`parts`."""
        return hash_content(dict(self.parts))


class Panel(FrozenModel):
    """A fixed, ordered list of tasks from one split of a benchmark.

    Attributes:
        name: short name.
        about: the rule by which the tasks were chosen, in a sentence.
        benchmark: name of the benchmark.
        split: the split that all the tasks belong to.
        env: arguments of the env that has these tasks, besides the split, such as a subset.
        data: versions and hashes of the data that the panel was made from.
        tasks: the tasks in the order in which they are played.
    """

    name: PanelName
    about: Name = ""
    benchmark: str
    split: Split
    env: JsonObject = FrozenDict()
    data: Mapping[str, str]
    tasks: tuple[PanelTask, ...] = Field(min_length=1)

    @property
    def hash(self) -> str:
        """The hash of everything in the panel except its name and description."""
        content = self.model_dump(mode="json", exclude={"name", "about"})
        return hash_content(content)

    @property
    def reference(self) -> str:
        """The name and the first digits of the hash, as in a citation."""
        return f"{self.name}@{self.hash[:CITED_DIGITS]}"

    def to_json(self) -> str:
        """Return the text of the panel's file, which has one line per task.

        Equal panels have the same text, to the byte.
        """
        head = {
            "format": FORMAT,
            "name": self.name,
            "about": self.about,
            "benchmark": self.benchmark,
            "split": str(self.split),
            "env": _sort_keys(self.env),
            "data": _sort_keys(self.data),
            "hash": self.hash,
        }
        lines = [f" {_to_line(key)}: {_to_line(value)}," for key, value in head.items()]
        rows = [f"  {_to_line(_to_row(task))}" for task in self.tasks]
        return "\n".join(["{", *lines, ' "tasks": [', ",\n".join(rows), " ]", "}", ""])

    @classmethod
    def from_json(cls, text: str | bytes, source: str) -> Panel:
        """Read a panel from the text of its file.

        Args:
            text: the text.
            source: name of the file, for messages.

        Raises:
            ConfigError: if the text is not a panel, lists a task twice, or was edited, so that a
                hash does not match; the message contains the line, key or task.
        """
        advice = "Restore the original file, or make a new panel with `coevo panel make`."
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{source} is not a panel file: {error}. {advice}") from error
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            form = data.get("format") if isinstance(data, dict) else None
            raise ConfigError(
                f"{source} is not a panel file that this version of coevo_gym can read: its key "
                f"'format' must be {FORMAT!r}, got {form!r}. {advice}"
            )
        stated = data.pop("hash", None)
        rows = data.get("tasks")
        lines = rows if isinstance(rows, list) else []
        hashes = [row.pop("hash", None) for row in lines if isinstance(row, dict)]
        try:
            panel = cls.model_validate({key: data[key] for key in data if key != "format"})
        except ValidationError as error:
            problem = error.errors()[0]
            key = ".".join(map(str, problem["loc"]))
            raise ConfigError(f"{source}: {key}: {problem['msg']}. {advice}") from error
        if doubled := [id for id, n in Counter(task.id for task in panel.tasks).items() if n > 1]:
            raise ConfigError(f"{source} lists the task {doubled[0]} more than once. {advice}")
        for task, hash in zip(panel.tasks, hashes, strict=True):
            if task.hash != hash:
                raise ConfigError(
                    f"{source} was edited: the hash of task {task.id} must be {task.hash}, got "
                    f"{hash!r}. {advice}"
                )
        if panel.hash != stated:
            raise ConfigError(
                f"{source} was edited: its key 'hash' must be {panel.hash}, got {stated!r}. "
                f"{advice}"
            )
        return panel


def _to_row(task: PanelTask) -> dict[str, Any]:
    """Convert a task to the JSON object that a panel file contains."""
    return {
        "id": task.id,
        "hash": task.hash,
        "scenario": task.scenario,
        "place": _sort_keys(task.place),
        "parts": _sort_keys(task.parts),
    }


def _sort_keys(value: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(thaw(value).items()))


def _to_line(value: Any) -> str:
    """Format a JSON value on one line, keeping the order of its keys."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def changed_parts(wanted: PanelTask, actual: PanelTask) -> Iterator[str]:
    """Yield the names of the parts that differ between two versions of a task."""
    for part in sorted({*wanted.parts, *actual.parts}):
        if wanted.parts.get(part) != actual.parts.get(part):
            yield part


class EvalProtocol(FrozenModel):
    """The settings that determine how the tasks of an evaluation are played.

    Attributes:
        parts: the settings, by name.
    """

    parts: JsonObject = FrozenDict()

    @property
    def hash(self) -> str:
        """The hash of the protocol's settings."""
        return hash_content(thaw(self.parts))

    def differences(self, other: EvalProtocol) -> tuple[str, ...]:
        """Return the names of the settings that differ, or that only one of the protocols has."""
        names = {**self.parts, **other.parts}
        missing = object()
        return tuple(
            name
            for name in names
            if self.parts.get(name, missing) != other.parts.get(name, missing)
        )


_CITATION = re.compile(
    r"(?P<panel>[a-z0-9][a-z0-9._-]*)@(?P<panel_hash>[0-9a-f]{12}): "
    r"success (?P<success>[0-9]{1,3}\.[0-9]) % "
    r"\[(?P<low>[0-9]{1,3}\.[0-9]), (?P<high>[0-9]{1,3}\.[0-9])\], "
    r"(?P<tasks>[0-9]{1,9}) tasks x (?P<samples>[0-9]{1,9}), protocol (?P<protocol>[0-9a-f]{12}), "
    r"(?P<policy>.+), coevo_gym (?P<version>\S+)"
)


class Citation(FrozenModel):
    """An evaluation's result as one line that can be cited.

    Attributes:
        panel: name of the panel.
        panel_hash: first digits of its hash.
        success: success rate in percent, with one digit after the point, as :attr:`low` and
            :attr:`high`.
        low: lower end of its 95% interval.
        high: upper end.
        tasks: number of tasks with a result.
        samples: episodes per task.
        protocol: first digits of the protocol's hash.
        policy: the policy and, if known, its model and weights.
        version: version of this package.
    """

    panel: PanelName
    panel_hash: str
    success: float
    low: float
    high: float
    tasks: int
    samples: int
    protocol: str
    policy: Name
    version: str

    def __str__(self) -> str:
        return (
            f"{self.panel}@{self.panel_hash}: success {self.success:.1f} % "
            f"[{self.low:.1f}, {self.high:.1f}], {self.tasks} tasks x {self.samples}, "
            f"protocol {self.protocol}, {self.policy}, coevo_gym {self.version}"
        )

    @classmethod
    def parse(cls, line: str) -> Citation:
        """Parse the line of text that contains a citation.

        Raises:
            ConfigError: if the line is not a citation.
        """
        match = _CITATION.fullmatch(line.strip())
        if match is None:
            raise ConfigError(
                f"{line.strip()[:200]!r} is not the last line of an evaluation result, which has "
                "the form PANEL@HASH: success … % [LOW, HIGH], N tasks x K, protocol HASH, POLICY, "
                "coevo_gym VERSION."
            )
        return cls.model_validate(match.groupdict())

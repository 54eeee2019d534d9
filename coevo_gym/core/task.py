"""Tasks: frozen data that define a goal, a world, and a verifier.

``Task.world`` starts an engine and is the only part that may enter a worker or a sandbox.
``Task.verifier`` judges an episode and stays in the trusted process. ``Task.solution`` lists
reference actions in the env's own syntax. Verifier and solution are never shown to a policy.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Literal, NoReturn

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    PlainSerializer,
    SerializeAsAny,
    ValidationError,
    model_validator,
)

from coevo_gym.core.errors import TaskError
from coevo_gym.core.registry import load_object
from coevo_gym.core.spaces import make_visible

SCHEMA_VERSION = 1
OPEN = "open"
"""The origin of an open task, which has no goal."""


class Split(StrEnum):
    """The split that a scenario belongs to: train, validation or test.

    Native tasks are never ``held_out``: a run holds out some of its training tasks for evaluation
    only (``coevo_gym.envs.held_out``).
    """

    TRAIN = "train"
    VAL = "val"
    TEST = "test"
    HELD_OUT = "held_out"


NATIVE_SPLITS = (Split.TRAIN, Split.VAL, Split.TEST)
"""The splits of a benchmark's native tasks."""


def first_non_train(*sides: Split) -> Split:
    """Return the first split that is not ``train``, or ``train`` if there is none.

    Example:
        >>> first_non_train(Split.TRAIN, Split.VAL, Split.TEST)
        <Split.VAL: 'val'>
    """
    return next((side for side in sides if side is not Split.TRAIN), Split.TRAIN)


def parse_split(split: str | Split) -> Split:
    """Return the split with the given name.

    Raises:
        TaskError: if the name is unknown.
    """
    try:
        return Split(split)
    except ValueError:
        names = ", ".join(Split)
        raise TaskError(f"Unknown split {split!r}. Choose one of: {names}.") from None


class FrozenDict(dict[str, Any]):
    """An immutable, hashable and picklable JSON object."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("FrozenDict cannot be modified. Create a new one.")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenDict, (dict(self),))


def freeze(value: Any) -> Any:
    """Deep-freeze a JSON value: arrays become tuples, and objects become :class:`FrozenDict`.

    Raises:
        ValueError: if the value contains a float that is not finite, or a non-JSON type.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    if value is None or isinstance(value, (str, bool, int, float)):  # most common, so first
        return value
    if isinstance(value, (list, tuple)):
        return tuple(freeze(item) for item in value)
    if isinstance(value, Mapping):
        return FrozenDict({str(key): freeze(item) for key, item in value.items()})
    raise ValueError(f"{type(value).__name__} is not a JSON value")


def thaw(value: Any) -> Any:
    """Convert a value frozen by :func:`freeze` back to plain JSON."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [thaw(item) for item in value]
    return value


JsonObject = Annotated[
    Mapping[str, Any], AfterValidator(freeze), PlainSerializer(thaw, return_type=dict[str, Any])
]
"""A frozen JSON object as a pydantic field."""


def check_encodable(text: str) -> str:
    """Validate that ``text`` can be encoded as UTF-8 (no lone surrogates), and return it."""
    text.encode()
    return text


Text = Annotated[str, AfterValidator(check_encodable)]
"""A string without lone surrogates as a pydantic field."""


def _to_printable_line(name: str) -> str:
    return name if name.isprintable() else make_visible(" ".join(check_encodable(name).split()))


Name = Annotated[str, AfterValidator(_to_printable_line)]
"""A name as a pydantic field: one line, with control characters replaced with their names."""


class FrozenModel(BaseModel):
    """An immutable pydantic model that rejects undeclared fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def pattern_validator(pattern: str, rule: str) -> AfterValidator:
    """Create a validator for strings that must match a pattern. ``rule`` is the error message."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(rule)
        return text

    return AfterValidator(check)


class World(FrozenModel):
    """The data needed to start the engine for one task. Each benchmark has its own subclass."""


class Verifier(FrozenModel):
    """The data needed to grade one task. Each benchmark has its own subclass."""


class NothingAsked(Verifier):
    """A verifier for open tasks, which have no goal and cannot be solved."""


class UnknownWorld(World):
    """The world of an unregistered benchmark, kept as raw JSON."""

    model_config = ConfigDict(extra="allow")
    _freeze = model_validator(mode="before")(freeze)


class UnknownVerifier(Verifier):
    """The verifier of an unregistered benchmark, kept as raw JSON."""

    model_config = ConfigDict(extra="allow")
    _freeze = model_validator(mode="before")(freeze)


_MODELS: dict[str, tuple[str, str]] = {}
_LOOKS: list[Callable[[str], object]] = []


def register_models(benchmark: str, *, world: str, verifier: str) -> None:
    """Register the import paths (``"module:Class"``) of a benchmark's world and verifier models."""
    _MODELS[benchmark] = (world, verifier)


def register_model_finder(look: Callable[[str], object]) -> None:
    """Register a callback that can find the data models of a benchmark, given its name."""
    _LOOKS.append(look)


def _find_model_paths(benchmark: str) -> tuple[str, str] | tuple[None, None]:
    if benchmark not in _MODELS:
        for look in _LOOKS:
            look(benchmark)
    return _MODELS.get(benchmark, (None, None))


def parse_models(data: Any, *fields: str) -> Any:
    """Parse raw ``world`` and ``verifier`` fields with the benchmark's own models."""
    if not isinstance(data, Mapping):
        return data
    world, verifier = _find_model_paths(str(data.get("benchmark")))
    models: dict[str, type[BaseModel]] = {
        "world": load_object(world) if world else UnknownWorld,
        "verifier": load_object(verifier) if verifier else UnknownVerifier,
    }
    if data.get("origin") == OPEN:
        models["verifier"] = NothingAsked
    parsed = {
        field: models[field].model_validate(data[field])
        for field in fields
        if isinstance(data.get(field), Mapping)
    }
    return {**data, **parsed}


def canonical_json(value: Any) -> str:
    """Convert a JSON value to canonical text, with sorted keys and no spaces. NaN is an error."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


# Whitespace, control characters and Unicode's Default_Ignorable_Code_Point are all invisible.
_INVISIBLE = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    r"\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)


def fold_strings(value: Any) -> Any:
    r"""Normalise all strings in a JSON value for comparison.

    Two strings that differ only in case, whitespace, invisible characters or Unicode compatibility
    forms (NFKC) fold to the same string. Use it to recognise copies, never to display text. Values
    that are not strings, mappings or sequences are unchanged.

    Example:
        >>> fold_strings("Move  the FILE "), fold_strings("move\u200b the \uff46ile")
        ('movethefile', 'movethefile')
    """
    if isinstance(value, str):
        if value.isascii():
            return _INVISIBLE.sub("", value.lower())
        text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", value)).casefold()
        return unicodedata.normalize("NFKC", text)
    if isinstance(value, Mapping):
        return {fold_strings(key): fold_strings(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(map(fold_strings, value))
    return value


class Task(FrozenModel):
    """A goal for an agent, together with a world and a verifier.

    Attributes:
        benchmark: name of the benchmark, such as ``"webshop"``.
        name: unique human-readable name, accepted wherever an id is. Evolved and open tasks are
            named by their id. Control characters in it are replaced with their names.
        split: split that the task belongs to.
        subset: the benchmark's own name for a part of its tasks, or "".
        scenario: the unit that is never shared between splits (a product, a scene, a seed world).
        instruction: the goal, as shown to the agent.
        world: data that starts the engine.
        verifier: data used to judge the episode; it never leaves the trusted process.
        solution: reference actions in the env's own syntax.
        origin: ``native`` tasks came with the benchmark, ``evolved`` tasks were built and proven,
            and ``open`` tasks have no goal and are only explored from (``Proposable.open``).
        parents: ids of the tasks that this task was derived from.
        provenance: details of the origin (signal, context, draft), as JSON.
    """

    benchmark: str
    name: Name = ""
    split: Split
    subset: str = ""
    scenario: Text
    instruction: Text
    world: SerializeAsAny[World]
    verifier: SerializeAsAny[Verifier]
    solution: tuple[Text, ...] = ()
    origin: Literal["native", "evolved", "open"] = "native"
    parents: tuple[str, ...] = ()
    provenance: JsonObject = FrozenDict()

    @model_validator(mode="before")
    @classmethod
    def _parse_models(cls, data: Any) -> Any:
        return parse_models(data, "world", "verifier")

    @model_validator(mode="after")
    def _check_origin_and_set_name(self) -> Task:
        if (self.origin == OPEN) is not isinstance(self.verifier, NothingAsked):
            raise ValueError(
                "the verifier NothingAsked and the origin 'open' must be used together, "
                f"got verifier={type(self.verifier).__name__} and origin={self.origin!r}"
            )
        if not self.name:
            kind = OPEN if self.origin == OPEN else "evolved"
            object.__setattr__(self, "name", f"{self.benchmark}/{kind}/{self.id[:12]}")
        return self

    @cached_property
    def id(self) -> str:
        """The content hash (SHA-256, hex) of the task. It does not include labels such as name,
        split, solution and provenance, so a task found twice has one id, and a copy of a test task
        is recognised regardless of the split the task claims.
        """  # noqa: D205
        content = [
            SCHEMA_VERSION,
            self.benchmark,
            self.scenario,
            self.instruction,
            self.world.model_dump(mode="json"),
            self.verifier.model_dump(mode="json"),
        ]
        return hashlib.sha256(canonical_json(content).encode()).hexdigest()

    def __hash__(self) -> int:
        return hash(self.id)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Task:
        """Return a validated copy with the given fields changed. The copy has its own id."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**fields, **(update or {})})

    def to_json(self) -> str:
        """Return the task as one line of JSON that :meth:`from_json` can read in any process."""
        return canonical_json(self.model_dump(mode="json"))

    def require_goal(self, action: str) -> Task:
        """Check that this task has a goal, and return the task.

        Args:
            action: the action that an open task does not allow, for the message ("evaluate").

        Raises:
            TaskError: if it is an open task. This cannot be turned off.
        """
        if self.origin == OPEN:
            raise TaskError(
                f"Refusing to {action} {self.name}: it is an open task, which has no goal and can "
                "only be explored. Use the task that it was created from."
            )
        return self

    @classmethod
    def from_json(cls, text: str | bytes) -> Task:
        """Read a task written by :meth:`to_json`.

        Raises:
            TaskError: if the text is not valid task JSON.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise TaskError(f"The text is not valid task JSON: {error}") from error

"""Tasks: frozen data that say what is to be done, where, and how it is judged.

``Task.world`` starts an engine and is the only part that may enter a worker or a sandbox.
``Task.verifier`` judges and stays in the trusted process. ``Task.solution`` is a reference in the
env's own action syntax. None of the last two is ever shown to a policy.
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
from importlib import import_module
from typing import Annotated, Any, Literal, NoReturn, cast

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
from coevo_gym.core.spaces import visible

SCHEMA_VERSION = 1
OPEN = "open"
"""The origin of a task that asks for nothing."""


class Split(StrEnum):
    """The side of the train / validation / test border that a scenario lies on.

    No native task is ``held_out``: those are training tasks that a run sets aside to measure on
    (``coevo_gym.envs.held_out``), and nothing but evaluation takes them.
    """

    TRAIN = "train"
    VAL = "val"
    TEST = "test"
    HELD_OUT = "held_out"


NATIVE_SPLITS = (Split.TRAIN, Split.VAL, Split.TEST)
"""The splits that a benchmark's own tasks come in."""


def strictest(*sides: Split) -> Split:
    """The first side that is not to train on; ``train`` if there is none.

    Example:
        >>> strictest(Split.TRAIN, Split.VAL, Split.TEST)
        <Split.VAL: 'val'>
    """
    return next((side for side in sides if side is not Split.TRAIN), Split.TRAIN)


def parse_split(split: str | Split) -> Split:
    """The split of that name.

    Raises:
        TaskError: if there is none.
    """
    try:
        return Split(split)
    except ValueError:
        names = ", ".join(Split)
        raise TaskError(f"Unknown split {split!r}. Choose one of: {names}.") from None


class FrozenDict(dict[str, Any]):
    """A JSON object that cannot be changed after it is made; hashable and picklable."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("FrozenDict does not support modification; build a new one")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenDict, (dict(self),))


def freeze(value: Any) -> Any:
    """Deep-freeze a JSON value: arrays become tuples, objects :class:`FrozenDict`.

    Raises:
        ValueError: on a float that is not finite, or a type that JSON does not have.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    if value is None or isinstance(value, (str, bool, int, float)):  # the most, so they go first
        return value
    if isinstance(value, (list, tuple)):
        return tuple(freeze(item) for item in value)
    if isinstance(value, Mapping):
        return FrozenDict({str(key): freeze(item) for key, item in value.items()})
    raise ValueError(f"{type(value).__name__} is not a JSON value")


def thaw(value: Any) -> Any:
    """The plain JSON value that :func:`freeze` was given."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [thaw(item) for item in value]
    return value


JsonObject = Annotated[
    Mapping[str, Any], AfterValidator(freeze), PlainSerializer(thaw, return_type=dict[str, Any])
]
"""A frozen JSON object as a pydantic field."""


def encodable(text: str) -> str:
    """Validate that ``text`` encodes as UTF-8 (no lone surrogates)."""
    text.encode()
    return text


Text = Annotated[str, AfterValidator(encodable)]
"""A string without lone surrogates as a pydantic field."""


def _on_a_line(name: str) -> str:
    return name if name.isprintable() else visible(" ".join(encodable(name).split()))


Name = Annotated[str, AfterValidator(_on_a_line)]
"""A name as a pydantic field: one line, with control characters replaced by their names."""


class FrozenModel(BaseModel):
    """A pydantic model that cannot change and knows no field it does not declare."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def shaped(pattern: str, rule: str) -> AfterValidator:
    """Create a validator of texts that answers a mismatch in words.

    Args:
        pattern: regular expression for the whole text.
        rule: what the text takes, for the error message.
    """

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(rule)
        return text

    return AfterValidator(check)


class World(FrozenModel):
    """All that an engine needs to start one task. Each benchmark has its own subclass."""


class Verifier(FrozenModel):
    """All that a grader needs to judge one task. Each benchmark has its own subclass."""


class NothingAsked(Verifier):
    """The verifier of an open task, of every benchmark: nothing is asked for, nothing solves it."""


class UnknownWorld(World):
    """World of a benchmark that is not registered here: its JSON, untouched."""

    model_config = ConfigDict(extra="allow")
    _freeze = model_validator(mode="before")(freeze)


class UnknownVerifier(Verifier):
    """Verifier of a benchmark that is not registered here: its JSON, untouched."""

    model_config = ConfigDict(extra="allow")
    _freeze = model_validator(mode="before")(freeze)


_MODELS: dict[str, tuple[str, str]] = {}
_LOOKS: list[Callable[[str], object]] = []


def register_models(benchmark: str, *, world: str, verifier: str) -> None:
    """Name a benchmark's world and verifier models as ``"module:Class"``, imported on demand."""
    _MODELS[benchmark] = (world, verifier)


def find_models_by(look: Callable[[str], object]) -> None:
    """Have ``look`` asked, by name, for a benchmark that nobody has named the models of."""
    _LOOKS.append(look)


def _models_of(benchmark: str) -> tuple[str, str] | tuple[None, None]:
    if benchmark not in _MODELS:
        for look in _LOOKS:
            look(benchmark)
    return _MODELS.get(benchmark, (None, None))


def _resolve(path: str) -> type[BaseModel]:
    module, _, name = path.partition(":")
    return cast("type[BaseModel]", getattr(import_module(module), name))


def resolve_models(data: Any, *fields: str) -> Any:
    """Parse the raw ``world`` / ``verifier`` in ``data`` with the benchmark's own models."""
    if not isinstance(data, Mapping):
        return data
    world, verifier = _models_of(str(data.get("benchmark")))
    models = {
        "world": _resolve(world) if world else UnknownWorld,
        "verifier": _resolve(verifier) if verifier else UnknownVerifier,
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
    """One text per JSON value: sorted keys, no spaces, Unicode as it is, finite numbers only."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


# Whitespace, control characters, and Unicode's Default_Ignorable_Code_Point: nothing is drawn.
_INVISIBLE = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    r"\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)


def folded(value: Any) -> Any:
    r"""Return a JSON value with every text reduced to what distinguishes it from other texts.

    Two texts that differ only in case, whitespace, invisible characters or Unicode compatibility
    forms (NFKC) fold to the same text. Use it to recognize copies, never to display text.

    Args:
        value: a text, or texts in mappings and sequences; other values are returned unchanged.

    Example:
        >>> folded("Move  the FILE "), folded("move\u200b the \uff46ile")
        ('movethefile', 'movethefile')
    """
    if isinstance(value, str):
        if value.isascii():
            return _INVISIBLE.sub("", value.lower())
        shown = _INVISIBLE.sub("", unicodedata.normalize("NFKC", value)).casefold()
        return unicodedata.normalize("NFKC", shown)
    if isinstance(value, Mapping):
        return {folded(key): folded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(map(folded, value))
    return value


class Task(FrozenModel):
    """What is to be done, where, and how it is judged.

    Attributes:
        benchmark: name of the benchmark, such as ``"webshop"``.
        name: unique and for people; taken wherever an id is. Evolved and open tasks are named by
            their id. Control characters in it are replaced by their names.
        split: side of the train / validation / test border.
        subset: the benchmark's own name for a part, or "".
        scenario: the unit that stays on one side of a split (a product, a scene, a seed world).
        instruction: what the agent is asked to do, in words.
        world: starts the engine.
        verifier: judges the episode; never leaves the trusted process.
        solution: reference actions in the env's own syntax.
        origin: ``native`` tasks came with the benchmark, ``evolved`` ones were built and proven;
            ``open`` ones ask for nothing and are only explored from (``Proposable.open``).
        parents: ids of the tasks this one grew from.
        provenance: how it came to be (signal, context, draft), as JSON.
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
    def _typed(cls, data: Any) -> Any:
        return resolve_models(data, "world", "verifier")

    @model_validator(mode="after")
    def _named(self) -> Task:
        if (self.origin == OPEN) is not isinstance(self.verifier, NothingAsked):
            raise ValueError(
                "an open task, and no other, is verified by NothingAsked; "
                f"origin={self.origin!r} has a {type(self.verifier).__name__}"
            )
        if not self.name:
            kind = OPEN if self.origin == OPEN else "evolved"
            object.__setattr__(self, "name", f"{self.benchmark}/{kind}/{self.id[:12]}")
        return self

    @cached_property
    def id(self) -> str:
        """Content hash (sha256, hex) of what the task *is*; labels such as name, split, solution
        and provenance stay outside, so a task found twice is one task, and a copy of a test task
        is caught whatever split it claims.
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
        """A validated copy with other field values, and so with an id of its own."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**fields, **(update or {})})

    def to_json(self) -> str:
        """One line of JSON; :meth:`from_json` reads it back, in any process."""
        return canonical_json(self.model_dump(mode="json"))

    def require_asked(self, action: str) -> Task:
        """This task, if something is asked for in it.

        Args:
            action: what was about to be done with it, for the message ("evaluate").

        Raises:
            TaskError: if it is an open task. Nothing turns this off.
        """
        if self.origin == OPEN:
            raise TaskError(
                f"Refusing to {action} {self.name}: it is an open task, in which nothing is asked "
                "for, and it may only be explored. Take the task that it was opened from."
            )
        return self

    @classmethod
    def from_json(cls, text: str | bytes) -> Task:
        """Read a task written by :meth:`to_json`.

        Raises:
            TaskError: if the text is not the JSON of a task.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise TaskError(f"This is not the JSON of a task: {error}") from error

"""Questions to a model, asked one at a time, and its answers.

The asking code knows only an :class:`Advisor`. It does not know the model, the protocol, the
possible cost, or if the answer was recorded earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from pydantic import BaseModel

from coevo_gym.core.seams import Completion, Sampling
from coevo_gym.core.spend import NO_USAGE, Spent, Usage
from coevo_gym.core.task import FrozenDict
from coevo_gym.core.trajectory import Group

ModelT = TypeVar("ModelT", bound=BaseModel)
_SAMPLE = Sampling()

Scope = Callable[[str], AbstractContextManager[Spent]]
"""Entered with the name of a piece of work that is done as a whole or over again, such as
``round-3/explore-0``: what models are asked inside is recorded and counted under that name. To
enter a name again is to begin that piece anew: equal questions get the answers of before. Inside of
``round-3``, ``explore-0`` and ``round-3/explore-0`` are one name."""


@contextmanager
def no_scope(name: str) -> Iterator[Spent]:
    """Do nothing: a scope without records and counts."""
    yield lambda: FrozenDict()


@dataclass(frozen=True, slots=True)
class Inquiry(Generic[ModelT]):
    """One question.

    Attributes:
        prompt: name of the prompt file, such as ``"coevolve/summary"``.
        schema: the model of valid answers; unknown fields are dropped.
        inputs: the values of the prompt's inputs, as JSON by the names that the file declares.
        purpose: the purpose of the answer, by which usage is summed; "" for the prompt's name.
        sampling: settings for sampling the answer.
        shorten: returns shorter inputs, for a model whose context has no room for all; None if
            nothing can be omitted.
    """

    prompt: str
    schema: type[ModelT]
    inputs: Mapping[str, Any] = field(default_factory=FrozenDict)
    purpose: str = ""
    sampling: Sampling = _SAMPLE
    shorten: Callable[[], Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Answer(Generic[ModelT]):
    """The result of an inquiry.

    Attributes:
        value: the answer as the inquiry's schema; None without a valid one.
        problem: the reason for a missing value: ``"budget"`` (not sent), ``"overflow"`` (no room
            for it, also when shortened), ``"endpoint: …"`` (no answer came) or ``"schema: …"`` (its
            first error, which one repair request did not fix); "" with a value.
        usage: its cost, including the repair request.
    """

    value: ModelT | None
    problem: str = ""
    usage: Usage = NO_USAGE


class Advisor(Protocol):
    """A model that is asked questions."""

    def ask(self, inquiries: Sequence[Inquiry[ModelT]]) -> list[Answer[ModelT]]:
        """One answer for each inquiry, in order, from one batch of requests.

        Bad output is an answer without a value, never an exception.
        """
        ...


@dataclass(frozen=True, slots=True)
class Analyst:
    """The model that answers the questions of studies while a step is learned from.

    Attributes:
        advisor: answers questions.
        scope: names the work that asks.
        sampling: settings for sampling answers.
    """

    advisor: Advisor
    scope: Scope
    sampling: Sampling = _SAMPLE

    def studying(self, kind: str, groups: Sequence[Group]) -> AbstractContextManager[Spent]:
        """Return the scope of the study of one step's groups whose notes are of this kind.

        A run that is resumed has the same group ids, so a study that is repeated gets the answers
        of before. For the caps per round it is a round of its own.
        """
        return self.scope(f"study-{kind}-{groups[0].id}")


class StoredAnswer(NamedTuple):
    """An answer as a tape stores it.

    Attributes:
        key: hash of all that the request was.
        scope: the piece of work that it was part of.
        template: the prompt file behind it, such as ``"webshop@1"``; or "".
        completion: the policy's answer.
    """

    key: str
    scope: str
    template: str
    completion: Completion


class AnswerStore(Protocol):
    """The storage of a tape's answers."""

    def get(self, keys: Sequence[str]) -> Mapping[str, StoredAnswer]:
        """Return the stored answers among these keys, by key."""
        ...

    def put(self, answers: Sequence[StoredAnswer]) -> None:
        """Keep answers, in place of what has their keys; on disk when this returns."""
        ...

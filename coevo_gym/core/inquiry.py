"""One-off questions to a model, and the model's answers.

The calling code knows only an :class:`Advisor`. It does not know the model, the protocol, the
possible cost, or whether the answer was recorded earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from pydantic import BaseModel

from coevo_gym.core.evaluation_mark import refuse_marked
from coevo_gym.core.seams import Completion, Sampling
from coevo_gym.core.spend import NO_USAGE, Spent, Usage
from coevo_gym.core.task import FrozenDict
from coevo_gym.core.trajectory import Group

ModelT = TypeVar("ModelT", bound=BaseModel)
_SAMPLE = Sampling()

Scope = Callable[[str], AbstractContextManager[Spent]]
"""A scope for a named unit of work, such as ``round-3/explore-0``, that is completed or repeated
as a whole. Model queries inside the scope are recorded and counted under its name. Entering a name
again restarts that unit of work: equal questions get their earlier answers. Inside ``round-3``,
``explore-0`` and ``round-3/explore-0`` are the same name."""


@contextmanager
def no_scope(name: str) -> Iterator[Spent]:
    """Create a scope that neither records nor counts model queries."""
    yield lambda: FrozenDict()


@dataclass(frozen=True, slots=True)
class Inquiry(Generic[ModelT]):
    """A question for a model.

    Attributes:
        prompt: name of the prompt file, such as ``"coevolve/summary"``.
        schema: the model of valid answers; unknown fields are dropped.
        inputs: JSON values of the prompt's inputs, by the names that the file declares.
        purpose: purpose of the answer, used to group usage; "" for the prompt's name.
        sampling: settings for sampling the answer.
        shorten: returns shorter inputs if the prompt does not fit into the model's context; None if
            nothing can be omitted.

    Raises:
        SplitLeakError: if an input contains an exported episode on a held-out task.
    """

    prompt: str
    schema: type[ModelT]
    inputs: Mapping[str, Any] = field(default_factory=FrozenDict)
    purpose: str = ""
    sampling: Sampling = _SAMPLE
    shorten: Callable[[], Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        refuse_marked(self.inputs, "be shown to an advisor", f"An input of {self.prompt}")


@dataclass(frozen=True, slots=True)
class Answer(Generic[ModelT]):
    """A model's answer to an inquiry, or the problem that prevented one.

    Attributes:
        value: the answer as an instance of the inquiry's schema; None without a valid answer.
        problem: the reason for a missing value: ``"budget"`` (not sent), ``"overflow"`` (too long
            even when shortened), ``"refused: …"`` (a content filter rejected it), ``"endpoint: …"``
            (no answer arrived) or ``"schema: …"`` (the first error, which one repair request did
            not fix); "" with a value.
        usage: cost of the answer, including the repair request.
    """

    value: ModelT | None
    problem: str = ""
    usage: Usage = NO_USAGE


class Advisor(Protocol):
    """The interface for asking a model questions."""

    def ask(self, inquiries: Sequence[Inquiry[ModelT]]) -> list[Answer[ModelT]]:
        """Ask all questions in one batch, and return the answers in the same order.

        Bad output leads to an answer without a value, never to an exception.
        """
        ...


@dataclass(frozen=True, slots=True)
class Analyst:
    """The model that answers questions about the episodes of a learner step.

    Attributes:
        advisor: the advisor that answers questions.
        scope: the scope that names the step or round that asks questions.
        sampling: settings for sampling answers.
    """

    advisor: Advisor
    scope: Scope
    sampling: Sampling = _SAMPLE

    def study_scope(self, kind: str, groups: Sequence[Group]) -> AbstractContextManager[Spent]:
        """Return a context manager that records a study's model queries during a learner step.

        A resumed run has the same group ids, so a repeated study gets the earlier answers. The caps
        per round apply to each study separately.
        """
        return self.scope(f"study-{kind}-{groups[0].id}")


class StoredAnswer(NamedTuple):
    """A recorded answer from a model.

    Attributes:
        key: hash of the complete request.
        scope: the unit of work that the request was part of.
        template: the prompt file behind the request, such as ``"webshop@1"``; or "".
        completion: the policy's answer.
    """

    key: str
    scope: str
    template: str
    completion: Completion


class AnswerStore(Protocol):
    """Storage for recorded model answers."""

    def get(self, keys: Sequence[str]) -> Mapping[str, StoredAnswer]:
        """Return the stored answers by key, leaving out keys that have no answer."""
        ...

    def put(self, answers: Sequence[StoredAnswer]) -> None:
        """Store answers on disk, replacing those with the same keys. Wait until they are stored."""
        ...

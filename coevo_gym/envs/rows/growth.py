"""Growth by new rows, which the user's functions propose from findings and then check."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

from coevo_gym.core.errors import BuildError, ConfigError, EnvBackendError
from coevo_gym.core.evolution import Attempt, Context
from coevo_gym.core.task import thaw
from coevo_gym.envs.rows.caller import Caller, Row
from coevo_gym.envs.rows.source import MODEL


@dataclass(frozen=True)
class RowFindings:
    """Findings about a training row on which the agent is weak.

    Attributes:
        kind: the signal: ``forgetting``, ``boundary`` or ``rare``, or another reason to propose
            rows, such as ``unguided``.
        summary: the weakness in a sentence, such as "3 of 8 rollouts succeeded."; or "".
        attempts: the rollouts of the group, each with its ``answer``, ``actions`` (all answers),
            ``score`` and ``success``; () without a group.
        known: prompts that have been proposed before from this row.
        wanted: tags that new rows should have; () for any.
        seed: seed for random choices, derived from the run's seed.
    """

    kind: str
    summary: str
    attempts: tuple[Attempt, ...]
    known: tuple[str, ...]
    wanted: tuple[str, ...]
    seed: int

    @classmethod
    def from_context(cls, context: Context, seed: int) -> RowFindings:
        """Return the findings in an explorer's context."""
        return cls(
            kind=context.kind,
            summary=context.summary,
            attempts=context.attempts,
            known=context.known,
            wanted=context.target,
            seed=seed,
        )


Rows = Iterable[Mapping[str, Any]]
Propose = Callable[[dict[str, Any], RowFindings], Rows | Awaitable[Rows]]
"""A function ``propose(row, findings)``, which may be asynchronous. It returns new rows."""
Solution = str | int | float | Iterable[str] | None
Reference = Callable[[dict[str, Any]], Solution | Awaitable[Solution]]
"""A function ``reference(row)``, which may be asynchronous. It returns a correct answer, or a list
of answers for several turns, or None."""
Accept = Callable[[dict[str, Any]], bool | str | Awaitable[bool | str]]
"""A function ``accept(row)``, which may be asynchronous. It returns True, or False or the reason
why a proposed row is not accepted."""


@dataclass(frozen=True)
class RowGrowth:
    """The user's functions that propose new rows and check them.

    Attributes:
        propose: returns new rows; ``"model"`` if an explorer's model proposes them; None for no
            growth.
        reference: returns a correct answer to a row.
        accept: checks a proposed row.
        timeout_s: maximum seconds for each call.
    """

    propose: Propose | Literal["model"] | None = None
    reference: Reference | None = None
    accept: Accept | None = None
    timeout_s: float = 60.0

    def propose_rows(self, row: Row, findings: RowFindings) -> list[object]:
        """Return the rows that ``propose`` returns, unchecked.

        Raises:
            BuildError: if ``propose`` fails, or returns anything but rows.
            ConfigError: if a model should propose rows, but the explorer has none.
        """
        propose = self.propose
        if propose is None or isinstance(propose, str):
            raise ConfigError(
                f'With propose="{MODEL}", a language model proposes rows, but the explorer is '
                'scripted. Set explorer.kind = "model", or pass a function as propose.'
            )
        rows = self._call("propose", lambda: propose(thaw(row), findings), row)
        if isinstance(rows, Mapping):
            return [rows]
        if isinstance(rows, Iterable) and not isinstance(rows, str):
            return list(rows)
        raise BuildError(f"propose must return rows (mappings), got {rows!r:.200}")

    def reference_answers(self, row: Row, *fields: str) -> tuple[str, ...]:
        """Return a row's reference answers: from ``reference``, or else from the given fields.

        Raises:
            BuildError: if ``reference`` fails, or returns anything but answers.
        """
        reference = self.reference
        if reference is None:
            values = (row.get(field) for field in fields)
            known: object = next((answer for answer in values if answer is not None), None)
        else:
            known = self._call("reference", lambda: reference(thaw(row)), row)
        if known is None:
            return ()
        if isinstance(known, (str, int, float)):
            return (str(known),)
        if isinstance(known, Iterable):
            answers = list(known)
            texts = tuple(answer for answer in answers if isinstance(answer, str))
            if len(texts) == len(answers):
                return texts
        raise BuildError(f"a reference must be a string or a list of strings, got {known!r:.200}")

    def check_accepted(self, row: Row) -> None:
        """Check a proposed row with ``accept``, if there is such a function.

        Raises:
            BuildError: with the reason, if the row is not accepted.
        """
        accept = self.accept
        if accept is None:
            return
        verdict = self._call("accept", lambda: accept(thaw(row)), row)
        if verdict is True:
            return
        if verdict is False or isinstance(verdict, str):
            raise BuildError(verdict or "accept rejects the row")
        raise BuildError(f"accept must return True, False or a reason, got {verdict!r:.200}")

    def _call(self, name: str, function: Callable[[], object], row: Row) -> object:
        about = f"for the row {row.get('id', thaw(row))!r:.300}"
        with closing(Caller(self.timeout_s)) as caller:
            try:
                return caller.call(name, function, about)
            except EnvBackendError as error:
                raise BuildError(str(error)) from error

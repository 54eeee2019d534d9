"""A tape: what a model has said, so that nothing is asked for twice."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

from coevo_gym.core.errors import AnswerMissing, ConfigError
from coevo_gym.core.inquiry import AnswerStore, StoredAnswer
from coevo_gym.core.scopes import Scopes
from coevo_gym.core.seams import Choice, Completion, Finish, Message, Policy, Prompt, Request
from coevo_gym.core.task import canonical_json, thaw

TapeMode = Literal["off", "record", "replay", "fill"]
"""``off`` asks, and keeps nothing. ``record`` begins anew: it asks, keeps what is answered, and
gives only that again. ``fill`` gives what was kept, asks for the rest, and keeps that, too.
``replay`` never asks."""


_Drawing = Callable[[int], AbstractContextManager[None]]
_Each = Callable[[Sequence[Request], Callable[[int, Completion], None]], list[Completion]]


class Tape:
    """A policy around a policy, which keeps what it answers.

    An answer belongs to all that made it: scope, prompt file, messages, sampling, model, version of
    the policy, and its number among equal requests of the scope. So a policy that samples may
    answer equal requests differently, and a piece of work that is done again gets its answers
    again. Answers are kept before anybody gets to use them. Whether an answer was lost or had no
    room is kept like any other; prompts are not kept.

    A policy that samples here, and has a method ``drawing(seed)`` therefore, draws by what it is
    asked: what it answers to a batch does not depend on how many were replayed before it.

    What it gives from its store has the usage of when it was asked, as ``cached`` instead of
    ``calls``.

    Args:
        policy: who is asked; None where nothing will be.
        store: where answers are kept; None with mode ``off``.
        mode: see :data:`TapeMode`.
        model: name of the model behind the policy.
        scopes: which piece of work each thread is at.

    Raises:
        ConfigError: if the mode needs a store or a policy that there is not.
    """

    def __init__(
        self,
        policy: Policy | None,
        store: AnswerStore | None,
        mode: TapeMode,
        *,
        model: str,
        scopes: Scopes | None = None,
    ) -> None:
        if policy is None and mode != "replay":
            raise ConfigError(f"A tape in mode {mode!r} needs a policy to ask.")
        if store is None and mode != "off":
            raise ConfigError(f"A tape in mode {mode!r} needs a store of answers.")
        self.policy, self.store, self.mode, self.model = policy, store, mode, model
        self.scopes = scopes or Scopes()
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[str]] = {}
        self._recorded: set[str] = set()  # keys of what this tape has asked for
        self.scopes.on_begin(self._begin)

    @property
    def version(self) -> int:
        """Version of the policy; 0 for one that never changes."""
        return getattr(self.policy, "version", 0)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """One completion per request, in order; those that are not on the tape are one batch.

        Raises:
            AnswerMissing: if one is not on a tape that is replayed.
        """
        if self.mode == "off":
            return self._ask(requests)
        assert self.store is not None
        keys = self._keys(requests)
        new = self.mode == "record"
        kept = self.store.get([key for key in keys if not new or key in self._recorded])
        missing = [place for place, key in enumerate(keys) if key not in kept]
        if missing and self.mode == "replay":
            raise self._lacks(requests[missing[0]], keys[missing[0]])
        found = {key: _replayed(answer.completion) for key, answer in kept.items()}
        if missing:
            asked = [requests[place] for place in missing]
            said = self._record(asked, [keys[place] for place in missing], self.store)
            found |= {keys[place]: answer for place, answer in zip(missing, said, strict=True)}
        return [found[key] for key in keys]

    def _ask(self, requests: Sequence[Request]) -> list[Completion]:
        assert self.policy is not None
        return list(self.policy.generate(requests))

    def _record(
        self, requests: Sequence[Request], keys: Sequence[str], store: AnswerStore
    ) -> list[Completion]:
        """Ask, and keep what is answered: each answer when it is there, if the policy tells."""
        path = self.scopes.path  # of this thread

        def keep(answers: Mapping[int, Completion]) -> None:
            store.put(
                [
                    StoredAnswer(keys[place], path, _template(requests[place]), said)
                    for place, said in answers.items()
                ]
            )
            self._recorded.update(keys[place] for place in answers)

        lost: dict[int, Completion] = {}

        def keep_one(place: int, said: Completion) -> None:
            # If the call fails for good, those that were lost before are to be asked for again.
            if said.finish is Finish.LOST:
                lost[place] = said
            else:
                keep({place: said})

        each: _Each | None = getattr(self.policy, "generate_each", None)
        if each is not None:
            answers = each(requests, keep_one)
            keep(lost)
            return answers
        drawing: _Drawing | None = getattr(self.policy, "drawing", None)
        with nullcontext() if drawing is None else drawing(_seed(keys)):
            answers = self._ask(requests)
        keep(dict(enumerate(answers)))
        return answers

    def _begin(self, path: str) -> None:
        with self._lock:
            self._counts.pop(path, None)

    def _keys(self, requests: Sequence[Request]) -> list[str]:
        """The key of each request; equal ones are numbered."""
        path = self.scopes.path
        contents = [
            [path, _template(request), _content(request), self.model, self.version]
            for request in requests
        ]
        with self._lock:
            counts = self._counts.setdefault(path, Counter())
            keys = []
            for content in contents:
                plain = _digest(content)
                keys.append(_digest([*content, counts[plain]]))
                counts[plain] += 1
        return keys

    def _lacks(self, request: Request, key: str) -> AnswerMissing:
        template = _template(request)
        what = f"the prompt {template!r}" if template else "a prompt of no file"
        where = f" in {self.scopes.path!r}" if self.scopes.path else ""
        return AnswerMissing(
            f"The tape has no answer to {what}{where} (key {key}), and a tape that is replayed "
            f"never asks. It was asked of {self.model!r}, version {self.version}: "
            f"{_said_last(request)!r}. Replay with the settings of the run that made the tape, or "
            "set tape.mode to 'fill' to ask for what is missing."
        )


def _template(request: Request) -> str:
    return request.template if isinstance(request, Prompt) else ""


def _content(request: Request) -> list[Any]:
    """A request as JSON."""
    if isinstance(request, Choice):
        view = request.context
        past = [[step.observation, step.action, step.said] for step in view.history]
        shown = [view.instruction, view.observation, thaw(view.info), past, list(view.cues)]
        return ["choice", shown, list(request.choices), _drawn(request)]
    content: list[Any] = [_chat(request.messages), _drawn(request)]
    if request.trained is not None:  # what it is trained on is in the decision that is kept
        content.append(_chat(request.trained))
    if request.after is not None:
        content.append([list(request.after.prompt_ids), list(request.after.ids)])
    return content


def _chat(messages: Sequence[Message]) -> list[Any]:
    return [[m.role, m.content, list(m.ids)] if m.ids else [m.role, m.content] for m in messages]


def _drawn(request: Request) -> list[float]:
    return [float(request.sampling.temperature), request.sampling.max_tokens]


def _digest(content: Any) -> str:
    # Text of a model may hold lone surrogates, which UTF-8 has not.
    return hashlib.sha256(canonical_json(content).encode(errors="surrogatepass")).hexdigest()


def _seed(keys: Sequence[str]) -> int:
    return int(_digest(list(keys))[:16], 16)


def _said_last(request: Request, most: int = 200) -> str:
    if isinstance(request, Choice):
        return request.context.observation[:most]
    return request.messages[-1].content[:most] if request.messages else ""


def _replayed(completion: Completion) -> Completion:
    usage = completion.usage
    calls = max(1, usage.calls + usage.cached)  # a policy may not count
    return completion._replace(usage=usage.model_copy(update={"calls": 0, "cached": calls}))

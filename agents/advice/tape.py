"""A tape that records model answers, so that the model never answers the same question twice."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

from coevo_gym.core.errors import AnswerMissing, ConfigError
from coevo_gym.core.inquiry import AnswerStore, StoredAnswer
from coevo_gym.core.seams import Choice, Completion, Finish, Message, Policy, Prompt, Request
from coevo_gym.core.spend import Scopes
from coevo_gym.core.task import canonical_json, thaw

TapeMode = Literal["off", "record", "replay", "fill"]
"""``off`` records nothing. ``record`` starts an empty tape: it records all answers, and replays
only these. ``fill`` replays recorded answers, and records answers to all other questions.
``replay`` never queries the model."""


_UseSeed = Callable[[int], AbstractContextManager[None]]
_Each = Callable[[Sequence[Request], Callable[[int, Completion], None]], list[Completion]]


class Tape:
    """A policy wrapper that records a model's answers and can replay them.

    The key of an answer contains everything that determines it: scope, prompt file, messages,
    sampling, model, version of the policy, and its number among equal requests in the scope. So a
    sampling policy may answer equal requests differently, and repeated work gets the same answers
    again. Answers are recorded before the caller can use them, including lost answers and those
    that did not fit; prompts are not recorded.

    If the policy has a method ``use_seed(seed)``, the tape seeds sampling from the requests, so the
    answers to a batch do not depend on the number of replayed answers.

    Replayed answers report the original usage, as ``cached`` instead of ``calls``.

    Args:
        policy: the wrapped policy; None if the model will not be queried.
        store: storage for the answers; None in mode ``off``.
        mode: see :data:`TapeMode`.
        model: name of the model behind the policy.
        scopes: current scope of each thread.
        by_episode: True for episodes that are run again one by one until they are finished: keys
            include the episode, so that equal requests of two episodes never share an answer, and
            lost answers are not recorded, so that they are requested again.

    Raises:
        ConfigError: if the mode needs a store or a policy that is missing.
    """

    def __init__(
        self,
        policy: Policy | None,
        store: AnswerStore | None,
        mode: TapeMode,
        *,
        model: str,
        scopes: Scopes | None = None,
        by_episode: bool = False,
    ) -> None:
        if policy is None and mode != "replay":
            raise ConfigError(f"Tape mode {mode!r} requires a policy to query.")
        if store is None and mode != "off":
            raise ConfigError(f"Tape mode {mode!r} requires a store for the answers.")
        self.policy, self.store, self.mode, self.model = policy, store, mode, model
        self.scopes = scopes or Scopes()
        self._by_episode = by_episode
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[str]] = {}
        self._recorded: set[str] = set()  # keys of the questions asked through this tape
        self.scopes.on_begin(self._reset_counts)

    @property
    def version(self) -> int:
        """Version of the policy, or 0 if the policy never changes."""
        return getattr(self.policy, "version", 0)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Return one completion per request, in order. All new requests are sent as one batch.

        Raises:
            AnswerMissing: in mode ``replay``, if an answer is not on the tape.
        """
        if self.mode == "off":
            return self._ask(requests)
        assert self.store is not None
        keys = self._assign_keys(requests)
        new = self.mode == "record"
        records = self.store.get([key for key in keys if not new or key in self._recorded])
        missing = [place for place, key in enumerate(keys) if key not in records]
        if missing and self.mode == "replay":
            raise self._missing_answer_error(requests[missing[0]], keys[missing[0]])
        completions = {key: _mark_cached(answer.completion) for key, answer in records.items()}
        if missing:
            asked = [requests[place] for place in missing]
            answers = self._ask_and_record(asked, [keys[place] for place in missing], self.store)
            completions |= {
                keys[place]: answer for place, answer in zip(missing, answers, strict=True)
            }
        return [completions[key] for key in keys]

    def _ask(self, requests: Sequence[Request]) -> list[Completion]:
        assert self.policy is not None
        return list(self.policy.generate(requests))

    def _ask_and_record(
        self, requests: Sequence[Request], keys: Sequence[str], store: AnswerStore
    ) -> list[Completion]:
        """Query the policy and record its answers, streaming them if the policy supports it."""
        path = self.scopes.path  # of this thread
        unrecorded = (Finish.LOST, Finish.CAPPED, Finish.UNSENT) if self._by_episode else ()

        def store_answers(answers: Mapping[int, Completion]) -> None:
            records = [
                StoredAnswer(keys[place], path, _template_label(requests[place]), completion)
                for place, completion in answers.items()
                if completion.finish not in unrecorded
            ]
            store.put(records)
            self._recorded.update(answer.key for answer in records)

        lost: dict[int, Completion] = {}

        def store_unless_lost(place: int, answer: Completion) -> None:
            # If the whole call fails, earlier lost requests must be sent again.
            if answer.finish is Finish.LOST:
                lost[place] = answer
            else:
                store_answers({place: answer})

        each: _Each | None = getattr(self.policy, "generate_each", None)
        if each is not None:
            answers = each(requests, store_unless_lost)
            store_answers(lost)
            return answers
        use_seed: _UseSeed | None = getattr(self.policy, "use_seed", None)
        with nullcontext() if use_seed is None else use_seed(_seed_from_keys(keys)):
            answers = self._ask(requests)
        store_answers(dict(enumerate(answers)))
        return answers

    def _reset_counts(self, path: str) -> None:
        with self._lock:
            self._counts.pop(path, None)

    def _assign_keys(self, requests: Sequence[Request]) -> list[str]:
        """Return the keys under which the answers to the requests are recorded.

        Equal requests get different keys.
        """
        path = self.scopes.path
        contents = [
            [
                path,
                *([_episode_of(request)] if self._by_episode else ()),
                _template_label(request),
                _request_to_json(request),
                self.model,
                self.version,
            ]
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

    def _missing_answer_error(self, request: Request, key: str) -> AnswerMissing:
        template = _template_label(request)
        what = f"the prompt {template!r}" if template else "a prompt without a file"
        where = f" in {self.scopes.path!r}" if self.scopes.path else ""
        return AnswerMissing(
            f"The tape has no answer to {what}{where} (key {key}), and mode 'replay' never queries "
            f"the model. The request to {self.model!r}, version {self.version}, ends with "
            f"{_last_message_text(request)!r}. Replay with the settings of the run that made the "
            "tape, or set tape.mode to 'fill' to query the model for missing answers."
        )


def _episode_of(request: Request) -> str:
    return request.episode if isinstance(request, Prompt) else request.context.episode


def _template_label(request: Request) -> str:
    return request.template if isinstance(request, Prompt) else ""


def _request_to_json(request: Request) -> list[Any]:
    """Convert a request to JSON."""
    if isinstance(request, Choice):
        view = request.context
        past = [[step.observation, step.action, step.said] for step in view.history]
        parts = [view.instruction, view.observation, thaw(view.info), past, list(view.cues)]
        return ["choice", parts, list(request.choices), _sampling_settings(request)]
    content: list[Any] = [_messages_to_json(request.messages), _sampling_settings(request)]
    if request.trained is not None:  # the training tokens are in the recorded decision
        content.append(_messages_to_json(request.trained))
    if request.after is not None:
        content.append([list(request.after.prompt_ids), list(request.after.ids)])
    return content


def _messages_to_json(messages: Sequence[Message]) -> list[Any]:
    return [[m.role, m.content, list(m.ids)] if m.ids else [m.role, m.content] for m in messages]


def _sampling_settings(request: Request) -> list[float]:
    return [float(request.sampling.temperature), request.sampling.max_tokens]


def _digest(content: Any) -> str:
    # Model text may contain lone surrogates, which UTF-8 cannot encode.
    return hashlib.sha256(canonical_json(content).encode(errors="surrogatepass")).hexdigest()


def _seed_from_keys(keys: Sequence[str]) -> int:
    return int(_digest(list(keys))[:16], 16)


def _last_message_text(request: Request) -> str:
    if isinstance(request, Choice):
        return request.context.observation[:200]
    return request.messages[-1].content[:200] if request.messages else ""


def _mark_cached(completion: Completion) -> Completion:
    usage = completion.usage
    calls = max(1, usage.calls + usage.cached)  # a policy may not count
    return completion._replace(usage=usage.model_copy(update={"calls": 0, "cached": calls}))

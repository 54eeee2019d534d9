"""A judge for ``from_rows``: a function that asks a language model to judge answers."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from coevo_gym.agents.advice.advisor import ModelAdvisor
from coevo_gym.agents.advice.tape import Tape
from coevo_gym.agents.endpoint.openai_policy import OpenAIPolicy
from coevo_gym.core.errors import ConfigError, ModelError
from coevo_gym.core.evolution import digest
from coevo_gym.core.inquiry import Inquiry
from coevo_gym.core.seams import Sampling
from coevo_gym.core.task import canonical_json, freeze
from coevo_gym.runs.config import load_config
from coevo_gym.runs.policies import MODEL_KINDS, make_policy, model_settings
from coevo_gym.store.answers import AnswerFile

_SAMPLING = Sampling(temperature=0.0, max_tokens=512)


class AnswerJudgement(BaseModel):
    """A model's judgement of an answer.

    Attributes:
        yes: True if the model answers the question with yes.
        reason: the reason, in one or two sentences.
    """

    yes: bool
    reason: str = ""


@dataclass(frozen=True)
class ModelJudge:
    """A ``verify`` function that asks a language model. Use :func:`judge` to create one.

    Attributes:
        question: the question about each answer.
        model: the model, such as ``openai:gpt-4.1-mini``.
        fields: the fields of a row that the model sees.
        settings: settings of the model, by dotted key.
        tape: path of the file that records the model's answers; "" to record nothing.
    """

    question: str
    model: str
    fields: tuple[str, ...]
    settings: Mapping[str, Any]
    tape: str

    def __call__(self, row: Mapping[str, Any], answer: str) -> bool:
        """Return True if the model's answer to the question is yes.

        The model is asked once about each row and answer.

        Raises:
            ModelError: if the model gives no usable answer. The episode is then lost.
        """
        if missing := [name for name in self.fields if name not in row]:
            raise ConfigError(
                f"The judge shows the field {missing[0]!r}, but the row has only "
                f"{', '.join(row)}. Pass other fields to coevo_gym.judge."
            )
        fields = [{"name": name, "value": _to_text(row[name])} for name in self.fields]
        return _judge_model_of(self).judge(digest([row, answer]), fields, answer)


def judge(
    question: str,
    *,
    model: str,
    fields: Sequence[str] = ("prompt",),
    settings: Mapping[str, Any] | None = None,
    tape: str | Path | None = None,
) -> ModelJudge:
    """Create a ``verify`` function for :func:`~coevo_gym.from_rows` that asks a language model.

    It returns True if the model answers the question with yes. If the model cannot be reached,
    gives an unusable answer twice, or a cap on its cost is reached, the episode is lost; it never
    counts as a failure of the agent. The model is asked once about each row and answer.

    Args:
        question: a question about an answer, to be answered with yes or no.
        model: ``openai:MODEL``, ``transformers:MODEL`` or ``vllm:MODEL``.
        fields: the fields of a row that the model sees, in this order. It sees no other field.
        settings: settings of the model, by dotted key, such as ``policy.endpoint.base_url``, or
            ``policy.endpoint.max_usd_total``, which caps its cost.
        tape: file that records the model's answers, so that later processes do not ask again; None
            to remember them only in this process. It never contains a key.

    Raises:
        ConfigError: if the model's name is invalid.

    Example:
        >>> import coevo_gym
        >>> polite = coevo_gym.judge("Is the answer polite?", model="openai:gpt-4.1-mini")
        >>> polite.fields
        ('prompt',)
    """
    if model_settings(model) is None:
        kinds = ", ".join(f"{kind}:MODEL" for kind in MODEL_KINDS)
        raise ConfigError(f"A judge's model must be one of {kinds}, got {model!r}.")
    path = "" if tape is None else str(Path(tape).expanduser().resolve())
    return ModelJudge(question, model, tuple(fields), freeze(dict(settings or {})), path)


class _JudgeModel:
    """A judge's model and its verdicts. Identical questions asked at the same time count as one."""

    def __init__(self, judge: ModelJudge) -> None:
        settings = dict(item.split("=", 1) for item in model_settings(judge.model) or ())
        config = load_config(None, sets={**settings, **judge.settings}, environ={}).config
        self.policy = policy = make_policy(config.policy, seed=0)
        store = AnswerFile(Path(judge.tape)) if judge.tape else None
        if store is not None and isinstance(policy, OpenAIPolicy):
            policy.sync_counts_with(store.path.with_name(f"{store.path.name}.spent.json"))
        tape = Tape(policy, store, "off" if store is None else "fill", model=judge.model)
        self._advisor, self._question = ModelAdvisor(tape), judge.question
        self._lock, self._verdicts = threading.Lock(), dict[str, Future[bool]]()

    def judge(self, key: str, fields: Sequence[Mapping[str, str]], answer: str) -> bool:
        """Return the verdict on an answer; ``key`` identifies the row and the answer."""
        with self._lock:
            known = self._verdicts.get(key)
            verdict = self._verdicts.setdefault(key, Future())
        if known is not None:
            return known.result()
        try:
            verdict.set_result(self._ask(fields, answer))
        except BaseException as error:
            with self._lock:
                del self._verdicts[key]  # the next episode asks again
            verdict.set_exception(error)
            raise
        return verdict.result()

    def _ask(self, fields: Sequence[Mapping[str, str]], answer: str) -> bool:
        inputs = {"question": self._question, "shown": fields, "answer": answer}
        inquiry = Inquiry("rows/judge", AnswerJudgement, inputs, sampling=_SAMPLING)
        (reply,) = self._advisor.ask([inquiry])
        if reply.value is None:
            raise ModelError(f"the judge gave no verdict ({reply.problem})")
        return reply.value.yes


_OPENING = threading.Lock()
_JUDGE_MODELS: dict[ModelJudge, _JudgeModel] = {}
"""The models of this process's judges. They stay open, because any later episode may need them."""


def _judge_model_of(judge: ModelJudge) -> _JudgeModel:
    with _OPENING:
        if judge not in _JUDGE_MODELS:
            _JUDGE_MODELS[judge] = _JudgeModel(judge)
        return _JUDGE_MODELS[judge]


def _to_text(value: object) -> str:
    return value if isinstance(value, str) else canonical_json(value)

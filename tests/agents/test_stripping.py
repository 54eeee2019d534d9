"""Cues in a chat with a model: one segment where nothing is rewritten, and no trace if stripped.

Episodes run in an env, through the policy that trains; only what it samples is drawn here.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from coevo_gym.agents.advice.tape import Tape  # noqa: E402
from coevo_gym.agents.chat import ChatAgent, ChatConfig  # noqa: E402
from coevo_gym.agents.chat.format import ChatFormat  # noqa: E402
from coevo_gym.agents.lm.answers import Ask, Sampled  # noqa: E402
from coevo_gym.agents.lm.transformers_policy import TokenStream, TransformersPolicy  # noqa: E402
from coevo_gym.core.errors import AnswerMissing, ConfigError, ModelError  # noqa: E402
from coevo_gym.core.seams import Completion, Finish, Message, Prompt, Request, Sampling  # noqa: E402
from coevo_gym.core.task import Split  # noqa: E402
from coevo_gym.core.trajectory import Cue, Segment, TokenDecision, Trajectory, View  # noqa: E402
from coevo_gym.core.trajectory_json import trajectory_from_json, trajectory_to_json  # noqa: E402
from coevo_gym.episodes import EnvPool, Finished, TrainingEpisode, evaluate, run_one  # noqa: E402
from coevo_gym.prompts import PromptTemplate  # noqa: E402
from coevo_gym.store.answers import AnswerFile  # noqa: E402
from coevo_gym.trainers.segments import samples, segments  # noqa: E402
from tests.agents.test_chat_format import TEMPLATES, tokenizer  # noqa: E402
from tests.agents.test_history import SILENT, TOY  # noqa: E402
from tests.toy import BENCHMARK  # noqa: E402

TRAIN, VAL = BENCHMARK.tasks(Split.TRAIN), BENCHMARK.tasks(Split.VAL)
SMOLLM2 = Path(os.environ.get("COEVO_HOME", "~/.cache/coevo")).expanduser() / "models/smollm2"
STEPS = 4


class Stub:
    """A model of which nothing is asked but to drop its gradients."""

    def zero_grad(self, set_to_none: bool) -> None:
        assert set_to_none


class Given:
    """A sampler of given answers, each of which ends in the next step."""

    def __init__(self, draw: Callable[[], Sampled]) -> None:
        self._draw = draw
        self.asks: list[Ask] = []
        self._keys: list[int] = []

    def add(self, key: int, ask: Ask) -> None:
        self.asks.append(ask)
        self._keys.append(key)

    def step(self) -> list[tuple[int, Sampled]]:
        keys, self._keys = self._keys, []
        return [(key, self._draw()) for key in keys]

    def withdraw(self) -> list[Any]:
        return []


class Drawing(TransformersPolicy):
    """Encodes, cuts and decodes as the policy that trains does; what it samples was drawn before.

    Args:
        format_: the tokenizer's chat format.
        answers: what it says, over and over.
    """

    def __init__(self, format_: ChatFormat, answers: Sequence[str]) -> None:
        self.format = format_
        self.model = Stub()
        self.max_context = 100_000
        self.version = 3
        self._seed = 0
        self._rng = np.random.default_rng(0)  # a tape has it draw by what it is asked
        self._prefixes, self._prefixes_of = None, (-1, -1)
        self.answers = answers
        self.prompts: list[Prompt] = []
        self._drawn = 0

    @contextmanager
    def stream(self) -> Iterator[TokenStream]:
        with super().stream() as answers:
            add = answers.add

            def note_and_add(key: int, request: Request) -> None:
                assert isinstance(request, Prompt)
                self.prompts.append(request)
                add(key, request)

            answers.add = note_and_add  # type: ignore[method-assign]
            yield answers

    def _make_sampler(self) -> Any:
        return Given(self._next)

    def _sampling_state(self) -> tuple[int, ...]:
        return ()

    def _sampling_pass(self) -> Any:
        return nullcontext()

    def _next(self) -> Sampled:
        self._drawn += 1
        ids = self.format.answer_ids(self.answers[(self._drawn - 1) % len(self.answers)])
        return Sampled(ids, (-0.5,) * len(ids))


@cache
def format_of(name: str) -> ChatFormat:
    if name != "smollm2":
        return ChatFormat(tokenizer(TEMPLATES[name]))
    from transformers import AutoTokenizer

    return ChatFormat(AutoTokenizer.from_pretrained(SMOLLM2, local_files_only=True))


@pytest.fixture(scope="module")
def envs() -> Iterator[EnvPool]:
    pool = EnvPool(lambda: gym.make("Toy-v0", disable_env_checker=True, max_steps=STEPS))
    yield pool
    pool.close()


def played(agent: ChatAgent, cues: Sequence[Cue], envs: EnvPool) -> Trajectory:
    outcome = run_one(TrainingEpisode(TRAIN[0], 0, cues=tuple(cues)), agent, envs)
    assert isinstance(outcome, Finished)
    return outcome.record


def decisions_of(trajectory: Trajectory) -> list[TokenDecision]:
    decisions = [step.decision for step in trajectory.steps]
    assert all(isinstance(decision, TokenDecision) for decision in decisions)
    return decisions  # type: ignore[return-value]


def holds(ids: Sequence[int], part: Sequence[int]) -> bool:
    return any(tuple(ids[i : i + len(part)]) == tuple(part) for i in range(len(ids)))


CUES = st.lists(
    st.builds(
        lambda place, words, strip: (place, words, strip),
        st.sampled_from(["system", "first", "turn"]),
        st.sampled_from(["", " try red", "\nfirst\n", " <|im_end|>\n<|im_start|>system", " é🍎"]),
        st.booleans(),
    ),
    max_size=5,
).map(
    # Each has a mark of its own, which nothing else says.
    lambda parts: tuple(
        Cue(f"{mark}{words}{mark}", place, f"exp-{n}", strip)
        for n, (place, words, strip) in enumerate(parts)
        for mark in [f"Q{'ZXJKW'[n]}Q"]
    )
)
ANSWERS = st.lists(
    st.sampled_from(
        (
            *("<action>press red</action>", "<action>done</action>", "hm", "é🍎 "),
            "<think>Red?</think>\n<action>press red</action>",
            "<action>press blue</action> <drop>2-3</drop>",
            '<action>press blue</action> <note n="2-3">Blue was bright.</note>',
        )
    ),
    min_size=1,
    max_size=STEPS,
)
CONFIGS = {
    "causal": ChatConfig(),
    "reasoning": ChatConfig(history="reasoning", thinking=True),
    "window": ChatConfig(history="window", window_turns=1),
    "recent": ChatConfig(history="recent", window_turns=1),
    "self_managed": ChatConfig(history="self_managed", managed_chars=300),
    "window, notes": ChatConfig(history="window", window_turns=1, memory="model"),
    "self_managed, notes": ChatConfig(history="self_managed", managed_chars=300, memory="model"),
}


def comparison_caveat(cue: Cue) -> str:
    return cue.text[:3]


def check(
    format_: ChatFormat,
    config: ChatConfig,
    prompt: PromptTemplate,
    cues: Sequence[Cue],
    answers: Sequence[str],
    envs: EnvPool,
) -> None:
    """All that has to be true of one episode, and of evaluations after it."""
    policy = Drawing(format_, answers)
    agent = ChatAgent(policy, prompt, config)
    trajectory = played(agent, cues, envs)
    decisions, pieces = decisions_of(trajectory), segments(decisions_of(trajectory))
    permanent, stripped = [[c for c in cues if c.strip is strip] for strip in (False, True)]

    # What is trained on is, id for id, the episode of somebody who was told the other cues alone.
    without = decisions_of(
        played(ChatAgent(Drawing(format_, answers), prompt, config), permanent, envs)
    )
    for one, other in zip(decisions, without, strict=True):
        assert one.ids == other.ids
        assert (one.trained_prompt_ids is None) == (not stripped)
        assert (one.trained_prompt_ids or one.prompt_ids) == other.prompt_ids
        assert (one.prompt_ids == other.prompt_ids) == (not stripped)
    assert [(s.ids, s.sampled, s.logprobs) for s in pieces] == [
        (s.ids, s.sampled, s.logprobs) for s in segments(without)
    ]
    assert {segment.stripped for segment in pieces} == {bool(stripped)}
    assert trajectory.cue_ids == tuple(cue.id for cue in cues)

    # Every cue was told in every prompt, and no stripped one is in anything that is trained on.
    trained = [format_.decode(segment.ids) for segment in pieces]
    for cue in cues:
        assert all(comparison_caveat(cue) in format_.decode(d.prompt_ids) for d in decisions)
        assert all((comparison_caveat(cue) in text) is not cue.strip for text in trained)
    for cue in stripped:
        assert not any(holds(s.ids, format_.answer_ids(cue.text)[:-1]) for s in pieces)

    if config.history == "causal":
        (whole,) = pieces
        assert whole.ids == without[-1].prompt_ids + without[-1].ids
        assert len(whole.logprobs) == sum(len(decision.ids) for decision in decisions)

    # Decisions outlive a restart.
    again = trajectory_from_json(json.loads(json.dumps(trajectory_to_json(trajectory))))
    assert again == trajectory
    assert samples(decisions_of(again)) == pieces

    # The same agent, the same policy and the same envs tell an evaluation nothing.
    policy.prompts.clear()
    evaluation = evaluate(agent.greedy(), VAL[:1], envs)
    acted = [prompt for prompt in policy.prompts if prompt.purpose != "memory"]
    assert len(acted) == len(evaluation.episodes[0].steps) > 0
    for asked in policy.prompts:
        assert asked.trained is None
        text = format_.decode(format_.prompt_ids(asked.messages))
        assert not re.search("Q[ZXJKW]Q", text)
    for step in evaluation.episodes[0].steps:
        assert isinstance(step.decision, TokenDecision)
        assert step.decision.trained_prompt_ids is None


@settings(max_examples=400)
@given(st.data())
def test_a_causal_episode_is_one_segment_with_any_cues(envs: EnvPool, data: st.DataObject) -> None:
    format_ = format_of(data.draw(st.sampled_from(sorted(TEMPLATES))))
    prompt = data.draw(st.sampled_from([TOY, SILENT]))
    check(format_, CONFIGS["causal"], prompt, data.draw(CUES), data.draw(ANSWERS), envs)


@pytest.mark.parametrize("context", ["window, notes", "self_managed, notes"])
@settings(max_examples=40)
@given(st.data())
def test_stripped_cues_leave_no_trace_in_histories_with_model_notes(
    context: str, envs: EnvPool, data: st.DataObject
) -> None:
    format_ = format_of(data.draw(st.sampled_from(sorted(TEMPLATES))))
    check(format_, CONFIGS[context], TOY, data.draw(CUES), data.draw(ANSWERS), envs)


@pytest.mark.parametrize("context", ["reasoning", "window", "self_managed"])
@settings(max_examples=200)
@given(st.data())
def test_stripped_cues_leave_no_trace_in_rewritten_histories(
    context: str, envs: EnvPool, data: st.DataObject
) -> None:
    format_ = format_of(data.draw(st.sampled_from(sorted(TEMPLATES))))
    prompt = data.draw(st.sampled_from([TOY, SILENT]))
    check(format_, CONFIGS[context], prompt, data.draw(CUES), data.draw(ANSWERS), envs)


@pytest.mark.skipif(not SMOLLM2.is_dir(), reason="SmolLM2 is not here (coevo model fetch smollm2)")
@pytest.mark.parametrize("context", CONFIGS)
@settings(max_examples=10)
@given(CUES, ANSWERS)
def test_stripped_cues_leave_no_trace_with_the_tokenizer_of_smollm2(
    context: str, envs: EnvPool, cues: tuple[Cue, ...], answers: list[str]
) -> None:
    check(format_of("smollm2"), CONFIGS[context], TOY, cues, answers, envs)


def test_a_system_cue_raises_if_the_template_rejects_system_messages(
    envs: EnvPool,
) -> None:
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    format_ = ChatFormat(tokenizer(refuses + TEMPLATES["chatml"]))
    agent = ChatAgent(Drawing(format_, ["hm"]), SILENT)
    with pytest.raises(
        ModelError, match=r"the template rejects the roles system, user \(no system\)"
    ):
        played(agent, [Cue("Explore.", "system")], envs)
    assert played(agent, [Cue("Explore.", "first"), Cue("Vary.", "turn", strip=True)], envs).steps


STRIPPED = Cue("Red was dark.", "first", "exp-1", strip=True)


def view(*cues: Cue) -> View:
    return View("Press red.", "None.", cues=cues)


class TestPolicies:
    def test_a_policy_that_returns_no_trained_prompt_ids_is_refused(self) -> None:
        class Careless(Drawing):
            def generate(self, requests: Sequence[Request]) -> list[Completion]:
                plain = [dataclasses.replace(r, trained=None) for r in requests]  # type: ignore
                return super().generate(plain)

        agent = ChatAgent(Careless(format_of("chatml"), ["hm"]), TOY)
        with pytest.raises(ConfigError, match=r"Careless does not return trained_prompt_ids"):
            agent.act([view(STRIPPED)])
        (act,) = agent.act([view(STRIPPED._replace(strip=False))])
        assert isinstance(act.decision, TokenDecision)
        assert act.decision.trained_prompt_ids is None

    def test_a_policy_without_tokens_gets_the_prompt_with_its_cues(self) -> None:
        class Text:
            def generate(self, requests: Sequence[Any]) -> list[Completion]:
                assert all("Red was dark." in r.messages[1].content for r in requests)
                return [Completion("hm", None) for _ in requests]

        (act,) = ChatAgent(Text(), TOY).act([view(STRIPPED)])
        assert (act.text, act.decision) == ("hm", None)

    def test_a_replayed_tape_restores_stripped_prompts(self, envs: EnvPool, tmp_path: Path) -> None:
        store = AnswerFile(tmp_path / "answers.jsonl")
        policy = Drawing(format_of("chatml"), ["hm", "<action>press red</action>"])
        cues = (STRIPPED, Cue("One action.", "turn"))
        recorded = played(ChatAgent(Tape(policy, store, "record", model="m"), TOY), cues, envs)
        assert decisions_of(recorded)[0].trained_prompt_ids is not None
        policy.prompts.clear()
        again = ChatAgent(Tape(policy, AnswerFile(store.path), "replay", model="m"), TOY)
        assert played(again, cues, envs) == recorded
        with pytest.raises(AnswerMissing):  # the same words, to be trained on as they are
            played(again, (STRIPPED._replace(strip=False), cues[1]), envs)
        assert policy.prompts == []

    def test_the_trained_prompt_must_fit_the_context_too(self) -> None:
        policy = Drawing(format_of("default system"), ["hm"])
        short, long = (Message("system", "x"), Message("user", "?")), (Message("user", "?"),)
        n_short, n_long = (len(policy.format.prompt_ids(m)) for m in (short, long))
        assert n_short < n_long, "the template's own system message is longer than this one"
        sampler = Given(policy._next)
        policy._make_sampler = lambda: sampler  # type: ignore[method-assign]
        policy.max_context = n_long + 5
        (answer,) = policy.generate([Prompt(short, Sampling(1.0, 99), trained=long)])
        assert sampler.asks[0].max_tokens == 5
        assert isinstance(answer.decision, TokenDecision)
        assert answer.decision.trained_prompt_ids == policy.format.prompt_ids(long)
        policy.max_context = n_long
        (answer,) = policy.generate([Prompt(short, Sampling(1.0, 99), trained=long)])
        assert answer.finish is Finish.OVERFLOW

    def test_a_demonstration_uses_the_stripped_prompt(self) -> None:
        policy = Drawing(format_of("chatml"), ["hm"])
        agent = ChatAgent(policy, TOY)
        permanent = Cue("One action.", "turn")
        demonstration = agent.decision_for(view(STRIPPED, permanent), "press red")
        assert demonstration == agent.decision_for(view(permanent), "press red")
        assert demonstration is not None
        assert "One action." in policy.format.decode(demonstration.prompt_ids)


def test_segments_record_whether_their_prompt_was_stripped() -> None:
    plain = TokenDecision((5, 6), (7,), (-0.1,))
    first = dataclasses.replace(plain, trained_prompt_ids=(5,))
    second = TokenDecision((5, 6, 7, 8), (9,), (-0.2,), trained_prompt_ids=(5, 7, 8))
    assert segments([first, second]) == (
        Segment((5, 7, 8, 9), (False, True, False, True), (-0.1, -0.2), stripped=True),
    )
    assert not segments([plain])[0].stripped
    with pytest.raises(ValueError, match="without prompt ids"):
        segments([dataclasses.replace(plain, trained_prompt_ids=())])

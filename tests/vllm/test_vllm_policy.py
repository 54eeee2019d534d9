"""Sampling by vLLM for a learner in the same process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from coevo_gym.agents.chat.agent import Demonstrable
from coevo_gym.agents.lm.language_model import LanguageModel, ModelConfig
from coevo_gym.agents.lm.vllm_policy import VLLMPolicy
from coevo_gym.core.errors import ConfigError, ModelError
from coevo_gym.core.seams import Choice, Completion, Finish, Message, Prompt, Sampling
from coevo_gym.core.trajectory import TokenDecision, View
from coevo_gym.trainers.grpo import GRPO, GRPOConfig
from coevo_gym.trainers.segments import segments
from tests.trainers.episodes import group, trajectory
from tests.vllm.conftest import MAX_CONTEXT, process_state

pytestmark = pytest.mark.vllm

BLOCK = 128
"""Tokens in a block of vLLM's prefix cache on a CPU."""
CLOSE = 2e-4
FAR = 1e-2


def ask(text: str, temperature: float = 1.0, max_tokens: int = 12) -> Prompt:
    messages = (Message("system", "You act."), Message("user", text))
    return Prompt(messages, Sampling(temperature, max_tokens))


def filling(policy: VLLMPolicy, n_tokens: int) -> Prompt:
    """A prompt of exactly this many tokens."""

    def prompt(n_answer: int) -> Prompt:
        answer = Message("assistant", "", (policy.format.end_of_turn,) * n_answer)
        return Prompt((Message("user", "go"), answer, Message("user", "go")))

    return prompt(1 + n_tokens - len(policy.format.prompt_ids(prompt(1).messages)))


def decision_of(completion: Completion) -> TokenDecision:
    assert isinstance(completion.decision, TokenDecision)
    return completion.decision


def gap(policy: VLLMPolicy, completions: Sequence[Completion]) -> float:
    """Largest difference between the sampled log-probabilities and the learner's, in nats."""
    samples = [segments([decision_of(completion)])[0] for completion in completions]
    with torch.no_grad():
        own, mask = policy.logprobs(samples)
    theirs = torch.cat([torch.tensor(segment.logprobs) for segment in samples])
    return float((own[mask] - theirs).abs().max())


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampled_logprobs_match_the_learners(policy: VLLMPolicy, temperature: float) -> None:
    texts = ("go", "take the apple", "look " * 60)
    completions = policy.generate([ask(text, temperature, 24) for text in texts])
    assert gap(policy, completions) < CLOSE
    assert {decision_of(c).temperature for c in completions} == {temperature}


def test_an_update_reaches_the_engine_and_invalidates_its_prefix_cache(
    policy: VLLMPolicy, change: Callable[..., None]
) -> None:
    request = ask("go to the table and look " * 30)
    assert len(policy.format.prompt_ids(request.messages)) > BLOCK
    for _ in range(2):
        policy.generate([request, request])  # the prompt's blocks are in the cache now
        change()
        assert gap(policy, policy.generate([request, request])) > FAR
        policy.version += 1
        assert gap(policy, policy.generate([request, request])) < CLOSE


def test_an_update_reaches_a_tied_output_head(
    policy: VLLMPolicy, change: Callable[..., None]
) -> None:
    assert policy.model.config.tie_word_embeddings
    request = ask("look")
    policy.generate([request])
    change(only="embed_tokens")
    assert gap(policy, policy.generate([request])) > FAR
    policy.version += 1
    assert gap(policy, policy.generate([request])) < CLOSE


def test_a_lora_adapter_is_merged_into_the_weights_of_the_engine(
    policy: VLLMPolicy, folder: Path
) -> None:
    config = ModelConfig(path=str(folder), device="cpu", max_context=MAX_CONTEXT, lora_rank=4)
    adapted = copy.copy(policy)
    LanguageModel.__init__(adapted, config)
    assert gap(adapted, adapted.generate([ask("look")])) < CLOSE
    with torch.no_grad():
        for weight in adapted.parameters():
            weight.add_(
                0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
            )
    assert gap(adapted, adapted.generate([ask("look")])) > FAR
    adapted.version += 1
    assert gap(adapted, adapted.generate([ask("look")])) < CLOSE
    assert gap(policy, policy.generate([ask("look")])) < CLOSE


def test_unknown_weight_names_raise_and_leave_the_engine_unchanged(
    policy: VLLMPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = policy.state_dict()
    before = policy.generate([ask("look")])

    def renamed() -> Iterator[tuple[str, Any]]:
        return (("base_model." + name, weight) for name, weight in LanguageModel.weights(policy))

    monkeypatch.setattr(policy, "weights", renamed)
    policy.load_state_dict(state)
    with pytest.raises(ModelError, match=r"unknown: base_model\."):
        policy.generate([ask("look")])
    policy.engine.holds = (policy, policy.version)  # the old weights are still in there
    assert policy.generate([ask("look")]) == before


def test_weights_that_differ_from_the_learners_raise(
    policy: VLLMPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [(name, weight * 1.1) for name, weight in policy.weights()]
    with monkeypatch.context() as patch:
        patch.setattr(policy, "weights", lambda: iter(others))
        policy.version += 1
        with pytest.raises(ModelError, match="nats on average"):
            policy.generate([ask("look")])
    assert gap(policy, policy.generate([ask("look")])) < CLOSE


def test_a_prompt_without_room_for_an_answer_finishes_with_overflow(policy: VLLMPolicy) -> None:
    requests = [
        filling(policy, MAX_CONTEXT),
        ask("look"),
        filling(policy, MAX_CONTEXT - 1),
        ask("go " * MAX_CONTEXT),
    ]
    full, answered, one_left, over = policy.generate(requests)
    assert len(policy.format.prompt_ids(requests[0].messages)) == MAX_CONTEXT
    assert full == over == Completion("", None, Finish.OVERFLOW)
    assert decision_of(answered).ids
    assert len(decision_of(one_left).ids) == 1
    assert gap(policy, [answered, one_left]) < CLOSE


def test_a_batch_of_overflows_does_not_reach_the_engine(
    policy: VLLMPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "engine", None)
    (completion,) = policy.generate([ask("go " * MAX_CONTEXT)])
    assert completion.finish is Finish.OVERFLOW
    assert policy.generate([]) == []


def test_one_batch_can_mix_temperatures_and_token_limits(policy: VLLMPolicy) -> None:
    requests = [ask("look", 0.0, 6), ask("go", 1.0, 9), ask("look", 0.0, 6), ask("take", 0.7, 3)]
    completions = policy.generate(requests)
    for request, completion in zip(requests, completions, strict=True):
        decision = decision_of(completion)
        assert decision.prompt_ids == policy.format.prompt_ids(request.messages)
        assert len(decision.ids) <= request.sampling.max_tokens
        ended = decision.ids[-1] in policy.format.stop_ids
        assert completion.finish is (Finish.STOP if ended else Finish.LENGTH)
        assert ended or len(decision.ids) == request.sampling.max_tokens
        assert completion.text == policy.format.decode(decision.ids)
    assert completions[0] == completions[2]
    assert gap(policy, [completions[1], completions[3]]) < CLOSE


def test_greedy_sampling_takes_the_learners_most_likely_tokens(policy: VLLMPolicy) -> None:
    decision = decision_of(policy.generate([ask("look", 0.0, 6)])[0])
    ids = torch.tensor([decision.prompt_ids + decision.ids])
    with torch.no_grad():
        best = policy.model(ids).logits[0].argmax(dim=-1)
    assert tuple(best[len(decision.prompt_ids) - 1 : -1].tolist()) == decision.ids
    assert set(decision.logprobs) == {0.0}
    assert decision.temperature == 0.0


def test_a_later_prompt_contains_the_sampled_token_ids_of_earlier_answers(
    policy: VLLMPolicy,
) -> None:
    first = ask("look")
    answer = policy.generate([first])[0]
    message = Message("assistant", "not what was said", decision_of(answer).ids)
    more = (*first.messages, message, Message("user", "You see a mug."))
    second = policy.generate([Prompt(more, Sampling(1.0, 8))])[0]
    so_far = decision_of(answer).prompt_ids + decision_of(answer).ids
    assert decision_of(second).prompt_ids[: len(so_far)] == so_far
    (whole,) = segments([decision_of(answer), decision_of(second)])
    with torch.no_grad():
        own, _ = policy.logprobs([whole])
    assert torch.allclose(own[0], torch.tensor(whole.logprobs), atol=CLOSE, rtol=0)


def test_restoring_the_state_repeats_the_samples(policy: VLLMPolicy) -> None:
    requests = [ask("look", 1.0, 16)] * 4 + [ask("go", 0.7, 16)]
    state = policy.state_dict()
    first = policy.generate(requests)
    policy.load_state_dict(state)
    assert policy.generate(requests) == first
    assert policy.generate(requests) != first
    assert len({decision_of(completion).ids for completion in first[:4]}) > 1


def test_a_frozen_copy_samples_with_its_old_weights_after_an_update(
    policy: VLLMPolicy, change: Callable[..., None]
) -> None:
    frozen = policy.frozen_copy()
    assert isinstance(frozen, VLLMPolicy)
    change()
    policy.version += 1
    for _ in range(2):  # they share the engine
        for one, other in ((policy, frozen), (frozen, policy)):
            completions = one.generate([ask("look")])
            assert gap(one, completions) < CLOSE
            assert gap(other, completions) > FAR


def test_grpo_updates_reach_the_engine(policy: VLLMPolicy) -> None:
    learner = GRPO(policy, GRPOConfig(epochs=1, lr=1e-3))
    for _ in range(2):
        answers = policy.generate([ask("look")] * 4)
        assert gap(policy, answers) < CLOSE
        metrics = learner.update(
            [group(*(trajectory([a.decision], success=k < 2) for k, a in enumerate(answers)))]
        )
        assert metrics["clip_fraction"] == 0.0  # the first step's ratio is 1 up to rounding
        assert gap(policy, answers) > FAR
    assert gap(policy, policy.generate([ask("look")])) < CLOSE


def test_a_demonstration_is_encoded_like_a_finished_answer(policy: VLLMPolicy) -> None:
    assert isinstance(policy, Demonstrable)
    request = ask("look")
    decision = policy.encode_demonstration(request.messages, "go to table")
    assert decision.prompt_ids == policy.format.prompt_ids(request.messages)
    assert decision.ids[-1] == policy.format.end_of_turn
    assert policy.format.decode(decision.ids) == "go to table"


def test_a_choice_request_is_refused(policy: VLLMPolicy) -> None:
    with pytest.raises(ConfigError, match="got Choice"):
        policy.generate([Choice(View("", ""), ("a",))])


def test_creating_a_policy_leaves_the_process_state_unchanged(
    policy_and_states: tuple[VLLMPolicy, dict[str, Any], dict[str, Any]],
) -> None:
    _, before, after = policy_and_states
    assert after == before


def test_generating_leaves_the_process_state_unchanged(policy: VLLMPolicy) -> None:
    before = process_state()
    policy.version += 1
    policy.generate([ask("look"), ask("look", 0.0)])
    assert process_state() == before

"""Sampling from a transformers model: what comes out is what is trained on."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from coevo_gym.agents.lm import causal_lm, transformers_policy  # noqa: E402
from coevo_gym.agents.lm.answers import Ask  # noqa: E402
from coevo_gym.agents.lm.language_model import ModelConfig  # noqa: E402
from coevo_gym.agents.lm.prefix_cache import PrefixCache  # noqa: E402
from coevo_gym.agents.lm.sampler import TokenSampler  # noqa: E402
from coevo_gym.agents.lm.transformers_policy import TransformersPolicy  # noqa: E402
from coevo_gym.core import arithmetic  # noqa: E402
from coevo_gym.core.errors import ConfigError, ModelNotFetched  # noqa: E402
from coevo_gym.core.seams import Choice, Completion, Finish, Message, Prompt, Sampling  # noqa: E402
from coevo_gym.core.spend import Usage  # noqa: E402
from coevo_gym.core.trajectory import UNKNOWN_VERSION, Segment, TokenDecision, View  # noqa: E402
from coevo_gym.trainers.segments import segments  # noqa: E402
from tests.agents.sampling import sample  # noqa: E402
from tests.agents.tiny_llama import make_tiny_llama  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose own settings would make every answer the likeliest one, and cut it short."""
    path = make_tiny_llama(tmp_path_factory.mktemp("tiny"))
    spoilt = {
        "do_sample": True,
        "top_k": 1,
        "top_p": 0.1,
        "temperature": 0.1,
        "repetition_penalty": 5.0,
        "max_new_tokens": 2,
    }
    (path / "generation_config.json").write_text(json.dumps(spoilt))
    return path


@pytest.fixture(params=["growing batches", "graphs"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "graphs":
        monkeypatch.setattr(transformers_policy, "GRAPHS_ON", "cpu")
    return str(request.param)


def policy(folder: Path, seed: int = 0, **settings: Any) -> TransformersPolicy:
    return TransformersPolicy(ModelConfig(path=str(folder), device="cpu", **settings), seed=seed)


def ask(text: str, temperature: float = 1.0, max_tokens: int = 12) -> Prompt:
    return Prompt((Message("user", text),), Sampling(temperature, max_tokens))


def tokens(completion: Completion) -> TokenDecision:
    assert isinstance(completion.decision, TokenDecision)
    return completion.decision


def check_logprobs(
    tiny_policy: TransformersPolicy, completions: list[Completion], off: float = 1e-4
) -> None:
    """What the sampler says is what the learner computes."""
    decisions = [tokens(c) for c in completions]
    segments = [
        Segment(
            d.prompt_ids + d.ids,
            (False,) * len(d.prompt_ids) + (True,) * len(d.ids),
            d.logprobs,
            d.temperature,
        )
        for d in decisions
    ]
    with torch.no_grad():
        logps, mask = tiny_policy.logprobs(segments)
    for row, counts, decision in zip(logps, mask, decisions, strict=True):
        assert row[counts].tolist() == pytest.approx(list(decision.logprobs), abs=off)


MIXED = [
    ask("go to table 1", 0.7),
    ask("What do you do next?", 1.0, 5),
    ask("x", 0.0),
    ask("take apple 2 from table 1 " * 8, 0.7, 1),
    ask("y", 1.0, 20),
    ask("a mug in the sink", 0.0, 3),
]


def test_answers_to_mixed_requests_come_in_order_with_their_settings(
    folder: Path, engine: str
) -> None:
    tiny_policy = policy(folder)
    completions = tiny_policy.generate(MIXED)
    for prompt, completion in zip(MIXED, completions, strict=True):
        decision = tokens(completion)
        assert decision.prompt_ids == tiny_policy.format.prompt_ids(prompt.messages)
        assert decision.temperature == prompt.sampling.temperature
        stopped = decision.ids[-1] in tiny_policy.format.stop_ids
        assert completion.finish is (Finish.STOP if stopped else Finish.LENGTH)
        assert stopped or len(decision.ids) == prompt.sampling.max_tokens
        assert len(decision.ids) <= prompt.sampling.max_tokens
        assert not set(decision.ids[:-1]) & set(tiny_policy.format.stop_ids)
        assert completion.text == tiny_policy.format.decode(decision.ids)
        n_prompt, n_completion = len(decision.prompt_ids), len(decision.ids)
        assert completion.usage == Usage(
            calls=1, prompt_tokens=n_prompt, completion_tokens=n_completion
        )
    assert (tiny_policy._decoder is not None) == (engine == "graphs")


def test_the_end_tokens_of_the_generation_config_end_an_answer(tmp_path: Path, engine: str) -> None:
    """Such as a token for the end of a tool call, which is not the template's end of a turn."""
    path = make_tiny_llama(tmp_path)
    asked = [ask("go to table 1", max_tokens=40)] * 20
    before = policy(path)
    sampled = Counter(i for answer in before.generate(asked) for i in tokens(answer).ids[:-1])
    ((word, _),) = sampled.most_common(1)
    ends = [before.format.end_of_turn, word]
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    again = policy(path)
    assert again.format.stop_ids == (before.format.end_of_turn, word)
    finished = set()
    for answer in again.generate(asked):
        ids = tokens(answer).ids
        assert not {*ids[:-1]} & {*ends}
        assert answer.finish is (Finish.STOP if ids[-1] in ends else Finish.LENGTH)
        assert ids[-1] not in ends or answer.text == again.format.decode(ids[:-1])
        finished.add(ids[-1])
    assert word in finished
    assert again.format.answer_ids("go")[-1] == before.format.end_of_turn


@pytest.mark.parametrize(
    ("flags", "dtype", "warned"),
    [
        ("avx2", "bfloat16", True),
        ("avx2", "auto", False),
        ("avx2 avx512_bf16", "bfloat16", False),
    ],
)
def test_bf16_on_a_cpu_without_bf16_instructions_gives_a_warning(
    folder: Path,
    flags: str,
    dtype: str,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(arithmetic, "_cpu_facts", lambda: {"flags": flags})
    policy(folder, dtype=dtype)
    assert ("This CPU has no bf16 instructions" in caplog.text) is warned


def test_sampled_logprobs_match_the_learners(folder: Path, engine: str) -> None:
    tiny_policy = policy(folder)
    sampled = [p for p in MIXED if p.sampling.temperature]
    check_logprobs(tiny_policy, tiny_policy.generate(sampled * 3))


def test_an_answer_records_the_policy_version(folder: Path) -> None:
    tiny_policy = policy(folder)
    tiny_policy.version = 5
    assert tokens(tiny_policy.generate([ask("Hello.")])[0]).policy_version == 5
    demonstrated = tiny_policy.encode_demonstration(ask("Hello.").messages, "Hi.")
    assert demonstrated is not None
    assert demonstrated.policy_version == UNKNOWN_VERSION


def test_an_answer_sampled_with_a_stripped_cue_is_trained_on_without_it(folder: Path) -> None:
    tiny_policy = policy(folder)
    plain = ask("go to table 1")
    messages = (Message("user", "The apple is red. go to table 1"),)
    (first,) = tiny_policy.generate([Prompt(messages, plain.sampling, trained=plain.messages)])
    (other,) = policy(folder).generate([Prompt(messages, plain.sampling)])
    decision = tokens(first)
    assert decision.trained_prompt_ids == tiny_policy.format.prompt_ids(plain.messages)
    assert tokens(other) == dataclasses.replace(decision, trained_prompt_ids=None)
    check_logprobs(tiny_policy, [first])  # the recorded ones are those after the cue
    (segment,) = segments([decision])
    assert segment.ids == decision.trained_prompt_ids + decision.ids
    with torch.no_grad():
        logps, _ = tiny_policy.logprobs([segment])
    assert logps[0].tolist() != pytest.approx(list(decision.logprobs), abs=1e-2)


def test_greedy_answers_have_logprob_zero_and_do_not_depend_on_the_batch(
    folder: Path, engine: str
) -> None:
    tiny_policy = policy(folder)
    alone = [tiny_policy.generate([p])[0] for p in MIXED if p.sampling.temperature == 0]
    together = [c for p, c in zip(MIXED, tiny_policy.generate(MIXED), strict=True) if c in alone]
    assert together == alone
    assert set(tokens(alone[0]).logprobs) == {0.0}


def test_greedy_sampling_takes_the_most_likely_token(folder: Path) -> None:
    tiny_policy = policy(folder)
    decision = tokens(tiny_policy.generate([ask("x", 0.0, 1)])[0])
    with torch.no_grad():
        logits = tiny_policy.model(torch.tensor([decision.prompt_ids])).logits[0, -1]
    assert decision.ids == (int(logits.argmax()),)


def test_the_generation_settings_of_the_model_are_ignored(folder: Path, engine: str) -> None:
    completions = policy(folder).generate([ask("go", 1.0, 8)] * 12)
    assert len({tokens(c).ids for c in completions}) > 6
    assert max(len(tokens(c).ids) for c in completions) == 8


def test_sampled_frequencies_match_the_probabilities(folder: Path, engine: str) -> None:
    tiny_policy = policy(folder)
    n, temperature = 1500, 0.7
    completions = tiny_policy.generate([ask("go", temperature, 1)] * n)
    prompt = tokens(completions[0]).prompt_ids
    with torch.no_grad():
        logits = tiny_policy.model(torch.tensor([prompt])).logits[0, -1]
    expected = torch.softmax(logits / temperature, dim=0)
    ids = torch.tensor([tokens(c).ids[0] for c in completions])
    counts = torch.bincount(ids, minlength=len(expected)) / n
    assert (counts - expected).abs().max() < 5 * 0.5 / n**0.5


def test_answers_depend_only_on_the_seed_and_the_earlier_calls(folder: Path, engine: str) -> None:
    first, second, other = policy(folder, 1), policy(folder, 1), policy(folder, 2)
    calls = [MIXED, MIXED[:2], MIXED]
    answers = [first.generate(call) for call in calls]
    torch.manual_seed(99)
    assert [second.generate(call) for call in calls] == answers
    assert [other.generate(call) for call in calls] != answers
    assert answers[0] != answers[2]


def test_the_global_random_generator_is_not_used(folder: Path, engine: str) -> None:
    tiny_policy = policy(folder)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    tiny_policy.generate(MIXED)
    assert torch.equal(torch.get_rng_state(), before)
    assert (
        tiny_policy.model.config._attn_implementation
        == policy(folder).model.config._attn_implementation
    )


def test_restoring_the_state_repeats_the_samples(folder: Path, engine: str) -> None:
    tiny_policy = policy(folder)
    tiny_policy.generate(MIXED)
    with torch.no_grad():
        tiny_policy.parameters()[0].add_(0.01)
    tiny_policy.version = 4
    state = tiny_policy.state_dict()
    resumed = policy(folder, seed=5)
    resumed.load_state_dict(state)
    assert resumed.version == 4
    assert resumed.generate(MIXED) == tiny_policy.generate(MIXED)
    assert resumed.generate(MIXED[:1]) == tiny_policy.generate(MIXED[:1])


def test_sampling_from_a_frozen_copy_does_not_change_the_policys_samples(folder: Path) -> None:
    tiny_policy, twin = policy(folder), policy(folder)
    frozen = tiny_policy.frozen_copy()
    assert isinstance(frozen, TransformersPolicy)
    frozen.generate(MIXED)
    assert tiny_policy.generate(MIXED) == twin.generate(MIXED)


def test_sampling_in_a_drawing_scope_does_not_change_later_samples(folder: Path) -> None:
    tiny_policy, twin = policy(folder), policy(folder)
    assert tiny_policy.generate(MIXED) == twin.generate(MIXED)
    with tiny_policy.use_seed(7):
        first = tiny_policy.generate(MIXED)
    with twin.use_seed(7):
        assert twin.generate(MIXED) == first
        twin.generate([ask(f"go to table {i}", max_tokens=40) for i in range(6)])
    later = [ask(f"go to table {i} and take the apple", 0.7) for i in range(4)]
    assert tiny_policy.generate(MIXED[:2]) == twin.generate(MIXED[:2])
    assert tiny_policy.generate(later) == twin.generate(later)


def test_a_frozen_copy_in_bf16_samples_with_its_own_weights(folder: Path) -> None:
    tiny_policy = policy(folder, dtype="bfloat16")
    frozen = tiny_policy.frozen_copy()
    assert isinstance(frozen, TransformersPolicy)
    assert frozen._refresh_sampling_model() is frozen.model, "it is in bf16 and needs no other copy"
    with frozen.use_seed(0):
        before = frozen.generate(MIXED)
    with torch.no_grad():
        tiny_policy.parameters()[0].mul_(2.0)
    with frozen.use_seed(0):
        assert frozen.generate(MIXED) == before
    check_logprobs(frozen, before[:2], off=0.2)


def test_a_full_context_overflows_and_its_siblings_are_answered(folder: Path, engine: str) -> None:
    tiny_policy = policy(folder, max_context=40)
    fits = len(tiny_policy.format.prompt_ids(ask("x").messages))
    full = next(
        prompt
        for n in range(200)
        if len(tiny_policy.format.prompt_ids((prompt := ask("x" + "y" * n)).messages)) == 40
    )
    almost = next(
        prompt
        for n in range(200)
        if len(tiny_policy.format.prompt_ids((prompt := ask("x" + "y" * n)).messages)) == 39
    )
    requests = [full, ask("x", 1.0, 10), almost, ask("z" * 400)]
    completions = tiny_policy.generate(requests)
    assert completions[0] == completions[3] == Completion("", None, Finish.OVERFLOW)
    assert len(tokens(completions[2]).ids) == 1
    assert fits < 40
    assert completions[1].decision is not None
    assert tiny_policy.generate([full]) == [completions[0]]
    assert tiny_policy.generate([]) == []


def test_sampling_frees_the_memory_of_gradients(folder: Path) -> None:
    tiny_policy = policy(folder)
    logp, _ = tiny_policy.logprobs([Segment((1, 2, 3), (False, True, True), (0.0, 0.0), 1.0)])
    logp.sum().backward()
    assert any(weight.grad is not None for weight in tiny_policy.parameters())
    tiny_policy.generate([ask("x", 1.0, 2)])
    assert all(weight.grad is None for weight in tiny_policy.parameters())


def test_an_answer_is_cut_where_the_context_ends(folder: Path, engine: str) -> None:
    tiny_policy = policy(folder, max_context=30)
    completions = tiny_policy.generate([ask("x", 1.0, 500)] * 8)
    cut = [c for c in completions if c.finish is Finish.LENGTH]
    assert cut
    assert {len(tokens(c).prompt_ids) + len(tokens(c).ids) for c in cut} == {30}


def test_a_later_prompt_contains_the_sampled_token_ids_of_earlier_answers(
    folder: Path, engine: str
) -> None:
    tiny_policy = policy(folder)
    messages = [Message("user", "go")]
    first = tiny_policy.generate([Prompt(tuple(messages), Sampling(1.0, 6))])[0]
    messages += [Message("assistant", first.text, tokens(first).ids), Message("user", "on")]
    second = tiny_policy.generate([Prompt(tuple(messages), Sampling(1.0, 6))])[0]
    before = tokens(first).prompt_ids + tokens(first).ids
    assert tokens(second).prompt_ids[: len(before)] == before


def test_a_prompt_after_a_decision_equals_the_whole_conversation(folder: Path, engine: str) -> None:
    tiny_policy = policy(folder)
    first = tokens(tiny_policy.generate([ask("Hello!", max_tokens=3)])[0])
    assert first.ids[-1] not in tiny_policy.format.stop_ids, "it was cut"
    again = Message("user", "And now?")
    after, whole = (
        Prompt((again,), Sampling(0, 4), after=first),
        Prompt(
            (Message("user", "Hello!"), Message("assistant", "", first.ids), again), Sampling(0, 4)
        ),
    )
    actual, expected = (tokens(one) for one in tiny_policy.generate([after, whole]))
    assert actual == expected
    assert actual.prompt_ids[: len(first.prompt_ids + first.ids)] == first.prompt_ids + first.ids


def test_a_demonstration_is_encoded_like_a_finished_answer_if_it_fits(folder: Path) -> None:
    tiny_policy = policy(folder)
    messages = [Message("user", "go")]
    decision = tiny_policy.encode_demonstration(messages, "take apple 2")
    assert decision.prompt_ids == tiny_policy.format.prompt_ids(messages)
    assert tiny_policy.format.decode(decision.ids) == "take apple 2"
    assert decision.ids[-1] == tiny_policy.format.end_of_turn
    assert set(decision.logprobs) == {0.0}
    length = len(decision.prompt_ids) + len(decision.ids)
    for room, expected in ((length, decision), (length - 1, None)):
        cramped = policy(folder, max_context=room)
        assert cramped.encode_demonstration(messages, "take apple 2") == expected


def test_sampled_logprobs_match_the_learners_with_a_lora_adapter(folder: Path, engine: str) -> None:
    tiny_policy = policy(folder, lora_rank=2)
    with torch.no_grad():
        for weight in tiny_policy.parameters():
            weight.add_(0.05)
    completions = tiny_policy.generate([ask("go", 0.7), ask("x")])
    check_logprobs(tiny_policy, completions)
    assert [tokens(c).ids for c in policy(folder).generate([ask("go", 0.7), ask("x")])] != [
        tokens(c).ids for c in completions
    ]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Choice(View("", ""), ("a",)), "needs a Prompt, got Choice"),
        (ask("x", -1.0), r"got -1\.0 and 12"),
        (ask("x", float("nan")), "got nan and 12"),
        (ask("x", 1.0, 0), r"got 1\.0 and 0"),
    ],
)
def test_invalid_requests_are_refused(folder: Path, request_: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        policy(folder).generate([request_])


def test_graphs_are_kept_during_updates_if_there_is_room_beside_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers_policy, "GRAPHS_ON", "cpu")
    tiny_policy = policy(folder)

    def memory_after_an_update() -> int:
        tiny_policy.generate(MIXED[:2])
        tiny_policy.train()
        tiny_policy.train(False)
        assert tiny_policy._decoder is not None
        return tiny_policy._decoder.n_bytes

    assert memory_after_an_update() > 0  # little memory is always kept
    monkeypatch.setattr(transformers_policy, "_KEPT_BYTES", 0)
    assert memory_after_an_update() == 0  # an update's size is unknown
    tiny_policy._update_bytes = 1000
    for usable, is_kept in [(749, False), (750, True)]:
        monkeypatch.setattr(transformers_policy, "usable_bytes", lambda _, n=usable: n)
        assert (memory_after_an_update() > 0) is is_kept


def test_a_fetched_model_is_loaded_by_its_name(
    folder: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("COEVO_HOME", str(tmp_path))
    with pytest.raises(ModelNotFetched, match="coevo model fetch smollm2"):
        TransformersPolicy(ModelConfig(path="smollm2", device="cpu"))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "smollm2").symlink_to(folder)
    tiny_policy = TransformersPolicy(ModelConfig(path="smollm2", device="cpu"))
    assert tiny_policy.generate([ask("x")])[0].decision is not None


def test_a_batch_respects_the_limits_on_the_tokens_of_a_pass_and_in_memory(folder: Path) -> None:
    asks = [Ask((1,) * n, 1.0, most) for n, most in [(3, 5), (9, 1), (4, 30), (4, 2), (20, 1)]]
    for max_pass, max_cached in [(16, 40), (1, 1), (10**6, 10**6)]:
        sampler = TokenSampler[int](
            policy(folder).model, stop_ids=[], max_pass_tokens=max_pass, prefixes=PrefixCache(0)
        )
        sampler._max_cached_tokens = max_cached
        for place, ask in enumerate(asks):
            sampler.add(place, ask._replace(prompt=(place + 1, *ask.prompt[1:])))
        ended = []
        while len(sampler):
            fed, guessed = sampler.counts.fed, sampler.counts.guessed
            ended += [key for key, _ in sampler.step()]
            live = len(sampler._live)
            fed, guessed = sampler.counts.fed - fed, sampler.counts.guessed - guessed
            assert guessed <= 32
            assert fed - guessed <= max_pass + live or live <= 1
            assert sum(row.max_length for row in sampler._live) <= max_cached or live == 1
        assert sorted(ended) == [0, 1, 2, 3, 4]


def test_small_batches_give_the_same_greedy_answers(folder: Path) -> None:
    tiny_policy = policy(folder)
    asks = [Ask(tiny_policy.format.prompt_ids(p.messages), 0.0, 12) for p in MIXED]
    stop_ids = tiny_policy.format.stop_ids
    whole = sample(tiny_policy.model, asks, stop_ids=stop_ids)
    alone = sample(tiny_policy.model, asks, stop_ids=stop_ids, max_pass_tokens=1)
    assert [one.ids for one in whole] == [one.ids for one in alone]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_frozen_head_is_not_copied_for_each_prompt(folder: Path, dtype: Any) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    tiny_policy = policy(folder, dtype=dtype, lora_rank=4)
    sizes: list[int] = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(
            self, called: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            output = called(*args, **(kwargs or {}))
            if isinstance(output, torch.Tensor):
                sizes.append(output.numel())
            return output

    with Sizes():
        tiny_policy.generate([ask(f"go to table {n}", max_tokens=2) for n in range(8)])
    head = tiny_policy.model.lm_head.weight
    assert not head.requires_grad
    assert head.numel() <= max(sizes) < 2 * head.numel()


def test_a_half_precision_copy_keeps_tied_weights_and_follows_updates(folder: Path) -> None:
    tiny_policy = policy(folder)
    half = causal_lm.half_copy(tiny_policy.model)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in tiny_policy.model.parameters()} == {torch.float32}
    assert {b.dtype for b in half.buffers()} == {torch.float32}
    assert half.lm_head.weight is half.model.embed_tokens.weight
    with torch.no_grad():
        tiny_policy.parameters()[0].mul_(2.0)
    causal_lm.update_half_copy(half, tiny_policy.model)
    assert torch.equal(half.lm_head.weight, tiny_policy.parameters()[0].to(torch.bfloat16))
    asks = [Ask(tiny_policy.format.prompt_ids(p.messages), 1.0, 5) for p in MIXED]
    sampled = sample(half, asks, stop_ids=tiny_policy.format.stop_ids)
    assert all(one.ids for one in sampled)


def test_a_gpu_samples_with_a_half_precision_copy_of_fp32_weights(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_policy = policy(folder, dtype="bfloat16")
    assert tiny_policy._refresh_sampling_model() is tiny_policy.model
    monkeypatch.setattr(TransformersPolicy, "device", SimpleNamespace(type="cuda"))
    first = tiny_policy._refresh_sampling_model()
    assert first.dtype == torch.bfloat16
    assert tiny_policy._refresh_sampling_model() is first
    with torch.no_grad():
        tiny_policy.parameters()[0].mul_(2.0)
    tiny_policy.version += 1
    assert torch.equal(
        next(tiny_policy._refresh_sampling_model().parameters()),
        tiny_policy.parameters()[0].to(torch.bfloat16),
    )
    tiny_policy.load_state_dict(policy(folder).state_dict())
    assert torch.equal(
        next(tiny_policy._refresh_sampling_model().parameters()),
        tiny_policy.parameters()[0].to(torch.bfloat16),
    )


USERS_MODEL = Path(os.environ.get("COEVO_HOME", "~/.cache/coevo")).expanduser() / "models/smollm2"


@pytest.mark.slow
def test_smollm2_uses_its_own_template_and_its_logprobs_match_the_learners(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not USERS_MODEL.is_dir():
        pytest.skip("SmolLM2 is not on this machine (coevo model fetch smollm2)")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    smollm2 = policy(USERS_MODEL)
    messages = (Message("user", "Hello, who are you?"),)
    greedy, sampled = smollm2.generate([Prompt(messages, Sampling(t, 24)) for t in (0.0, 0.7)])
    assert "hello" in greedy.text.lower()
    check_logprobs(smollm2, [sampled])
    ids = smollm2.tokenizer.apply_chat_template(
        [m._asdict() for m in messages], add_generation_prompt=True, return_dict=False
    )
    assert tokens(greedy).prompt_ids == tuple(ids)
    longer = (*messages, Message("assistant", "", tokens(sampled).ids), Message("user", "And?"))
    before = tokens(sampled).prompt_ids + tokens(sampled).ids
    assert smollm2.format.prompt_ids(longer)[: len(before)] == before

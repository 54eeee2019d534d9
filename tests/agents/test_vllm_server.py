"""A policy that samples with vLLM servers, with a stand-in for the servers."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
safetensors_torch = pytest.importorskip("safetensors.torch")

from coevo_gym.agents.lm import vllm_server  # noqa: E402
from coevo_gym.agents.lm.answers import NOTHING, Ask, Sampled  # noqa: E402
from coevo_gym.agents.lm.language_model import ModelConfig  # noqa: E402
from coevo_gym.agents.lm.vllm_engine import VLLMConfig  # noqa: E402
from coevo_gym.agents.lm.vllm_launch import Served, VLLMServersConfig  # noqa: E402
from coevo_gym.agents.lm.vllm_replicas import Handover  # noqa: E402
from coevo_gym.agents.lm.vllm_server import VLLMServerPolicy  # noqa: E402
from coevo_gym.core.errors import ConfigError, ModelError  # noqa: E402
from coevo_gym.core.seams import Finish, Message, Prompt, Sampling  # noqa: E402
from coevo_gym.core.trajectory import TokenDecision  # noqa: E402
from tests.agents.sampling import sample  # noqa: E402
from tests.agents.tiny_llama import make_tiny_llama  # noqa: E402

LOOK = Prompt((Message("user", "look"),), Sampling(1.0, 4), seed=(7,), episode="first")


class StandInReplicas:
    """Samples with weights that were handed over in a file, as servers do."""

    def __init__(
        self, config: VLLMServersConfig, vllm: VLLMConfig, served: Served, parent: Path | None
    ) -> None:
        self.served = served
        self.folder = Path(tempfile.mkdtemp(dir=parent))
        weakref.finalize(self, shutil.rmtree, self.folder)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(served.folder)
        self.adapter: Any = None
        self.holds: object = None
        self.starts = 0
        self.handovers: list[Handover] = []
        self.asked: list[Ask] = []
        self.held: list[tuple[Ask, Mapping[str, Any], Future[Sampled]]] = []
        self.holds_answers, self.lost, self.failure = False, "", ""

    def start(self) -> None:
        self.starts += 1

    def close(self) -> None:
        self.starts = 0

    def hand_over(self, handover: Handover) -> None:
        self.handovers.append(handover)
        if handover.file is not None:
            weights = safetensors_torch.load_file(handover.file)
            self.model.load_state_dict(weights)
        else:
            if self.adapter is None:
                self.adapter = peft.PeftModel.from_pretrained(self.model, str(handover.folder))
                self.model = self.adapter.get_base_model()
            weights = peft.load_peft_weights(str(handover.folder), device="cpu")
            peft.set_peft_model_state_dict(self.adapter, weights)
        ids = torch.tensor([handover.probe.ids])
        with torch.no_grad():
            logps = self.model(ids).logits.log_softmax(-1)[0, :-1]
        own = logps.gather(1, ids[0, 1:, None])[:, 0]
        assert (own - torch.tensor(handover.probe.logprobs)).abs().max() < 1e-4

    def submit(self, ask: Ask, sampling: Mapping[str, Any], begun: Sampled) -> Future[Sampled]:
        assert begun == NOTHING
        self.asked.append(ask)
        future = Future[Sampled]()
        self.held.append((ask, sampling, future))
        if not self.holds_answers:
            self.answer()
        return future

    def answer(self) -> None:
        for ask, sampling, future in self.held:
            if self.lost:
                future.set_result(Sampled((), (), self.lost))
            elif future.set_running_or_notify_cancel():
                (answer,) = sample(self.model, [ask], stop_ids=sampling["stop_token_ids"])
                future.set_result(answer)
        self.held = []

    def raise_if_failed(self) -> None:
        if self.failure:
            raise ModelError(self.failure)

    def take_counts(self) -> dict[str, float]:
        return {"answers_lost": 1.0, "server_restarts": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny"))


def make(folder: Path, *, lora_rank: int = 0, **vllm: Any) -> VLLMServerPolicy:
    config = ModelConfig(path=str(folder), device="cpu", max_context=64, lora_rank=lora_rank)
    return VLLMServerPolicy(config, VLLMServersConfig(), VLLMConfig(kv_cache_gib=1, **vllm), seed=0)


@pytest.fixture
def policy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> VLLMServerPolicy:
    monkeypatch.setattr(vllm_server, "Replicas", StandInReplicas)
    return make(folder)


def servers(policy: VLLMServerPolicy) -> StandInReplicas:
    replicas: Any = policy.replicas
    return replicas


def change(policy: VLLMServerPolicy) -> None:
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(0.05 * torch.sign(weight))
    policy.version += 1


def gap(policy: VLLMServerPolicy, decision: Any) -> float:
    from coevo_gym.trainers.segments import segments

    (segment,) = segments([decision])
    with torch.no_grad():
        own, _ = policy.logprobs([segment])
    return float((own[0] - torch.tensor(segment.logprobs)).abs().max())


def test_weights_are_handed_over_once_per_version(policy: VLLMServerPolicy) -> None:
    for version in range(3):
        for _ in range(2):
            (completion,) = policy.generate([LOOK])
            assert gap(policy, completion.decision) < 1e-4
        assert len(servers(policy).handovers) == version + 1
        change(policy)
    assert servers(policy).served.expected["model"]["vocab_size"] == policy.model.config.vocab_size


def test_a_request_carries_its_seed_and_episode(policy: VLLMServerPolicy) -> None:
    policy.generate([LOOK, LOOK])
    first, second = servers(policy).asked
    assert first == second
    assert first.episode == "first"
    assert first.seed == (0, 7)


def test_an_adapter_is_merged_or_handed_over_alone(policy: VLLMServerPolicy, folder: Path) -> None:
    for adapter in ("merged", "alone"):
        adapted = make(folder, lora_rank=4, adapter=adapter)
        change(adapted)
        (completion,) = adapted.generate([LOOK])
        assert gap(adapted, completion.decision) < 1e-4
        (handover,) = servers(adapted).handovers
        assert (handover.file is None) == (adapter == "alone")
        assert servers(adapted).served.lora_rank == (4 if adapter == "alone" else 0)


def test_restored_weights_and_frozen_copies_are_handed_over(policy: VLLMServerPolicy) -> None:
    policy.generate([LOOK])
    state, frozen = policy.state_dict(), policy.frozen_copy()
    assert isinstance(frozen, VLLMServerPolicy)
    assert frozen.replicas is policy.replicas
    policy.load_state_dict(state)
    policy.generate([LOOK])
    change(policy)
    (old,), (new,) = frozen.generate([LOOK]), policy.generate([LOOK])
    assert len(servers(policy).handovers) == 4
    assert gap(policy, old.decision) > 1e-2
    assert gap(policy, new.decision) < 1e-4


def test_a_lost_answer_is_an_infrastructure_fault(policy: VLLMServerPolicy) -> None:
    servers(policy).lost = "replica 1 was lost"
    (completion,) = policy.generate([LOOK])
    assert completion.finish is Finish.LOST
    assert completion.text == "replica 1 was lost"
    assert completion.decision is None
    assert policy.take_sampling_metrics() == {
        "tokens_drawn": 0.0,
        "answers_lost": 1.0,
        "server_restarts": 0.0,
    }


def test_a_failure_of_the_servers_ends_the_run(policy: VLLMServerPolicy) -> None:
    servers(policy).failure = "replica 1 does not sample with the learner's weights"
    with pytest.raises(ModelError, match="replica 1 does not sample"):
        policy.generate([LOOK])


def test_an_answer_that_new_weights_interrupt_begins_anew_with_them(
    policy: VLLMServerPolicy,
) -> None:
    stand_in = servers(policy)
    stand_in.holds_answers = True
    with policy.stream() as answers:
        answers.add(3, LOOK)
        assert answers.step() == []
        change(policy)
        assert answers.step() == []
        assert [future.cancelled() for *_, future in stand_in.held] == [True, False]
        stand_in.answer()
        ((key, completion),) = answers.step()
    assert key == 3
    assert isinstance(completion.decision, TokenDecision)
    assert completion.decision.policy_version == policy.version == 1
    assert gap(policy, completion.decision) < 1e-4


@pytest.mark.parametrize(("rank", "starts"), [("", 1), ("0", 1), ("1", 0)])
def test_only_rank_0_starts_its_servers_at_once(
    rank: str, starts: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_server, "Replicas", StandInReplicas)
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    policy = make(folder)
    assert servers(policy).starts == starts
    policy.generate([LOOK])
    assert servers(policy).starts > 0


def test_settings_that_conflict_are_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy\.vllm\.sleep"):
        make(tmp_path / "no model", sleep=True)

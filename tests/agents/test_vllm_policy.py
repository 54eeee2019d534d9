"""When the engine gets the learner's weights; an engine of transformers stands in for vLLM."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from coevo_gym.agents.lm import vllm_policy  # noqa: E402
from coevo_gym.agents.lm.language_model import ModelConfig  # noqa: E402
from coevo_gym.agents.lm.vllm_engine import VLLMConfig, VLLMRequest  # noqa: E402
from coevo_gym.agents.lm.vllm_policy import VLLMPolicy  # noqa: E402
from coevo_gym.core.errors import ConfigError, ModelError  # noqa: E402
from coevo_gym.core.seams import Finish, Message, Prompt, Sampling  # noqa: E402
from coevo_gym.core.trajectory import TokenDecision  # noqa: E402
from tests.agents.sampling import sample  # noqa: E402
from tests.agents.tiny_llama import make_tiny_llama  # noqa: E402

LOOK = Prompt((Message("user", "look"),), Sampling(1.0, 4))
LONG = Prompt((Message("user", "look " * 100),), Sampling(1.0, 4))


class StandIn:
    """Keeps weights of its own, as an engine does."""

    takes_weights = True

    def __init__(
        self, folder: Path, config: Any, *, max_context: int, dtype: str, lora_rank: int
    ) -> None:
        assert (config.kv_cache_gib, max_context, dtype) == (1, 64, "float32")
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        self.lora_rank, self.n_sleeps = lora_rank, 0
        self.adapter: Any = None
        self.holds: object = None
        self.loads = 0
        self.seeds: list[tuple[int, ...]] = []
        self.running: list[VLLMRequest] = []

    def load_weights(self, weights: Callable[[], Iterable[Any]]) -> None:
        self.holds = None
        self.loads += 1
        if self.takes_weights:
            self.model.load_state_dict(dict(weights()))

    def load_adapter(self, save: Callable[[Path], None]) -> None:
        self.holds = None
        self.loads += 1
        with TemporaryDirectory() as folder:
            save(Path(folder))
            if self.adapter is None:
                self.adapter = peft.PeftModel.from_pretrained(self.model, folder)
                self.model = self.adapter.get_base_model()
            weights = peft.load_peft_weights(folder, device="cpu")
            peft.set_peft_model_state_dict(self.adapter, weights)

    def sleep(self) -> None:
        self.holds = None
        self.n_sleeps += 1

    def start(self, request: VLLMRequest) -> None:
        self.seeds.append(request.ask.seed)
        self.running.append(request)

    def stop(self, requests: Collection[VLLMRequest]) -> None:
        self.running = [request for request in self.running if request not in requests]

    def step(self) -> None:
        for request in self.running:
            ask = request.ask
            (answer,) = sample(self.model, [ask], stop_ids=request.stop_ids)
            request.ids, request.logprobs = list(answer.ids), list(answer.logprobs)
            request.has_ended = True
        self.running = []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def policy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> VLLMPolicy:
    monkeypatch.setattr(vllm_policy, "VLLMEngine", StandIn)
    monkeypatch.setattr(vllm_policy, "import_vllm", lambda: None)
    config = ModelConfig(path=str(folder), device="cpu", max_context=64)
    return VLLMPolicy(config, VLLMConfig(kv_cache_gib=1), seed=0)


@pytest.fixture
def adapted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> VLLMPolicy:
    """A policy that hands over its adapter alone."""
    monkeypatch.setattr(vllm_policy, "VLLMEngine", StandIn)
    monkeypatch.setattr(vllm_policy, "import_vllm", lambda: None)
    config = ModelConfig(path=str(folder), device="cpu", max_context=64, lora_rank=4)
    return VLLMPolicy(config, VLLMConfig(kv_cache_gib=1, adapter="alone"), seed=0)


def change(policy: VLLMPolicy) -> None:
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(0.05 * torch.sign(weight))


def loads(policy: VLLMPolicy) -> int:
    engine: Any = policy.engine
    return int(engine.loads)


def test_weights_are_loaded_once_per_version(policy: VLLMPolicy) -> None:
    policy.generate([LOOK])
    policy.generate([LOOK])
    assert loads(policy) == 1
    change(policy)
    policy.version += 1
    policy.generate([LOOK])
    policy.generate([LOOK])
    assert loads(policy) == 2


def test_a_restored_state_is_loaded_although_its_version_is_the_same(policy: VLLMPolicy) -> None:
    state = policy.state_dict()
    before = policy.generate([LOOK])
    change(policy)
    policy.load_state_dict(state)
    assert policy.generate([LOOK]) == before
    assert loads(policy) == 2


def test_no_weights_are_loaded_for_prompts_that_overflow(policy: VLLMPolicy) -> None:
    (completion,) = policy.generate([LONG])
    assert completion.finish is Finish.OVERFLOW
    assert loads(policy) == 0


def test_each_request_has_its_own_seed(policy: VLLMPolicy) -> None:
    policy.generate([LOOK, LONG, LOOK, LOOK])
    engine: Any = policy.engine
    probe, *seeds = engine.seeds
    assert probe == (0,)
    assert len(set(seeds)) == 3


def test_frozen_copies_share_the_engine(policy: VLLMPolicy) -> None:
    frozen = policy.frozen_copy()
    assert isinstance(frozen, VLLMPolicy)
    assert frozen.engine is policy.engine
    change(policy)
    policy.version += 1
    for one in (policy, frozen, frozen, policy):
        (completion,) = one.generate([LOOK])
        assert isinstance(completion.decision, TokenDecision)
        assert completion.usage.calls == 1
        assert completion.usage.completion_tokens == len(completion.decision.ids) > 0
    assert loads(policy) == 3


def test_an_engine_that_ignores_new_weights_raises(
    policy: VLLMPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy.generate([LOOK])
    change(policy)
    policy.version += 1
    with monkeypatch.context() as patch:
        patch.setattr(StandIn, "takes_weights", False)
        with pytest.raises(ModelError, match=r"nats on average, which exceeds the limit of 0\.001"):
            policy.generate([LOOK])
    policy.generate([LOOK])
    assert loads(policy) == 3


def test_a_hub_id_is_resolved_to_its_cached_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    cached = tmp_path / "models--org--tiny"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("0" * 40)
    (cached / "snapshots").mkdir()
    (cached / "snapshots" / ("0" * 40)).symlink_to(folder)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    path = vllm_policy.model_folder("org/tiny")
    assert (path / "config.json").samefile(folder / "config.json")
    assert vllm_policy.model_folder(str(folder)) == folder


def test_an_adapter_is_handed_over_alone(adapted: VLLMPolicy) -> None:
    engine: Any = adapted.engine
    assert engine.lora_rank == 4
    adapted.generate([LOOK])
    with torch.no_grad():
        for weight in adapted.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    adapted.version += 1
    with pytest.raises(ModelError, match="nats on average"):  # the old adapter is still there
        adapted._check_logprobs()
    adapted.generate([LOOK])  # compares the log-probabilities
    assert loads(adapted) == 2


def test_the_engine_sleeps_during_updates(policy: VLLMPolicy) -> None:
    engine: Any = policy.engine
    policy.train(True)
    policy.train(False)
    assert engine.n_sleeps == 0  # by default, it keeps its memory
    policy._sleeps = True  # refused for a CPU
    policy.generate([LOOK])
    policy.train(True)
    policy.train(False)
    assert engine.n_sleeps == 1
    policy.generate([LOOK])
    assert loads(policy) == 2


def test_a_stream_of_a_frozen_copy_loads_its_weights_after_the_engine_slept(
    policy: VLLMPolicy,
) -> None:
    frozen = policy.frozen_copy()
    assert isinstance(frozen, VLLMPolicy)
    with frozen.stream() as answers:
        answers.add(0, LOOK)
        policy._sleeps = True
        policy.train(True)
        policy.train(False)
        while len(answers):
            answers.step()
    assert loads(policy) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (VLLMConfig(sleep=True), "sleep frees a GPU's memory during updates, but .* a CPU"),
        (VLLMConfig(adapter="alone"), "all weights are trained"),
    ],
)
def test_settings_are_refused_before_the_model_is_loaded(
    settings: VLLMConfig, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_policy, "import_vllm", lambda: None)
    with pytest.raises(ConfigError, match=message):
        VLLMPolicy(ModelConfig(path="no such model", device="cpu"), settings)

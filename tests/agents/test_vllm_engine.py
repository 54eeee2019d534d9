"""The parts of the engine that need no vLLM; a stand-in plays its part."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from coevo_gym.agents.lm import vllm_engine  # noqa: E402
from coevo_gym.agents.lm.answers import Ask, Sampled, run_to_end  # noqa: E402
from coevo_gym.agents.lm.vllm_engine import (  # noqa: E402
    LM_HEAD,
    VLLMConfig,
    VLLMEngine,
    VLLMSampler,
    check_shapes,
    check_vllm_settings,
    checkpoint_shapes,
)
from coevo_gym.core.errors import ConfigError, ModelError  # noqa: E402

ASK = Ask((1,), 1.0, 8)
SHAPES = {"embed.weight": (7, 4), "layer.weight": (4, 4), "layer.rotary_emb.inv_freq": (2,)}
GIVEN = {"embed.weight": (7, 4), "layer.weight": (4, 4), LM_HEAD: (7, 4)}


class FakeLLM:
    """Leaves traces in the process, as vLLM does, and answers every prompt with 5, 6."""

    made: dict[str, Any]
    finish_reason = "stop"
    resets = True

    def __init__(self, folder: str, **settings: Any) -> None:
        FakeLLM.made = {"folder": folder, **settings, "environment": dict(os.environ)}
        os.environ["LD_PRELOAD"] = "libsomething.so"
        os.environ["COEVO_TEST_KEPT"] = "changed"
        del os.environ["COEVO_TEST_REMOVED"]
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002, TID251
        torch.manual_seed(0)
        self.loaded: list[str] = []
        self.asked: list[Any] = []
        self.running: dict[str, list[int]] = {}
        self.adapters: dict[str, int] = {}  # of running requests
        self.files: dict[int, list[str]] = {}  # of the adapters, as they were loaded
        self.events: list[str] = []

    @property
    def llm_engine(self) -> FakeLLM:
        return self

    def add_request(self, name: str, prompt: Any, params: Any, *, lora_request: Any) -> None:
        assert not self.is_asleep
        self.asked.append((prompt, params))
        self.running[name] = [5, 6]
        if lora_request is not None:
            assert lora_request.lora_int_id in self.files
            self.adapters[name] = lora_request.lora_int_id

    @property
    def is_asleep(self) -> bool:
        return bool(self.events) and self.events[-1] != "wake up kv_cache"

    def sleep(self, level: int) -> None:
        assert not self.running
        self.events.append(f"sleep {level}")

    def wake_up(self, tags: list[str]) -> None:
        self.events += [f"wake up {tag}" for tag in tags]

    def add_lora(self, request: Any) -> None:
        self.files[request.lora_int_id] = os.listdir(request.lora_path)

    def remove_lora(self, number: int) -> None:
        assert number not in [self.adapters.get(name) for name in self.running]
        del self.files[number]

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            del self.running[name]

    def step(self) -> list[Any]:
        torch.rand(3)
        outputs = []
        for name, left in list(self.running.items()):
            token = left.pop(0)
            answer = SimpleNamespace(
                token_ids=[token],
                logprobs=[{token: SimpleNamespace(logprob=-0.5 if token == 5 else -0.25)}],
                finish_reason=None if left else self.finish_reason,
            )
            outputs.append(SimpleNamespace(request_id=name, outputs=[answer], finished=not left))
            if not left:
                del self.running[name]
        return outputs

    def collective_rpc(self, method: str, kwargs: Any) -> None:
        assert method == "reload_weights"
        assert not self.is_asleep or self.events[-1] == "wake up weights"
        self.loaded += [name for name, _ in kwargs["weights_iterator"]]

    def reset_prefix_cache(self) -> bool:
        return self.resets and not self.running


class FakeLoRARequest(SimpleNamespace):
    def __init__(self, name: str, number: int, path: str) -> None:
        super().__init__(lora_name=name, lora_int_id=number, lora_path=path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tensors = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    safetensors.save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(
        LLM=FakeLLM,
        SamplingParams=lambda **settings: settings,
        lora=SimpleNamespace(request=SimpleNamespace(LoRARequest=FakeLoRARequest)),
        sampling_params=SimpleNamespace(RequestOutputKind=SimpleNamespace(DELTA="delta")),
    )
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setenv("COEVO_TEST_KEPT", "as it was")
    monkeypatch.setenv("COEVO_TEST_REMOVED", "here")


@pytest.fixture
def engine(folder: Path, fake: None) -> VLLMEngine:
    return VLLMEngine(folder, max_context=10, dtype="float32")


def weights() -> Iterator[tuple[str, Any]]:
    return ((name, torch.zeros(shape)) for name, shape in GIVEN.items())


def sample(engine: VLLMEngine, asks: Sequence[Ask], stop_ids: Sequence[int] = ()) -> list[Sampled]:
    sampler = VLLMSampler[int](engine, stop_ids)
    for place, ask in enumerate(asks):
        sampler.add(place, ask)
    answers = dict(run_to_end(sampler))
    return [answers[place] for place in range(len(asks))]


def state() -> tuple[Any, ...]:
    legacy = np.random.get_state()[1].tolist()  # noqa: NPY002
    return dict(os.environ), random.getstate(), legacy, torch.get_rng_state().tolist()


def test_the_engine_leaves_the_process_state_unchanged(
    folder: Path, fake: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_LOGGING_LEVEL", raising=False)
    before = state()
    engine = VLLMEngine(folder, max_context=10, dtype="float32")
    assert state() == before
    sample(engine, [ASK])
    assert state() == before


def test_a_process_started_by_torchrun_is_refused(
    folder: Path, fake: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine would join torchrun's process group and wait for the other processes forever."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        ConfigError, match=r"torchrun started 2 processes, .* policy.kind to vllm_server"
    ):
        VLLMEngine(folder, max_context=10, dtype="float32")
    monkeypatch.setenv("WORLD_SIZE", "1")
    VLLMEngine(folder, max_context=10, dtype="float32")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    with pytest.raises(ConfigError, match="started 4 processes"):
        VLLMEngine(folder, max_context=10, dtype="float32")


def test_vllm_starts_with_the_required_environment_and_settings(
    folder: Path, fake: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.delenv("VLLM_LOGGING_STREAM", raising=False)
    config = VLLMConfig(kv_cache_gib=0.5, gpu_memory_utilization=0.3, enforce_eager=True)
    VLLMEngine(folder, config, max_context=10, dtype="bfloat16")
    environment = FakeLLM.made["environment"]
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert environment["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert environment["VLLM_LOGGING_STREAM"] == "ext://sys.stderr"
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"
    assert FakeLLM.made["logprobs_mode"] == "processed_logprobs"
    assert FakeLLM.made["kv_cache_memory_bytes"] == 2**29
    assert FakeLLM.made["gpu_memory_utilization"] == 0.3
    assert FakeLLM.made["enforce_eager"] is True
    assert FakeLLM.made["max_model_len"] == 10
    assert FakeLLM.made["dtype"] == "bfloat16"


def test_a_failed_start_raises_with_the_settings_that_take_memory(
    folder: Path, fake: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(folder: str, **settings: Any) -> Any:
        raise ValueError("36 GiB KV cache is needed")

    monkeypatch.setattr(sys.modules["vllm"], "LLM", fails)
    with pytest.raises(ModelError, match=r"36 GiB(.|\n)*max_context \(currently 262,144;") as error:
        VLLMEngine(folder, max_context=262_144, dtype="bfloat16")
    assert "gpu_memory_utilization, or set kv_cache_gib" in str(error.value)


def test_each_request_is_sent_with_its_own_sampling_settings(engine: VLLMEngine) -> None:
    asks = [Ask((1, 2), 0.0, 3, (11,)), Ask((3, 4, 5), 0.7, 7, (12, 1))]
    greedy, random_draw = sample(engine, asks, stop_ids=[6])
    assert greedy == Sampled((5, 6), (0.0, 0.0))
    assert random_draw == Sampled((5, 6), (-0.5, -0.25))
    (prompt_0, params_0), (prompt_1, params_1) = engine._llm.asked
    assert prompt_0 == {"prompt_token_ids": [1, 2]}
    assert prompt_1 == {"prompt_token_ids": [3, 4, 5]}
    assert (params_0["temperature"], params_0["max_tokens"]) == (0.0, 3)
    assert (params_1["temperature"], params_1["max_tokens"]) == (0.7, 7)
    assert params_0["seed"] != params_1["seed"]
    assert params_1["output_kind"] == "delta"
    assert params_1["stop_token_ids"] == [6]
    assert (params_1["top_p"], params_1["top_k"], params_1["logprobs"]) == (1.0, 0, 0)


def test_two_samplers_share_the_engine(engine: VLLMEngine) -> None:
    one, other = VLLMSampler[str](engine, []), VLLMSampler[str](engine, [])
    one.add("first", ASK)
    other.add("second", ASK)
    assert one.step() == []
    assert [key for key, _ in other.step()] == ["second"]
    assert [key for key, _ in one.step()] == ["first"]
    assert len(one) == len(other) == 0


def test_requests_go_on_after_their_tokens_when_weights_are_loaded(engine: VLLMEngine) -> None:
    sampler = VLLMSampler[int](engine, [])
    sampler.add(0, ASK)
    sampler.step()
    engine.load_weights(weights)
    prompt, params = engine._llm.asked[-1]
    assert prompt == {"prompt_token_ids": [*ASK.prompt, 5]}
    assert params["max_tokens"] == ASK.max_tokens - 1
    ((_, answer),) = run_to_end(sampler)
    assert answer.ids == (5, 5, 6)


def test_withdrawn_requests_are_aborted(engine: VLLMEngine) -> None:
    sampler = VLLMSampler[int](engine, [])
    sampler.add(7, ASK)
    sampler.step()
    ((key, ask, begun),) = sampler.withdraw()
    assert (key, ask, begun) == (7, ASK, Sampled((5,), (-0.5,)))
    assert engine._llm.running == {}
    assert len(sampler) == 0


def test_a_sleeping_engine_wakes_with_the_next_weights(engine: VLLMEngine) -> None:
    sampler = VLLMSampler[int](engine, [])
    sampler.add(0, ASK)
    sampler.step()
    engine.holds = "old weights"
    engine.sleep()
    engine.sleep()
    assert engine.holds is None
    assert engine.n_sleeps == 1
    assert engine._llm.events == ["sleep 2"]
    engine.load_weights(weights)
    assert engine._llm.events == ["sleep 2", "wake up weights", "wake up kv_cache"]
    ((_, answer),) = run_to_end(sampler)
    assert answer.ids == (5, 5, 6)
    engine.load_weights(weights)
    assert len(engine._llm.events) == 3


def test_a_request_withdrawn_during_sleep_does_not_go_on(engine: VLLMEngine) -> None:
    sampler = VLLMSampler[int](engine, [])
    sampler.add(0, ASK)
    sampler.step()
    engine.sleep()
    ((_, _, begun),) = sampler.withdraw()
    assert begun.ids == (5,)
    engine.load_weights(weights)
    assert engine._llm.running == {}


def test_requests_go_on_after_weights_that_could_not_be_loaded(
    engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = VLLMSampler[int](engine, [])
    sampler.add(0, ASK)
    sampler.step()
    engine.sleep()
    with monkeypatch.context() as patch:
        patch.setattr(FakeLLM, "resets", False)
        with pytest.raises(ModelError, match="could not clear"):
            engine.load_weights(weights)
    engine.load_weights(weights)
    ((_, answer),) = run_to_end(sampler)
    assert answer.ids == (5, 5, 6)


def save(folder: Path) -> None:
    (folder / "adapter_model.safetensors").write_bytes(b"weights")


def test_running_requests_keep_their_adapter(folder: Path, fake: None) -> None:
    engine = VLLMEngine(folder, max_context=10, dtype="float32", lora_rank=12)
    assert FakeLLM.made["enable_lora"] is True
    assert FakeLLM.made["max_lora_rank"] == 16
    llm = engine._llm
    engine.load_adapter(save)
    assert llm.files == {1: ["adapter_model.safetensors"]}
    first = VLLMSampler[int](engine, [])
    first.add(0, ASK)
    engine.load_adapter(save)
    second = VLLMSampler[int](engine, [])
    second.add(0, ASK)
    assert llm.adapters == {"1": 1, "2": 2}
    assert llm.files.keys() == {1, 2}
    engine.load_adapter(save)
    assert llm.files.keys() == {1, 2, 3}
    run_until_empty(first)
    run_until_empty(second)
    engine.load_adapter(save)
    assert llm.files.keys() == {4}
    assert llm.loaded == []  # the model's own weights are never loaded again


def run_until_empty(sampler: VLLMSampler[int]) -> None:
    assert [answer.ids for _, answer in run_to_end(sampler)] == [(5, 6)]


def test_the_files_of_an_adapter_are_deleted_when_it_is_replaced(
    folder: Path, fake: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_engine, "_SHARED_MEMORY", tmp_path)
    engine = VLLMEngine(folder, max_context=10, dtype="float32", lora_rank=8)
    before = set(tmp_path.iterdir())
    for _ in range(3):
        engine.load_adapter(save)
        assert len(set(tmp_path.iterdir()) - before) == 1


def test_an_engine_with_an_adapter_keeps_its_weights_while_it_sleeps(
    folder: Path, fake: None
) -> None:
    engine = VLLMEngine(folder, max_context=10, dtype="float32", lora_rank=8)
    engine.load_adapter(save)
    sampler = VLLMSampler[int](engine, [])
    sampler.add(0, ASK)
    sampler.step()
    engine.sleep()
    engine.load_adapter(save)
    assert engine._llm.events == ["sleep 1", "wake up weights", "wake up kv_cache"]
    assert [*engine._llm.adapters.values()] == [1, 1]
    ((_, answer),) = run_to_end(sampler)
    assert answer.ids == (5, 5, 6)


@pytest.mark.parametrize(
    ("settings", "rank", "has_gpu", "message"),
    [
        ({"sleep": True}, 0, False, "sleep frees a GPU's memory .* uses a CPU"),
        ({"adapter": "alone"}, 0, True, "all weights are trained"),
        ({"adapter": "alone"}, 513, True, "up to rank 512, got lora_rank = 513"),
    ],
)
def test_settings_that_do_not_suit_the_run_are_refused(
    settings: dict[str, Any], rank: int, has_gpu: bool, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_vllm_settings(rank, VLLMConfig(**settings), has_gpu=has_gpu)
    check_vllm_settings(8, VLLMConfig(**settings), has_gpu=True)


def test_a_temperature_that_vllm_would_change_is_refused(engine: VLLMEngine) -> None:
    with pytest.raises(ConfigError, match=r"must be 0 \(greedy\) or at least 0\.01, got 0\.001"):
        sample(engine, [ASK._replace(temperature=0.001)])


def test_an_aborted_prompt_raises_a_model_error(
    engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeLLM, "finish_reason", "abort")
    with pytest.raises(ModelError, match="gave up on a prompt: abort"):
        sample(engine, [ASK])


def test_unknown_weights_do_not_reach_the_engine(engine: VLLMEngine) -> None:
    good = [(name, torch.zeros(shape)) for name, shape in GIVEN.items()]
    with pytest.raises(ModelError, match="unknown: other"):
        engine.load_weights(lambda: iter([*good, ("other", torch.zeros(1))]))
    assert engine._llm.loaded == []
    engine.load_weights(lambda: iter(good))
    assert engine._llm.loaded == list(GIVEN)


def test_a_prefix_cache_that_cannot_be_cleared_raises(
    engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeLLM, "resets", False)
    with pytest.raises(ModelError, match="could not clear the old weights' prefix cache"):
        engine.load_weights(weights)


def test_weight_names_that_match_the_checkpoint_are_accepted() -> None:
    check_shapes(GIVEN, SHAPES)
    check_shapes(GIVEN, {**SHAPES, LM_HEAD: (7, 4)})


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"embed.weight": (7, 4), "layer.weight": (4, 4)}, "missing: lm_head.weight"),
        ({LM_HEAD: (7, 4)}, "missing: embed.weight, layer.weight"),
        ({**GIVEN, "base.layer.weight": (4, 4)}, "unknown: base.layer.weight"),
        ({**GIVEN, "layer.weight": (4, 2)}, "of another shape: layer.weight"),
    ],
)
def test_missing_unknown_and_misshapen_weights_raise(
    shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        check_shapes(shapes, SHAPES)


def test_a_long_list_of_weight_names_is_shortened_in_the_error() -> None:
    with pytest.raises(ModelError, match="unknown: x0, x1, x2 and 7 more"):
        check_shapes({**GIVEN, **{f"x{i}": (1,) for i in range(10)}}, SHAPES)


def test_shapes_of_a_sharded_checkpoint_are_read_from_all_files(tmp_path: Path) -> None:
    pieces = {"a.safetensors": {"a": (2, 3)}, "b.safetensors": {"b": (4,), "c": (1, 1)}}
    for file, shapes in pieces.items():
        tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
        safetensors.save_file(tensors, tmp_path / file)
    owner = {name: file for file, shapes in pieces.items() for name in shapes}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": owner}))
    assert checkpoint_shapes(tmp_path) == {"a": (2, 3), "b": (4,), "c": (1, 1)}


def test_a_folder_without_weights_raises_with_advice(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model\.safetensors.*save_pretrained"):
        checkpoint_shapes(tmp_path)


def test_a_missing_vllm_raises_with_the_install_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ImportError, match=r"pip install .*\[vllm\]"):
        VLLMEngine(folder, max_context=10, dtype="float32")


def test_a_missing_vllm_raises_before_a_model_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    from coevo_gym.agents.lm import causal_lm
    from coevo_gym.agents.lm.language_model import ModelConfig
    from coevo_gym.agents.lm.vllm_policy import VLLMPolicy

    def asks(*arguments: Any, **kwargs: Any) -> Any:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(causal_lm.AutoConfig, "from_pretrained", asks)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ImportError, match="needs vLLM"):
        VLLMPolicy(ModelConfig(path="someone/some-model", device="cpu"))

"""Which device a plan is about, and runs that are refused because they cannot fit it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

import coevo_gym
from coevo_gym.cli import app
from coevo_gym.core import arithmetic
from coevo_gym.core.errors import ConfigError
from coevo_gym.runs import train as run_train
from coevo_gym.runs.assembly import Assembly
from coevo_gym.runs.config import RunConfig, load_config
from coevo_gym.runs.manifest import make_manifest
from coevo_gym.runs.planning import device, memory
from coevo_gym.runs.planning.device import CARDS, device_here, device_to_plan_for, find_card
from coevo_gym.runs.planning.memory import (
    check_memory_settings,
    memory_warnings,
    require_memory,
    simultaneous_episodes,
)
from coevo_gym.runs.planning.plan import plan_rows, plan_run
from coevo_gym.store.folder import write_json
from tests.agents.tiny_llama import make_tiny_llama

GIB = 2**30
SMOL = ("policy.kind=transformers", "policy.model.path=smollm2")
QWEN = ("policy.kind=transformers", "policy.model.path=Qwen/Qwen3-4B")
REST_OFFLOAD = "arm.rest.set.learner.imitation.optimizer=adamw_offload"
NOMINAL_GB = {
    "h100": 80,
    "h200": 141,
    "a100": 80,
    "a100-40gb": 40,
    "l40s": 48,
    "l4": 24,
    "rtx4090": 24,
}


def settings(preset: str, *sets: str) -> RunConfig:
    return load_config(preset, sets=sets, environ={}).config


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], None]:
    """Puts a GPU into this machine."""

    def put(name: str, gib: float) -> None:
        properties = SimpleNamespace(name=name, total_memory=int(gib * GIB))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)

    return put


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Takes the GPU away; the machine has so much memory then."""

    def left(gib: float) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(device, "_machine_memory", lambda: int(gib * GIB))

    return left


def command(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["train", *arguments], env={"COLUMNS": "400"})


# Cards.


def test_usable_memory_of_a_gpu_is_slightly_below_its_nominal_size() -> None:
    assert CARDS.keys() == NOMINAL_GB.keys()
    for name, card in CARDS.items():
        assert 0.85 < card.memory / (NOMINAL_GB[name] * GIB) < 1, name
        assert card.is_gpu


def test_an_unknown_gpu_is_refused_with_a_list_of_known_ones() -> None:
    assert find_card("H100") is find_card("h100") is CARDS["h100"]
    done = command("quickstart", "--dry-run", "--card", "h9000")
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == (
        "Unknown GPU 'h9000'. Choose one of: h100, h200, a100, a100-40gb, l40s, l4, rtx4090."
    )


def test_the_card_option_requires_a_dry_run() -> None:
    done = command("quickstart", "--card", "h100")
    assert "so it needs --dry-run" in str(done.exception)


# The device at hand.


def test_the_plan_shows_the_gpu_of_this_machine_with_its_memory(
    gpu: Callable[[str, float], None],
) -> None:
    gpu("NVIDIA H100 80GB HBM3", 79.1)
    processor = device_to_plan_for(settings("alfworld", *SMOL).policy)
    assert processor.name == "NVIDIA H100 80GB HBM3"
    assert processor.memory == int(79.1 * GIB)
    assert processor.is_gpu
    table = dict(plan_rows(config := settings("alfworld", *SMOL), plan_run(config, processor)))
    assert table["device"] == "NVIDIA H100 80GB HBM3, 79 GiB of memory (found here)"


def test_the_plan_shows_the_cpu_of_this_machine_with_its_memory(
    cpu: Callable[[float], None],
) -> None:
    cpu(24)
    config = settings("alfworld", *SMOL, "loop.max_steps=10")
    processor = device_to_plan_for(config.policy)
    assert not processor.is_gpu
    table = dict(plan_rows(config, plan_run(config, processor)))
    assert table["device"] == "CPU of this machine, 24 GiB of memory"
    assert table["sampled tokens"].startswith("at most ")
    assert table["tokens processed in updates"].startswith("at most ")
    assert "host memory for checkpoints" not in table  # part of the memory of the machine
    assert "checkpoint" in table["peak memory by phase"]


def test_the_plan_uses_a_configured_cpu_even_if_a_gpu_exists(
    gpu: Callable[[str, float], None],
) -> None:
    gpu("NVIDIA L4", 22)
    assert not device_to_plan_for(
        settings("alfworld", *SMOL, "policy.model.device=cpu").policy
    ).is_gpu
    config = settings("alfworld", *SMOL, "policy.model.device=cpu")
    asked = device_to_plan_for(config.policy, "h100")
    table = dict(plan_rows(config, plan_run(config, asked)))
    assert table["device"] == (
        "H100, 79 GiB of memory (the run itself uses the CPU, because policy.model.device is 'cpu')"
    )


@pytest.mark.parametrize(
    ("sets", "assumed"),
    [
        ((), True),  # vLLM with a share of a GPU
        (("policy.model.device=cuda", "policy.kind=transformers"), True),
        (("policy.vllm.kv_cache_gib=4",), False),
        (("policy.kind=transformers",), False),
        (("policy.model.device=cpu",), False),
    ],
)
def test_gpu_settings_are_planned_for_an_h200_if_no_gpu_exists(
    sets: tuple[str, ...], assumed: bool, cpu: Callable[[float], None]
) -> None:
    cpu(24)
    config = settings("coevolve_bfcl_qwen3_4b", *sets)
    processor = device_to_plan_for(config.policy)
    assert (processor.name == "H200") is assumed
    text = dict(plan_rows(config, plan_run(config, processor)))["device"]
    assert ("assumed: these settings are for a GPU, but none was found here" in text) is assumed


def test_a_container_memory_limit_is_respected(tmp_path: Path) -> None:
    whole = device._machine_memory(tmp_path)
    assert whole > GIB / 2
    (tmp_path / "memory.max").write_text("max\n")
    assert device._machine_memory(tmp_path) == whole
    (tmp_path / "memory.max").write_text("1048576\n")
    assert device._machine_memory(tmp_path) == 2**20
    (tmp_path / "memory.max").unlink()
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert device._machine_memory(tmp_path) == whole  # no limit, in version 1


def test_the_json_plan_contains_the_device(gpu: Callable[[str, float], None]) -> None:
    gpu("NVIDIA L40S", 44.5)
    done = command("alfworld", "--dry-run", "--json", *(f"--set={one}" for one in SMOL))
    processor = json.loads(done.output)["model"]["device"]
    assert (processor["name"], processor["memory"]) == ("NVIDIA L40S", int(44.5 * GIB))


@pytest.mark.parametrize(
    ("flags", "dtype", "row", "text"),
    [
        ("fma avx2", "auto", "", ""),
        ("fma avx2", "bfloat16", "warning: slow precision", "three times as long"),
        ("avx512_bf16 avx2", "auto", "precision", "half the time"),
        ("amx_bf16 amx_tile", "bfloat16", "", ""),
    ],
)
def test_the_plan_shows_a_precision_that_is_slow_on_this_cpu(
    flags: str,
    dtype: str,
    row: str,
    text: str,
    cpu: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu(24)
    monkeypatch.setattr(arithmetic, "_cpu_facts", lambda: {"flags": flags})
    config = settings("alfworld", *SMOL, f"policy.model.dtype={dtype}")
    table = dict(plan_rows(config, plan_run(config, device_to_plan_for(config.policy))))
    assert {"warning: slow precision", "precision"} & table.keys() == ({row} if row else set())
    assert text in table.get(row, "")
    on_a_gpu = dict(plan_rows(config, plan_run(config, CARDS["h200"])))
    assert not {"warning: slow precision", "precision"} & on_a_gpu.keys()


def test_the_plan_shows_the_end_tokens_of_an_installed_model(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path)
    config = settings("alfworld", *SMOL[:1], f"policy.model.path={tmp_path}")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 0, 290]}')
    end_tokens = dict(plan_rows(config, plan_run(config)))["tokens that end an answer"]
    assert end_tokens.startswith("the template's end of turn, <|im_end|>, <|endoftext|>, 290")
    (tmp_path / "generation_config.json").unlink()
    assert "tokens that end an answer" not in dict(plan_rows(config, plan_run(config)))


# Runs that cannot fit.


def test_a_run_that_cannot_fit_the_gpu_is_refused(gpu: Callable[[str, float], None]) -> None:
    gpu("NVIDIA H100 80GB HBM3", 79.1)
    with pytest.raises(ConfigError) as refused:
        require_memory(settings("coevolve_appworld_qwen3_4b"))
    assert str(refused.value) == (
        "Qwen/Qwen3-4B-Instruct-2507 does not fit on the NVIDIA H100 80GB HBM3 with these "
        "settings: training needs at least 87 GiB (15 GiB for weights, 45 GiB for gradients and "
        "AdamW's moments, 7.5 GiB for the reference, 20 GiB for vLLM), but only 79 GiB is "
        "available. To reduce memory use, lower policy.vllm.gpu_memory_utilization, let vLLM "
        "sleep during updates (policy.vllm.sleep), keep AdamW's moments in 8 bits or in main "
        "memory (learner.optimizer), train an adapter (policy.model.lora_rank), leave out the "
        "reference (learner.kl_coef = 0), or choose a smaller model (policy.model.path). `coevo "
        "train … --dry-run` prints the whole estimate; pass --ignore-memory (ignore_memory=True "
        "in Python) to start anyway."
    )
    require_memory(settings("coevolve_appworld_qwen3_4b", "policy.model.lora_rank=64"))
    gpu("NVIDIA H200", 139.8)
    require_memory(settings("coevolve_appworld_qwen3_4b"))


def test_a_refusal_lists_the_memory_of_the_phase_that_needs_most(
    gpu: Callable[[str, float], None],
) -> None:
    gpu("NVIDIA L4", 22)
    sets = ["policy.vllm.sleep=true", "policy.vllm.gpu_memory_utilization=0.9"]
    sets += ["learner.optimizer=adamw_offload", "learner.kl_coef=0"]
    with pytest.raises(ConfigError, match=r"35 GiB \(15 GiB for weights, 20 GiB for vLLM\)"):
        require_memory(settings("coevolve_appworld_qwen3_4b", *sets))
    sets[1] = "policy.vllm.gpu_memory_utilization=0.5"
    with pytest.raises(ConfigError, match=r"15 GiB for weights, 15 GiB for gradients and [^,]*\)"):
        require_memory(settings("coevolve_appworld_qwen3_4b", *sets))


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["policy.kind=vllm", "policy.vllm.sleep=true"], "sleep frees a GPU's memory"),
        (["policy.kind=vllm", "policy.vllm.adapter=alone"], "all weights are trained"),
        ([*SMOL, "learner.optimizer=adamw_offload"], "this model is on a CPU"),
        ([*SMOL, "warmup.optimizer=adamw_offload"], "this model is on a CPU"),
        ([*SMOL, "arms=rest", REST_OFFLOAD], "on a CPU"),
    ],
)
def test_settings_that_save_memory_must_suit_the_device(
    sets: list[str], message: str, cpu: Callable[[float], None]
) -> None:
    cpu(64)
    with pytest.raises(ConfigError, match=message):
        check_memory_settings(settings("alfworld", *sets))


def test_such_settings_are_refused_before_a_run_has_a_folder(
    cpu: Callable[[float], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    cpu(64)
    sets = [*SMOL, "learner.optimizer=adamw_offload"]
    with pytest.raises(ConfigError, match="this model is on a CPU"):
        coevo_gym.train("alfworld", sets=sets)
    assert not list(tmp_path.iterdir())


def test_settings_that_save_memory_are_accepted_on_a_gpu(gpu: Callable[[str, float], None]) -> None:
    gpu("NVIDIA H200", 139.8)
    sets = ["policy.kind=vllm", "policy.model.lora_rank=8", "policy.vllm.sleep=true"]
    sets += ["policy.vllm.adapter=alone", "learner.optimizer=adamw_offload"]
    check_memory_settings(settings("alfworld", *sets))


def test_a_missing_package_of_an_optimizer_is_reported_before_the_run(
    cpu: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu(64)
    monkeypatch.setattr(memory, "find_spec", lambda name: None if name == "torchao" else name)
    with pytest.raises(ImportError, match=r"needs torchao\. Run `pip install"):
        check_memory_settings(settings("alfworld", *SMOL, "learner.optimizer=adamw_8bit"))


@pytest.mark.parametrize(
    ("arguments", "begins"),
    [((), False), (("--ignore-memory",), True)],
    ids=["refused", "ignored"],
)
def test_train_refuses_a_run_that_cannot_fit_unless_memory_is_ignored(
    arguments: tuple[str, ...],
    begins: bool,
    cpu: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    begun = []

    def begin(*_: Any, **__: Any) -> None:
        begun.append(True)
        raise ConfigError("It has begun.")

    monkeypatch.setattr(run_train, "train", begin)
    cpu(24)
    done = command("alfworld", *(f"--set={one}" for one in QWEN), *arguments)
    assert isinstance(done.exception, ConfigError)
    assert bool(begun) is begins
    assert ("at least 90 GiB" in str(done.exception)) is not begins
    with pytest.raises(ConfigError, match="It has begun" if begins else "at least 90 GiB"):
        coevo_gym.train("alfworld", sets=QWEN, ignore_memory=bool(arguments))
    assert not list(tmp_path.iterdir())


def test_a_run_resumed_on_another_machine_must_fit_there(
    cpu: Callable[[float], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    begun = []
    monkeypatch.setattr(run_train, "resume", lambda *_, **options: begun.append(True))
    resolved = load_config("alfworld", sets=[*QWEN, "name=mine"], environ={})
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    write_json(tmp_path / "runs" / "mine" / "manifest.json", make_manifest(resolved, task_sets={}))
    cpu(24)
    done = CliRunner().invoke(app, ["resume", "mine"])
    assert isinstance(done.exception, ConfigError)
    assert "at least 90 GiB" in str(done.exception)
    assert not begun
    CliRunner().invoke(app, ["resume", "mine", "--ignore-memory"])
    assert begun


def test_a_table_with_a_cell_that_cannot_fit_starts_no_run(
    cpu: Callable[[float], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    cpu(24)
    sets = [f"--set={one}" for one in QWEN]
    done = CliRunner().invoke(app, ["experiment", "controls", "--seeds", "1", *sets])
    assert isinstance(done.exception, ConfigError)
    assert "at least 90 GiB" in str(done.exception)
    assert not list(tmp_path.iterdir())


def test_a_run_that_may_not_fit_gives_a_warning(cpu: Callable[[float], None]) -> None:
    cpu(24)
    large = settings("alfworld", *SMOL, "learner.microbatch_tokens=20480")
    require_memory(large)
    (warning,) = memory_warnings(large)
    assert warning.startswith("An update takes up to 48 GiB")
    assert "lower learner.microbatch_tokens" in warning
    small = ("policy.model.max_context=2048", "learner.microbatch_tokens=2048")
    assert not list(memory_warnings(settings("alfworld", *SMOL, *small)))
    assert not list(memory_warnings(settings("alfworld")))


def test_a_prefix_cache_that_cannot_fit_is_refused(cpu: Callable[[float], None]) -> None:
    cpu(24)
    require_memory(settings("alfworld", *SMOL, "policy.model.prefix_cache_gib=2"))
    too_large = settings("alfworld", *SMOL, "policy.model.prefix_cache_gib=64")
    with pytest.raises(
        ConfigError, match=r"prefix_cache_gib is 64, but the CPU of this machine has 24 GiB"
    ):
        require_memory(too_large)


def test_as_many_episodes_run_as_conversations_fit(
    gpu: Callable[[str, float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu("NVIDIA H200", 139.8)
    config = settings("coevolve_bfcl_qwen3_4b")
    device = device_to_plan_for(config.policy)
    fitting = simultaneous_episodes(config, device)
    assert fitting is not None
    model = plan_run(config, device).model
    assert model is not None
    half = model.context / 2
    assert half * fitting <= model.cache < half * (fitting + 1)
    assert Assembly(config).max_envs == fitting < 128
    assert (
        f"at most {fitting}, with"
        in dict(plan_rows(config, plan_run(config, device)))["simultaneous episodes"]
    )
    chosen = settings("coevolve_bfcl_qwen3_4b", "rollout.max_envs=500")
    assert Assembly(chosen).max_envs == 500
    text = dict(plan_rows(chosen, plan_run(chosen, device)))["simultaneous episodes"]
    assert text.startswith(f"500 (rollout.max_envs); the key-value caches have room for {fitting} ")
    assert simultaneous_episodes(settings("alfworld"), device) is None


def test_a_model_of_unknown_size_is_not_refused(
    cpu: Callable[[float], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu(0.01)
    require_memory(settings("alfworld", *SMOL[:1], "policy.model.path=someone/unheard-of"))
    (tmp_path / "config.json").write_text('{"n_embd": 768}')  # a model of another family
    require_memory(settings("alfworld", *SMOL[:1], f"policy.model.path={tmp_path}"))
    require_memory(
        settings("alfworld", *SMOL, "policy.model.device=cuda")
    )  # fails for its own cause
    require_memory(settings("alfworld", "policy.kind=openai"))
    with pytest.raises(ConfigError, match="does not fit on the CPU of this machine"):
        require_memory(settings("alfworld", *SMOL))


def test_planning_a_tiny_policy_does_not_import_torch() -> None:
    code = (
        "import sys\n"
        "from coevo_gym.runs.config import load_config\n"
        "from coevo_gym.runs.planning.device import device_to_plan_for\n"
        "from coevo_gym.runs.planning.memory import require_memory\n"
        "config = load_config('quickstart').config\n"
        "require_memory(config)\n"
        "device_to_plan_for(config.policy)\n"
        "print('torch' in sys.modules)\n"
        "device_to_plan_for(load_config('alfworld', sets=['policy.kind=vllm']).config.policy)\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout.split() == ["False", "True"]
    assert device_here(settings("alfworld", *SMOL, "policy.model.device=cpu").policy) is not None

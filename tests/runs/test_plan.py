from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coevo_gym.cli import app
from coevo_gym.runs.config import RunConfig, arm_configs, load_config, preset_names
from coevo_gym.runs.planning.device import CARDS, H200, Device
from coevo_gym.runs.planning.model import ModelPlan
from coevo_gym.runs.planning.plan import RunPlan, plan_rows, plan_run

COEVOLVE = [name for name in preset_names() if name.startswith("coevolve_")]
PAPER = [name for name in COEVOLVE if not name.endswith("_h100")]
DIFFER = "settings that differ from the paper's"
AVERAGE = "learner.average=0.9"
FINAL = {
    "appworld": ("test_normal", "test_challenge"),
    "bfcl": ("base",),
    "alfworld": ("test",),
    "webshop": ("test",),
}
MAX_STEPS = {"appworld": 30, "bfcl": 30, "alfworld": 15, "webshop": 15}


def settings(preset: str, *sets: str) -> RunConfig:
    return load_config(preset, sets=sets, environ={}).config


def test_there_is_a_preset_for_each_benchmark_and_model_of_the_paper() -> None:
    small = {f"coevolve_{benchmark}_qwen3_4b" for benchmark in MAX_STEPS}
    large = {f"coevolve_{b}_{m}" for b in ("appworld", "bfcl") for m in ("qwen2_5_7b", "qwen3_30b")}
    assert set(PAPER) == small | large


@pytest.mark.parametrize("preset", PAPER)
def test_presets_have_the_numbers_of_the_paper(preset: str) -> None:
    config = settings(preset)
    planned = plan_run(config)
    assert planned.initial_tasks == 100
    assert (planned.steps, planned.groups_per_step, planned.group_size) == (120, 32, 8)
    assert planned.rollouts_per_step == 256
    assert planned.rollouts == 30_720
    assert planned.max_env_steps == 30_720 * MAX_STEPS[config.benchmark.name]
    assert planned.max_sampled_tokens == planned.max_learned_tokens == 30_720 * 25_580
    assert planned.rounds == 11  # the twelfth, after the last step, would train nothing
    learner, curriculum = config.learner, config.curriculum
    assert (learner.clip_low, learner.clip_high, learner.kl_coef) == (0.2, 0.28, 1e-3)
    assert learner.loss_mean == "token"
    assert learner.normalise_std
    assert learner.lr == (1e-5 if config.policy.model.lora_rank else 1e-6)
    assert bool(config.policy.model.lora_rank) is not preset.endswith("4b")
    detector = curriculum.detector
    assert (detector.theta, detector.window, detector.n_min) == (5.0, 5, 64)
    chat, model, explorer = config.policy.chat, config.policy.model, config.explorer
    assert (chat.temperature, chat.max_answer_tokens, chat.max_episode_tokens) == (0.9, 4096, None)
    assert "Instruct" in model.path
    assert not chat.thinking
    assert model.max_context == 25_580
    assert learner.minibatches == 4
    assert (explorer.kind, explorer.model.kind) == ("model", "openai")
    assert config.benchmark.subset == ("base" if config.benchmark.name == "bfcl" else None)
    assert config.evaluation.final == FINAL[config.benchmark.name]
    assert not config.loop.evolve_at_last_step


def test_evolve_at_last_step_adds_a_twelfth_round() -> None:
    assert plan_run(settings(PAPER[0], "loop.evolve_at_last_step=true")).rounds == 12


def test_planned_memory_follows_from_the_model_shape() -> None:
    model = plan_run(settings("coevolve_bfcl_qwen3_4b")).model
    assert model is not None
    n = model.parameters
    assert model.trained == n == pytest.approx(4.02e9, rel=0.01)
    assert model.weights == 6 * n
    assert model.reference == 2 * n  # in bf16, as the policy computes
    assert model.training == 12 * n + 2 * n  # gradients and two moments in fp32
    assert model.context == 25_580 * 2 * 36 * 8 * 128 * 2
    adapters = plan_run(settings("coevolve_bfcl_qwen2_5_7b")).model
    assert adapters is not None
    assert adapters.trained < adapters.parameters / 40
    assert adapters.training == 12 * adapters.trained


@pytest.mark.parametrize(
    ("preset", "learner", "sampler"),
    [
        ("coevolve_bfcl_qwen3_4b", 4, 2),
        ("coevolve_bfcl_qwen2_5_7b", 2, 2),
        ("coevolve_bfcl_qwen3_30b", 2, 2),
    ],
)
def test_the_plan_counts_separate_weights_for_the_sampler(
    preset: str, learner: int, sampler: int
) -> None:
    alone = plan_run(settings(preset, "policy.kind=transformers")).model
    beside = plan_run(settings(preset)).model
    wide = plan_run(settings(preset, "policy.model.dtype=float32")).model
    assert alone is not None
    assert beside is not None
    assert wide is not None
    n, adapter = beside.parameters, 4 * beside.trained * (learner == 2)
    assert beside.weights == (learner + sampler) * n + adapter
    # Transformers samples from an adapter's own model, else from a copy in half precision.
    assert alone.weights == (learner * n + adapter if adapter else 6 * n)
    assert wide.weights == 8 * n + adapter


def test_the_cache_gets_the_share_of_vllm_minus_its_weights() -> None:
    model = plan_run(settings("coevolve_bfcl_qwen2_5_7b")).model
    assert model is not None
    assert model.share == int(0.45 * H200.memory)
    assert model.cache == model.share - 2 * model.parameters
    asked = plan_run(settings("coevolve_bfcl_qwen2_5_7b", "policy.vllm.kv_cache_gib=7")).model
    assert asked is not None
    assert asked.cache == 7 * 2**30


def test_gradient_checkpointing_stores_only_the_inputs_of_layers() -> None:
    short = "policy.model.max_context=16384"
    few = plan_run(settings("coevolve_bfcl_qwen3_4b", short)).model
    all_of_it = plan_run(
        settings("coevolve_bfcl_qwen3_4b", short, "policy.model.gradient_checkpointing=false")
    ).model
    assert few is not None
    assert all_of_it is not None
    inputs, casts = 36 * 16_384 * 2560 * 4, 2 * few.trained
    assert few.activations == inputs + casts
    assert all_of_it.activations > 5 * few.activations


@pytest.mark.parametrize("preset", PAPER)
def test_every_preset_differs_from_the_paper_only_in_what_lora_needs(preset: str) -> None:
    config = settings(preset)
    table = dict(plan_rows(config, plan_run(config)))
    assert (DIFFER in table) is bool(config.policy.model.lora_rank)
    if DIFFER in table:
        assert "learner.lr: 1e-05, the paper's 1e-06" in table[DIFFER]
    as_published = ["policy.model.lora_rank=0", "learner.lr=1e-6"]
    model = Path(config.policy.model.path).name
    for more in ([], [f"policy.model.path=/models/{model}"]):
        config = settings(preset, *as_published, *more)
        assert DIFFER not in dict(plan_rows(config, plan_run(config)))
    for other in ("policy.model.path=smollm2", "policy.kind=tiny"):
        config = settings(preset, other)
        assert DIFFER not in dict(plan_rows(config, plan_run(config)))


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("explorer.kind", "scripted", "scripted, the paper's model"),
        ("explorer.model.endpoint.model", "other", "other, the paper's qwen3-max"),
        ("evaluation.final", "[]", "none, the paper's test_normal, test_challenge"),
        ("policy.chat.max_episode_tokens", "4096", "4096, the paper's none"),
        ("curriculum.initial_size", "50", "50, the paper's 100"),
        ("loop.max_steps", "60", "60, the paper's 120"),
        ("benchmark.max_steps", "15", "15, the paper's 30"),
    ],
)
def test_the_plan_shows_a_setting_that_differs_from_the_paper(
    key: str, value: str, text: str
) -> None:
    config = settings("coevolve_appworld_qwen3_4b", f"{key}={value}")
    table = dict(plan_rows(config, plan_run(config)))
    assert table[DIFFER] == f"{key}: {text}"


def test_the_plan_shows_a_setting_of_an_arm_that_differs_from_the_paper() -> None:
    arm = ["arm.coevolve.method=coevolve", "arm.coevolve.set.curriculum.initial_size=50"]
    config = settings("coevolve_appworld_qwen3_4b", *arm)
    table = dict(plan_rows(config, plan_run(config)))
    assert table[DIFFER] == "curriculum.initial_size: 50, the paper's 100"


@pytest.mark.parametrize("preset", COEVOLVE)
def test_every_preset_of_coevolve_explores_with_a_model(preset: str) -> None:
    explorer = settings(preset).explorer
    assert explorer.kind == "model"
    assert explorer.model.kind == ("policy" if preset.endswith("_h100") else "openai")
    assert settings(preset, "explorer.kind=scripted").explorer.kind == "scripted"


def test_the_plan_of_arms_without_rounds_shows_no_rounds() -> None:
    config = settings("seal")
    planned = plan_run(config)
    table = dict(plan_rows(config, planned))
    assert (planned.initial_tasks, planned.rounds) == (0, 0)
    assert table["initial tasks"] == "all native training tasks"
    assert table["evolution rounds"] == "none"
    mixed = settings("seal", "arms=grpo,coevolve")
    planned = plan_run(mixed)
    assert (planned.initial_tasks, planned.rounds) == (100, 7)


@pytest.mark.parametrize("preset", COEVOLVE)
def test_every_preset_fits_its_gpu(preset: str) -> None:
    card = CARDS["h100" if preset.endswith("_h100") else "h200"]
    model = plan_run(settings(preset), card).model
    assert model is not None
    assert model.shortfall == ""
    assert model.cache >= (1 if "30b" in preset else 3) * model.context


def test_disk_and_host_memory_follow_from_the_saved_checkpoints() -> None:
    config = settings("coevolve_bfcl_qwen3_4b", "store.keep_checkpoints=3")
    model = plan_run(config).model
    assert model is not None
    n = model.trained
    assert (model.start, model.checkpoint) == (4 * n, 12 * n)  # weights; with the moments
    assert model.disk == 4 * n + (2 * 3 + 1) * 12 * n
    assert model.host == 16 * n
    table = dict(plan_rows(config, plan_run(config)))
    assert table["disk for checkpoints"].startswith("at most 330 GiB: 15 GiB for the shared start")
    assert table["host memory for checkpoints"].startswith("60 GiB")
    adapters = settings("coevolve_bfcl_qwen3_30b")
    assert dict(plan_rows(adapters, plan_run(adapters)))["host memory for checkpoints"].startswith(
        "204 MiB"
    )


def test_averaged_weights_take_memory_and_disk() -> None:
    preset = "coevolve_bfcl_qwen3_4b"
    model, averaged = plan_run(settings(preset)).model, plan_run(settings(preset, AVERAGE)).model
    assert model is not None
    assert averaged is not None
    assert averaged.checkpoint - model.checkpoint == 4 * model.trained
    assert averaged.training - model.training == 4 * model.trained
    assert averaged.peaks["update"] - model.peaks["update"] == 4 * model.trained
    # While the average is evaluated, the weights being trained are kept beside it.
    assert averaged.peaks["sampling"] - model.peaks["sampling"] == 8 * model.trained


def test_a_later_first_evaluation_reduces_the_planned_evaluations() -> None:
    sets = ["loop.max_steps=20", "loop.evaluate_every_steps=3"]
    assert plan_run(settings("quickstart", *sets)).evaluations == 8  # 0, 3, …, 18, 20
    assert plan_run(settings("quickstart", *sets, "loop.evaluate_from=0.6")).evaluations == 5
    never = "loop.evaluate_every_steps=0"
    assert plan_run(settings("quickstart", *sets, never)).evaluations == 2


def test_real_checkpoints_have_the_estimated_size(finished: Path) -> None:
    # The same shares as in the plan: the start holds the weights, a checkpoint thrice as much.
    checkpoints = finished / "checkpoints"
    (start,) = (checkpoints / "warm-up").glob("*.pt")
    for path in (checkpoints / "static").glob("*.pt"):
        assert path.stat().st_size == pytest.approx(3 * start.stat().st_size, rel=0.15)


def test_clipping_without_effect_gives_a_warning() -> None:
    def warns(*sets: str) -> bool:
        config = settings("coevolve_bfcl_qwen3_4b", *sets)
        return "warning: clipping has no effect" in dict(plan_rows(config, plan_run(config)))

    assert not warns()
    one = "learner.minibatches=1"
    assert warns(one)
    assert not warns(one, "learner.epochs=2")
    assert not warns(one, "learner.old_logprobs=recorded")


def test_memory_and_sampled_tokens_are_planned_without_a_step_limit() -> None:
    sets = ["loop.max_steps=none", "loop.max_env_steps=1000"]
    config = settings("coevolve_bfcl_qwen3_4b", *sets)
    planned, whole = plan_run(config), plan_run(settings("coevolve_bfcl_qwen3_4b"))
    assert planned.model is not None
    assert whole.model is not None
    assert planned.model.peaks == whole.model.peaks
    assert planned.max_learned_tokens is planned.rollouts is None
    assert planned.max_sampled_tokens == 1000 * 4096
    assert dict(plan_rows(config, planned))["hours"].startswith("not known")


def test_planned_tokens_are_bounded_by_steps_and_by_episodes() -> None:
    few = plan_run(settings("coevolve_bfcl_qwen3_4b", "loop.max_env_steps=1000"))
    assert few.max_sampled_tokens == 1000 * 4096
    assert few.max_learned_tokens == 30_720 * 25_580
    full = plan_run(settings("coevolve_bfcl_qwen3_4b"))
    assert full.max_sampled_tokens == 30_720 * 25_580  # all answers stay in the context
    forgotten = plan_run(settings("coevolve_bfcl_qwen3_4b", "policy.chat.history=reasoning"))
    assert forgotten.max_sampled_tokens == 30_720 * 30 * 4096
    capped = plan_run(settings("coevolve_bfcl_qwen3_4b", "policy.chat.max_episode_tokens=4096"))
    assert capped.max_sampled_tokens == 30_720 * 4096
    foretelling = plan_run(settings("role_agent_webshop_qwen2_5_1_5b", "loop.max_env_steps=1000"))
    assert foretelling.max_study_tokens == 1000 * 1 * 704  # one observation ahead
    assert foretelling.max_sampled_tokens == 1000 * 4096 + 1000 * 704
    silent = "arm.role_agent.set.method.predictor=inline"
    inline = plan_run(
        settings("role_agent_webshop_qwen2_5_1_5b", "loop.max_env_steps=1000", silent)
    )
    assert inline.max_study_tokens == 0
    notes = ("policy.chat.history=window", "policy.chat.memory=model")
    noting = plan_run(
        settings("coevolve_bfcl_qwen3_4b", "policy.chat.max_episode_tokens=4096", *notes)
    )
    assert noting.max_sampled_tokens == 30_720 * 4096 + 30_720 * 30 * 4096


SMOL = [
    *("policy.kind=transformers", "policy.model.path=smollm2", "loop.max_steps=10"),
    *("warmup.batch_tokens=16384", "warmup.batch_decisions=64"),
]
CPU = Device("CPU of this machine", 24 * 2**30, is_gpu=False)


def test_memory_of_sampling_and_updates_is_not_added_up() -> None:
    sets = [*SMOL, "policy.model.prefix_cache_gib=3", "policy.model.dtype=float32"]
    model = plan_run(settings("alfworld", *sets), CPU).model
    less = plan_run(settings("alfworld", *sets, "policy.model.prefix_cache_gib=1"), CPU).model
    assert model is not None
    assert less is not None
    n = model.parameters
    start = 4 * n  # kept in main memory, as the checkpoints are while they are written
    # Weights, moments, reference: sampling has dropped the gradients, an update the prefixes and
    # the copy of the weights that sampling takes on a CPU.
    assert model.peaks["sampling"] == (4 + 4 + 8 + 4) * n + start + 3 * 2**30 + model.context
    assert model.peaks["update"] == (4 + 4 + 8 + 4) * n + start + model.activations
    assert model.peaks["checkpoint"] == (4 + 4 + 8 + 4 + 12) * n + start
    assert model.peaks["warm-up"] == (4 + 4 + 8) * n + start + 2 * model.activations
    assert model.least == model.peaks["update"] - model.activations
    assert model.peaks["sampling"] - less.peaks["sampling"] == 2 * 2**30
    assert model.peaks["update"] == less.peaks["update"]
    assert model.cache == less.cache  # what all else leaves


def test_gpus_share_a_sharded_model_and_the_first_has_its_weights_too() -> None:
    sets = [*SMOL, "policy.model.shard=true"]
    alone = plan_run(settings("alfworld", *sets), CARDS["h100"]).model
    copies = plan_run(settings("alfworld", *SMOL), replace(CARDS["h100"], count=4)).model
    four = plan_run(settings("alfworld", *sets), replace(CARDS["h100"], count=4)).model
    assert alone is not None
    assert copies is not None
    assert four is not None
    n = alone.parameters
    assert alone.peaks == copies.peaks, "one process does not shard, and each copy is whole"
    assert alone.peaks["update"] == (4 + 2 + 4 + 8 + 2) * n + alone.activations
    shards = (4 + 4 + 8 + 2) * n / 4
    assert four.peaks["update"] == pytest.approx((4 + 2) * n + shards + four.activations)


def test_warm_up_memory_depends_on_its_own_batches() -> None:
    def peaks(*sets: str) -> dict[str, int]:
        model = plan_run(settings("alfworld", *SMOL, *sets), CPU).model
        assert model is not None
        return dict(model.peaks)

    few = ["warmup.batch_tokens=1024", "policy.model.max_context=1024"]
    assert peaks(*few)["warm-up"] < peaks()["warm-up"] / 5
    assert peaks("warmup.batch_decisions=1", "policy.model.max_context=1024") == peaks(
        "warmup.batch_tokens=1024", "policy.model.max_context=1024"
    )
    assert "warm-up" not in peaks("warmup.n_tasks=0")
    assert "warm-up" in peaks("warmup.n_tasks=0", "warmup.demonstrations=mine.jsonl")


def test_the_share_of_vllm_counts_in_every_phase() -> None:
    model = plan_run(settings("coevolve_bfcl_qwen2_5_7b")).model
    assert model is not None
    assert model.share == int(0.45 * H200.memory)
    learner = model.weights - model.sampler
    assert model.peaks["update"] == learner + model.share + model.training + model.activations
    assert model.peaks["sampling"] == learner + model.share + 8 * model.trained
    assert model.prefixes == 0


def model_plan(preset: str, *sets: str) -> ModelPlan:
    model = plan_run(settings(preset, *sets)).model
    assert model is not None
    return model


def test_a_sleeping_vllm_needs_no_memory_during_updates() -> None:
    awake = model_plan("coevolve_bfcl_qwen2_5_7b", "warmup.n_tasks=9")
    asleep = model_plan("coevolve_bfcl_qwen2_5_7b", "warmup.n_tasks=9", "policy.vllm.sleep=true")
    assert awake.share is not None
    for phase, freed in {"sampling": 0, "update": awake.share, "warm-up": awake.share}.items():
        assert asleep.peaks[phase] == awake.peaks[phase] - freed
    gradients = 4 * awake.trained  # without vLLM's share, sampling may need more than an update
    assert asleep.least == awake.least - min(awake.share, gradients)
    assert (asleep.sleeps, awake.sleeps) == (True, False)


def test_an_adapter_alone_takes_memory_in_the_share_of_vllm() -> None:
    merged = model_plan("coevolve_bfcl_qwen2_5_7b", "policy.model.lora_rank=24")
    sets = ["policy.model.lora_rank=24", "policy.vllm.adapter=alone"]
    alone = model_plan("coevolve_bfcl_qwen2_5_7b", *sets)
    rounded_up = 2 * merged.trained * 32 // 24  # in bf16; vLLM supports rank 32, but not 24
    assert merged.sampler == 2 * merged.parameters
    assert alone.sampler == merged.sampler + 2 * rounded_up  # of two versions
    assert alone.cache == merged.cache - 2 * rounded_up
    assert alone.peaks == merged.peaks
    asleep = model_plan("coevolve_bfcl_qwen2_5_7b", *sets, "policy.vllm.sleep=true")
    assert asleep.offloaded == alone.sampler  # an adapter alone cannot replace dropped weights


@pytest.mark.parametrize(
    ("optimizer", "moments", "offloaded"),
    [("adamw", 8, 0), ("adamw_8bit", 2 + 2 * 4 / 256, 0), ("adamw_offload", 0, 8)],
)
def test_the_plan_counts_the_moments_of_the_optimizer(
    optimizer: str, moments: float, offloaded: int
) -> None:
    sets = ["learner.kl_coef=0", "warmup.n_tasks=9"]
    full = model_plan("coevolve_webshop_qwen3_4b", *sets)
    sets += [f"learner.optimizer={optimizer}"]
    saved = (8 - moments) * full.trained
    model = model_plan("coevolve_webshop_qwen3_4b", *sets)
    assert model.training == pytest.approx((4 + moments) * full.trained)
    assert model.least == pytest.approx(full.least - saved)
    assert model.peaks["update"] == pytest.approx(full.peaks["update"] - saved)
    assert model.peaks["warm-up"] == full.peaks["warm-up"]
    assert model.offloaded == offloaded * full.trained
    assert model.checkpoint == pytest.approx((4 + moments + offloaded) * full.trained)
    assert model.host == model.start + model.checkpoint + model.offloaded
    model = model_plan("coevolve_webshop_qwen3_4b", *sets, f"warmup.optimizer={optimizer}")
    assert model.peaks["warm-up"] == pytest.approx(full.peaks["warm-up"] - saved)


def test_the_plan_shows_what_sleeps_and_what_is_offloaded() -> None:
    sets = ["policy.vllm.sleep=true", "learner.optimizer=adamw_offload"]
    config = settings("coevolve_bfcl_qwen3_4b", *sets)
    rows = dict(plan_rows(config, plan_run(config)))
    assert rows["peak memory by phase"].endswith("; vLLM sleeps during updates")
    assert rows["host memory for checkpoints"].startswith(
        "90 GiB, 30 GiB of it for offloaded moments and weights"
    )


@pytest.mark.parametrize(
    ("dtype", "gpu", "width"),
    [
        ("auto", True, 2),
        ("auto", False, 4),
        ("float32", True, 4),
        ("bfloat16", False, 2),
    ],
)
def test_precision_follows_the_device_unless_it_is_set(dtype: str, gpu: bool, width: int) -> None:
    config = settings("alfworld", *SMOL, f"policy.model.dtype={dtype}")
    model = plan_run(config, H200 if gpu else CPU).model
    assert model is not None
    n = model.parameters
    assert model.reference == width * n
    assert model.sampler == (2 * n if width == 2 and gpu else 0)
    assert model.context == 8192 * 2 * 30 * 3 * 64 * width
    adapter = settings("alfworld", *SMOL, f"policy.model.dtype={dtype}", "policy.model.lora_rank=8")
    model = plan_run(adapter, H200 if gpu else CPU).model
    assert model is not None
    assert (model.reference, model.weights) == (0, width * n + 4 * model.trained)


def test_the_plan_uses_the_arm_with_the_highest_memory() -> None:
    arm = ["arm.light.method=static", "arm.light.set.learner.kl_coef=0.0"]
    whole = plan_run(settings("coevolve_bfcl_qwen3_4b")).model
    both = plan_run(settings("coevolve_bfcl_qwen3_4b", *arm, "arms=light,coevolve")).model
    light = plan_run(settings("coevolve_bfcl_qwen3_4b", *arm, "arms=light")).model
    assert whole is not None
    assert both is not None
    assert light is not None
    assert both.peaks == whole.peaks
    assert light.reference == 0 < both.reference


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (
            ["policy.vllm.gpu_memory_utilization=0.45"],
            r"An update takes up to 149 GiB\. With 6 GiB in reserve that is 16 GiB more than "
            r"the H200 has \(139 GiB\)\..*lower policy\.vllm\.gpu_memory_util.*train an adapter",
        ),
        (
            ["policy.vllm.gpu_memory_utilization=0.05"],
            r"vLLM's share is 6\.9 GiB, but its weights take 7\.5 GiB.* Raise policy\.vllm\.gpu",
        ),
        (
            ["policy.kind=transformers", "policy.model.gradient_checkpointing=false"],
            r"set policy\.model\.gradient_checkpointing",
        ),
        (
            ["policy.kind=transformers", "policy.model.prefix_cache_gib=80"],
            r"Sampling takes up to 1\d\d GiB.*lower policy\.model\.prefix_cache_gib",
        ),
        (
            ["warmup.n_tasks=9", "warmup.batch_tokens=200000"],
            r"The warm-up takes up to 246 GiB.*lower warmup\.batch_tokens",
        ),
    ],
)
def test_a_plan_that_may_not_fit_prints_a_warning_with_advice(
    sets: list[str], message: str
) -> None:
    config = settings("coevolve_bfcl_qwen3_4b", *sets)
    planned = plan_run(config)
    assert planned.model is not None
    assert re.search(message, planned.model.shortfall)
    table = dict(plan_rows(config, planned))
    assert table["warning: may not fit"] == planned.model.shortfall


def test_a_plan_that_cannot_fit_prints_a_warning() -> None:
    config = settings("coevolve_appworld_qwen3_4b")
    planned = plan_run(config, CARDS["h100"])
    assert planned.model is not None
    assert planned.model.least > CARDS["h100"].memory
    assert dict(plan_rows(config, planned))["warning: does not fit"] == planned.model.shortfall
    # An adapter with the same share of vLLM is far from the limit.
    config = settings("coevolve_appworld_qwen3_4b", "policy.model.lora_rank=64")
    planned = plan_run(config, CARDS["h100"])
    assert planned.model is not None
    assert planned.model.shortfall == ""


def test_the_plan_of_a_tiny_policy_has_no_model() -> None:
    planned: RunPlan = plan_run(settings("quickstart"))
    assert (planned.model, planned.steps, planned.rollouts) == (None, None, None)
    assert planned.max_env_steps == 80_000


def test_the_plan_of_an_unknown_model_has_no_estimate() -> None:
    config = settings("coevolve_bfcl_qwen3_4b", "policy.model.path=someone/unheard-of")
    table = dict(plan_rows(config, plan_run(config)))
    assert table["model"].startswith("no estimate: someone/unheard-of is not on this machine")


def test_a_dry_run_prints_the_plan_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    preset = "coevolve_bfcl_qwen3_4b"
    result = CliRunner().invoke(app, ["train", preset, "--dry-run", "--card", "h200"])
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    assert "30,720" in text
    several = ["train", preset, "--dry-run", "--card", "h200", "--processes", "4"]
    assert "Set policy.kind = 'vllm_server'." in str(CliRunner().invoke(app, several).exception)
    several.append("--set=policy.kind=vllm_server")
    output = " ".join(CliRunner().invoke(app, several).output.split())
    assert "4 × H200, 139 GiB of memory each" in output
    assert "those of the vLLM servers are not in this plan" in output
    assert "limited by the benchmark's engine" in output
    assert "vLLM sleeps" not in output
    asked = ["train", preset, "--dry-run", "--json", "--card"]
    data = json.loads(CliRunner().invoke(app, [*asked, "H200"]).output)
    assert data["steps"] == 120
    assert data["model"]["shortfall"] == ""
    assert data["model"]["device"]["name"] == "H200"
    data = json.loads(CliRunner().invoke(app, [*asked, "h100"]).output)
    assert data["model"]["shortfall"].endswith("(policy.model.path).")
    assert data["model"]["least"] > data["model"]["device"]["memory"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("preset", ["seal", "seal_reported"])
def test_presets_of_seal_have_the_numbers_of_its_paper(preset: str) -> None:
    config = settings(preset)
    method = arm_configs(config)[preset].settings.model_dump()
    assert method["profile"]["evolve_every_steps"] == (1 if preset == "seal" else 13)
    assert config.policy.chat.max_episode_tokens is None
    assert config.evaluation.final == ("base", "miss_func", "miss_param", "long_context")
    planned = plan_run(config)
    assert (planned.steps, planned.groups_per_step, planned.group_size) == (75, 32, 8)
    learner, chat = config.learner, config.policy.chat
    assert (learner.lr, learner.minibatches, learner.kl_coef) == (1e-6, 4, 1e-3)
    assert (learner.clip_low, learner.clip_high) == (0.2, 0.2)
    assert (chat.temperature, chat.max_answer_tokens) == (1.0, 4096)
    assert (config.benchmark.name, config.benchmark.max_steps) == ("bfcl", 20)
    grpo, seal = arm_configs(config).values()
    assert grpo.method == seal.method == "seal"
    own, other = (arm.settings.model_dump() for arm in (grpo, seal))
    assert own["native"] is other["native"] is True
    parts = ("schema_notes", "error_hints", "cues", "utility")
    assert [own[part] for part in parts] == [False, False, False, "none"]
    reported = preset == "seal_reported"
    wanted = [True, False, False, "ema"] if reported else [True, True, True, "fixed"]
    assert [other[part] for part in parts] == wanted

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coevo_gym.cli import app
from coevo_gym.config import RunConfig, arm_configs, load_config, preset_names
from coevo_gym.run.plan import H200, Plan, plan, rows

PAPER = [name for name in preset_names() if name.startswith("coevolve_")]
PUBLISHED = {
    ("appworld", "qwen2_5_7b"): ("26.78", "27.98"),
    ("appworld", "qwen3_4b"): ("28.57", "35.71"),
    ("appworld", "qwen3_30b"): ("48.81", "54.76"),
    ("bfcl", "qwen2_5_7b"): ("56.0", "61.5"),
    ("bfcl", "qwen3_4b"): ("58.0", "63.0"),
    ("bfcl", "qwen3_30b"): ("64.0", "67.0"),
    ("alfworld", "qwen3_4b"): ("77.85", "82.86"),
    ("webshop", "qwen3_4b"): ("75.0", "80.6"),
}
AVERAGE = "learner.average=0.9"
MAX_STEPS = {"appworld": 30, "bfcl": 30, "alfworld": 15, "webshop": 15}


def settings(preset: str, *sets: str) -> RunConfig:
    return load_config(preset, sets=sets, environ={}).config


def test_there_is_a_preset_for_each_row() -> None:
    small = {f"coevolve_{benchmark}_qwen3_4b" for benchmark in MAX_STEPS}
    large = {f"coevolve_{b}_{m}" for b in ("appworld", "bfcl") for m in ("qwen2_5_7b", "qwen3_30b")}
    assert set(PAPER) == small | large


@pytest.mark.parametrize("preset", PAPER)
def test_presets_have_the_numbers_of_the_paper(preset: str) -> None:
    config = settings(preset)
    planned = plan(config)
    assert planned.initial_tasks == 100
    assert (planned.steps, planned.groups_per_step, planned.group_size) == (120, 32, 8)
    assert planned.rollouts_per_step == 256
    assert planned.rollouts == 30_720
    assert planned.max_env_steps == 30_720 * MAX_STEPS[config.benchmark.name]
    assert planned.max_sampled_tokens == 30_720 * 4096
    assert planned.rounds == 11  # the twelfth, after the last step, would train nothing
    learner, curriculum = config.learner, config.curriculum
    assert (learner.clip_low, learner.clip_high, learner.kl_coef) == (0.2, 0.28, 1e-3)
    assert learner.loss_mean == "token"
    assert learner.normalise_std
    assert learner.lr == (1e-5 if config.policy.model.lora_rank else 1e-6)
    assert bool(config.policy.model.lora_rank) is not preset.endswith("4b")
    assert (curriculum.theta, curriculum.window, curriculum.n_min) == (5.0, 5, 64)
    assert config.policy.chat.temperature == 0.9
    assert not config.loop.evolve_at_last_step


def test_the_twelfth_round_can_be_asked_for() -> None:
    assert plan(settings(PAPER[0], "loop.evolve_at_last_step=true")).rounds == 12


def test_memory_and_hours_follow_from_the_shape() -> None:
    model = plan(settings("coevolve_bfcl_qwen3_4b")).model
    assert model is not None
    n = model.parameters
    assert model.trained == n == pytest.approx(4.02e9, rel=0.01)
    assert model.weights == 6 * n
    assert model.training == 16 * n  # gradients, two moments, the reference, all in fp32
    assert model.context == 16_384 * 2 * 36 * 8 * 128 * 2
    tokens = 30_720 * 16_384
    assert model.learning_s == pytest.approx(8 * n * tokens / (0.4 * H200.flops))
    adapters = plan(settings("coevolve_bfcl_qwen2_5_7b")).model
    assert adapters is not None
    assert adapters.trained < adapters.parameters / 40
    assert adapters.training == 12 * adapters.trained
    mixture = plan(settings("coevolve_bfcl_qwen3_30b")).model
    assert mixture is not None
    assert mixture.learning_s < adapters.learning_s  # fewer weights are active in a token


@pytest.mark.parametrize(
    ("preset", "learner", "sampler"),
    [
        ("coevolve_bfcl_qwen3_4b", 4, 2),
        ("coevolve_bfcl_qwen2_5_7b", 2, 2),
        ("coevolve_bfcl_qwen3_30b", 2, 2),
    ],
)
def test_the_sampler_has_weights_of_its_own(preset: str, learner: int, sampler: int) -> None:
    alone = plan(settings(preset, "policy.kind=transformers")).model
    beside = plan(settings(preset)).model
    wide = plan(settings(preset, "policy.model.dtype=float32")).model
    assert alone is not None
    assert beside is not None
    assert wide is not None
    n, adapter = beside.parameters, 4 * beside.trained * (learner == 2)
    assert beside.weights == (learner + sampler) * n + adapter
    # Transformers samples from an adapter's own model, else from a copy in half precision.
    assert alone.weights == (learner * n + adapter if adapter else 6 * n)
    assert wide.weights == 8 * n + adapter


def test_caches_get_what_the_share_of_vllm_leaves() -> None:
    model = plan(settings("coevolve_bfcl_qwen2_5_7b")).model
    assert model is not None
    assert model.cache == int(0.45 * H200.memory) - 2 * model.parameters
    asked = plan(settings("coevolve_bfcl_qwen2_5_7b", "policy.vllm.kv_cache_gib=7")).model
    assert asked is not None
    assert asked.cache == 7 * 2**30


def test_checkpointing_keeps_the_inputs_of_layers() -> None:
    few = plan(settings("coevolve_bfcl_qwen3_4b")).model
    all_of_it = plan(
        settings("coevolve_bfcl_qwen3_4b", "policy.model.gradient_checkpointing=false")
    ).model
    assert few is not None
    assert all_of_it is not None
    inputs, casts = 36 * 16_384 * 2560 * 4, 2 * few.trained
    assert few.activations == inputs + casts
    assert all_of_it.activations > 5 * few.activations


@pytest.mark.parametrize("preset", PAPER)
def test_every_preset_tells_what_is_published_of_its_model(preset: str) -> None:
    config = settings(preset)
    model = preset.removeprefix(f"coevolve_{config.benchmark.name}_")
    static, coevolve = PUBLISHED[config.benchmark.name, model]
    said = dict(rows(config, plan(config)))["published"]
    assert said.startswith(f"static {static} %, coevolve {coevolve} % (arXiv 2604.15840)")
    assert ("scheme=all200" in said) is (config.benchmark.name == "bfcl")
    local = settings(preset, f"policy.model.path=/models/{Path(config.policy.model.path).name}")
    assert dict(rows(local, plan(local)))["published"] == said
    for other in ("policy.model.path=smollm2", "policy.kind=tiny"):
        config = settings(preset, other)
        assert "published" not in dict(rows(config, plan(config)))


def test_of_what_no_arm_does_nothing_is_said() -> None:
    config = settings("seal")
    planned = plan(config)
    told = dict(rows(config, planned))
    assert (planned.initial_tasks, planned.rounds) == (0, 0)
    assert told["initial tasks"] == "all native training tasks"
    assert told["rounds of evolution"] == "none"
    assert "published" not in told
    mixed = settings("seal", "arms=grpo,coevolve")
    planned = plan(mixed)
    assert (planned.initial_tasks, planned.rounds) == (100, 7)
    assert dict(rows(mixed, planned))["published"].startswith("coevolve 63.0 % (arXiv")


@pytest.mark.parametrize("preset", PAPER)
def test_every_preset_fits_the_card(preset: str) -> None:
    model = plan(settings(preset)).model
    assert model is not None
    assert model.shortfall == ""
    assert model.cache >= 3 * model.context


def test_disk_and_host_memory_follow_from_what_is_saved() -> None:
    config = settings("coevolve_bfcl_qwen3_4b", "store.keep_checkpoints=3")
    model = plan(config).model
    assert model is not None
    n = model.trained
    assert (model.start, model.checkpoint) == (4 * n, 12 * n)  # weights; with the moments
    assert model.disk == 4 * n + (2 * 3 + 1) * 12 * n
    assert model.host == 16 * n
    told = dict(rows(config, plan(config)))
    assert told["disk for checkpoints"].startswith("at most 330 GiB: 15 GiB for what all arms")
    assert told["host memory for checkpoints"].startswith("60 GiB")
    adapters = settings("coevolve_bfcl_qwen3_30b")
    assert dict(rows(adapters, plan(adapters)))["host memory for checkpoints"].startswith("204 MiB")


def test_averaged_weights_take_memory_and_disk() -> None:
    preset = "coevolve_bfcl_qwen3_4b"
    model, averaged = plan(settings(preset)).model, plan(settings(preset, AVERAGE)).model
    assert model is not None
    assert averaged is not None
    assert averaged.checkpoint - model.checkpoint == 4 * model.trained
    assert averaged.training - model.training == 8 * model.trained


def test_evaluations_that_begin_late_are_fewer() -> None:
    sets = ["loop.max_steps=20", "loop.evaluate_every_steps=3"]
    assert plan(settings("quickstart", *sets)).evaluations == 8  # 0, 3, …, 18, 20
    assert plan(settings("quickstart", *sets, "loop.evaluate_from=0.6")).evaluations == 5
    never = "loop.evaluate_every_steps=0"
    assert plan(settings("quickstart", *sets, never)).evaluations == 2


def test_the_estimate_is_what_a_checkpoint_takes(finished: Path) -> None:
    # The same shares as in the plan: the start holds the weights, a checkpoint thrice as much.
    checkpoints = finished / "checkpoints"
    (start,) = (checkpoints / "warm-up").glob("*.pt")
    for path in (checkpoints / "static").glob("*.pt"):
        assert path.stat().st_size == pytest.approx(3 * start.stat().st_size, rel=0.15)


def test_clips_that_never_act_are_told() -> None:
    def told(*sets: str) -> bool:
        config = settings("coevolve_bfcl_qwen3_4b", *sets)
        return "warning: nothing is ever clipped" in dict(rows(config, plan(config)))

    assert told()
    assert not told("learner.minibatches=2")
    assert not told("learner.epochs=2")
    assert not told("learner.old_logprobs=recorded")


def test_a_known_model_without_steps_is_not_said_to_be_unknown() -> None:
    config = settings("coevolve_bfcl_qwen3_4b", "loop.max_steps=none", "loop.max_env_steps=1000")
    assert dict(rows(config, plan(config)))["model"].startswith("set loop.max_steps")


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (
            ["policy.vllm.gpu_memory_utilization=0.45"],
            r"88 GiB for the learner, 63 GiB for the sampler and 6 GiB to spare are 18 GiB too "
            r"much\. Lower policy\.vllm\.gpu_memory_utilization, .* or train an adapter",
        ),
        (
            ["policy.vllm.gpu_memory_utilization=0.05"],
            r"vLLM's share is 7 GiB, its weights are 7 GiB .* Raise policy\.vllm\.gpu_memory",
        ),
        (
            ["policy.kind=transformers", "policy.model.gradient_checkpointing=false"],
            r"set policy\.model\.gradient_checkpointing",
        ),
    ],
)
def test_what_does_not_fit_is_told(sets: list[str], said: str) -> None:
    config = settings("coevolve_bfcl_qwen3_4b", *sets)
    planned = plan(config)
    assert planned.model is not None
    assert re.search(said, planned.model.shortfall)
    told = dict(rows(config, planned))
    assert told["warning: does not fit one H200"] == planned.model.shortfall


def test_a_tiny_policy_has_no_model() -> None:
    planned: Plan = plan(settings("quickstart"))
    assert (planned.model, planned.steps, planned.rollouts) == (None, None, None)
    assert planned.max_env_steps == 80_000


def test_an_unknown_model_is_said_to_be_unknown() -> None:
    config = settings("coevolve_bfcl_qwen3_4b", "policy.model.path=someone/unheard-of")
    assert ("model", "someone/unheard-of is not here, and its shape is not known") in list(
        rows(config, plan(config))
    )


def test_the_command_prints_the_plan_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    preset = "coevolve_bfcl_qwen3_4b"
    told = CliRunner().invoke(app, ["train", preset, "--dry-run"])
    assert told.exit_code == 0
    text = " ".join(told.output.split())
    assert "30,720" in text
    assert "--split test --env scheme=all200" in text
    data = CliRunner().invoke(app, ["train", preset, "--dry-run", "--json"])
    assert json.loads(data.output)["steps"] == 120
    assert json.loads(data.output)["model"]["shortfall"] == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("preset", ["seal", "seal_reported"])
def test_presets_of_seal_have_the_numbers_of_its_paper(preset: str) -> None:
    config = settings(preset)
    planned = plan(config)
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

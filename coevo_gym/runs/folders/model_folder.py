"""Functions that export a run's trained language model for use with Transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from coevo_gym.core.benchmark import benchmark_specs
from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.core.stats import wilson_interval
from coevo_gym.provision import replace_folder
from coevo_gym.runs.config.derived import LANGUAGE_MODELS
from coevo_gym.runs.config.run_sections import EvaluationSettings
from coevo_gym.runs.folders.listing import preset_of
from coevo_gym.runs.manifest import read_manifest
from coevo_gym.runs.table import WARMUP, n_tasks
from coevo_gym.store.checkpoint import Checkpoint, Checkpoints
from coevo_gym.store.eval_folder import EvalFolder
from coevo_gym.store.folder import (
    RunFolder,
    raise_store_errors,
    read_json,
    read_lines,
    write_atomic,
    write_json,
)

if TYPE_CHECKING:
    from coevo_gym.trainers.grpo import LearnablePolicy


@dataclass(frozen=True)
class Measured:
    """The result of evaluating a policy.

    Attributes:
        policy: the evaluated policy.
        split: split of the tasks: ``val``, ``test``, ``held_out`` or ``train``.
        tasks: number of tasks.
        samples: episodes per task.
        success: success rate.
        low: lower end of the success rate's 95% interval.
        high: upper end of the interval.
        score: mean of the benchmark's own score.
        source: where the result comes from, such as ``the run``.
    """

    policy: str
    split: str
    tasks: int
    samples: int
    success: float
    low: float
    high: float
    score: float
    source: str


@dataclass(frozen=True)
class ModelCard:
    """The contents of a model card.

    Attributes:
        run: name of the run.
        policy: the arm, or ``warm-up``.
        method: the arm's method; "" for the warm-up.
        step: number of learner steps.
        env_steps: number of env steps used for training.
        base: the base model.
        lora_rank: rank of the trained adapter; 0 if all weights were trained.
        benchmark: name of the benchmark.
        subset: subset of the benchmark; "" for all.
        preset: the preset or file of the run's settings; "" for none.
        seed: seed of the run.
        prompt: name, version and hash of the prompt file.
        weights: hash of the weights.
        measured: evaluations of these weights and of the initial weights.
        terms: terms of the benchmark's data; "" if not stated.
        versions: versions of the packages used for training.
        git_commit: commit of the code; "" for a release.
        mark: caveat about the arm's tasks; "" for none.
    """

    run: str
    policy: str
    method: str
    step: int
    env_steps: int
    base: str
    lora_rank: int
    benchmark: str
    subset: str
    preset: str
    seed: int
    prompt: Mapping[str, Any]
    weights: str
    measured: tuple[Measured, ...]
    terms: str
    versions: Mapping[str, str]
    git_commit: str
    mark: str

    def to_json(self) -> dict[str, Any]:
        """Return the model card as JSON."""
        return asdict(self)


def make_model_card(
    folder: RunFolder, policy: str, saved: Checkpoint, *, weights: str
) -> ModelCard:
    """Create the model card for a policy from its run.

    Args:
        folder: the run.
        policy: an arm, or ``warm-up``.
        saved: the policy's checkpoint.
        weights: hash of the weights in the checkpoint.
    """
    manifest, config = read_manifest(folder)
    spec = next((s for s in benchmark_specs() if s.name == config.benchmark.name), None)
    method, env_steps = "", int(saved.state.get("env_steps", 0))
    if policy != WARMUP:
        arm = config.arm.get(policy)
        method = (arm.method if arm else "") or policy
        env_steps = int(json.loads(saved.state["loop"])["state"]["env_steps"])
    return ModelCard(
        run=config.name,
        policy=policy,
        method=method,
        step=saved.step,
        env_steps=env_steps,
        base=config.policy.model.path,
        lora_rank=config.policy.model.lora_rank,
        benchmark=config.benchmark.name,
        subset=config.benchmark.subset or "",
        preset=preset_of(manifest.get("origins", {})),
        seed=config.seed,
        prompt=manifest.get("prompt", {}),
        weights=weights,
        measured=(
            *_results_in_run(folder, policy, saved.step, config.evaluation),
            *_results_in_evals(weights, config.benchmark.name),
        ),
        terms=spec.terms if spec else "",
        versions=manifest["versions"],
        git_commit=manifest.get("git_commit", ""),
        mark=manifest.get("marks", {}).get(policy, ""),
    )


def _results_in_run(
    folder: RunFolder, policy: str, step: int, evaluation: EvaluationSettings
) -> Iterator[Measured]:
    """Yield the run's evaluations of the initial policy and of the policy at a given step."""
    measured: dict[int, Mapping[str, Any]] = {}
    for line in read_lines(folder.metrics):
        if line.get("event") == "eval" and (policy == WARMUP or line.get("arm") == policy):
            measured[int(line["step"])] = line
    for at, name in {0: WARMUP, step: policy}.items():
        if at in measured:
            numbers = measured[at]
            tasks, success = n_tasks(numbers, "eval."), float(numbers["eval.success_rate"])
            low, high = wilson_interval(success * tasks, tasks)
            yield Measured(
                policy=name,
                split=evaluation.split,
                tasks=tasks,
                samples=evaluation.samples,
                success=success,
                low=low,
                high=high,
                score=float(numbers["eval.mean_score"]),
                source="the run",
            )


def _results_in_evals(weights: str, benchmark: str) -> Iterator[Measured]:
    """Yield the results that ``coevo eval`` stored for the given weights and benchmark."""
    for name in EvalFolder.names():
        folder = EvalFolder.of(name)
        try:
            config = folder.read_config()
            if config.get("weights") != weights or config.get("benchmark") != benchmark:
                continue
            summary = read_json(folder.summary)
        except StoreError:
            continue  # damaged, or not finished
        yield Measured(
            policy=str(config["policy"]),
            split=str(summary["split"]),
            tasks=int(summary["n_tasks"]),
            samples=int(summary["samples"]),
            success=float(summary["success"]),
            low=float(summary["low"]),
            high=float(summary["high"]),
            score=float(summary["score"]),
            source=f"evals/{name}",
        )


def render_card(card: ModelCard, *, adapter: bool) -> str:
    """Return the card as Markdown, with the header that the Hugging Face Hub reads."""
    is_hub_id = _model_name(card.base) == card.base and "/" in card.base
    head = [
        "library_name: peft" if adapter else "library_name: transformers",
        "pipeline_tag: text-generation",
        *([f"base_model: {card.base}"] if is_hub_id else []),
        "license:  # choose one that the base model's licence and the data's terms allow",
        f"tags: [reinforcement-learning, llm-agent, coevo_gym, {card.benchmark}]",
    ]
    parts = [
        "---\n" + "\n".join(head) + "\n---",
        f"# {card.policy} of {card.run}",
        "## Evaluation results",
        _results_section(card),
        "## Origin",
        _markdown_table(_origin_rows(card)),
    ]
    return "\n\n".join(parts) + "\n"


def _model_name(base: str) -> str:
    """Return a model's name: the hub id, or the last part of a path."""
    is_hub_id = base.count("/") == 1 and not base.startswith((".", "/", "~"))
    return base if is_hub_id else base.rstrip("/").rpartition("/")[2]


def _results_section(card: ModelCard) -> str:
    if not any(measure.policy == card.policy for measure in card.measured):
        warning = "These weights were not evaluated."
        return warning if not card.measured else f"{warning}\n\n{_results_table(card)}"
    return _results_table(card)


def _results_table(card: ModelCard) -> str:
    rows = [
        "| policy | split | success | 95 % interval | mean score | tasks | samples | from |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in card.measured:
        rows.append(
            f"| {one.policy} | {one.split} | {one.success:.1%} | {one.low:.1%} – {one.high:.1%} "
            f"| {one.score:.3f} | {one.tasks} | {one.samples} | {one.source} |"
        )
    return "\n".join(rows)


def _origin_rows(card: ModelCard) -> Iterator[tuple[str, str]]:
    yield "base model", _model_name(card.base)
    yield "trained", f"LoRA, rank {card.lora_rank}" if card.lora_rank else "all weights"
    yield "benchmark", card.benchmark + (f", subset {card.subset}" if card.subset else "")
    yield "method", card.method or "imitation only"
    yield "preset", card.preset or "none"
    yield "seed", str(card.seed)
    yield "learner steps", f"{card.step:,}"
    yield "env steps", f"{card.env_steps:,}"
    if card.prompt:
        hash_ = str(card.prompt["hash"])[:12]
        yield "prompt", f"{card.prompt['name']}, version {card.prompt['version']} ({hash_})"
    yield "weights", card.weights[:12]
    yield "versions", ", ".join(f"{name} {version}" for name, version in card.versions.items())
    if card.git_commit:
        yield "commit", card.git_commit[:12]
    if card.mark:
        yield "tasks", card.mark
    yield "terms of the benchmark's data", card.terms or "not stated"


def _markdown_table(rows: Iterator[tuple[str, str]]) -> str:
    cells = (f"| {what} | {value.replace('|', chr(92) + '|')} |" for what, value in rows)
    return "\n".join(["| | |", "|---|---|", *cells])


ORIGIN = "coevo-export.json"
"""Name of the file that records the origin of an exported model."""


def export_model(
    folder: RunFolder,
    target: Path,
    *,
    policy: str | None = None,
    step: int | None = None,
    adapter: bool = False,
    overwrite: bool = False,
) -> ModelCard:
    """Write a policy's weights, config, tokenizer and model card atomically.

    The weights are those used for evaluation: the moving average, if the learner keeps one. They
    are saved in the precision of training. A LoRA adapter is merged unless ``adapter`` is true.

    Args:
        folder: the run.
        target: target folder; new, empty, or an earlier export.
        policy: an arm, or ``warm-up``; None for the last arm.
        step: learner step of a checkpoint; None for the latest.
        adapter: True to save only the LoRA adapter, with the name of its base model.
        overwrite: True to replace an earlier export.

    Returns:
        The contents of the model card.

    Raises:
        ConfigError: if the run does not train a language model or has no such policy, or the folder
            is not available.
        StoreError: if the checkpoint does not exist, or a file cannot be written.
    """
    manifest, config = read_manifest(folder)
    name = policy or config.arms[-1]
    if name not in (WARMUP, *config.arms):
        known = ", ".join((*config.arms, WARMUP))
        raise ConfigError(f"{config.name} has no policy {name!r}. Choose one of: {known}.")
    if config.policy.kind not in LANGUAGE_MODELS:
        raise ConfigError(
            f"{config.name} trains a {config.policy.kind} policy, which is not a language "
            "model and cannot be exported. To evaluate it from its checkpoints, run "
            f"`coevo eval {config.name}`."
        )
    if adapter and not config.policy.model.lora_rank:
        raise ConfigError(
            f"{config.name} trains all weights, so there is no adapter to save. Remove --adapter."
        )
    _check_target(target, overwrite)
    checkpoints = Checkpoints(folder.checkpoints / name)
    saved = checkpoints.load_latest() if step is None else checkpoints.load_at(step)
    if saved is None:
        raise ConfigError(
            f"{config.name} has no checkpoint of {name} yet. Continue training with "
            f"`coevo resume {config.name}`."
        )
    from safetensors import SafetensorError

    from coevo_gym.agents.lm.transformers_policy import TransformersPolicy
    from coevo_gym.runs.assembly import (
        load_evaluation_weights,
        raise_restore_errors,
        weights_hash,
    )

    # Load the model on the CPU without an inference engine: the saved weights are the same.
    on_cpu = config.policy.model.model_copy(update={"device": "cpu"})
    model = TransformersPolicy(on_cpu, thinking=config.policy.chat.thinking)
    policy_to_export = cast("LearnablePolicy", model)
    with raise_restore_errors(saved, policy_to_export):
        load_evaluation_weights(policy_to_export, saved.state)
    card = make_model_card(folder, name, saved, weights=weights_hash(policy_to_export))
    with raise_store_errors(target), replace_folder(target) as new:
        try:
            (model.save_adapter if adapter else model.save_pretrained)(new)
        except SafetensorError as error:  # hides the underlying write error
            raise StoreError(
                f"Cannot write {target}: {error}. Check the free space and the folder's "
                "permissions, then export again."
            ) from error
        write_atomic(new / "README.md", render_card(card, adapter=adapter).encode())
        write_json(new / ORIGIN, {**card.to_json(), "manifest": manifest})
    return card


def _check_target(target: Path, overwrite: bool) -> None:
    if target.exists() and not target.is_dir():
        raise ConfigError(f"{target} is a file. Choose a new folder.")
    if not target.is_dir() or not any(target.iterdir()):
        return
    if not (target / ORIGIN).is_file():
        raise ConfigError(
            f"{target} is not empty and is not an earlier export. Choose a new folder."
        )
    if not overwrite:
        raise ConfigError(
            f"{target} already contains an export. Choose a new folder, or pass --overwrite."
        )

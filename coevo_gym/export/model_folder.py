"""Export of a language model trained by a run, as a folder that transformers can load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.export.model_card import ModelCard, card_of, written
from coevo_gym.provision import staged
from coevo_gym.run.manifest import read_manifest
from coevo_gym.run.table import WARMUP
from coevo_gym.store.checkpoint import Checkpoint, Checkpoints
from coevo_gym.store.folder import RunFolder, storing, write_atomic, write_json

if TYPE_CHECKING:
    from coevo_gym.agents.lm.transformers_policy import TransformersPolicy
    from coevo_gym.trainers.grpo import LearnablePolicy

ORIGIN = "coevo-export.json"
"""File of an exported model that records its origin."""


def export_model(
    folder: RunFolder,
    target: Path,
    *,
    policy: str | None = None,
    step: int | None = None,
    adapter: bool = False,
    overwrite: bool = False,
) -> ModelCard:
    """Write weights, config, tokenizer and a model card atomically.

    The weights are the ones used for evaluation: the average of the weights, if the learner keeps
    one. They have the precision of training. A LoRA adapter is merged unless ``adapter`` is true.

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
    if config.policy.kind not in ("transformers", "vllm"):
        raise ConfigError(
            f"{config.name} trains a {config.policy.kind} policy, which is not a language "
            "model and cannot be exported. To evaluate it from its checkpoints: coevo eval "
            f"{config.name}"
        )
    if adapter and not config.policy.model.lora_rank:
        raise ConfigError(
            f"{config.name} trains all weights, so there is no adapter to save. Remove --adapter."
        )
    _check_target(target, overwrite)
    checkpoints = Checkpoints(folder.checkpoints / name)
    saved = checkpoints.latest() if step is None else checkpoints.at(step)
    if saved is None:
        raise ConfigError(
            f"{config.name} has no checkpoint of {name} yet. Continue the training: coevo "
            f"resume {config.name}"
        )
    from safetensors import SafetensorError

    from coevo_gym.agents.lm.transformers_policy import TransformersPolicy

    # Load the model on the CPU without an inference engine: the saved weights are the same.
    on_cpu = config.policy.model.model_copy(update={"device": "cpu"})
    model = TransformersPolicy(on_cpu, thinking=config.policy.chat.thinking)
    card = _load(model, saved, folder, name)
    with storing(target), staged(target) as new:
        try:
            (model.save_adapter if adapter else model.save_pretrained)(new)
        except SafetensorError as error:  # hides the underlying write error
            raise StoreError(
                f"Cannot write {target}: {error}. Check the free space and the folder's "
                "permissions, then export again."
            ) from error
        write_atomic(new / "README.md", written(card, adapter=adapter).encode())
        write_json(new / ORIGIN, {**card.to_json(), "manifest": manifest})
    return card


def _load(model: TransformersPolicy, saved: Checkpoint, folder: RunFolder, name: str) -> ModelCard:
    from coevo_gym.run.assembly import load_evaluated, restoring, weights_hash

    policy = cast("LearnablePolicy", model)
    with restoring(saved, policy):
        load_evaluated(policy, saved.state)
    return card_of(folder, name, saved, weights=weights_hash(policy))


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

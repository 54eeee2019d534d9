"""verl's workers, started by torchrun or by Ray, and one way to talk to all of them.

Whatever is asked of them they do together; the answer is the first one's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import Field

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import FrozenModel
from coevo_gym.trainers.plug.trainer import import_trainer
from coevo_gym.trainers.settings import UpdateConfig


class Sharding(FrozenModel):
    """How verl holds a model.

    Attributes:
        device: what the workers run on; a GPU each, or processes of a CPU.
        dtype: in which forward and backward passes are computed; the weights that the optimiser
            changes are fp32.
        attention: transformers' name of the attention kernel.
        gradient_checkpointing: whether activations are computed anew in the backward pass.
    """

    device: Literal["cuda", "cpu"] = "cuda"
    dtype: Literal["bf16", "fp32"] = "bf16"
    attention: str = Field(default="sdpa", min_length=1)
    gradient_checkpointing: bool = False


class Workers(Protocol):
    """All workers as one."""

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method on all of them and wait; returns what the first one returned."""
        ...


class TorchrunWorkers:
    """One worker in each process that torchrun has started; the first process leads.

        workers = TorchrunWorkers(model, settings, Sharding(device="cpu", dtype="fp32"))
        if workers.leads:
            …  # the loop, with VerlLearner(policy, settings, workers)
            workers.stop()
        else:
            workers.follow()

    Args:
        model: folder of a Hugging Face model.
        settings: of the learner.
        sharding: how the model is held.

    Raises:
        ConfigError: if torchrun has not started this process.
        ImportError: if verl is missing.
    """

    def __init__(self, model: Path, settings: UpdateConfig, sharding: Sharding) -> None:
        if missing := {"RANK", "WORLD_SIZE", "MASTER_ADDR"} - os.environ.keys():
            raise ConfigError(
                f"torchrun sets {', '.join(sorted(missing))}. Start this script by "
                "`torchrun --nproc_per_node=N SCRIPT`."
            )
        prepare(sharding)
        from coevo_gym.trainers.plug.verl.worker import GRPOWorker

        self._worker = GRPOWorker(verl_config(model, settings, sharding))

    @property
    def leads(self) -> bool:
        """Whether this process runs the loop."""
        return int(os.environ["RANK"]) == 0

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method on all workers; returns what this process's own returned."""
        self._tell((method, arguments))
        return getattr(self._worker, method)(*arguments)

    def follow(self) -> None:
        """Do what the leader asks for, until it stops."""
        while (asked := self._tell(None)) is not None:
            method, arguments = asked
            getattr(self._worker, method)(*arguments)

    def stop(self) -> None:
        """Let the others go."""
        self._tell(None)

    def _tell(self, what: tuple[str, tuple[Any, ...]] | None) -> Any:
        import torch.distributed as dist

        box = [what]
        dist.broadcast_object_list(box, src=0)
        return box[0]


class RayWorkers:
    """One worker in each actor of a Ray cluster, placed by verl.

    ``ray.init()`` comes first; :func:`ray_environment` is the ``runtime_env`` that it needs.

    Args:
        model: folder of a Hugging Face model; every node finds it at this path.
        settings: of the learner.
        sharding: how the model is held.
        per_node: workers of each node.

    Raises:
        ImportError: if verl or Ray is missing.
    """

    def __init__(
        self, model: Path, settings: UpdateConfig, sharding: Sharding, *, per_node: Sequence[int]
    ) -> None:
        prepare(sharding)
        import ray
        from verl.single_controller.ray import (
            RayClassWithInitArgs,
            RayResourcePool,
            RayWorkerGroup,
        )

        from coevo_gym.trainers.plug.verl.worker import GRPOWorker

        pool = RayResourcePool(
            list(per_node), use_gpu=sharding.device == "cuda", max_colocate_count=1
        )
        worker = RayClassWithInitArgs(
            cls=ray.remote(GRPOWorker), config=verl_config(model, settings, sharding)
        )
        self._group = RayWorkerGroup(
            resource_pool=pool, ray_cls_with_init=worker, device_name=sharding.device
        )

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method on all workers; returns what the first one returned."""
        import ray

        shared = [ray.put(argument) for argument in arguments]
        return self._group.execute_all_sync(method, *shared)[0]


def ray_environment(sharding: Sharding) -> dict[str, Any]:
    """The ``runtime_env`` of ``ray.init()``: what verl's workers have to know as they start."""
    return {"env_vars": _variables(sharding)}


def prepare(sharding: Sharding) -> None:
    """Tell verl what it runs on, before it is imported.

    Raises:
        ImportError: if it is missing.
    """
    os.environ.update(_variables(sharding))
    import_trainer("verl", "verl")


def verl_config(model: Path, settings: UpdateConfig, sharding: Sharding) -> Any:
    """A worker as verl is told of it."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import (
        FSDPEngineConfig,
        FSDPOptimizerConfig,
        HFModelConfig,
        TrainingWorkerConfig,
    )

    return TrainingWorkerConfig(
        model_type="language_model",
        model_config=HFModelConfig(
            path=str(model),
            use_remove_padding=False,
            enable_gradient_checkpointing=sharding.gradient_checkpointing,
            override_config={"attn_implementation": sharding.attention},
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2",
            model_dtype="fp32",
            mixed_precision={
                "param_dtype": sharding.dtype,
                "reduce_dtype": "fp32",
                "buffer_dtype": "fp32",
            },
            use_torch_compile=False,
            use_dynamic_bsz=True,
            max_token_len_per_gpu=settings.microbatch_tokens,
            infer_max_token_len_per_gpu=settings.microbatch_tokens,
        ),
        # verl's schedule of the learning rate is left alone: each step is told its own.
        optimizer_config=FSDPOptimizerConfig(
            lr=settings.lr,
            weight_decay=settings.weight_decay,
            clip_grad=settings.max_grad_norm,
            total_training_steps=1,
            lr_warmup_steps=0,
        ),
        checkpoint_config=CheckpointConfig(),
    )


def _variables(sharding: Sharding) -> dict[str, str]:
    if sharding.device == "cuda":
        return {}
    module = "coevo_gym.trainers.plug.verl.cpu"  # importing it imports verl
    return {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": module}

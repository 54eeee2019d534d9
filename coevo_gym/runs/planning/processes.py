"""A check that several processes can share a run's updates."""

from __future__ import annotations

import sys

from coevo_gym.core.errors import ConfigError
from coevo_gym.runs.config import RunConfig, arm_configs
from coevo_gym.runs.config.derived import LANGUAGE_MODELS


def check_processes(config: RunConfig, processes: int) -> None:
    """Check that several processes can share a run's updates on this machine.

    Raises:
        ConfigError: if they cannot.
    """
    if sys.platform != "linux":
        raise ConfigError("--processes needs Linux. Leave it out to train with one process.")
    check_policy_kind(config, processes)
    policy = config.policy
    import torch

    from coevo_gym.agents.lm.causal_lm import pick_device
    from coevo_gym.trainers.distributed import check_distributable

    n_gpus = torch.cuda.device_count()
    has_gpu = pick_device(policy.model.device).type == "cuda"
    if has_gpu and processes > n_gpus:
        gpus = "1 GPU" if n_gpus == 1 else f"{n_gpus} GPUs"
        raise ConfigError(
            f"--processes is {processes}, but this machine has {gpus}, and each process needs its "
            f"own. Set --processes {n_gpus}, or policy.model.device = 'cpu'."
        )
    servers = policy.servers
    if has_gpu and policy.kind == "vllm_server" and not servers.urls:
        n = servers.replicas or 1
        if processes + n > n_gpus:
            raise ConfigError(
                f"{processes} learning processes and {n} vLLM server{'s' * (n > 1)} need "
                f"{processes + n} GPUs, but this machine has {n_gpus}. Lower --processes or "
                "policy.servers.replicas, or name servers on other machines in "
                "policy.servers.urls."
            )
    for arm in arm_configs(config).values():
        check_distributable(arm.learner, config.warmup, shard=policy.model.shard)


def check_policy_kind(config: RunConfig, processes: int) -> None:
    """Check that several processes can share the updates of this kind of policy, on any machine.

    Raises:
        ConfigError: if they cannot.
    """
    policy = config.policy
    if policy.kind not in LANGUAGE_MODELS:
        raise ConfigError(
            f"policy.kind = {policy.kind!r} is trained by one process, but --processes is "
            f"{processes}. Leave out --processes, or set policy.kind = 'transformers'."
        )
    if policy.kind == "vllm":
        raise ConfigError(
            "policy.kind = 'vllm' runs vLLM's engine in the learner's process, which fails with "
            f"--processes {processes}. Set policy.kind = 'vllm_server'."
        )

"""Sample with a server in a process that torchrun started, and print what was measured.

Usage: torchrun --nproc-per-node 2 -m tests.vllm.in_torchrun FOLDER
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta

from torch import distributed

from coevo_gym.agents.lm.language_model import ModelConfig
from coevo_gym.agents.lm.vllm_engine import VLLMConfig
from coevo_gym.agents.lm.vllm_launch import VLLMServersConfig
from coevo_gym.agents.lm.vllm_policy import VLLMPolicy
from coevo_gym.agents.lm.vllm_server import VLLMServerPolicy
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.seams import Message, Prompt, Sampling
from tests.vllm.test_vllm_policy import gap

LOOK = Prompt((Message("user", "look"),), Sampling(1.0, 12))


def main(folder: str) -> None:
    distributed.init_process_group("gloo", timeout=timedelta(minutes=25))
    config = ModelConfig(path=folder, device="cpu", max_context=256)
    vllm = VLLMConfig(kv_cache_gib=0.25, enforce_eager=True)
    policy = VLLMServerPolicy(config, VLLMServersConfig(replicas=1), vllm)
    measured = {"world_size": distributed.get_world_size()}
    if distributed.get_rank() == 0:
        measured["gap"] = gap(policy, policy.generate([LOOK] * 4))
        try:
            VLLMPolicy(config, vllm)
        except ConfigError as error:
            measured["in_process"] = str(error)
    else:
        assert not policy.replicas.is_running, "only rank 0 has a server"
    distributed.barrier()
    policy.close()
    distributed.destroy_process_group()
    if "gap" in measured:
        print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

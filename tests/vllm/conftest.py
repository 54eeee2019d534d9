"""One engine for all tests, on a tiny Llama or on the model in ``COEVO_TEST_VLLM_MODEL``."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.agents.tiny_llama import make_tiny_llama

if TYPE_CHECKING:
    from coevo_gym.agents.lm.vllm_policy import VLLMPolicy

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]
MAX_CONTEXT = 512


def process_state() -> dict[str, Any]:
    """What an engine shall leave in this process as it was."""
    import torch

    return {
        "environment": dict(os.environ),
        "random": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),  # noqa: NPY002
        "torch": torch.get_rng_state().tolist(),
    }


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chosen = os.environ.get("COEVO_TEST_VLLM_MODEL")
    # vLLM's attention on a CPU needs heads of a multiple of 32.
    return Path(chosen) if chosen else make_tiny_llama(tmp_path_factory.mktemp("m"), head_dim=64)


@pytest.fixture(scope="session")
def policy_and_states(folder: Path) -> tuple[VLLMPolicy, dict[str, Any], dict[str, Any]]:
    """The policy, and the state of the process before and after it was made."""
    from coevo_gym.agents.lm.language_model import LanguageModel, ModelConfig
    from coevo_gym.agents.lm.vllm_engine import VLLMConfig
    from coevo_gym.agents.lm.vllm_policy import VLLMPolicy

    config = ModelConfig(path=str(folder), device="cpu", max_context=MAX_CONTEXT)
    LanguageModel(config)  # what transformers leaves behind is not vLLM's doing
    before = process_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        policy = VLLMPolicy(config, VLLMConfig(kv_cache_gib=0.25, enforce_eager=True))
    return policy, before, process_state()


@pytest.fixture
def policy(policy_and_states: tuple[VLLMPolicy, Any, Any]) -> VLLMPolicy:
    return policy_and_states[0]


@pytest.fixture
def change(policy: VLLMPolicy) -> Callable[..., None]:
    """Change trained weights, as an optimiser does; ``only`` says of which parameters."""
    import torch

    generator = torch.Generator().manual_seed(0)

    def step(only: str = "") -> None:
        with torch.no_grad():
            for name, weight in policy.model.named_parameters():
                if weight.requires_grad and only in name and weight.ndim > 1:
                    scale = 0.02 * max(float(weight.std()), 0.1)
                    weight.add_(scale * torch.randn(weight.shape, generator=generator))

    return step

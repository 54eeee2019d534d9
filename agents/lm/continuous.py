"""Sampling with the continuous batching of transformers.

Import this module lazily: it requires PyTorch and transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel, generation

from coevo_gym.agents.lm.padded import Ask, Sampled
from coevo_gym.core.errors import ModelError

_STEP_S = 600.0  # timeout for the engine's thread; it answers, or dies with an error, much earlier
_PAGE = 256
_NEEDED = {"num_blocks", "return_logprobs"}


def why_not(model: PreTrainedModel) -> str:
    """Return the reason to use padded batches for this model instead; "" if there is none.

    Without flash attention, transformers computes each request's attention over the tokens of all
    requests, which grows with the square of the batch size.
    """
    if not _settings() >= _NEEDED:
        return f"transformers {transformers.__version__} does not give log-probabilities with it"
    if model.device.type != "cuda":
        return "on a CPU padded batches take less time"
    if model.dtype not in (torch.bfloat16, torch.float16):
        return "flash attention needs half precision"
    if not getattr(model, "_supports_flash_attn", False):
        return f"{type(model).__name__} has no flash attention"
    if not (find_spec("flash_attn") or find_spec("flash_attn_interface")):
        return "flash-attn is not installed"
    return ""


def sample_continuous(
    model: PreTrainedModel, asks: Sequence[Ask], *, stop_ids: Sequence[int], seed: int
) -> list[Sampled]:
    """Sample an answer to each prompt; arguments and result are those of ``sample_padded``.

    The engine draws from PyTorch's global generators, whose state is restored afterwards.

    Raises:
        ModelError: if the engine fails.
    """
    found: dict[int, Sampled] = {}
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        for temperature in sorted({ask.temperature for ask in asks}):
            group = [i for i, ask in enumerate(asks) if ask.temperature == temperature]
            torch.manual_seed(seed)  # versions without the setting `seed` draw from here
            found.update(_run(model, asks, group, stop_ids, seed))
    return [found[i] for i in range(len(asks))]


def _run(
    model: Any, asks: Sequence[Ask], group: Sequence[int], stop_ids: Sequence[int], seed: int
) -> dict[int, Sampled]:
    """Sample the answers to prompts with one temperature."""
    temperature = asks[group[0]].temperature
    draw: dict[str, Any] = (
        {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    )
    draw |= {"top_k": 0, "top_p": 1.0, "eos_token_id": list(stop_ids), "pad_token_id": 0}
    manager = model.init_continuous_batching(
        generation_config=transformers.GenerationConfig(**draw),  # type: ignore[no-untyped-call]
        continuous_batching_config=_config(model, [asks[i] for i in group], seed),
    )
    # Add all requests before the start, so that batching does not depend on thread timing.
    for i in group:
        manager.add_request(
            list(asks[i].prompt),
            request_id=str(i),
            max_new_tokens=asks[i].max_tokens,
            eos_token_id=list(stop_ids),
        )
    manager.start()
    try:
        return {i: sampled for i, sampled in (_next(manager, temperature) for _ in group)}
    finally:
        manager.stop(block=True, timeout=_STEP_S)


def _next(manager: Any, temperature: float) -> tuple[int, Sampled]:
    result = manager.get_result(timeout=_STEP_S)
    if result is None or result.error is not None:
        why = "it stopped" if result is None else result.error
        raise ModelError(f"Continuous batching in transformers failed: {why}")
    ids = tuple(result.generated_tokens)
    logprobs = tuple(result.logprobs) if temperature else (0.0,) * len(ids)
    return int(result.request_id), Sampled(ids, logprobs)


def _config(model: PreTrainedModel, asks: Sequence[Ask], seed: int) -> Any:
    settings: dict[str, Any] = {"return_logprobs": True}
    if "seed" in _settings():
        settings["seed"] = seed
    if model.device.type != "cuda":  # the library cannot find out how much memory there is
        tokens = (len(ask.prompt) + ask.max_tokens for ask in asks)
        settings["num_blocks"] = sum(n // _PAGE + 2 for n in tokens)
        settings["max_batch_tokens"] = max(512, len(asks))
    return generation.ContinuousBatchingConfig(**settings)  # type: ignore[attr-defined]


def _settings() -> set[str]:
    config = getattr(generation, "ContinuousBatchingConfig", None)
    return set() if config is None else {field.name for field in fields(config)}

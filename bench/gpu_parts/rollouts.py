"""Sampling speed, compared with plain ``generate`` and with the time needed to read memory.

Each answer has its own length limit, because an agent's answers differ in length. Plain
``generate`` continues until the longest answer of a batch ends. For all engines, only tokens within
an answer's limit and up to its end are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
import torch
from gpu_parts.card import Peaks, free_memory, time_call
from gpu_parts.subjects import Size, Subject, prompt_ids, random_prompts

from coevo_gym.agents.chat.format import ChatFormat
from coevo_gym.agents.lm.language_model import ModelConfig
from coevo_gym.agents.lm.model_shape import ModelShape
from coevo_gym.agents.lm.transformers_policy import TransformersPolicy
from coevo_gym.core.seams import Prompt, Sampling
from coevo_gym.core.trajectory import TokenDecision

NAIVE, OURS = "generate", "coevo_gym"
_SLACK = 64  # a truncated text may be tokenized into a few more tokens
Lengths = list[tuple[int, int]]
Engine = Callable[[Sequence[Prompt]], Lengths]


class Speed(NamedTuple):
    """The speed of one engine on one batch.

    Attributes:
        seconds: time for prompts and answers.
        prefill_s: time for other prompts of the same lengths with one-token answers.
        lengths: number of tokens of each prompt and of its answer.
    """

    seconds: float
    prefill_s: float
    lengths: Lengths


def measure_rollouts(
    subject: Subject, size: Size, device: str, peaks: Peaks, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return one row per engine and batch size."""
    naive = measure_generate(subject, size, device)
    free_memory(device)
    rows = _make_rows(subject, NAIVE, naive, peaks, naive, tell)
    ours = measure_policy(subject, size, device)
    free_memory(device)
    rows += _make_rows(subject, OURS, ours, peaks, naive, tell)
    return rows + _measure_vllm_rows(subject, size, device, peaks, naive, tell)


def ideal_decode_s(shape: ModelShape, lengths: Lengths, bandwidth: float, item_bytes: int) -> float:
    """Return the seconds that an ideal engine needs for all tokens after each answer's first.

    All sequences are decoded together. A step reads all weights except an untied embedding, and the
    keys and values of every unfinished sequence. Nothing else takes time.

    Args:
        shape: shape of the model.
        lengths: number of tokens of each prompt and of its answer.
        bandwidth: bytes per second.
        item_bytes: bytes per weight and per number in the cache.
    """
    unread = 0 if shape.tied else shape.vocabulary * shape.hidden
    weights = (max(n for _, n in lengths) - 1) * (shape.n_parameters - unread)
    # In step t (1 to n - 1), an answer reads the cache of its prompt and of t tokens.
    cached = sum((n - 1) * p + n * (n - 1) // 2 for p, n in lengths)
    return (weights + shape.kv_values_per_token * cached) * item_bytes / bandwidth


def measure_generate(subject: Subject, size: Size, device: str) -> dict[int, Speed]:
    """Measure Hugging Face's ``generate`` on left-padded batches, in bf16 on a GPU."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model: Any = AutoModelForCausalLM.from_pretrained(subject.folder, dtype=dtype)
    model = model.to(device).eval()
    tokenizer = AutoTokenizer.from_pretrained(subject.folder)
    form = ChatFormat(tokenizer)
    stops = set(form.stop_ids)

    def run(asked: Sequence[Prompt]) -> Lengths:
        ids = prompt_ids(form, asked)
        longest = max(map(len, ids))
        padded = torch.tensor([[0] * (longest - len(i)) + list(i) for i in ids], device=device)
        seen = torch.tensor([[0] * (longest - len(i)) + [1] * len(i) for i in ids], device=device)
        config = GenerationConfig(
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=max(prompt.sampling.max_tokens for prompt in asked),
            eos_token_id=sorted(stops),
            pad_token_id=0,
        )
        with torch.no_grad():
            out = model.generate(input_ids=padded, attention_mask=seen, generation_config=config)
        answers = out[:, longest:].tolist()
        return [
            (len(i), _count_tokens(answer[: prompt.sampling.max_tokens], stops))
            for i, answer, prompt in zip(ids, answers, asked, strict=True)
        ]

    return _measure_speeds(run, form, tokenizer, size, device)


def measure_policy(subject: Subject, size: Size, device: str) -> dict[int, Speed]:
    """Measure ``TransformersPolicy``."""
    config = ModelConfig.model_validate({"path": subject.folder, "device": device})
    policy = TransformersPolicy(config)
    return _measure_speeds(_make_engine(policy), policy.format, policy.tokenizer, size, device)


def measure_vllm(subject: Subject, size: Size, device: str) -> dict[int, Speed]:
    """Measure ``VLLMPolicy`` in its own process, so that vLLM's memory is freed at the end."""
    from coevo_gym.agents.lm.vllm_policy import VLLMPolicy

    longest = size.prompt[1] + size.answer[1] + _SLACK
    config = ModelConfig.model_validate(
        {"path": subject.folder, "device": device, "max_context": longest}
    )
    policy = VLLMPolicy(config)
    return _measure_speeds(_make_engine(policy), policy.format, policy.tokenizer, size, device)


def _make_engine(policy: TransformersPolicy) -> Engine:
    def run(asked: Sequence[Prompt]) -> Lengths:
        decisions = [completion.decision for completion in policy.generate(asked)]
        return [(len(d.prompt_ids), len(d.ids)) for d in decisions if isinstance(d, TokenDecision)]

    return run


def _measure_speeds(
    run: Engine, form: ChatFormat, tokenizer: Any, size: Size, device: str
) -> dict[int, Speed]:
    """Run each batch to warm up, then measure its prompts alone, then prompts with answers."""
    speeds = {}
    for batch in size.batches:
        # All engines get the same texts.
        rng = np.random.default_rng(batch)
        first, alone, asked = (
            random_prompts(form, tokenizer, batch, rng, prompt=size.prompt, answer=size.answer)
            for _ in range(3)
        )
        run(first)
        one = [Prompt(prompt.messages, Sampling(1.0, 1)) for prompt in alone]
        prefill = time_call(device, lambda: run(one))  # noqa: B023
        whole = time_call(device, lambda: run(asked))  # noqa: B023
        speeds[batch] = Speed(whole.seconds, prefill.seconds, whole.result)
    return speeds


def _measure_vllm_rows(
    subject: Subject,
    size: Size,
    device: str,
    peaks: Peaks,
    naive: dict[int, Speed],
    tell: Callable[[str], None],
) -> list[dict[str, Any]]:
    if find_spec("vllm") is None:
        return [_report_without_vllm(subject, "skipped: vllm not installed", tell)]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            speeds = pool.submit(measure_vllm, subject, size, device).result()
        except Exception as error:  # keep the other engines' results
            return [_report_without_vllm(subject, f"failed: {type(error).__name__}: {error}", tell)]
    return _make_rows(subject, "vllm", speeds, peaks, naive, tell)


def _report_without_vllm(
    subject: Subject, remark: str, tell: Callable[[str], None]
) -> dict[str, Any]:
    tell(f"rollout: {subject.name}, vllm: {remark}")
    return {"model": subject.name, "engine": "vllm", "remark": remark}


def _make_rows(
    subject: Subject,
    engine: str,
    speeds: dict[int, Speed],
    peaks: Peaks,
    naive: dict[int, Speed],
    tell: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Return a row per batch size, and print each one."""
    rows = [_make_row(subject, engine, speeds[b], peaks, naive[b]) for b in speeds]
    for row in rows:
        tell(f"rollout: {_format_row(row)}")
    return rows


def _make_row(
    subject: Subject, engine: str, speed: Speed, peaks: Peaks, naive: Speed
) -> dict[str, Any]:
    tokens = sum(n for _, n in speed.lengths)
    rate = tokens / speed.seconds
    later, decoding_s = tokens - len(speed.lengths), speed.seconds - speed.prefill_s
    item_bytes = 2 if peaks.dtype == "bfloat16" else 4
    ideal_s = ideal_decode_s(subject.shape, speed.lengths, peaks.bandwidth, item_bytes)
    measured = later > 0 and decoding_s > 0
    return {
        "model": subject.name,
        "engine": engine,
        "batch": len(speed.lengths),
        "tokens": tokens,
        "seconds": speed.seconds,
        "prefill_s": speed.prefill_s,
        "tokens_per_s": rate,
        "against_generate": rate / (sum(n for _, n in naive.lengths) / naive.seconds),
        "decode_tokens_per_s": later / decoding_s if measured else None,
        "roofline_tokens_per_s": later / ideal_s if measured else None,
        "roofline_share": ideal_s / decoding_s if measured else None,
    }


def _count_tokens(ids: Sequence[int], stops: set[int]) -> int:
    """Return the number of tokens up to and including the first one that ends an answer."""
    return next((i + 1 for i, token in enumerate(ids) if token in stops), len(ids))


def _format_row(row: dict[str, Any]) -> str:
    share = row["roofline_share"]
    return (
        f"{row['model']}, {row['engine']}, batch of {row['batch']}: "
        f"{row['tokens_per_s']:,.0f} tokens/s, {row['against_generate']:.1f} x generate"
        + ("" if share is None else f", {share:.1%} of the decode roofline")
    )

"""Processor time of sampling in conversations: processing whole histories or only new tokens.

A model with the shape of SmolLM2-135M answers with 7 tokens at each turn of 4 parallel
conversations. Its weights are random, since they do not affect the time. Each conversation begins
with 150 tokens and grows by 55 per turn, including the answer. Both ways use the same seeds, and
must give the same answers; otherwise the exit code is 1. The model computes in fp32 on one thread.

Run: python bench/lm_sampling.py                  # 6 turns, about a minute
     python bench/lm_sampling.py --turns 6 30     # about 15 minutes
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from gpu_parts.subjects import SHAPES
from transformers import LlamaConfig, LlamaForCausalLM

from coevo_gym.agents.lm.padded import Ask, sample_padded
from coevo_gym.agents.lm.prefix_cache import PrefixCache

SMOLLM2 = SHAPES["smollm2"][1]
CONVERSATIONS, FIRST, A_TURN, ANSWER = 4, 150, 55, 7
WANTED = {6: 2.6, 30: 8.0}
"""Minimum ratio of the processor times, by number of turns."""


class Measured(NamedTuple):
    """The cost and the answers of one way of sampling.

    Attributes:
        cpu_s: processor time of all turns, in seconds.
        read: prompt tokens that the model processed.
        answers: token ids of all answers.
    """

    cpu_s: float
    read: int
    answers: list[tuple[int, ...]]


def converse(model: Any, turns: int, max_bytes: int) -> Measured:
    """Answer in all conversations, turn by turn."""
    rng = np.random.default_rng(0)
    vocabulary = model.config.vocab_size
    prefixes = PrefixCache(max_bytes)
    histories = rng.integers(vocabulary, size=(CONVERSATIONS, FIRST)).tolist()
    news = rng.integers(vocabulary, size=(turns, CONVERSATIONS, A_TURN - ANSWER)).tolist()
    answers: list[tuple[int, ...]] = []
    started = time.process_time()
    for turn in range(turns):
        asks = [Ask(tuple(history), 1.0, ANSWER) for history in histories]
        limits: dict[str, Any] = {"stop_ids": (), "max_prompt_tokens": 4 * 16_384}
        sampled = sample_padded(model, asks, seed=turn, prefixes=prefixes, **limits)
        answers += [one.ids for one in sampled]
        for history, answer, new in zip(histories, sampled, news[turn], strict=True):
            history += [*answer.ids, *new]
    return Measured(time.process_time() - started, prefixes.read, answers)


def main() -> int:
    """Print a table; return 1 if a bound is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, nargs="+", default=[6], help="turns (default: 6)")
    parser.add_argument("--layers", type=int, default=30, help="layers of the model (default: 30)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**SMOLLM2, "num_hidden_layers": options.layers})).eval()
    converse(model, 1, 0)  # a process's first passes take longer
    print("| turns | read | CPU s, whole histories | CPU s, new tokens only | ratio | wanted |")
    print("|---|---|---|---|---|---|")
    good = True
    for turns in options.turns:
        whole, new = converse(model, turns, 0), converse(model, turns, 8 * 2**30)
        ratio, wanted = whole.cpu_s / new.cpu_s, WANTED.get(turns)
        same = whole.answers == new.answers
        good &= same and (wanted is None or ratio >= wanted)
        print(
            f"| {turns} | {whole.read:,} and {new.read:,} | {whole.cpu_s:.1f} | {new.cpu_s:.1f} "
            f"| {ratio:.2f} | {wanted or '–'} |",
            flush=True,
        )
        if not same:
            print("The answers differ.", file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

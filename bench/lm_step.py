"""Processor time of a whole GRPO step of SmolLM2-135M on a CPU: sampling and update.

The policy plays 8 episodes of 6 turns, 4 for each of 2 tasks. A conversation begins with the 150
tokens of its task and grows by 55 tokens per turn, including an answer of exactly 7 tokens. Rewards
are fixed: half of the first group succeeds and all of the second group fails, or half of both
groups succeeds. There is no KL term.

"before" processes each whole conversation separately at every turn, and each trajectory separately
in the update, including those with advantage 0. "now" is the library's current way, in fp32 and
with dtype = "bfloat16". The ways take turns in one process with one thread, from the same weights
and seed. The exit code is 1 if a ratio misses its bound. It is also 1 if, in fp32, the two ways
differ by more than rounding in the weights learned from the same episodes, or in the
log-probabilities of equal answers. A few answers differ, where rounding decides a draw.

The lines below the table compare bf16 with fp32 on episodes sampled in bf16, and the sampler with
the learner in bf16.

Run: python bench/lm_step.py                           # 7 minutes of processor time, 8 GB of memory
     python bench/lm_step.py --shape tiny --repeats 1  # a quick test without bounds
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from grpo_sides import SHAPES, random_chat_text, remove_stop_tokens, save_model
from torch import Tensor

import coevo_gym
from coevo_gym.agents.lm import packing, sampler
from coevo_gym.agents.lm.language_model import ModelConfig
from coevo_gym.agents.lm.stored_models import resolve_model
from coevo_gym.agents.lm.transformers_policy import TransformersPolicy
from coevo_gym.core.errors import ModelError
from coevo_gym.core.seams import Message, Prompt, Sampling
from coevo_gym.core.trajectory import EndReason, Group, Step, TokenDecision, Trajectory
from coevo_gym.trainers.grpo import GRPO, GRPOConfig
from coevo_gym.trainers.segments import segments
from coevo_gym.trainers.update.batch import Batch

GROUPS, SIZE, TURNS = 2, 4, 6
FIRST, A_TURN, ANSWER = 150, 55, 7
SETTINGS = GRPOConfig(lr=1e-5, epochs=1, kl_coef=0.0, microbatch_tokens=2048)
MAX_APART = {"answers": 1e-3, "weights": 1e-2}
"""Maximum differences between both ways in fp32: in an answer's log-probabilities (nats), and in
the changes of the weights (relative; Adam's first step magnifies rounding)."""


class Way(NamedTuple):
    """A way to run a learner step.

    Attributes:
        dtype: data type in which the model computes.
        mixed: number of groups in which half of the episodes succeed; the others fail.
        whole: True to process whole conversations, as before.
        bound: maximum ratio to the processor time of the first way, or None.
    """

    dtype: str
    mixed: int
    whole: bool = False
    bound: float | None = None


WAYS = {
    "before, fp32": Way("float32", 1, whole=True),
    "now, fp32": Way("float32", 1, bound=0.45),
    "now, bf16": Way("bfloat16", 1, bound=0.28),
    "now, fp32, both groups mixed": Way("float32", 2),
    "now, bf16, both groups mixed": Way("bfloat16", 2),
}


class ReadsAll(GRPO):
    """A learner that also processes samples that do not affect the update."""

    def _idle_mask(self, batch: Batch) -> Tensor:
        return torch.zeros(len(batch.samples), dtype=torch.bool)


class Measured(NamedTuple):
    """Cost and outcome of a step.

    Attributes:
        sampling_s: processor time of sampling.
        update_s: processor time of the update.
        read: prompt tokens that the model processed in sampling.
        groups: the episodes.
    """

    sampling_s: float
    update_s: float
    read: int
    groups: list[Group]

    @property
    def step_s(self) -> float:
        """Processor time of the whole step."""
        return self.sampling_s + self.update_s


def measure_step(policy: TransformersPolicy, way: Way) -> Measured:
    """Play episodes, and update the policy once."""
    read_before = policy.sampling_counts.read
    started = time.process_time()
    with disable_sharing() if way.whole else nullcontext():
        groups = sample_episodes(policy, way.mixed)
    played = time.process_time()
    update_policy(policy, way, groups)
    done = time.process_time()
    read = policy.sampling_counts.read - read_before
    return Measured(played - started, done - played, read, groups)


def update_policy(policy: TransformersPolicy, way: Way, groups: Sequence[Group]) -> None:
    """Update the policy once from the given episodes."""
    learner = (ReadsAll if way.whole else GRPO)(policy, SETTINGS)
    with disable_sharing() if way.whole else nullcontext():
        learner.update(groups)


def sample_episodes(policy: TransformersPolicy, mixed: int) -> list[Group]:
    """Sample all episodes, turn by turn."""
    episodes = GROUPS * SIZE
    rngs = [np.random.default_rng((0, i // SIZE)) for i in range(episodes)]
    chats: list[tuple[Message, ...]] = [()] * episodes
    decided: list[list[TokenDecision]] = [[] for _ in range(episodes)]
    for turn in range(TURNS):
        for i, rng in enumerate(rngs):
            text = random_chat_text(policy.format, FIRST + turn * A_TURN, rng, chats[i])
            chats[i] += (Message("user", text),)
            if turn == 0:
                rngs[i] = np.random.default_rng((1, i))  # later tokens belong to the episode
        asked = [Prompt(chat, Sampling(1.0, ANSWER)) for chat in chats]
        for i, answer in enumerate(policy.generate(asked)):
            assert isinstance(answer.decision, TokenDecision)
            decided[i].append(answer.decision)
            chats[i] += (Message("assistant", answer.text, answer.decision.ids),)
    task = coevo_gym.tasks("webshop", "train")[0]
    trajectories = [
        Trajectory(
            task_id=task.id,
            steps=tuple(Step("", "", "", decision) for decision in own),
            score=float(success),
            success=success,
            end_reason=EndReason.AGENT_DONE,
        )
        for i, own in enumerate(decided)
        for success in [i // SIZE < mixed and i % 2 == 0]
    ]
    return [
        Group(str(g), task, SIZE, tuple(trajectories[g * SIZE : (g + 1) * SIZE]))
        for g in range(GROUPS)
    ]


def decisions(trajectory: Trajectory) -> list[TokenDecision]:
    """Return the answers of an episode."""
    every = (step.decision for step in trajectory.steps)
    return [decision for decision in every if isinstance(decision, TokenDecision)]


class Precision(NamedTuple):
    """Differences between bf16 and fp32 on answers sampled in bf16.

    Attributes:
        learner: learner's log-probabilities in bf16 minus those in fp32, shape (N,).
        sampler: sampler's log-probabilities in bf16 minus the learner's in bf16, shape (N,).
        cosine: cosine between the gradients in bf16 and in fp32.
        norm: gradient norm in bf16 divided by the norm in fp32.
    """

    learner: Tensor
    sampler: Tensor
    cosine: float
    norm: float


def compare_precision(exact: TransformersPolicy, half: TransformersPolicy) -> Precision:
    """Compare a policy in bf16 with one that has the same weights in fp32."""
    groups = sample_episodes(half, GROUPS)
    parts = [one for g in groups for t in g.trajectories for one in segments(decisions(t))]
    sampled = torch.tensor([logprob for part in parts for logprob in part.logprobs])
    logps, gradients = [], []
    for policy in (exact, half):
        with torch.no_grad():
            values, mask = policy.logprobs(parts)
        logps.append(values[mask])
        GRPO(policy, SETTINGS).update(groups)
        gradients.append([weight.grad for weight in policy.parameters()])
        policy.model.zero_grad(set_to_none=True)
    exact_norm, half_norm = (math.sqrt(sum_of_squares(gradient)) for gradient in gradients)
    cosine = dot(*gradients) / (exact_norm * half_norm)
    return Precision(logps[1] - logps[0], sampled - logps[1], cosine, half_norm / exact_norm)


@contextmanager
def disable_sharing() -> Iterator[None]:
    """Context manager in which sampler and learner process each trajectory separately."""
    with (
        patch.object(packing, "MIN_SHARED", sys.maxsize),
        patch.object(sampler, "MIN_SHARED", sys.maxsize),
    ):
        yield


def load_policies(folder: str) -> dict[tuple[str, bool], TransformersPolicy]:
    """Return a policy for each data type, with and without a prefix cache."""
    variants = {}
    for way in WAYS.values():
        if (way.dtype, way.whole) not in variants:
            gib = 0.0 if way.whole else 4.0
            config = {"path": folder, "device": "cpu", "dtype": way.dtype, "prefix_cache_gib": gib}
            policy = TransformersPolicy(ModelConfig.model_validate(config))
            remove_stop_tokens(policy)
            variants[way.dtype, way.whole] = policy
    return variants


class Found(NamedTuple):
    """The results of all measurements.

    Attributes:
        steps: measured steps by way.
        apart: relative difference in fp32 between the weight changes of both ways.
        precision: differences between bf16 and fp32.
    """

    steps: dict[str, list[Measured]]
    apart: float
    precision: Precision


def measure_ways(folder: str, repeats: int) -> Found:
    """Measure all ways in turn, several times, and compare their results."""
    variants = load_policies(folder)
    start = variants["float32", True].state_dict()

    def renewed(way: Way) -> TransformersPolicy:
        policy = variants[way.dtype, way.whole]
        policy.model.zero_grad(set_to_none=True)
        return policy.load_state_dict(start)

    steps: dict[str, list[Measured]] = {name: [] for name in WAYS}
    for _ in range(repeats):
        for name, way in WAYS.items():
            step = measure_step(renewed(way), way)
            steps[name].append(step)
            print(f"{name}: {step.sampling_s:.1f} + {step.update_s:.1f} s", file=sys.stderr)
    before, now, half, *_ = WAYS.values()
    changes = []
    for way in (before, now):
        policy = renewed(way)
        update_policy(policy, way, steps["before, fp32"][0].groups)
        changes.append(subtract(policy.parameters(), start["weights"].values()))
    apart = math.sqrt(sum_of_squares(subtract(*changes)) / sum_of_squares(changes[0]))
    changes.clear()
    return Found(steps, apart, compare_precision(renewed(now), renewed(half)))


def subtract(one: Iterable[Tensor], other: Iterable[Tensor]) -> list[Tensor]:
    """Return the differences between corresponding tensors."""
    return [a.detach() - b for a, b in zip(one, other, strict=True)]


def dot(one: Iterable[Tensor], other: Iterable[Tensor]) -> float:
    """Return the dot product of two lists of tensors, in fp64."""
    pairs = zip(one, other, strict=True)
    return sum(float(torch.dot(a.flatten().double(), b.flatten().double())) for a, b in pairs)


def sum_of_squares(tensors: Sequence[Tensor]) -> float:
    """Return the sum of all squared values of some tensors."""
    return dot(tensors, tensors)


def print_table(steps: dict[str, list[Measured]]) -> list[str]:
    """Print a table; return the ways that miss their bounds."""
    missed = []
    first = steps["before, fp32"]
    print("| step | prompt tokens read | sampling | update | step | ratio to before | bound |")
    print("|---|---|---|---|---|---|---|")
    for name, mine in steps.items():
        sampling, learning, whole, reference = (
            statistics.median(getattr(one, part) for one in of)
            for of, part in (
                (mine, "sampling_s"),
                (mine, "update_s"),
                (mine, "step_s"),
                (first, "step_s"),
            )
        )
        each = [a.step_s / b.step_s for a, b in zip(mine, first, strict=True)]
        ratio, bound = whole / reference, WAYS[name].bound
        spread = f"{ratio:.2f} ({min(each):.2f} to {max(each):.2f})"
        print(
            f"| {name} | {mine[0].read:,} | {sampling:.1f} s | {learning:.1f} s | {whole:.1f} s "
            f"| {spread} | {bound or '–'} |"
        )
        if bound is not None and ratio > bound:
            missed.append(name)
    return missed


def report_agreement(result: Found) -> bool:
    """Print the differences between both ways in fp32; return True if they are only rounding."""
    pairs = [
        (one, other)
        for g, h in zip(
            *(result.steps[name][0].groups for name in ("before, fp32", "now, fp32")), strict=True
        )
        for t, u in zip(g.trajectories, h.trajectories, strict=True)
        for one, other in zip(decisions(t), decisions(u), strict=True)
    ]
    same = [(a, b) for a, b in pairs if (a.prompt_ids, a.ids) == (b.prompt_ids, b.ids)]
    gap = max(abs(x - y) for a, b in same for x, y in zip(a.logprobs, b.logprobs, strict=True))
    print(
        f"fp32, before and now: {len(same)} of {len(pairs)} answers are the same, their "
        f"log-probabilities differ by at most {gap:.0e}; the weight changes from the same episodes "
        f"differ by {result.apart:.0e} (relative L2)."
    )
    return gap <= MAX_APART["answers"] and result.apart <= MAX_APART["weights"]


def print_precision(result: Precision) -> None:
    """Print the differences between bf16 and fp32."""
    gaps = {"its learner and fp32": result.learner, "its sampler and its learner": result.sampler}
    for between, gap in gaps.items():
        size = gap.abs()
        print(
            f"bf16, log-probabilities of {len(gap)} tokens: {between} differ by "
            f"{size.mean():.3f} on average and {size.max():.2f} at most."
        )
    print(
        f"bf16, gradient: cosine {result.cosine:.3f} to that in fp32, norm ratio {result.norm:.3f}."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table and the comparisons; return 1 if a bound is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default="smollm2", help="folder or name of a model (default: smollm2)"
    )
    parser.add_argument(
        "--shape", choices=SHAPES, help="shape of a model with random weights; disables bounds"
    )
    parser.add_argument("--repeats", type=int, default=3, help="steps per way (default: 3)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder, shape = scratch, options.shape
        if not shape:
            try:
                folder = resolve_model(options.model)
            except ModelError as error:
                shape = "135m"
                print(f"{error}\nRandom weights of SmolLM2's shape are measured.", file=sys.stderr)
        if shape:
            save_model(shape, folder)
        result = measure_ways(folder, options.repeats)
    missed = print_table(result.steps)
    agree = report_agreement(result)
    print_precision(result.precision)
    if missed and not options.shape:
        print(f"Bounds missed by: {'; '.join(missed)}.", file=sys.stderr)
        return 1
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())

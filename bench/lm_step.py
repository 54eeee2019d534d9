"""Processor time of a whole GRPO step of SmolLM2-135M on a CPU: sampling and update.

The policy plays 8 episodes of 6 turns, 4 of each of 2 tasks. A conversation begins with 150 tokens,
those of its task, and grows by 55 a turn, of which it answers with exactly 7. Rewards are planted:
half of the first group succeeds and all of the second fails, or half of both. There is no KL term.

"before" reads the whole conversation at every turn, each trajectory alone in the update, and also
those whose advantage is 0. "now" is the library's present way, in fp32 and with dtype = "bfloat16".
All ways take turns in one process with one thread, from the same weights and seed. The exit code is
1 if a ratio is beyond its bound, or if in fp32 both ways learn other weights from the same
episodes, or give the same answer other log-probabilities, by more than rounding. Few answers
differ: those with a draw that rounding decides.

Below the table: how far bf16 is from fp32 on what bf16 has sampled, and its sampler from its
learner.

    python bench/lm_step.py             # 7 minutes of processor time, 8 GB of memory
    python bench/lm_step.py --shape tiny --repeats 1      # shows that it runs; no bounds
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
from grpo_sides import SHAPES, chat_text, endless, save_model
from torch import Tensor

import coevo_gym
from coevo_gym.agents.lm import packing
from coevo_gym.agents.lm.language_model import ModelConfig
from coevo_gym.agents.lm.models import resolve_model
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
MOST_APART = {"answers": 1e-3, "weights": 1e-2}
"""Maximum differences of both ways in fp32: log-probabilities of an answer, in nats, and changes of
the weights, relatively (Adam's first step magnifies rounding)."""


class Way(NamedTuple):
    """A way to make a step.

    Attributes:
        dtype: type of the model's products.
        mixed: groups in which half of the episodes succeed; none does in the others.
        whole: True to read everything, as before.
        bound: maximum share of the processor time of the first way, or None.
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
    """A learner that also reads samples without effect on the update."""

    def _idle(self, batch: Batch) -> Tensor:
        return torch.zeros(len(batch.samples), dtype=torch.bool)


class Measured(NamedTuple):
    """Cost and outcome of a step.

    Attributes:
        sampling_s: processor time of sampling.
        update_s: processor time of the update.
        read: tokens of prompts read in sampling.
        groups: the episodes.
    """

    sampling_s: float
    update_s: float
    read: int
    groups: list[Group]

    @property
    def step_s(self) -> float:
        """Processor time of the step."""
        return self.sampling_s + self.update_s


def measure(policy: TransformersPolicy, way: Way) -> Measured:
    """Play episodes, and learn from them once."""
    started = time.process_time()
    groups = play(policy, way.mixed)
    played = time.process_time()
    update(policy, way, groups)
    done = time.process_time()
    assert policy._prefixes is not None
    return Measured(played - started, done - played, policy._prefixes.read, groups)


def update(policy: TransformersPolicy, way: Way, groups: Sequence[Group]) -> None:
    """Learn from episodes once."""
    learner = (ReadsAll if way.whole else GRPO)(policy, SETTINGS)
    with nothing_shared() if way.whole else nullcontext():
        learner.update(groups)


def play(policy: TransformersPolicy, mixed: int) -> list[Group]:
    """Sample all episodes, turn by turn."""
    episodes = GROUPS * SIZE
    rngs = [np.random.default_rng((0, i // SIZE)) for i in range(episodes)]
    chats: list[tuple[Message, ...]] = [()] * episodes
    decided: list[list[TokenDecision]] = [[] for _ in range(episodes)]
    for turn in range(TURNS):
        for i, rng in enumerate(rngs):
            text = chat_text(policy.format, FIRST + turn * A_TURN, rng, chats[i])
            chats[i] += (Message("user", text),)
            if turn == 0:
                rngs[i] = np.random.default_rng((1, i))  # the later tokens are the episode's own
        asked = [Prompt(chat, Sampling(1.0, ANSWER)) for chat in chats]
        for i, answer in enumerate(policy.generate(asked)):
            assert isinstance(answer.decision, TokenDecision)
            decided[i].append(answer.decision)
            chats[i] += (Message("assistant", answer.text, answer.decision.ids),)
    task = coevo_gym.tasks("webshop", "train")[0]
    found = [
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
        Group(str(g), task, SIZE, tuple(found[g * SIZE : (g + 1) * SIZE])) for g in range(GROUPS)
    ]


def decisions(trajectory: Trajectory) -> list[TokenDecision]:
    """Return the answers of an episode."""
    found = (step.decision for step in trajectory.steps)
    return [decision for decision in found if isinstance(decision, TokenDecision)]


class Precision(NamedTuple):
    """Differences on the answers that a policy in bf16 has sampled.

    Attributes:
        learner: (N,) log-probabilities of the learner in bf16, less those in fp32.
        sampler: (N,) log-probabilities of the sampler in bf16, less those of its learner.
        cosine: cosine of the gradients in bf16 and in fp32.
        norm: norm of the gradient in bf16, divided by that in fp32.
    """

    learner: Tensor
    sampler: Tensor
    cosine: float
    norm: float


def precision(exact: TransformersPolicy, half: TransformersPolicy) -> Precision:
    """Compare a policy in bf16 with one of the same weights in fp32."""
    groups = play(half, GROUPS)
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
    exact_norm, half_norm = (math.sqrt(square(gradient)) for gradient in gradients)
    cosine = dot(*gradients) / (exact_norm * half_norm)
    return Precision(logps[1] - logps[0], sampled - logps[1], cosine, half_norm / exact_norm)


@contextmanager
def nothing_shared() -> Iterator[None]:
    """Return a scope in which the learner reads each trajectory alone."""
    with patch.object(packing, "LEAST_SHARED", sys.maxsize):
        yield


def policies(folder: str) -> dict[tuple[str, bool], TransformersPolicy]:
    """Make a policy for each precision and memory, which samples answers up to their limit."""
    found = {}
    for way in WAYS.values():
        if (way.dtype, way.whole) not in found:
            gib = 0.0 if way.whole else 4.0
            config = {"path": folder, "device": "cpu", "dtype": way.dtype, "prefix_cache_gib": gib}
            policy = TransformersPolicy(ModelConfig.model_validate(config))
            endless(policy)
            found[way.dtype, way.whole] = policy
    return found


class Found(NamedTuple):
    """All measurements.

    Attributes:
        steps: the steps of each way.
        apart: relative difference of both ways' changes of the weights, in fp32.
        precision: differences of bf16 and fp32.
    """

    steps: dict[str, list[Measured]]
    apart: float
    precision: Precision


def run(folder: str, repeats: int) -> Found:
    """Measure all ways in turn, several times; then compare their results."""
    made = policies(folder)
    start = made["float32", True].state_dict()

    def renewed(way: Way) -> TransformersPolicy:
        policy = made[way.dtype, way.whole]
        policy.model.zero_grad(set_to_none=True)
        return policy.load_state_dict(start)

    steps: dict[str, list[Measured]] = {name: [] for name in WAYS}
    for _ in range(repeats):
        for name, way in WAYS.items():
            step = measure(renewed(way), way)
            steps[name].append(step)
            print(f"{name}: {step.sampling_s:.1f} + {step.update_s:.1f} s", file=sys.stderr)
    before, now, half, *_ = WAYS.values()
    changes = []
    for way in (before, now):
        policy = renewed(way)
        update(policy, way, steps["before, fp32"][0].groups)
        changes.append(less(policy.parameters(), start["weights"].values()))
    apart = math.sqrt(square(less(*changes)) / square(changes[0]))
    changes.clear()
    return Found(steps, apart, precision(renewed(now), renewed(half)))


def less(one: Iterable[Tensor], other: Iterable[Tensor]) -> list[Tensor]:
    """Subtract the other tensors, one by one."""
    return [a.detach() - b for a, b in zip(one, other, strict=True)]


def dot(one: Iterable[Tensor], other: Iterable[Tensor]) -> float:
    """Sum the products of the numbers of some tensors, in fp64."""
    pairs = zip(one, other, strict=True)
    return sum(float(torch.dot(a.flatten().double(), b.flatten().double())) for a, b in pairs)


def square(tensors: Sequence[Tensor]) -> float:
    """Sum the squares of the numbers of some tensors."""
    return dot(tensors, tensors)


def report(steps: dict[str, list[Measured]]) -> list[str]:
    """Print a table; return the ways that are beyond their bounds."""
    missed = []
    first = steps["before, fp32"]
    print("| step | prompt tokens read | sampling | update | step | of before | bound |")
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


def agrees(found: Found) -> bool:
    """Print the differences of both ways in fp32; return True if they are rounding only."""
    pairs = [
        (one, other)
        for g, h in zip(
            *(found.steps[name][0].groups for name in ("before, fp32", "now, fp32")), strict=True
        )
        for t, u in zip(g.trajectories, h.trajectories, strict=True)
        for one, other in zip(decisions(t), decisions(u), strict=True)
    ]
    same = [(a, b) for a, b in pairs if (a.prompt_ids, a.ids) == (b.prompt_ids, b.ids)]
    gap = max(abs(x - y) for a, b in same for x, y in zip(a.logprobs, b.logprobs, strict=True))
    print(
        f"fp32, before and now: {len(same)} of {len(pairs)} answers are the same, their "
        f"log-probabilities at most {gap:.0e} apart; changes of the weights by the same episodes "
        f"are {found.apart:.0e} apart (relative L2)."
    )
    return gap <= MOST_APART["answers"] and found.apart <= MOST_APART["weights"]


def tell_precision(found: Precision) -> None:
    """Print the differences of bf16 and fp32."""
    gaps = {"its learner and fp32": found.learner, "its sampler and its learner": found.sampler}
    for between, gap in gaps.items():
        size = gap.abs()
        print(
            f"bf16, log-probabilities of {len(gap)} tokens between {between}: {size.mean():.3f} "
            f"apart on average, {size.max():.2f} at most."
        )
    print(
        f"bf16, gradient: cosine {found.cosine:.3f} to that in fp32, {found.norm:.3f} of its norm."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table and the comparisons; return 1 if a bound is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="folder or name (default: smollm2)")
    parser.add_argument("--shape", choices=SHAPES, help="random weights of a shape; no bounds")
    parser.add_argument("--repeats", type=int, default=3, help="steps of each way (default: 3)")
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
        found = run(folder, options.repeats)
    missed = report(found.steps)
    agree = agrees(found)
    tell_precision(found.precision)
    if missed and not options.shape:
        print(f"Beyond the bound: {'; '.join(missed)}.", file=sys.stderr)
        return 1
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())

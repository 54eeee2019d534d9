"""Trajectories and a fake language model made by hand, for tests of the learner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from coevo_gym.core.task import Split
from coevo_gym.core.trajectory import (
    Decision,
    EndReason,
    Group,
    Sample,
    Segment,
    Step,
    TokenDecision,
    Trajectory,
)
from tests.toy import BENCHMARK

TASK = BENCHMARK.tasks(Split.TRAIN)[0]
VOCABULARY = 7


class FakeLanguageModel:
    """Knows only the token before: a table of logits, one row for each."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        table = torch.randn(VOCABULARY, VOCABULARY, generator=generator)
        self.table = torch.nn.Parameter(table)
        self.version = 0
        self.calls: list[list[int]] = []
        """Tokens of each sample of each call of ``logprobs``."""

    def generate(self, requests: Sequence[Any]) -> list[Any]:
        raise AssertionError("a learner never samples")

    def logprobs(self, samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
        rows = []
        self.calls.append([])
        for sample in samples:
            assert isinstance(sample, Segment)
            self.calls[-1].append(len(sample.ids))
            ids = torch.tensor(sample.ids)
            logps = torch.log_softmax(self.table[ids[:-1]] / sample.temperature, dim=1)
            picked = logps.gather(1, ids[1:, None])[:, 0]
            rows.append(picked[torch.tensor(sample.sampled[1:])])
        mask = pad_sequence([torch.ones(len(row)) for row in rows], batch_first=True) > 0
        return pad_sequence(rows, batch_first=True), mask

    def parameters(self) -> list[torch.nn.Parameter]:
        return [self.table]

    def train(self, mode: bool = True) -> None:
        pass

    def frozen_copy(self) -> FakeLanguageModel:
        copy = FakeLanguageModel()
        copy.load_state_dict(self.state_dict())
        copy.table.requires_grad_(False)
        return copy

    def state_dict(self) -> dict[str, Any]:
        return {"table": self.table.detach().clone(), "version": self.version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            self.table.copy_(state["table"])
        self.version = state["version"]

    def sample(
        self, prompt: Sequence[int], length: int, rng: np.random.Generator, temperature: float = 1.0
    ) -> TokenDecision:
        """An answer of ``length`` tokens."""
        ids, logprobs, before = [], [], prompt[-1]
        for _ in range(length):
            logps = torch.log_softmax(self.table[before].detach() / temperature, dim=0)
            before = int(
                rng.choice(VOCABULARY, p=logps.double().exp() / logps.double().exp().sum())
            )
            ids.append(before)
            logprobs.append(float(logps[before]))
        return TokenDecision(tuple(prompt), tuple(ids), tuple(logprobs), temperature)


def trajectory(
    decisions: Sequence[Decision | None],
    *,
    success: bool = False,
    end: EndReason = EndReason.MAX_STEPS,
    states: Sequence[str] | None = None,
) -> Trajectory:
    """A training episode with these decisions."""
    steps = tuple(
        Step(state, state, "act", decision)
        for state, decision in zip(states or [""] * len(decisions), decisions, strict=True)
    )
    return Trajectory(
        task_id=TASK.id, steps=steps, score=float(success), success=success, end_reason=end
    )


def group(*trajectories: Trajectory) -> Group:
    """A whole group."""
    return Group("g", TASK, len(trajectories), trajectories)


def conversation(
    model: FakeLanguageModel,
    rng: np.random.Generator,
    lengths: Sequence[int],
    *,
    fresh: bool = False,
    temperature: float = 1.0,
) -> list[TokenDecision]:
    """Decisions of a dialogue with answers of these lengths; ``fresh`` prompts do not go on."""
    decisions: list[TokenDecision] = []
    prompt: tuple[int, ...] = (0,)
    for length in lengths:
        prompt += tuple(int(i) for i in rng.integers(VOCABULARY, size=2))
        decisions.append(model.sample(prompt, length, rng, temperature))
        prompt = (1,) if fresh else prompt + decisions[-1].ids
    return decisions


def batch(
    model: FakeLanguageModel, *, groups: int = 3, size: int = 4, seed: int = 0, fresh: bool = False
) -> list[Group]:
    """Groups of dialogues of one to three answers of one to five tokens, some solved."""
    rng = np.random.default_rng(seed)
    all_groups = []
    for _ in range(groups):
        trajectories = []
        for k in range(size):
            lengths = [int(n) for n in rng.integers(1, 6, size=int(rng.integers(1, 4)))]
            decisions = conversation(model, rng, lengths, fresh=fresh)
            trajectories.append(trajectory(decisions, success=bool(k % 2)))
        all_groups.append(group(*trajectories))
    return all_groups

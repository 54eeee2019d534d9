"""Updates and imitation in float64, in this process or on all ranks that a launcher has started.

    python -m tests.trainers.rank_updates FOLDER CASES          # one process
    python -m torch.distributed.run --nproc-per-node 2 -m tests.trainers.rank_updates FOLDER CASES

The file CASES in the folder lists what to do, and rank 0 writes the result of each case.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coevo_gym.agents.lm.language_model import LanguageModel, ModelConfig
from coevo_gym.core.trajectory import Group, TokenDecision
from coevo_gym.trainers.demonstrations import Demonstrations
from coevo_gym.trainers.distributed import DistributedImitator, DistributedLearner, RankWorker
from coevo_gym.trainers.learners import make_learner, parse_learner_settings
from coevo_gym.trainers.settings import ImitationConfig
from coevo_gym.trainers.sft import Imitator
from coevo_gym.trainers.update.ranks import RankGroup, join_ranks
from tests.runs.exact_child import use_float64
from tests.trainers.episodes import group, trajectory

VOCABULARY = 290
WARMUP = ImitationConfig(
    lr=1e-3, batch_decisions=5, batch_tokens=60, max_epochs=3, holdout=0.3, patience_epochs=3
)


def decision(rng: np.random.Generator, prompt: tuple[int, ...]) -> TokenDecision:
    ids = tuple(rng.integers(3, VOCABULARY, size=int(rng.integers(2, 9))).tolist())
    return TokenDecision(prompt, ids, tuple((-5 - rng.random(len(ids))).tolist()))


def make_groups(seed: int, n: int = 3, size: int = 3) -> list[Group]:
    """Groups of dialogues that differ much in length."""
    rng, groups = np.random.default_rng(seed), []
    for _ in range(n):
        prompt = tuple(rng.integers(3, VOCABULARY, size=12).tolist())
        trajectories = []
        for k in range(size):
            decisions, before = [], prompt
            for _ in range(int(rng.integers(1, 6))):
                decisions.append(decision(rng, before))
                before += decisions[-1].ids + tuple(rng.integers(3, VOCABULARY, size=4).tolist())
            trajectories.append(trajectory(decisions, success=bool(k % 2)))
        groups.append(group(*trajectories))
    return groups


def demonstrations() -> Demonstrations:
    rng = np.random.default_rng(9)
    tasks = tuple(
        (decision(rng, tuple(rng.integers(3, VOCABULARY, size=3 + 5 * i).tolist())),)
        for i in range(9)
    )
    return Demonstrations(tasks, 0, 0, 0)


def run_case(case: dict[str, Any], folder: Path, ranks: RankGroup | None) -> None:
    """Run a case on rank 0, or follow rank 0 through it."""
    config = ModelConfig(path=str(folder / case["model"]), device="cpu", **case["config"])
    if ranks is not None and ranks.rank:
        RankWorker(ranks, config, None, WARMUP, seed=1).follow()
        return
    policy = LanguageModel(config, seed=1)
    start = flat_weights(policy)
    worker = None if ranks is None else RankWorker(ranks, config, policy, WARMUP, seed=1)
    saved = torch.load(folder / case["load"], weights_only=False) if "load" in case else None
    run = imitate if case.get("imitate") else update
    numbers, learner = run(case, policy, worker, saved)
    options = {} if case.get("imitate") else {"reference": False}
    state = {"policy": policy.state_dict(), "learner": learner.state_dict(**options)}
    torch.save(state, folder / f"{case['out']}.state")
    average = getattr(learner, "average", None)
    with average.use_in_policy() if average else nullcontext():
        weights = flat_weights(policy)
    result = {"start": start, "weights": weights, "numbers": numbers, "version": policy.version}
    torch.save(result, folder / f"{case['out']}.pt")
    if worker is not None:
        worker.stop()


def flat_weights(policy: LanguageModel) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in policy.parameters()])


def update(
    case: dict[str, Any], policy: Any, worker: RankWorker | None, saved: Any
) -> tuple[dict[str, float], Any]:
    """Take a case's updates; the metrics of the last one, and the learner."""
    settings = parse_learner_settings(case["learner"])
    learner: Any
    if worker is None:
        learner = make_learner(settings, policy, seed=3)
    else:
        learner = DistributedLearner(worker, settings, seed=3)
    if saved is not None:
        policy.load_state_dict(saved["policy"])
        learner.load_state_dict(saved["learner"])
    metrics: dict[str, float] = {}
    for number in case["updates"]:
        groups = make_groups(number, **case.get("groups", {}))
        learner.spent = number / 10
        metrics = learner.update(groups, learner.advantages(groups))
    return metrics, learner


def imitate(
    case: dict[str, Any], policy: Any, worker: RankWorker | None, saved: Any
) -> tuple[dict[str, float], Any]:
    """Take a case's epochs of imitation; the losses, and the imitator."""
    if worker is None:
        imitator = Imitator(policy, demonstrations(), WARMUP, seed=2)
    else:
        imitator = DistributedImitator(worker, demonstrations(), seed=2)
    if saved is not None:
        policy.load_state_dict(saved["policy"])
        imitator.load_state_dict(saved["learner"])
    for _ in range(case["epochs"]):
        imitator.run_epoch()
    if imitator.is_over:
        imitator.finish()
    losses = [*imitator.losses, *imitator.watched]
    return {str(number): loss for number, loss in enumerate(losses)}, imitator


def main() -> None:
    torch.set_num_threads(1)
    use_float64()
    folder = Path(sys.argv[1])
    cases = json.loads((folder / sys.argv[2]).read_text())
    several = "RANK" in os.environ
    with join_ranks(torch.device("cpu")) if several else nullcontext() as ranks:
        for case in cases:
            run_case(case, folder, ranks)


if __name__ == "__main__":
    main()

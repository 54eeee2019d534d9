"""Updates and imitation in float64, in this process or on all ranks that a launcher has started.

    python -m tests.trainers.rank_updates FOLDER          # one process
    python -m torch.distributed.run --nproc-per-node 2 -m tests.trainers.rank_updates FOLDER

The file ``cases.json`` of the folder tells what to do, and rank 0 writes what came of each case.
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

from coevo_gym.agents.lm import causal_lm
from coevo_gym.agents.lm.language_model import LanguageModel, ModelConfig
from coevo_gym.core.trajectory import Group, TokenDecision
from coevo_gym.trainers.demonstrations import Demonstrations
from coevo_gym.trainers.distributed import DistributedImitator, DistributedLearner, RankWorker
from coevo_gym.trainers.learners import make_learner, parse_learner_settings
from coevo_gym.trainers.settings import ImitationConfig
from coevo_gym.trainers.sft import Imitator
from coevo_gym.trainers.update.ranks import RankGroup, join_ranks
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
    config = ModelConfig(path=str(folder / case.get("model", "model")), **case.get("config", {}))
    is_leader = ranks is None or ranks.rank == 0
    policy = LanguageModel(config, seed=1) if is_leader else None
    worker = None
    if ranks is not None:
        worker = RankWorker(ranks, config, policy, WARMUP, seed=1)
        if policy is None:
            worker.follow()
            return
    assert policy is not None
    losses: Any = ()
    if case.get("imitate"):
        if worker is None:
            imitator = Imitator(policy, demonstrations(), WARMUP, seed=2)
        else:
            imitator = DistributedImitator(worker, demonstrations(), seed=2)
        if "load" in case:
            state = torch.load(folder / case["load"], weights_only=False)
            policy.load_state_dict(state["policy"])
            imitator.load_state_dict(state["imitator"])
        for _ in range(case.get("epochs", 9)):
            if not imitator.is_over:
                imitator.run_epoch()
        state = {"policy": policy.state_dict(), "imitator": imitator.state_dict()}
        torch.save(state, folder / f"{case['out']}.state")
        if "epochs" not in case:
            losses = imitator.finish().losses
    settings = parse_learner_settings(case.get("learner", {}))
    if worker is None:
        learner: Any = make_learner(settings, policy, seed=3)
    else:
        learner = DistributedLearner(worker, settings, seed=3)
    if "load" in case and not case.get("imitate"):
        state = torch.load(folder / case["load"], weights_only=False)
        policy.load_state_dict(state["policy"])
        learner.load_state_dict(state["learner"])
    metrics = {}
    for number in case.get("updates", ()):
        groups = make_groups(number, **case.get("groups", {}))
        learner.spent = number / 10
        metrics = learner.update(groups, learner.advantages(groups))
    average = getattr(learner, "average", None)
    if not case.get("imitate"):
        state = {"policy": policy.state_dict(), "learner": learner.state_dict(reference=False)}
        torch.save(state, folder / f"{case['out']}.state")
    with average.use_in_policy() if average else nullcontext():
        weights = torch.cat([weight.detach().flatten() for weight in policy.parameters()])
    result = {"weights": weights, "metrics": metrics, "losses": losses, "version": policy.version}
    torch.save(result, folder / f"{case['out']}.pt")
    if worker is not None:
        worker.stop()


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    load = causal_lm.load_model
    causal_lm.load_model = lambda path, device, dtype: load(path, device, torch.float64)
    for module in ("coevo_gym.trainers.sharded_model",):
        sys.modules[module].load_model = causal_lm.load_model  # type: ignore[attr-defined]
    cases = json.loads((folder / sys.argv[2]).read_text())
    several = "RANK" in os.environ
    with join_ranks(torch.device("cpu")) if several else nullcontext() as ranks:
        for case in cases:
            run_case(case, folder, ranks)


if __name__ == "__main__":
    main()

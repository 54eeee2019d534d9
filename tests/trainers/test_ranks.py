"""Ranks: two processes learn what one process learns, and go on from each other's states."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from coevo_gym.core.errors import ConfigError  # noqa: E402
from coevo_gym.trainers.distributed import check_distributable  # noqa: E402
from coevo_gym.trainers.learners import parse_learner_settings  # noqa: E402
from coevo_gym.trainers.settings import ImitationConfig  # noqa: E402
from coevo_gym.trainers.update.ranks import RankGroup, Ranks  # noqa: E402
from tests.agents.tiny_llama import make_tiny_llama  # noqa: E402
from tests.processes import run  # noqa: E402

LEARNER = {
    "lr": 1e-3,
    "lr_warmup_steps": 3,
    "epochs": 2,
    "minibatches": 2,
    "kl_coef": 1e-2,
    "old_logprobs": "recomputed",
    "microbatch_tokens": 100,
    "max_grad_norm": 0.5,  # every gradient is clipped
}
"""Settings for which every part of an update counts."""


def case(name: str, **changes: Any) -> dict[str, Any]:
    config = {"shard": "shard" in name} | changes.pop("config", {})
    learner = changes.pop("instead", None) or LEARNER | changes.pop("learner", {})
    base = {"model": "llama", "updates": [0, 1, 2], "learner": learner, "config": config}
    return {"name": name} | base | changes


REST = {
    "kind": "rest",
    "grow_steps": 2,
    "imitation": {"lr": 1e-3, "batch_decisions": 4, "batch_tokens": 80, "max_epochs": 2},
}
FEW = {"groups": {"n": 1, "size": 2}}  # one sample a step, so the second rank has none
EQUAL = [
    case("copies"),
    case("shards"),
    case("copies-lora", config={"lora_rank": 4}),
    case("shards-lora", config={"lora_rank": 4, "pack_tokens": 30}),
    case("copies-untied", model="untied"),
    case("shards-untied", model="untied", config={"gradient_checkpointing": True}),
    case("copies-few", **FEW),
    case("shards-few", **FEW),
    case("copies-recorded", learner={"old_logprobs": "recorded", "kl_coef": 0.0}),
    case("shards-entropy", learner={"entropy_coef": 1e-2, "loss_mean": "trajectory"}),
    case("copies-8bit", learner={"optimizer": "adamw_8bit"}),
    case("copies-average", learner={"average": 0.5}),
    case("copies-ppo", instead={"kind": "ppo", "lr": 1e-3, "minibatches": 2, "value_lr": 1e-2}),
    case("copies-rest", instead=REST),
    case("copies-imitation", imitate=True, epochs=3),
    case("shards-imitation", imitate=True, epochs=3),
]
SAVED = [
    case("copies", updates=[0, 1]),
    case("shards", updates=[0, 1]),
    case("shards-lora", updates=[0, 1], config={"lora_rank": 4}),
    case("copies-imitation", imitate=True, epochs=2),
    case("shards-imitation", imitate=True, epochs=2),
]
RESUMED = {"updates": [2], "epochs": 1}
TOLERANCE = 1e-9
"""Largest difference in a weight, in float64. Updates move some weights by 1e-3."""


def launch(folder: Path, cases: str, processes: int) -> None:
    """Run cases in one process, or in several that are joined as by a launcher."""
    command = ["-m", "tests.trainers.rank_updates", str(folder), cases]
    environment = dict(os.environ)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    if processes == 1:
        environments = [environment]
    else:
        ranks = ({"RANK": str(rank), "WORLD_SIZE": str(processes)} for rank in range(processes))
        environments = [environment | address | rank for rank in ranks]
    with ThreadPoolExecutor(processes) as pool:
        ended = list(pool.map(lambda env: run(command, env=env, timeout=600), environments))
    assert [one.returncode for one in ended] == [0] * processes, [one.stderr for one in ended]


def write_cases(folder: Path, file: str, cases: Sequence[dict[str, Any]]) -> None:
    (folder / file).write_text(json.dumps(cases))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the results of all cases, with one process and with two.

    What was saved after two updates is resumed by the other number of processes.
    """
    folder = tmp_path_factory.mktemp("ranks")
    make_tiny_llama(folder / "llama")
    make_tiny_llama(folder / "untied", tie_word_embeddings=False)
    others = {1: 2, 2: 1}
    for n in others:
        cases = [one | {"out": f"{one['name']}-by-{n}"} for one in EQUAL]
        cases += [one | {"out": f"{one['name']}-saved-by-{n}"} for one in SAVED]
        write_cases(folder, f"first-{n}.json", cases)
        launch(folder, f"first-{n}.json", n)
    for n, other in others.items():
        write_cases(
            folder,
            f"then-{n}.json",
            [
                one
                | RESUMED
                | {
                    "load": f"{one['name']}-saved-by-{other}.state",
                    "out": f"{one['name']}-resumed-by-{n}",
                }
                for one in SAVED
            ],
        )
        launch(folder, f"then-{n}.json", n)
    return folder


def read(folder: Path, name: str) -> Any:
    return torch.load(folder / f"{name}.pt", weights_only=False)


def distance(one: Any, other: Any) -> float:
    assert one["weights"].dtype == torch.float64
    return float((one["weights"] - other["weights"]).abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("name", [one["name"] for one in EQUAL])
def test_two_processes_learn_what_one_learns(folder: Path, name: str) -> None:
    one, two = read(folder, f"{name}-by-1"), read(folder, f"{name}-by-2")
    assert float((one["weights"] - one["start"]).abs().max()) > 1e-4
    tolerance = 1e-6 if "ppo" in name else TOLERANCE  # the value head is in float32
    assert distance(one, two) < tolerance
    assert one["version"] == two["version"]
    assert one["numbers"].keys() == two["numbers"].keys()
    measured = {key for key in one["numbers"] if not key.endswith("_s")}
    for key in measured:
        assert two["numbers"][key] == pytest.approx(one["numbers"][key], abs=tolerance), key


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("name", [one["name"] for one in SAVED])
def test_a_state_is_resumed_by_another_number_of_processes(folder: Path, name: str, n: int) -> None:
    whole, resumed = read(folder, f"{name}-by-1"), read(folder, f"{name}-resumed-by-{n}")
    assert distance(whole, resumed) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", [one["name"] for one in SAVED])
def test_a_saved_state_does_not_depend_on_the_number_of_processes(folder: Path, name: str) -> None:
    one, two = (
        torch.load(folder / f"{name}-saved-by-{n}.state", weights_only=False) for n in (1, 2)
    )
    assert_alike(one, two)


def assert_alike(one: Any, two: Any) -> None:
    """Check that nested states have the same types, keys and shapes, and nearly equal numbers."""
    assert type(one) is type(two)
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        for key in one:
            assert_alike(one[key], two[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(two)
        for pair in zip(one, two, strict=True):
            assert_alike(*pair)
    elif isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, two, rtol=0, atol=TOLERANCE)
    elif isinstance(one, float):
        assert two == pytest.approx(one)
    else:
        assert one == two


class FakeGroup(RankGroup):
    """One of several ranks, without processes."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


@pytest.mark.parametrize("size", [2, 3, 8])
def test_ranks_share_each_sample_once_in_the_same_number_of_passes(size: int) -> None:
    tokens = np.array([7, 30, 2, 9, 9, 41, 5])
    rows = np.array([0, 1, 3, 4, 5, 6])
    shares = [FakeGroup(rank, size).share_rows(rows, tokens, 40) for rank in range(size)]
    assert len({len(share) for share in shares}) == 1
    own = [row for share in shares for part in share if part.weight for row in part.rows.tolist()]
    assert sorted(own) == rows.tolist()
    fillers = [part for share in shares for part in share if not part.weight]
    assert all(part.rows.tolist() == [6] for part in fillers), "the shortest"
    loads = [sum(tokens[part.rows].sum() for part in share) for share in shares]
    assert size > 2 or max(loads) - min(loads) <= tokens.max()


def test_nothing_is_shared_out_of_an_empty_step() -> None:
    nothing = np.array([], dtype=np.int64)
    for ranks in (Ranks(), FakeGroup(1, 2)):
        assert ranks.share_rows(nothing, np.array([3]), 5) == []


@pytest.mark.parametrize(
    ("learner", "warmup", "message"),
    [
        ({"kind": "ppo"}, {}, "kind 'ppo' cannot train a sharded model"),
        ({"kind": "rest"}, {}, "kind 'rest' cannot train a sharded model"),
        ({"optimizer": "adamw_8bit"}, {}, "learner.optimizer = 'adamw_8bit' does not support"),
        ({"optimizer": "adamw_offload"}, {}, "learner.optimizer = 'adamw_offload' does not"),
        ({}, {"optimizer": "adamw_8bit"}, "warmup.optimizer = 'adamw_8bit' does not support"),
        ({"average": 0.9}, {}, "learner.average = 0.9 does not support a sharded model"),
    ],
)
def test_settings_that_do_not_suit_a_sharded_model_are_refused(
    learner: dict[str, Any], warmup: dict[str, Any], message: str
) -> None:
    settings, imitation = parse_learner_settings(learner), ImitationConfig(**warmup)
    check_distributable(settings, imitation, shard=False)
    with pytest.raises(ConfigError, match=message):
        check_distributable(settings, imitation, shard=True)

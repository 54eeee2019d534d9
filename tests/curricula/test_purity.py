"""A curriculum decides; it does not read, write or look at the clock."""

from __future__ import annotations

import builtins
import json
import socket
import sqlite3
import time
from typing import Any, NoReturn

import numpy as np
import pytest

from coevo_gym.core.evolution import RoundResult
from coevo_gym.curricula.pool_curriculum import CurriculumConfig
from tests.curricula.episodes import TRAIN, group

BAND = {"kind": "band", "cap": 1, "shuffled": True}


@pytest.mark.parametrize("when", ["signals", "reserve"])
@pytest.mark.parametrize("kind", ["signals", "blind", "anywhere", "coverage", "none"])
def test_a_curriculum_uses_no_files_sockets_databases_or_clocks(
    kind: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a curriculum is pure")

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", refuse)
        patch.setattr(socket, "socket", refuse)
        patch.setattr(sqlite3, "connect", refuse)
        for clock in ("time", "monotonic", "perf_counter"):
            patch.setattr(time, clock, refuse)
        rounds = _live(kind, when)
    assert rounds == (1 if kind == "none" else 3 if when == "reserve" else 4)


def _live(kind: str, when: str) -> float:
    growth = {"kind": kind, **({} if kind == "none" else {"when": when, "every_groups": 5})}
    settings: dict[str, Any] = {"selector": BAND} if when == "reserve" else {}
    config = CurriculumConfig(initial_size=10, growth=growth, **settings)
    curriculum, rng = config.make(), np.random.default_rng(0)
    for i in range(16):
        if planned := curriculum.plan(rng):
            number = int(planned.id.removeprefix("round-"))
            tasks = TRAIN[10 * number : 10 * number + 10]
            curriculum.apply(RoundResult(round_id=planned.id, accepted=tasks))
        (task,) = curriculum.next(1, rng)
        curriculum.record([group([1, 0], task, id=f"g{i}")])
        again = config.make()
        again.load_state_dict(json.loads(json.dumps(curriculum.state_dict())))
        assert again.metrics() == curriculum.metrics()
    return curriculum.metrics()["rounds"]

"""Attempts to cheat in AppWorld work in the stock engine, and fail in a world here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coevo_gym.envs.appworld import setup
from coevo_gym.envs.appworld.cheats import PAYLOADS, Seen
from coevo_gym.envs.appworld.escapes import CheatSetup, cheat_setup
from coevo_gym.escapes import Payload, Verdict, compare

NOT_APPLICABLE = {"clock-argument": "allow_datetime_change is False"}
"""What the stock engine refuses, too, and the reason that it gives."""


@pytest.fixture(scope="module")
def cheats(root: Path, coevo_home: Path) -> Iterator[CheatSetup]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COEVO_HOME", str(coevo_home))
        with cheat_setup(root) as made:
            yield made


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: payload.name)
def test_cheating_is_stopped(payload: Payload[Seen], cheats: CheatSetup) -> None:
    (row,) = compare([payload], cheats)
    assert not row.on.worked
    if reason := NOT_APPLICABLE.get(payload.name):
        assert reason in row.off.detail
    else:
        assert row.verdict is Verdict.STOPPED, row


def test_the_suite_is_the_benchmarks_own() -> None:
    suite = setup.escape_suite()
    assert suite.name == "appworld"
    assert len({payload.name for payload in suite.payloads}) == len(suite.payloads) >= 30

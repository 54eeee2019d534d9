"""Every registered env keeps every promise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coevo_gym.benchmark import benchmark_specs
from coevo_gym.envs.base import Grade
from coevo_gym.testing.contract import CHECKS, assert_env_contract

BENCHMARKS = {spec.env_id: spec.name for spec in benchmark_specs()}


@pytest.mark.parametrize("env_id", BENCHMARKS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(env_id: str, check: Callable[[str], None], engine: Callable[[str], None]) -> None:
    engine(BENCHMARKS[env_id])
    check(env_id)


def test_the_contract_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.toy import ToyEnv

    monkeypatch.setattr(ToyEnv, "_grade", lambda self, verifier: Grade(0.0, False))
    with pytest.raises(AssertionError, match="the reference failed"):
        assert_env_contract("Toy-v0")

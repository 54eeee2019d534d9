"""Contract tests for the env and the benchmark."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from coevo_newbench import SPEC

from coevo_gym.testing.benchmark import BENCHMARK_CHECKS
from coevo_gym.testing.contract import CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_env_keeps_its_promises(check: Callable[[str], None]) -> None:
    check(SPEC.env_id)


@pytest.mark.parametrize("check", BENCHMARK_CHECKS, ids=lambda check: check.__name__)
def test_the_benchmark_keeps_its_promises(check: Callable[[str], None]) -> None:
    check(SPEC.name)

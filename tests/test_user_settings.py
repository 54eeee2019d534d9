"""The user's own settings must not reach the tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coevo_gym.runs.config.sources import load_config
from tests.conftest import forget_user_settings


def test_the_users_environment_variables_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COEVO_WEBSHOP_DATA", "/nowhere")
    monkeypatch.setenv("COEVO_CFG__EVALUATION__N_TASKS", "7")
    monkeypatch.setenv("COEVO_TEST_WEBSHOP_DATA", "/kept")
    forget_user_settings()
    left = {name for name in os.environ if name.startswith("COEVO_")}
    assert "COEVO_TEST_WEBSHOP_DATA" in left
    assert {name for name in left if not name.startswith("COEVO_TEST_")} == {"COEVO_HOME"}
    assert load_config("quickstart").config.evaluation.n_tasks != 7


@pytest.fixture(scope="session")
def seen_by_a_session_fixture() -> str:
    return os.environ["COEVO_HOME"]


def test_session_fixtures_have_the_same_home_as_tests(
    seen_by_a_session_fixture: str, coevo_home: Path
) -> None:
    assert seen_by_a_session_fixture == os.environ["COEVO_HOME"] == str(coevo_home)

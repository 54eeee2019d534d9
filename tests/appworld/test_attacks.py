"""Attacks on AppWorld work in the stock engine, and fail in a world here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coevo_gym.core.errors import EnvBackendError
from coevo_gym.sandbox import Level
from coevo_gym.sandbox.attacks import AttackRun, AttackVerdict, Payload, run_payloads
from tests.appworld.attacks import PAYLOADS, setup
from tests.appworld.attacks.seen import EngineObservations
from tests.appworld.attacks.setup import AttackSetup, attack_setup
from tests.quick import sample_params
from tests.sandbox.levels import skip_unless_available

NOT_APPLICABLE = {"clock-argument": "allow_datetime_change is False"}
"""What the stock engine refuses, too, and the reason that it gives."""


LEVELS = [
    pytest.param(
        Level.BUBBLEWRAP, marks=skip_unless_available(Level.BUBBLEWRAP), id=Level.BUBBLEWRAP
    ),
    pytest.param(
        Level.LANDLOCK,
        marks=[skip_unless_available(Level.LANDLOCK), pytest.mark.slow],
        id=Level.LANDLOCK,
    ),
]


@pytest.fixture(scope="module", params=LEVELS)
def attacks(root: Path, coevo_home: Path, request: pytest.FixtureRequest) -> Iterator[AttackSetup]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COEVO_HOME", str(coevo_home))
        with attack_setup(root, request.param) as instance:
            assert instance.level is request.param
            yield instance


class Halves:
    """A set-up that knows what attacks do in the stock engine, which has no levels."""

    def __init__(self, setup: AttackSetup, known: dict[str, AttackRun]) -> None:
        self._setup = setup
        self._known = known

    def run(self, payload: Payload[EngineObservations], *, protected: bool) -> AttackRun:
        """See :class:`coevo_gym.sandbox.attacks.Setup`."""
        if protected:
            return self._setup.run(payload, protected=True)
        if payload.name not in self._known:
            self._known[payload.name] = self._setup.run(payload, protected=False)
        return self._known[payload.name]


@pytest.fixture(scope="module")
def known() -> dict[str, AttackRun]:
    return {}


@pytest.mark.parametrize("payload", sample_params(PAYLOADS, 4, lambda payload: payload.name))
def test_an_attack_works_in_the_stock_engine_and_fails_in_the_sandbox(
    payload: Payload[EngineObservations], attacks: AttackSetup, known: dict[str, AttackRun]
) -> None:
    (row,) = run_payloads([payload], Halves(attacks, known), attacks.level)
    assert not row.on.worked
    if reason := NOT_APPLICABLE.get(payload.name):
        assert reason in row.off.detail
    else:
        assert row.verdict is AttackVerdict.STOPPED, row


@pytest.mark.parametrize("protected", [False, True])
def test_the_harness_observes_the_effects_of_a_run(
    protected: bool, root: Path, attacks: AttackSetup
) -> None:
    task = min((root / "data" / "tasks").iterdir())
    code = (task / "ground_truth" / "solution.py").read_text()
    right = Payload[EngineObservations](
        "right",
        "do what is asked",
        f"{code}\nprint('planted')",
        lambda seen: (
            seen.passed
            and seen.works
            and seen.other_works
            and bool(seen.changes)
            and any("login" in call or "auth" in call for call in seen.calls)
            and "planted" in seen.said
        ),
    )
    assert attacks.run(right, protected=protected).worked


def test_an_attack_that_does_not_run_is_an_error(
    attacks: AttackSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "PRELUDE", "no_such_name")
    with pytest.raises(EnvBackendError, match="'models-read' did not run"):
        attacks.run(next(p for p in PAYLOADS if p.name == "models-read"), protected=True)


def test_the_docs_page_states_the_number_of_attacks() -> None:
    assert len({payload.name for payload in PAYLOADS}) == len(PAYLOADS) >= 30
    page = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text()
    assert f"{len(PAYLOADS)} attacks on AppWorld" in page

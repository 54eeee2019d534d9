"""What is printed of presets is what is stored, so that a change of it is seen and meant."""

from __future__ import annotations

import pytest

from coevo_gym.runs.config import preset_names
from tests.golden.make import COMMANDS, FOLDER, command_output, file_of


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("kind", COMMANDS)
def test_a_command_prints_the_stored_output_for_a_preset(
    kind: str, preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")  # the width of a terminal changes nothing
    monkeypatch.setenv("COEVO_CFG__SEED", "5")  # nor do settings of a user
    path = file_of(kind, preset)
    again = f"Run `python -m tests.golden.make {preset}`, and read the difference."
    assert path.is_file(), f"{path} is missing. {again}"
    assert command_output(kind, preset) == path.read_text(encoding="utf-8"), again


@pytest.mark.parametrize("kind", COMMANDS)
def test_stored_outputs_exist_for_exactly_the_presets(kind: str) -> None:
    assert {path.stem for path in (FOLDER / kind).glob("*.txt")} == set(preset_names())

"""Formulas by name: numbers from elsewhere against the production code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coevo_gym.core.errors import ConfigError
from tests.formulas.by_name import FORMULAS, are_equal, check_vectors, main, read_vectors

RIGHT = {"id": "rloo#0", "formula": "rloo", "inputs": {"R": [1, 0, 0]}, "expected": [1, -0.5, -0.5]}
WRONG = RIGHT | {"id": "rloo#1", "expected": [1, -0.5, -0.4]}
BROKEN = RIGHT | {"id": "rloo#2", "inputs": {"rewards": [1, 0]}}
UNKNOWN = RIGHT | {"id": "no#0", "formula": "no.such"}
NUMBERS: dict[str, tuple[dict[str, Any], Any]] = {
    "grpo": ({"R": [1, 1, 1, 0]}, [0.499999, 0.499999, 0.499999, -1.499997]),
    "rloo": ({"R": [0.7755, 0.028, 0.3335]}, [0.59475, -0.5265, -0.06825]),
    "gigpo.advantages": (
        {
            "trajs": [
                {"states": ["a", "b"], "rewards": [0.0, 1.0]},
                {"states": ["a"], "rewards": [0.0]},
            ],
            "gamma": 0.9,
            "w": 0.5,
            "std": False,
        },
        [[0.725, 0.5], [-0.725]],
    ),
    "ppo.turn_gae": (
        {
            "rewards": [0.0, 0.0, 1.0],
            "values": [0.2, 0.4, 0.6],
            "gamma": 0.9,
            "lam": 0.8,
            "lengths": [2, 1, 3],
        },
        {
            "A": [0.46816, 0.428, 0.4],
            "returns": [0.66816, 0.828, 1.0],
            "tokens": [0.46816, 0.46816, 0.428, 0.4, 0.4, 0.4],
        },
    ),
    "ppo.token_gae": (
        {"rewards": [0.0, 1.0], "values": [0.1, 0.2, 0.3], "gamma": 1, "lam": 1, "lengths": [2, 1]},
        {"A": [0.9, 0.8, 0.7], "returns": [1.0, 1.0, 1.0]},
    ),
    "ppo.value_loss": (
        {
            "v": [1.0, 0.1],
            "old": [0.2, 0.1],
            "returns": [0.9, 0.5],
            "mask": [True, True],
            "clip": 0.2,
        },
        0.1025,
    ),
    "ppo.whiten": (
        {"A": [1.0, -1.0, 7.0], "mask": [True, True, False]},
        [0.707106779, -0.707106779, 0.0],
    ),
    "ppo.explained": ({"v": [0.0, 1.0], "returns": [0.0, 2.0]}, 0.75),
    "rest.kept": (
        {"scores": [0.0, 0.5, 0.9], "thresholds": [0.0, 0.5, 0.9]},
        [[1, 2], [2], []],
    ),
    "role.group_states": (
        {"texts": ["at desk 1", "at desk 2", "a mug"], "threshold": 0.8, "similarity": "lcs"},
        [0, 0, 1],
    ),
    "role.likeness": (
        {"pairs": [["tide", "diet"], ["diet", "tide"]], "similarity": "difflib"},
        [0.25, 0.5],
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_formula_matches_the_expected_numbers(name: str) -> None:
    if name.startswith(("ppo", "rest")):
        pytest.importorskip("torch")
    inputs, expected = NUMBERS[name]
    actual = FORMULAS[name](inputs)
    assert are_equal(actual, expected), actual


def run(tmp_path: Path, *entries: Any, only: str = "") -> int:
    path = tmp_path / "numbers.json"
    path.write_text(json.dumps({"vectors": entries}))
    return main([str(path), "--only", only])


def test_a_file_whose_entries_all_agree_exits_with_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, RIGHT, RIGHT) == 0
    assert "rloo: 2 agree\n2 agree, 0 differ" in capsys.readouterr().out


def test_differing_entries_are_listed_and_exit_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, RIGHT, WRONG, BROKEN) == 1
    output = capsys.readouterr().out
    assert "rloo: 1 agree, 2 differ" in output
    assert "rloo#1 differs: expected [1, -0.5, -0.4], found [1.0, -0.5, -0.5]" in output
    assert "rloo#2 differs" in output
    assert "KeyError" in output


def test_unknown_formulas_fail_only_if_they_are_selected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, RIGHT, UNKNOWN) == 1
    assert "no.such: 1 unknown" in capsys.readouterr().out
    assert run(tmp_path, RIGHT, UNKNOWN, only="rl,grpo") == 0
    assert "1 not selected" in capsys.readouterr().out


def test_selecting_no_entry_exits_with_1(tmp_path: Path) -> None:
    assert run(tmp_path, RIGHT, only="ppo") == 1
    assert run(tmp_path) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "as JSON"),
        ('{"a": 1}', "a list of entries"),
        ('[{"id": "x"}]', "missing formula, inputs"),
    ],
)
def test_an_invalid_file_exits_with_2_and_a_message(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_vectors(path)
    assert main([str(path)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("actual", "expected", "same"),
    [
        (1.0 + 9e-9, 1, True),
        (1.0 + 2e-8, 1, False),
        (float("nan"), 1.0, False),
        (True, 1, False),
        (1, True, False),
        ((1, 2), [1, 2], True),
        ([1], [1, 2], False),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ("x", "x", True),
        (None, None, True),
        (None, 0, False),
    ],
)
def test_are_equal_compares_values_types_and_lengths(
    actual: Any, expected: Any, same: bool
) -> None:
    assert are_equal(actual, expected) is same


def test_the_command_compares_a_file(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    path.write_text(json.dumps([RIGHT]))
    command = [sys.executable, "-m", "tests.formulas.by_name", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("rloo: 1 agree")
    assert check_vectors([RIGHT], FORMULAS).fine

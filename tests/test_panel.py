"""Panels, protocols and citations, without any benchmark."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.panel import Citation, EvalProtocol, Panel, PanelTask, changed_parts


def sha256(value: Any) -> str:
    """The hash of a part as docs/panels.md describes it."""
    text = value
    if not isinstance(value, str):
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def task(number: int, text: str = "buy a mug") -> PanelTask:
    parts = {"instruction": sha256(f"{text} {number}"), "options": sha256({"size": "groß"})}
    return PanelTask(
        id=f"shop/{number}", scenario="B01", place={"goal": number, "a": 1}, parts=parts
    )


def make(**fields: Any) -> Panel:
    defaults: dict[str, Any] = {
        "name": "two",
        "about": "Two tasks.",
        "benchmark": "shop",
        "split": "test",
        "env": {"subset": "x"},
        "data": {"products": "0123"},
        "tasks": (task(1), task(2)),
    }
    return Panel(**{**defaults, **fields})


def test_hashes_can_be_computed_without_this_package() -> None:
    panel = make()
    first = json.loads(panel.to_json())["tasks"][0]
    assert first["hash"] == panel.tasks[0].hash == sha256(first["parts"])
    file = json.loads(panel.to_json())
    assert file.pop("hash") == panel.hash
    for key in ("format", "name", "about"):
        del file[key]
    for row in file["tasks"]:
        del row["hash"]
    assert sha256(file) == panel.hash
    assert panel.reference == f"two@{panel.hash[:12]}"


def test_a_panel_has_one_text_whatever_the_order_of_its_keys() -> None:
    other = make(
        data={"b": "2", "a": "1"}, env={"subset": "x", "scheme": "y"}, about="Für alle: « ».\u2028"
    )
    again = make(
        about="Für alle: « ».\u2028", env={"scheme": "y", "subset": "x"}, data={"a": "1", "b": "2"}
    )
    assert other.to_json() == again.to_json()
    assert Panel.from_json(other.to_json(), "f") == other
    assert Panel.from_json(other.to_json().encode(), "f").to_json() == other.to_json()
    assert len(other.to_json().encode().split(b"\n")) == 9 + 1 + 2 + 2 + 1


def test_the_name_and_the_description_are_not_part_of_the_hash() -> None:
    assert make().hash == make(name="other", about="").hash
    changes: list[dict[str, Any]] = [
        {"benchmark": "market"},
        {"split": "val"},
        {"env": {}},
        {"data": {}},
        {"tasks": (task(2), task(1))},
        {"tasks": (task(1),)},
        {"tasks": (task(1), task(2, "buy a cup"))},
    ]
    hashes = {make(**change).hash for change in changes}
    assert len(hashes - {make().hash}) == len(changes)


def edit(**changes: Any) -> str:
    file = json.loads(make().to_json())
    return json.dumps({**file, **changes})


def edit_task(**changes: Any) -> str:
    file = json.loads(make().to_json())
    file["tasks"][1].update(changes)
    return json.dumps(file)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (edit(split="val"), "was edited: its key 'hash' must be"),
        (edit(hash="0" * 64), "was edited: its key 'hash' must be"),
        (edit(data={}), "was edited: its key 'hash' must be"),
        (edit(tasks=json.loads(edit())["tasks"][::-1]), "was edited: its key 'hash' must be"),
        (edit_task(hash="0" * 64), "was edited: the hash of task shop/2 must be"),
        (edit_task(hash=None), "was edited: the hash of task shop/2 must be .*, got None"),
        (edit_task(parts={"instruction": "0" * 64}), "was edited: the hash of task shop/2 must be"),
        (edit_task(place={"goal": 7}), "was edited: its key 'hash' must be"),
        (edit_task(id="shop/1"), "lists the task shop/1 more than once"),
        (edit_task(parts={"instruction": "no hash"}), r"tasks\.1\.parts\.instruction: .*64"),
        (edit_task(parts={}), r"tasks\.1\.parts: "),
        (edit_task(text="buy a mug"), r"tasks\.1\.text: "),
        (edit(split="dev"), "split: "),
        (edit(tasks=[]), "tasks: "),
        (edit(tasks=3), "tasks: "),
        (edit(tasks=[1]), r"tasks\.0: "),
        (edit(env={"x": [1, {}]}, hash=None), "got None"),
        (edit(name="Two tasks"), "name: "),
        (edit(format="coevo_gym panel 9"), "its key 'format' must be 'coevo_gym panel 1', got"),
        ("[]", "its key 'format' must be"),
        ("{", "is not a panel file: .*line 1"),
        ("[" * 100_000, "is not a panel file: "),
    ],
)
def test_an_edited_or_damaged_file_is_rejected(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"mine\.json.*{problem}") as error:
        Panel.from_json(text, "mine.json")
    assert "coevo panel make" in str(error.value)


def test_parts_that_differ_are_named() -> None:
    first = task(1)
    other = first.model_copy(
        update={"parts": {**first.parts, "options": "1" * 64, "new": "2" * 64}}
    )
    assert [*changed_parts(first, other)] == ["new", "options"]
    assert [*changed_parts(first, first)] == []


def test_a_citation_survives_its_text() -> None:
    citation = Citation(
        panel="two",
        panel_hash="0123456789ab",
        success=100 / 3,
        low=0.04,
        high=100.0,
        tasks=3,
        samples=1,
        protocol="ba9876543210",
        policy="openai:a, b (c), protocol x",
        version="0.1.0+local",
    )
    line = str(citation)
    assert line == (
        "two@0123456789ab: success 33.3 % [0.0, 100.0], 3 tasks x 1, protocol ba9876543210, "
        "openai:a, b (c), protocol x, coevo_gym 0.1.0+local"
    )
    assert str(Citation.parse(f"  {line}\n")) == line


@pytest.mark.parametrize(
    "change", [("33.3", "33.3.3"), ("@", " "), ("3 tasks", "x tasks"), ("[", "")]
)
def test_a_line_that_is_no_citation_is_rejected(change: tuple[str, str]) -> None:
    line = (
        "two@0123456789ab: success 33.3 % [0.0, 99.9], 3 tasks x 1, protocol ba9876543210, "
        "random, coevo_gym 0.1.0"
    )
    Citation.parse(line)
    with pytest.raises(ConfigError, match="is not the last line of an evaluation result"):
        Citation.parse(line.replace(*change))


def test_protocols_are_compared_part_by_part() -> None:
    first = EvalProtocol(parts={"samples": 1, "limits": {"max_steps": 30}, "prompt": None})
    same = EvalProtocol(parts={"prompt": None, "limits": {"max_steps": 30}, "samples": 1})
    other = EvalProtocol(parts={"samples": 8, "limits": {"max_steps": 30}, "seed": 0})
    assert first.hash == same.hash == sha256(first.model_dump(mode="json")["parts"])
    assert first.differences(same) == ()
    assert first.differences(other) == ("samples", "prompt", "seed")
    assert first.hash != other.hash

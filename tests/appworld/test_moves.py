"""Moves, and the choices made of them; no engine is needed."""

from __future__ import annotations

import ast
import json

import pytest

from coevo_gym.core.trajectory import PastStep, View
from coevo_gym.envs.appworld import apps_of
from coevo_gym.envs.appworld.choices import choices
from coevo_gym.envs.appworld.env import code_of
from coevo_gym.envs.appworld.moves import (
    FINISH,
    LOOKS,
    MoveState,
    act_code,
    answer_code,
    look_code,
    sign_in_code,
)

LIBRARY = LOOKS[0]
SONGS = [
    {"song_id": 1, "title": "Amber River", "artists": [{"name": "Low Tide"}]},
    {"song_id": 2, "title": "Silver Window", "artists": [{"name": "Low Tide"}]},
    {"song_id": 3, "title": "Twice", "artists": [{"name": "Iron Kite"}]},
    {"song_id": 4, "title": "Twice", "artists": [{"name": "Iron Kite"}]},
]
FIRST = "You act for Ada.\n\nApps: spotify, venmo."
LIKE = act_code(LIBRARY, LIBRARY.acts[0], SONGS[0])


def view(*turns: tuple[str, str], instruction: str = "Like Amber River.") -> View:
    """What an agent sees after (action, outcome) turns."""
    observations = [FIRST, *(outcome for _, outcome in turns)]
    history = [
        PastStep(before, action) for before, (action, _) in zip(observations, turns, strict=False)
    ]
    return View(instruction, observations[-1], {}, tuple(history))


SIGNED_IN = (sign_in_code("spotify"), "Execution successful.")
LISTED = (look_code(LIBRARY), json.dumps(SONGS))


def test_all_moves_are_valid_python() -> None:
    for look in LOOKS:
        row = dict.fromkeys(_fields(), "x")
        codes = [
            sign_in_code(look.app),
            look_code(look),
            *(act_code(look, a, row) for a in look.acts),
        ]
        for code in [*codes, FINISH, answer_code(3)]:
            ast.parse(code)
            assert code.startswith("# ")


def _fields() -> set[str]:
    texts = [look.name for look in LOOKS]
    texts += [text for look in LOOKS for act in look.acts for text in act]
    return {part.partition("}")[0] for text in texts for part in text.split("{")[1:]}


def test_choices_sign_in_only_to_apps_of_the_task() -> None:
    assert choices(view()) == (sign_in_code("spotify"), sign_in_code("venmo"), FINISH)


def test_lists_are_offered_after_a_successful_sign_in() -> None:
    assert look_code(LIBRARY) in choices(view(SIGNED_IN))
    assert sign_in_code("spotify") not in choices(view(SIGNED_IN))
    failed = (sign_in_code("spotify"), "Execution failed. Traceback:\n…")
    assert look_code(LIBRARY) not in choices(view(failed))


def test_acts_are_offered_for_listed_rows_with_a_unique_name() -> None:
    offered = choices(view(SIGNED_IN, LISTED))
    assert LIKE in offered
    assert not any("Twice" in code for code in offered)


def test_answers_are_offered_for_counts_that_the_instruction_asks_for() -> None:
    asked = "How many songs in my library are by Low Tide?"
    offered = choices(view(SIGNED_IN, LISTED, instruction=asked))
    assert [code for code in offered if "answer=" in code] == [answer_code(4), answer_code(2)]


def test_the_state_of_a_walk_is_parsed_from_its_code_and_outputs() -> None:
    walk = MoveState([SIGNED_IN, LISTED, (LIKE, '{"message": "done"}')])
    assert walk.signed_in == ["spotify"]
    assert list(walk.listed) == [LIBRARY]
    assert [(done.act, done.row["song_id"]) for done in walk.done] == [(LIBRARY.acts[0], 1)]
    assert MoveState([SIGNED_IN, LISTED, (LIKE, "Execution failed. …")]).done == []


def test_a_title_with_a_line_break_cannot_add_code() -> None:
    row = {"song_id": 1, "title": "x\nimport os", "artists": []}
    code = act_code(LIBRARY, LIBRARY.acts[0], row)
    assert len(ast.parse(code).body) == 1


def test_rows_without_a_title_offer_no_acts() -> None:
    odd = (look_code(LIBRARY), json.dumps([{"song_id": 1}, {"song_id": 2, "artists": []}]))
    offered = choices(view(SIGNED_IN, odd))
    assert answer_code(2) in offered
    assert not any("song_id=" in code for code in offered)


def test_a_list_whose_output_was_cut_is_ignored() -> None:
    cut = (look_code(LIBRARY), json.dumps(SONGS)[:-9] + "\n[cut: …]")
    assert choices(view(SIGNED_IN, cut)) == choices(view(SIGNED_IN))


def test_code_is_extracted_from_the_last_python_block_of_a_text() -> None:
    text = "I see.\n```python\nprint(1)\n```\nor\n```python\nprint(2)\n```\n```\nprint(3)\n```"
    assert code_of(text) == "print(2)"
    assert code_of("```python\nprint(1)") == "print(1)"
    assert code_of("```py\r\nprint(1)\r\n```") == "print(1)"
    assert code_of(" print('```')") == "print('```')"
    assert code_of("") == ""


@pytest.mark.parametrize("language", ["python", "Python", "python3", "py", ""])
def test_a_code_block_is_recognised_by_every_name_of_python(language: str) -> None:
    assert code_of(f"So:\n```{language}\nprint(1)\n```\nThen I stop.") == "print(1)"
    assert code_of(f"So: ```{language}\nprint(1)```") == "print(1)"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('```python\nnote = "```"\nsave(note)\n```', 'note = "```"\nsave(note)'),
        ('```python\nprint("```bash\\nls```")\n```\nDone.', 'print("```bash\\nls```")'),
        ("```bash\nls\n```\nand\n```python\nprint(1)\n```", "print(1)"),
        ("```python\nprint(1)\n```\nIt prints:\n```\n1\n```", "print(1)"),
        ("```json\n{}\n```\n```\nprint(1)\n```", "print(1)"),
        ("```\nprint(1)\n```\n```\nprint(2)\n```", "print(2)"),
        ("```" + " " * 200_000 + "x", "```" + " " * 200_000 + "x"),
    ],
)
def test_a_code_block_ends_at_a_fence_alone_on_its_line(text: str, code: str) -> None:
    assert code_of(text) == code


def test_the_apps_that_code_calls_are_found() -> None:
    assert apps_of(LIKE) == ["spotify"]
    assert apps_of("for x in apis.phone.a():\n    apis.phone.b(x)\n    apis.venmo.c(x)") == [
        "phone",
        "venmo",
    ]
    assert apps_of("print(1") == apps_of("print(1)") == []

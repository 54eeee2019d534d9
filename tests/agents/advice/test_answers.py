"""Stores of answers: torn files, databases without the table, several writers."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo_gym.core.errors import StoreError
from coevo_gym.core.inquiry import StoredAnswer
from coevo_gym.core.seams import Completion, Finish
from coevo_gym.core.spend import Usage
from coevo_gym.core.trajectory import TokenDecision
from coevo_gym.store.answers import (
    AnswerFile,
    AnswerTable,
    completion_from_json,
    completion_to_json,
)
from coevo_gym.store.database import RunStore
from coevo_gym.store.reader import RunReader


def answer(key: str, text: str = "x") -> StoredAnswer:
    return StoredAnswer(key, "round-1/draft-0", "webshop@1", Completion(text, None))


def texts_of(store: AnswerFile | AnswerTable, *keys: str) -> list[str]:
    return [entry.completion.text for entry in store.get(keys).values()]


def test_an_answer_file_can_be_appended_to_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    AnswerFile(path).put([answer("a", "one"), answer("b", "two \u2028 ü")])
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        file = AnswerFile(path)
        n = len(file.get(["a", "b"]))
        file.put([answer("c", "three")])
        again = AnswerFile(path)
        assert texts_of(again, "a", "b", "c") == [*["one", "two \u2028 ü"][:n], "three"]


def test_the_last_of_several_lines_with_one_key_counts(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tape.jsonl"
    path.parent.mkdir()
    AnswerFile(path).put([answer("a", "one"), answer("a", "two")])
    assert len(path.read_bytes().splitlines()) == 2
    assert texts_of(AnswerFile(path), "a") == ["two"]


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    path.write_text('{"step": 3}\n')
    with pytest.raises(
        StoreError, match=r"tape\.jsonl is not a recording of model responses: line .*step"
    ):
        AnswerFile(path)


def test_a_line_is_readable_json_with_unescaped_characters(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    AnswerFile(path).put([answer("a", "grün")])
    assert path.read_text(encoding="utf-8") == (
        '{"key": "a", "scope": "round-1/draft-0", "template": "webshop@1", "text": "grün", '
        '"finish": "stop"}\n'
    )


def bare_database(path: Path) -> None:
    """A run's database without a table of answers."""
    RunStore(path).close()
    with sqlite3.connect(path) as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    assert "answers" not in tables


def test_a_database_without_the_answers_table_gets_it_and_stays_readable(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    bare_database(path)
    assert AnswerTable(path, read_only=True).get(["a"]) == {}
    table = AnswerTable(path)
    table.put([answer("a")])
    assert texts_of(table, "a", "b") == ["x"]
    store = RunStore(path)
    assert store.tasks() == RunReader(path).tasks() == []
    store.close()
    table.close()
    assert texts_of(AnswerTable(path, read_only=True), "a") == ["x"]


def test_the_answers_table_can_be_created_before_the_run_store(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    table = AnswerTable(path)
    store = RunStore(path)
    table.put([answer("a")])
    store.add_tasks([])
    assert texts_of(table, "a") == ["x"]
    assert RunReader(path).rounds() == []


def test_a_read_only_table_creates_no_files_and_refuses_to_write(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    table = AnswerTable(path)
    table.put([answer("a")])
    table.close()
    before = sorted(tmp_path.iterdir())
    reader = AnswerTable(path, read_only=True)
    assert texts_of(reader, "a") == ["x"]
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(StoreError):
        reader.put([answer("b")])


def test_more_keys_than_one_query_takes_can_be_looked_up(tmp_path: Path) -> None:
    table = AnswerTable(tmp_path / "run.db")
    table.put([answer(str(key), str(key)) for key in range(1200)])
    keys = [str(key) for key in range(0, 2400, 2)]
    assert sorted(table.get(keys)) == sorted(keys[:600])


def test_a_missing_or_invalid_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    path.write_text("Lorem ipsum dolor sit amet. " * 100)
    with pytest.raises(StoreError, match=r"Cannot use .*run\.db"):
        AnswerTable(path)
    with pytest.raises(StoreError):
        AnswerTable(tmp_path / "none.db", read_only=True)


def test_a_damaged_row_raises_a_store_error(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    table = AnswerTable(path)
    table.put([answer("a")])
    with sqlite3.connect(path) as db:
        db.execute("UPDATE answers SET body = x'0102'")
    with pytest.raises(StoreError, match=r"A row in .*run\.db cannot be read"):
        table.get(["a"])


@pytest.mark.parametrize("kind", [AnswerFile, AnswerTable])
def test_several_threads_can_write_at_once(
    tmp_path: Path, kind: type[AnswerFile | AnswerTable]
) -> None:
    path = tmp_path / "answers"
    store = kind(path)

    def work(number: int) -> Sequence[str]:
        keys = [f"{number}-{i}" for i in range(10)]
        for key in keys:
            store.put([answer(key, key)])
        return keys

    with ThreadPoolExecutor() as pool:
        keys = [key for done in pool.map(work, range(4)) for key in done]
    assert sorted(texts_of(kind(path), *keys)) == sorted(keys)


floats = st.floats(allow_nan=False, allow_infinity=False)


@given(
    text=st.text(st.characters(codec=None)),
    ids=st.lists(st.tuples(st.integers(0, 10**6), floats), max_size=4),
    finish=st.sampled_from(Finish),
    stripped=st.none() | st.lists(st.integers(0, 9), max_size=2).map(tuple),
)
def test_completions_round_trip_through_json(
    text: str, ids: list[tuple[int, float]], finish: Finish, stripped: tuple[int, ...] | None
) -> None:
    decision = TokenDecision(
        (1, 2), tuple(i for i, _ in ids), tuple(p for _, p in ids), 0.5, 3, stripped
    )
    usage = Usage(calls=1, usd=0.1)
    for completion in (Completion(text, decision, finish, usage), Completion(text, None, finish)):
        assert completion_from_json(completion_to_json(completion)) == completion

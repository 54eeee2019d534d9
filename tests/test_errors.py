"""The text of errors that quote what they were given."""

from coevo_gym.core.errors import MAX_CHARACTERS, ConfigError, TaskError


def test_a_short_text_is_told_whole() -> None:
    text = "x" * MAX_CHARACTERS

    assert str(TaskError(text)) == text


def test_a_quoted_value_of_any_length_leaves_both_ends_of_the_text_readable() -> None:
    text = str(ConfigError(f"tasks.jsonl, line 3: {'x' * 100_000} is no split; choose test"))

    assert text.startswith("tasks.jsonl, line 3: xxx")
    assert text.endswith("xxx is no split; choose test")
    assert "characters left out" in text
    assert len(text) < MAX_CHARACTERS + 100


def test_what_an_error_was_given_is_kept_whole() -> None:
    assert TaskError("x" * 100_000).args == ("x" * 100_000,)

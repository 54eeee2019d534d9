"""The text of errors that quote what they were given."""

from coevo_gym.core.errors import MAX_CHARACTERS, ConfigError, TaskError


def test_a_short_message_is_not_shortened() -> None:
    text = "x" * MAX_CHARACTERS

    assert str(TaskError(text)) == text


def test_a_long_message_is_shortened_in_the_middle() -> None:
    text = str(ConfigError(f"tasks.jsonl, line 3: {'x' * 100_000} is no split; choose test"))

    assert text.startswith("tasks.jsonl, line 3: xxx")
    assert text.endswith("xxx is no split; choose test")
    assert "characters left out" in text
    assert len(text) < MAX_CHARACTERS + 100


def test_the_arguments_of_an_error_are_not_shortened() -> None:
    assert TaskError("x" * 100_000).args == ("x" * 100_000,)

"""Settings lose what the names of their keys say is secret."""

from coevo_gym.store.secrets import is_secret_name, redact_secrets


def test_values_under_secret_keys_are_redacted() -> None:
    value = {"api_key": "sk-1", "max_tokens": 5, "list": [{"Token": "x", "tokens": "kept"}]}
    assert redact_secrets(value) == {
        "api_key": "<redacted>",
        "max_tokens": 5,
        "list": [{"Token": "<redacted>", "tokens": "kept"}],
    }


def test_all_nested_texts_under_a_secret_key_are_redacted() -> None:
    settings = {"max_tokens": 5, "nested": {"auth": ["x", {"y": "z"}]}, "key": ""}
    assert redact_secrets(settings) == {
        "max_tokens": 5,
        "nested": {"auth": ["<redacted>", {"y": "<redacted>"}]},
        "key": "",
    }


def test_secret_names_are_recognised_word_by_word() -> None:
    assert is_secret_name("OPENAI_API_KEY")
    assert is_secret_name("x-auth")
    assert not is_secret_name("keyboard")
    assert not is_secret_name("max_tokens")

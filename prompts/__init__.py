"""Prompt templates and their loader."""

from coevo_gym.prompts.loader import (
    AnswerForm,
    AnswerStyle,
    PromptTemplate,
    load_prompt,
    parse_prompt,
)

__all__ = ["AnswerForm", "AnswerStyle", "PromptTemplate", "load_prompt", "parse_prompt"]

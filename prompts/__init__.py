"""Prompt templates and their loader."""

from coevo_gym.prompts.loader import AnswerForm, PromptTemplate, load_prompt, parse_prompt

__all__ = ["AnswerForm", "PromptTemplate", "load_prompt", "parse_prompt"]

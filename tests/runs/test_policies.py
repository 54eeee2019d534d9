"""Policies made from settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from coevo_gym.agents.lm.transformers_policy import TransformersPolicy
from coevo_gym.core.seams import Message
from coevo_gym.runs.config import load_config
from coevo_gym.runs.policies import make_policy
from tests.agents.tiny_llama import CHATML, make_tiny_llama


@pytest.mark.parametrize("thinking", [True, False])
def test_thinking_reaches_the_chat_template(thinking: bool, tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path / "llama")
    (folder / "chat_template.jinja").write_text(CHATML + "{{ enable_thinking }}")
    sets = ["policy.kind=transformers", f"policy.model.path={folder}", "policy.model.device=cpu"]
    resolved = load_config(None, sets=[*sets, f"policy.chat.thinking={thinking}"])
    policy = make_policy(resolved.config.policy, seed=0)
    assert isinstance(policy, TransformersPolicy)
    prompt = policy.format.prompt_ids([Message("user", "go")])
    assert policy.format.decode(prompt).endswith(str(thinking))

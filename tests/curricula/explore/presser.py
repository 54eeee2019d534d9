"""A model by rule that explores the toy: it presses buttons, and asks for what it has pressed."""

from __future__ import annotations

import json
import re

import numpy as np

from coevo_gym.core.seams import Prompt
from coevo_gym.prompts import parse_prompt
from coevo_gym.testing.scripted_models import Rule, ScriptedPolicy
from tests.toy import COLOURS, PROMPT

TOY_PROMPT = parse_prompt(PROMPT)
BRIEF = {
    "summary": "It pressed the wrong button (step 2).",
    "failure_cause": "It did not look (step 2).",
    "instability_pattern": "Now and then it looks.",
    "focus_pattern": ["press"],
    "exploration_objectives": ["Press amber first."],
    "do_not_repeat": ["press pink"],
}
_WALK = re.compile(r"^Walk \d+$", re.MULTILINE)
_STEP = re.compile(r"^\[step \d+\] (.+)$", re.MULTILINE)


class Presser:
    """Presses three buttons, other ones each time, and is done."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def policy(self) -> ScriptedPolicy:
        """The model."""
        rules: list[Rule] = [
            ("Why this attempt was picked", json.dumps(BRIEF)),
            (r"(?m)^Walk 1$", self.ideas),
            ("", self.act),
        ]
        return ScriptedPolicy(rules)

    def act(self, prompt: Prompt) -> str:
        """The next button."""
        pressed = prompt.messages[-1].content.rpartition("Pressed: ")[2].rstrip(".\n")
        if pressed != "nothing" and len(pressed.split()) == 3:
            return "<action>done</action>"
        return f"<action>press {COLOURS[int(self.rng.integers(6))]}</action>"

    def ideas(self, prompt: Prompt) -> str:
        """A task from each walk."""
        tasks = []
        walks = _WALK.split(prompt.messages[-1].content)[1:]
        for number, walk in enumerate(walks, start=1):
            actions = _STEP.findall(walk)
            colours = [action.removeprefix("press ") for action in actions[:-1]]
            idea = {
                "walk": number,
                "description": "Press some buttons.",
                "turns": [f"Press {', '.join(colours)}."],
                "actions": actions,
                "done_when": "They are pressed.",
                "confidence": 0.9,
            }
            tasks.append(idea)
        return json.dumps({"tasks": tasks})

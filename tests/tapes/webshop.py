"""Rules that explore the shop: one for a model that errs now and then, one for a stand-in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import count

import numpy as np
from numpy.random import Generator

from coevo_gym.core.seams import Completion, Finish, Prompt
from coevo_gym.core.trajectory import View
from coevo_gym.testing.scripted_models import Rule, Said, ScriptedPolicy

KINDS = ("ruffled", "ceramic", "wool", "carbon", "folding", "rain", "water", "linen", "velvet")
THINGS = (
    "dress", "mug", "scarf", "shoes", "lamp", "jacket", "bottle", "shirt", "pillow", "dryer", "pan",
    "beanie", "chair", "serum", "headphones", "tea", "rug", "backpack", "sandals", "blanket",
)  # fmt: skip
BUTTONS = {
    "back to search", "< prev", "next >", "description", "features", "reviews", "attributes",
    "buy now",
}  # fmt: skip
LOST = Completion("The server is gone.", None, Finish.LOST)
OVERFLOW = Completion("", None, Finish.OVERFLOW)
NONSENSE = "I would rather not."
_CODE = re.compile(r"c[0-9a-z]{9}")
_CLICK = re.compile(r"\[([^\[\]]+)\]")
_WALK = re.compile(r"^Walk \d+$", re.MULTILINE)
_STEP = re.compile(r"^\[step \d+\] (.+)$", re.MULTILINE)
_PAGE = re.compile(r"\[SEP\] ([^\[]+) \[SEP\] Price: \$([0-9.]+)")


def browse(view: View, rng: Generator) -> str:
    """Search for something, open one of the results, choose a value now and then, and buy."""
    things = [action[6:-1] for action in view.info["admissible"]]
    if not view.history or "back to search" not in things:
        return f"search[{rng.choice(KINDS)} {rng.choice(THINGS)}]"
    codes = [thing for thing in things if _CODE.fullmatch(thing)]
    values = [thing for thing in things if thing not in BUTTONS]
    if codes:
        return f"click[{rng.choice(codes)}]"
    if "buy now" not in things:
        return "click[back to search]"
    opened = _CODE.search(view.history[-1].action)
    return f"click[{rng.choice(values)}]" if opened and values else "click[buy now]"


class Shopper:
    """A model that buys one thing after the other, and asks for what it has bought.

    Some of its answers cannot be used, as is written down in :meth:`policy`.
    """

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._walks = count()

    def policy(self) -> ScriptedPolicy:
        """The model as a policy, with its faults by their place among questions of a kind."""
        briefs = _with_faults(_brief, {1: NONSENSE, 4: OVERFLOW, 6: LOST, 8: NONSENSE})
        ideas = _with_faults(_ideas, {1: NONSENSE, 4: OVERFLOW, 5: OVERFLOW, 7: LOST})
        rules: list[Rule] = [
            ("That cannot be used", _with_faults(_repair, {0: NONSENSE, 2: NONSENSE})),
            ("Why this attempt was picked", briefs),
            (r"(?m)^Walk 1$", ideas),
            ("", self._act),
        ]
        return ScriptedPolicy(rules)

    def _act(self, prompt: Prompt) -> Said:
        answers = [message.content for message in prompt.messages if message.role == "assistant"]
        if answers and answers[-1] == NONSENSE:
            return NONSENSE
        page = prompt.messages[-1].content
        if "To click:" not in page:
            walk = next(self._walks)
            if walk in (2, 9):
                return NONSENSE if walk == 2 else LOST
            return f"<action>search[{self._rng.choice(KINDS)} {self._rng.choice(THINGS)}]</action>"
        things = _CLICK.findall(page.rpartition("To click:")[2])
        codes = [thing for thing in things if _CODE.fullmatch(thing)]
        if codes:
            return f"<action>click[{self._rng.choice(codes)}]</action>"
        values = [thing for thing in things if thing not in BUTTONS]
        if values and answers and re.search(r"click\[c[0-9a-z]{9}\]", answers[-1]):
            return f"<action>click[{self._rng.choice(values)}]</action>"
        return "<action>click[buy now]</action>"


def _with_faults(
    good: Callable[[Prompt], Said], faults: dict[int, Said]
) -> Callable[[Prompt], Said]:
    """A rule that says something else at some of its turns."""
    turns = count()
    return lambda prompt: faults.get(next(turns)) or good(prompt)


def _brief(prompt: Prompt) -> str:
    return json.dumps(
        {
            "summary": "It opened the first result and bought it as it was (steps 1 and 2).",
            "failure_cause": "It never looked at the options (step 2).",
            "focus_pattern": ["options"],
            "exploration_objectives": ["Open a product, choose a value, and buy it."],
        }
    )


def _ideas(prompt: Prompt) -> str:
    tasks = []
    walks = _WALK.split(prompt.messages[-1].content)[1:]
    for number, walk in enumerate(walks, start=1):
        actions, pages = _STEP.findall(walk), _PAGE.findall(walk)
        if not pages or actions[-1] != "click[buy now]":
            continue
        title, price = pages[-1]
        wanted = ", ".join([f"I want {title}", *(action[6:-1] for action in actions[2:-1])])
        tasks.append(
            {
                "walk": number,
                "description": f"Buy {title}.",
                "turns": [f"{wanted}, for less than {float(price) + 20:.0f} dollars."],
                "actions": actions,
                "done_when": "It is bought.",
                "confidence": 0.9,
            }
        )
    return f"These could be asked for:\n```json\n{json.dumps({'tasks': tasks})}\n```"


def _repair(prompt: Prompt) -> str:
    question = Prompt(prompt.messages[:-2])
    return (_ideas if "Walk 1" in question.messages[-1].content else _brief)(question)

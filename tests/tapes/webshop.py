"""A model by rule that explores the shop: what it does, and what it makes of that."""

from __future__ import annotations

import json
import re
from itertools import count, cycle

from coevo_gym.core.seams import Prompt
from coevo_gym.testing.models import Rule, ScriptedPolicy

WISHES = (
    "ruffled sun dress", "ceramic mug", "wool scarf", "running shoes", "desk lamp", "rain jacket",
    "water bottle", "linen shirt", "table runner", "throw pillow",
)  # fmt: skip
BUTTONS = {
    "back to search", "< prev", "next >", "description", "features", "reviews", "attributes",
    "buy now",
}  # fmt: skip
_CLICK = re.compile(r"\[([^\[\]]+)\]")
_WALK = re.compile(r"^Walk \d+$", re.MULTILINE)
_STEP = re.compile(r"^\[step \d+\] (.+)$", re.MULTILINE)


class Shopper:
    """Buys one thing after the other, and asks for what it has bought."""

    def __init__(self) -> None:
        self.wishes = cycle(WISHES)
        self.turns = count()

    def policy(self) -> ScriptedPolicy:
        rules: list[Rule] = [
            ("Why this attempt was picked", self.brief),
            (r"Walk 1\n\[step 1\]", self.ideas),
            ("", self.act),
        ]
        return ScriptedPolicy(rules)

    def act(self, prompt: Prompt) -> str:
        page = prompt.messages[-1].content
        if "To click:" not in page:
            return f"<action>search[{next(self.wishes)}]</action>"
        things = _CLICK.findall(page.rpartition("To click:")[2])
        codes = [thing for thing in things if re.fullmatch(r"c[0-9a-z]{9}", thing)]
        if codes:
            return f"<action>click[{codes[next(self.turns) % len(codes)]}]</action>"
        values = [thing for thing in things if thing not in BUTTONS]
        before = prompt.messages[-2].content
        if values and re.search(r"click\[c[0-9a-z]{9}\]", before):
            return f"<action>click[{values[next(self.turns) % len(values)]}]</action>"
        return "<action>click[buy now]</action>"

    def brief(self, prompt: Prompt) -> str:
        return json.dumps({"summary": "It bought something else (step 1).", "do_not_repeat": []})

    def ideas(self, prompt: Prompt) -> str:
        tasks = []
        walks = _WALK.split(prompt.messages[-1].content)[1:]
        for number, walk in enumerate(walks, start=1):
            actions = _STEP.findall(walk)
            if not actions or actions[-1] != "click[buy now]":
                continue
            page = re.findall(r"\[SEP\] ([^\[]+) \[SEP\] Price: \$([0-9.]+)", walk)[-1]
            title, price = page
            chosen = [a[6:-1] for a in actions[2:-1]]
            wanted = f"I want {title.split(' by ')[0]}"
            wanted += "".join(f", {value}" for value in chosen)
            wanted += f", for less than {int(float(price)) + 5} dollars."
            tasks.append(
                {
                    "walk": number,
                    "description": "Buy it.",
                    "turns": [wanted],
                    "actions": actions,
                    "confidence": 0.9,
                }
            )
        return json.dumps({"tasks": tasks})

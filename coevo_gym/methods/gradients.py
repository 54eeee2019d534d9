"""Other ways to judge a rollout, on the first tasks: they share all but their advantages."""

from __future__ import annotations

from coevo_gym.methods.coevolve import static

rloo = static.preset(
    "rloo",
    "Each rollout against the mean of the others (arXiv 2402.14740).",
    learner={"advantage": "rloo"},
)
gigpo = static.preset(
    "gigpo",
    "Each step against steps in the same state, too (arXiv 2505.10978).",
    learner={"advantage": "gigpo"},
)

"""Methods that practise the first tasks with another learner."""

from __future__ import annotations

from coevo_gym.methods.coevolve import static

rloo = static.preset(
    "rloo",
    "Each rollout against the mean of the others (arXiv 2402.14740).",
    learner={"kind": "pg", "advantage": "rloo"},
)
gigpo = static.preset(
    "gigpo",
    "Each step against steps in the same state, too (arXiv 2505.10978).",
    learner={"kind": "pg", "advantage": "gigpo"},
)
ppo = static.preset(
    "ppo",
    "A value head in the place of the group (arXiv 1707.06347).",
    learner={"kind": "ppo"},
)
rest = static.preset(
    "rest",
    "Imitation of its own best rollouts, a few steps at a time (arXiv 2308.08998).",
    learner={"kind": "rest"},
)

"""Methods that practise the first tasks in another order, or with another learner."""

from __future__ import annotations

from coevo_gym.methods.coevolve import static

curriculum = static.preset(
    "curriculum",
    "From easy to hard in three stages, by the pass rate of first tries.",
    curriculum={"selector": {"kind": "stages"}},
)
adarft = static.preset(
    "adarft",
    "Tasks nearest to a target difficulty that follows the reward (arXiv 2504.05520).",
    curriculum={"selector": {"kind": "adarft"}},
)
plr = static.preset(
    "plr",
    "Tasks with the largest advantages, and stale ones (arXiv 2010.03934).",
    curriculum={"selector": {"kind": "plr"}},
)
learnable = static.preset(
    "learnable",
    "Tasks that are solved about half of the time (arXiv 2408.15099).",
    curriculum={"selector": {"kind": "learnable"}},
)
progress = static.preset(
    "progress",
    "Tasks whose pass rate is changing (arXiv 2106.14876).",
    curriculum={"selector": {"kind": "progress"}},
)
sec = static.preset(
    "sec",
    "A bandit over ranges of difficulty (arXiv 2505.14970).",
    curriculum={"selector": {"kind": "sec"}},
)

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

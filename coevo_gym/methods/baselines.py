"""Baselines that train on the initial tasks in various orders or with various learners."""

from __future__ import annotations

from coevo_gym.methods.coevolve import static

curriculum = static.preset(
    "curriculum",
    "Go from easy to hard tasks in three stages, by the pass rate of first attempts.",
    curriculum={"selector": {"kind": "stages"}},
)
adarft = static.preset(
    "adarft",
    "Draw tasks nearest to a target difficulty that follows the reward (arXiv 2504.05520).",
    curriculum={"selector": {"kind": "adarft"}},
)
plr = static.preset(
    "plr",
    "Draw tasks with the largest advantages and stale tasks (arXiv 2010.03934).",
    curriculum={"selector": {"kind": "plr"}},
)
learnable = static.preset(
    "learnable",
    "Draw tasks that are solved about half the time (arXiv 2408.15099).",
    curriculum={"selector": {"kind": "learnable"}},
)
progress = static.preset(
    "progress",
    "Draw tasks whose pass rate is changing (arXiv 2106.14876).",
    curriculum={"selector": {"kind": "progress"}},
)
sec = static.preset(
    "sec",
    "Draw tasks with a bandit over difficulty ranges (arXiv 2505.14970).",
    curriculum={"selector": {"kind": "sec"}},
)

rloo = static.preset(
    "rloo",
    "Compare each rollout with the mean of the other rollouts (arXiv 2402.14740).",
    learner={"kind": "pg", "advantage": "rloo"},
)
gigpo = static.preset(
    "gigpo",
    "Also compare each step with other steps in the same state (arXiv 2505.10978).",
    learner={"kind": "pg", "advantage": "gigpo"},
)
ppo = static.preset(
    "ppo",
    "Use a value head as the baseline instead of the group (arXiv 1707.06347).",
    learner={"kind": "ppo"},
)
rest = static.preset(
    "rest",
    "Imitate the policy's own best rollouts, a few steps at a time (arXiv 2308.08998).",
    learner={"kind": "rest"},
)

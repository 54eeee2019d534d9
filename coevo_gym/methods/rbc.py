"""Methods that draw tasks of suitable difficulty and look for new tasks of rare kinds.

The selector ``band`` skips tasks that are mastered, out of reach or used up. A round is due when
the pool has too few tasks to learn from, and looks for kinds of tasks that are rare in the pool.
The settings are for groups of 8.
"""

from __future__ import annotations

from coevo_gym.methods.coevolve import coevolve, random_append, static

static_band = static.preset(
    "static_band",
    "Train on the initial tasks, but skip tasks that always or never succeed.",
    curriculum={"selector": {"kind": "band", "cap": None}},
)
shuffled = random_append.preset(
    "shuffled",
    "Control for the value of outcomes: like coevolve_rbc, but with shuffled outcomes.",
    curriculum={
        "growth": {"when": "reserve"},
        "selector": {"kind": "band", "shuffled": True},
    },
)
coevolve_rbc = coevolve.preset(
    "coevolve_rbc",
    "Choose tasks and start rounds by outcomes, and look for kinds of tasks that are rare.",
    curriculum={
        "growth": {"kind": "coverage", "when": "reserve"},
        "selector": {"kind": "band"},
    },
)

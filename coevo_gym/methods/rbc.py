"""Methods in which outcomes choose the tasks and the time of growth, and coverage the place.

The selector ``band`` skips tasks that are done, out of reach or used up. A round is due when the
pool has too few tasks to learn from, and looks for kinds of tasks that are rare in the pool. The
settings are for groups of 8.
"""

from __future__ import annotations

from coevo_gym.methods.coevolve import coevolve, random_append, static

static_band = static.preset(
    "static_band",
    "The first tasks, those left out that always or never succeed.",
    curriculum={"selector": {"kind": "band", "cap": None}},
)
shuffled = random_append.preset(
    "shuffled",
    "The control for what outcomes are worth: band and reserve, reading other tasks' outcomes.",
    curriculum={
        "growth": {"when": "reserve"},
        "selector": {"kind": "band", "shuffled": True},
    },
)
coevolve_rbc = coevolve.preset(
    "coevolve_rbc",
    "Outcomes choose what is practised and when the pool grows, and it grows where it is thin.",
    curriculum={
        "growth": {"kind": "coverage", "when": "reserve"},
        "selector": {"kind": "band"},
    },
)

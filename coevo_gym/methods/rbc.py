"""Outcomes choose what is practised and when the pool grows; coverage says where it grows.

The selector ``band`` leaves out tasks that are done, out of reach or used up; a round is due when
the pool holds too little to learn from, and looks for kinds of task that it has seldom. Settings
are of groups of 8.
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

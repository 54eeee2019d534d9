"""Made-up runs to draw; no number here was measured."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from coevo_gym.core.spend import Usage
from coevo_gym.report.data import (
    ArmCount,
    ArmLabels,
    ArmLengths,
    ArmMap,
    ArmSpread,
    CrossRow,
    Curve,
    CurvePoint,
    EvolutionRow,
    LabelBin,
    LineageRow,
    Place,
    PracticeRow,
    RejectedRow,
    ReportData,
    RoundRow,
    Similarity,
    Spread,
    UsageRow,
    VersionRow,
)
from coevo_gym.run.table import TableRow

ARMS = {"static D_0": (0.31, 0.47), "blind growth": (0.31, 0.50), "CoEvolve": (0.31, 0.62)}
END = 60_000
HOSTILE = (
    '<script>alert("x")</script>\'"><img src=x onerror=alert(1)> ]]></style> {{ 7 * 7 }} & &amp; '
    "\x00\x1b[31m \u202eright to left \ud800 "
)


def asked(
    arm: str, purpose: str, calls: int, read: int, written: int, usd: float = 0.0
) -> UsageRow:
    usage = Usage(calls=calls, prompt_tokens=read, completion_tokens=written, usd=usd)
    return UsageRow(arm, purpose, usage)


def points(start: float, end: float, seed: int, n: int = 11) -> tuple[CurvePoint, ...]:
    rng, found = np.random.default_rng(seed), []
    for i in range(n):
        share = start + (end - start) * (1 - math.exp(-3 * i / (n - 1))) + 0.012 * rng.normal()
        half = 1.96 * math.sqrt(share * (1 - share) / 300)
        found.append(CurvePoint(END * i / (n - 1), share, share - half, share + half))
    return tuple(found)


def rounds(arm: str, n: int, seed: int) -> tuple[RoundRow, ...]:
    rng, pool, found = np.random.default_rng(seed), 120, []
    for i in range(n):
        drafts, rate = int(rng.integers(24, 60)), 0.3 + 0.03 * i
        accepted = int(drafts * rate)
        pool += accepted
        signals = {} if arm == "blind growth" else {
            "forgetting": int(rng.integers(2, 14)) + i,
            "boundary": int(rng.integers(10, 34)),
            "rare": int(rng.integers(0, 9)),
        }  # fmt: skip
        at = END * (i + 1) / (n + 1)
        found.append(RoundRow(arm, f"round-{i}", at, signals, 24, drafts, accepted, pool))
    return tuple(found)


def spreads(arm: str, n: int, seed: int) -> ArmSpread:
    rng, found = np.random.default_rng(seed), [Spread(0, 0.62, math.nan)]
    for i in range(1, n + 1):
        likeness = 0.62 - 0.02 * seed * i / n + 0.005 * rng.normal()
        found.append(
            Spread(i, likeness, math.nan if i == 1 else 0.05 * seed * (1 - math.exp(-i / 4)))
        )
    return ArmSpread(arm, tuple(found))


def arm_map(arm: str, n: int, seed: int) -> ArmMap:
    rng = np.random.default_rng(seed)
    held = np.random.default_rng(8).normal(size=(150, 2)) * (0.4, 0.3)
    first = [Place(*map(float, 0.1 * rng.normal(size=2)), 0, f"First task {i}") for i in range(40)]
    later = [
        Place(*map(float, 0.1 * rng.normal(size=2) + 0.04 * r), r, f"Evolved task {i} of {r}")
        for r in range(1, n + 1)
        for i in range(12)
    ]
    return ArmMap(arm, (*first, *later), tuple(Place(*map(float, at)) for at in held), (0.09, 0.05))


def lengths(name: str, solved: float, seed: int) -> ArmLengths:
    rng = np.random.default_rng(seed)
    steps = np.minimum(rng.geometric(0.12, size=300) + 2, 50)
    success = rng.random(300) < solved * (steps < 45)
    return ArmLengths(name, *(tuple(map(int, steps[success == how])) for how in (True, False)))


FAILURES = (
    "argument_mismatch", "missing_tool_call", "empty_turn_model_response", "invalid_tool_call",
    "recovery_failure", "state_mismatch", "spurious_tool_call", "response_mismatch",
)  # fmt: skip


def labels(arm: str, seed: int, n: int = 20) -> ArmLabels:
    rng, bins = np.random.default_rng(seed), []
    for i in range(n):
        failed = rng.multinomial(160 - 5 * i, np.arange(8, 0, -1) / 36)
        reached = 40 - i
        counts = (240 - reached - int(failed.sum()), *map(int, failed), reached)
        bins.append(LabelBin(3 * i + 1, 3 * i + 3, END * (i + 1) / n, 240, counts))
    return ArmLabels(arm, "turn_label", ("pass", *FAILURES, "not_reached"), tuple(bins))


SAYS = (
    "Do nothing if what is asked for cannot be done with the functions that there are.",
    "After an error: read what it says, and repair the call before you go on.",
    "send_message: required receiver_id, message; message is a text of at most 280 characters.",
)


def lineage(n: int) -> tuple[LineageRow, ...]:
    kinds = ("boundary", "forgetting", "boundary", "rare")
    found = []
    for i in range(n):
        blind = i % 5 == 4
        served = 8 * (i % 7)
        found.append(
            LineageRow(
                task=f"webshop/evolved/{i:012x}",
                instruction=f"Find a machine washable blanket in olive green, size 50x6{i % 10}"
                ", and a price lower than 40 dollars",
                arm="blind growth" if blind else "CoEvolve",
                round_id=f"round-{i * 9 // n}",
                signal="blind" if blind else kinds[i % 4],
                context="" if blind else "Solved in 3 of 8: it buys before choosing a size.",
                parent=f"webshop/builtin/synthetic/{5000 + i}",
                parent_instruction="Find a soft blanket in green, price lower than 60 dollars",
                actions=("search[olive green throw blanket]", "click[B09ABCD123]",
                         "click[olive green]", "click[50x60]", "click[buy now]"),
                verdict="accepted: schema, split, duplicate, build, replay, prefix, empty agent",
                served=served,
                success=None if not served else (i * 37 % 100) / 100,
            )
        )  # fmt: skip
    return tuple(found)


def full() -> ReportData:
    """A run with every part."""
    curves = tuple(Curve(arm, points(*ends, seed=i)) for i, (arm, ends) in enumerate(ARMS.items()))
    training = tuple(
        Curve(arm, tuple(CurvePoint(*p[:2]) for p in points(0.4, 0.55, 9 + i, 60)))
        for i, arm in enumerate(ARMS)
    )
    final = [
        TableRow("random", 0.021, 0.009, 0.044, 0.173, 300, 0),
        TableRow("warm-up only", 0.312, 0.262, 0.367, 0.588, 300, 0),
    ]
    for curve in curves:
        p = curve.points[-1]
        tokens = 0 if curve.arm == "static D_0" else 7_082_055
        row = TableRow(curve.arm, *p[1:], 0.6 * p.success + 0.35, 300, END, tokens)
        final.append(row)
    rng = np.random.default_rng(4)
    return ReportData(
        title="Co-evolution on WebShop",
        subtitle="tiny policy · built-in catalogue · made-up numbers",
        manifest={
            "command": "coevo train demo --set seed=0",
            "seeds": [0, 1, 2],
            "git commit": "0123456789ab",
            "config": {"learner": {"lr": 0.001, "group_size": 8}, "curriculum": "coevolve"},
            "versions": {"python": "3.11.9", "numpy": "2.1.0", "torch": "2.13.0"},
        },
        table=tuple(final),
        curves=curves,
        training=training,
        rounds=rounds("blind growth", 9, 1) + rounds("CoEvolve", 9, 2),
        cross=(CrossRow("static D_0", "CoEvolve", 120, 21, 66, 93),),
        practice=(
            PracticeRow("static D_0", 1_200, 0.4, 0.281, 0.25, 0.5, 0.25, 12.4, 18),
            PracticeRow("CoEvolve", 1_180, 0.61, 0.578, 0.41, 0.55, 0.04, 150.6),
        ),
        evolution=(
            EvolutionRow("blind growth", 0, 216, 380, 164, 1.76, 0.43, 0.0, 0.31, 0.42, 0.08, 0.04,
                         0.05, 0.21),
            EvolutionRow("CoEvolve", 340, 216, 391, 170, 1.81, 0.43, 0.5, 0.31, math.nan, 0.11),
        ),
        spreads=(spreads("blind growth", 7, 1), spreads("CoEvolve", 9, 4)),
        maps=(arm_map("blind growth", 7, 1), arm_map("CoEvolve", 9, 2)),
        lengths=(lengths("random", 0.02, 0), lengths("CoEvolve", 0.7, 1)),
        labels=(labels("static D_0", 5), labels("CoEvolve", 6)),
        versions=tuple(
            VersionRow("CoEvolve", f"{0x3f9a1c07 + 7919 * i:08x}", 13 * i + 1, 8_000 * i, SAYS[:i])
            for i in range(4)
        ),
        usage=(
            asked("D_0", "explore", 1_290, 1_310_220, 42_104, 0.59),
            asked("D_0", "abstract", 96, 402_131, 61_005, 0.26),
            asked("CoEvolve", "summary", 201, 655_040, 70_220, 0.37),
            asked("CoEvolve", "explore", 4_031, 4_410_333, 131_002, 1.97),
        ),
        rejections=tuple(
            ArmCount(arm, gate, n * k)
            for k, arm in ((2, "blind growth"), (1, "CoEvolve"))
            for gate, n in (("duplicate", 41), ("build", 28), ("schema", 9), ("empty agent", 4))
        ),
        similarity=(
            Similarity("D_0", (0, 1, 6, 20, 34, 30, 18, 9, 2, 0)),
            Similarity("evolved", (0, 0, 4, 21, 45, 52, 33, 14, 3, 0)),
        ),
        lineage=lineage(100),
        rejected=tuple(
            RejectedRow(f"Find a green blanket number {i}", gate, "cosine 0.97 to a pool task",
                        "boundary", f"round-{i}", "CoEvolve")
            for i, gate in enumerate(("duplicate", "build", "schema") * 4)
        ),
        warmup_loss=tuple(2.2 * math.exp(-i / 90) + 0.35 + 0.05 * rng.normal() for i in range(600)),
        notes=(
            "One seed an arm: the intervals cover the draw of held-out tasks, not of seeds.",
            "The built-in catalogue is small and easier than the original one.",
        ),
    )  # fmt: skip


def hostile() -> ReportData:
    """A run whose every text is an attack on the page."""
    text = HOSTILE + "w" * 5000
    data = full()
    return replace(
        data,
        title=text, subtitle=text, manifest={text: text, "config": {text: [text, {text: None}]}},
        table=(TableRow(text, 0.5, 0.4, 0.6, 0.5, 10, 10),),
        curves=(Curve(text, points(0.1, 0.5, 0)),),
        practice=(PracticeRow(text, 1, 0.5),),
        rounds=(RoundRow(text, text, 10, {text: 3, "rare": 1}, 1, 4, 2, 8),),
        spreads=(ArmSpread(text, (Spread(0, 0.4, math.nan), Spread(1, 0.3, 0.1))),),
        maps=(ArmMap(text, (Place(0, 0, 0, text), Place(1, 1, 1, text)), (Place(0.5, 0.1),)),),
        lengths=(ArmLengths(text, (1, 2), (3,)),),
        labels=(ArmLabels(text, text, (text, f"{text}2"), (LabelBin(1, 1, 10, 3, (1, 2)),)),),
        versions=(VersionRow(text, text, 1, 10, (text, text)), VersionRow(text, "", 2)),
        usage=(asked(text, text, 3, 4, 5), asked(text, text, 3, 4, 5, 0.1)),
        rejections=(ArmCount(text, text, 3),),
        similarity=(Similarity(text, (1, 2)),),
        lineage=(LineageRow(*[text] * 8, (text,), text, 3, 0.5),),
        rejected=(RejectedRow(text, text, text, text, text, text),),
        notes=(text,),
    )  # fmt: skip

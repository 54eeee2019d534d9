"""A round of a model's work, made by hand, in the store of a run."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from coevo_gym.core.evolution import (
    Check,
    Context,
    ContextBrief,
    Draft,
    Exchange,
    Explored,
    Proposal,
    Round,
    RoundResult,
    Signal,
    Verdict,
    Walk,
)
from coevo_gym.core.task import Split, Task
from coevo_gym.core.trajectory import EndReason, Group, Step, Trajectory
from coevo_gym.store.database import RunStore
from tests.toy import BENCHMARK, COLOURS, ToyWorld

ARM, STEP = "coevolve", 7
PARENT = BENCHMARK.tasks(Split.TRAIN)[0]
COLOUR_CODE = "\x1b[31mred\x1b[0m"
CONTEXT = Context(
    kind="boundary",
    task=PARENT,
    actions=("press red", "press red", "done"),
    summary="1 of 4 rollouts succeeded.",
    evidence=(Exchange(action="press red", observation="Pressed: red."),),
)
BRIEF = ContextBrief(
    summary="It pressed red twice and stopped.",
    failure_cause="The third button was forgotten.",
    focus_pattern=("press [x]", "done"),
    exploration_objectives=("Press four buttons.",),
)
WALK = Walk(
    context_id=CONTEXT.id,
    number=0,
    exchanges=tuple(
        Exchange(
            action=f"press {colour}", observation=f"Pressed {COLOUR_CODE} {colour} [bold]. " * 20
        )
        for colour in (*COLOURS, *COLOURS)
    ),
)
PROPOSAL = Proposal(
    description="Three buttons in a row.",
    turns=("Press amber, blue, blue, white.",),
    actions=("press amber", "press blue", "press blue", "press white", "done"),
    confidence=0.9,
    done_when="Four are pressed.",
)


def draft_of(*order: str) -> Draft:
    return Draft(
        benchmark="toy",
        scenario="-".join(order),
        instruction=f"Press {', '.join(order)}.",
        world=ToyWorld(buttons=COLOURS),
        solution=(*(f"press {colour}" for colour in order), "done"),
        parents=(PARENT.id,),
        context_id=CONTEXT.id,
    )


def drafts() -> list[Draft]:
    """Drafts of training scenarios, in order."""
    orders = ((a, "blue", "blue", b) for a in COLOURS for b in COLOURS)
    candidates = (draft_of(*order) for order in orders)
    return [d for d in candidates if BENCHMARK.split_of(d.scenario) is Split.TRAIN]


def build_task(draft: Draft) -> Task:
    provenance = {"kind": "boundary", "context": CONTEXT.id, "round": "round-50", "draft": draft.id}
    update = {"origin": "evolved", "parents": (PARENT.id,), "provenance": provenance}
    return BENCHMARK.build(draft).model_copy(update=update)


DRAFTS = drafts()
ACCEPTED, HELD, SECOND, THIRD = (build_task(draft) for draft in DRAFTS[:4])
REJECTED = DRAFTS[4]
PASSED = (Check("parse"), Check("draft", "3 of 5 actions are needed"), Check("build"))


def make_verdict(draft: Draft, **keywords: object) -> Verdict:
    return Verdict(
        draft_id=draft.id,
        context_id=CONTEXT.id,
        draft=draft.model_dump(mode="json"),
        proposal=PROPOSAL.model_dump(mode="json"),
        **{"accepted": False, "checks": PASSED, **keywords},
    )


def hold_verdict(place: int, task: Task) -> Verdict:
    return make_verdict(
        DRAFTS[place], gate="hold", reason="the first of its scenario", task_id=task.id
    )


ROUND = Round(id="round-50", contexts=(CONTEXT,), budget=8, seed=5)
RESULT = RoundResult(
    round_id=ROUND.id,
    accepted=(ACCEPTED,),
    held=(HELD, SECOND, THIRD),
    verdicts=(
        make_verdict(DRAFTS[0], accepted=True, task_id=ACCEPTED.id),
        *(hold_verdict(n, task) for n, task in enumerate((HELD, SECOND, THIRD), start=1)),
        make_verdict(REJECTED, gate="solve", reason="solved in 0 of 4 tries", task_id="f" * 64),
        Verdict(
            draft_id="aaaa0000aaaa0000",
            context_id=CONTEXT.id,
            accepted=False,
            gate="parse",
            reason="not JSON",
            draft={"text": "I am sorry \x1b[2J"},
        ),
        Verdict(
            draft_id="", context_id=CONTEXT.id, accepted=False, gate="advisor", reason="budget"
        ),
    ),
    explored=(Explored(context=CONTEXT, brief=BRIEF, walks=(WALK,), problems=("One repair.",)),),
)


def make_group(task: Task, *outcomes: bool) -> Group:
    members = tuple(
        Trajectory(
            task_id=task.id,
            steps=(Step("seen", "seen", "done", terminated=True),),
            score=float(won),
            success=won,
            end_reason=EndReason.SOLVED if won else EndReason.FAILED,
            group_id="told-group",
        )
        for won in outcomes
    )
    return Group("told-group", task, len(members), members)


def add_round(database: Path) -> None:
    """Write the round into the store of a run, with the signal that it came from."""
    fired = [
        Signal(
            kind="boundary",
            task_id=PARENT.id,
            group_id="told-group",
            index=index,
            evidence={"outcomes": (1.0, 0.0, 0.0, 0.0), "place": index},
        )
        for index in (0, 1)
    ]
    with closing(RunStore(database)) as store:
        store.add_groups(ARM, STEP, [make_group(PARENT, True, False, False, False)], fired)
        store.add_round(ARM, STEP, 1000, 12, ROUND, RESULT)


def add_result(database: Path, result: RoundResult) -> None:
    """Write a later round of the arm."""
    order = ROUND.model_copy(update={"id": "round-51"})
    with closing(RunStore(database)) as store:
        store.add_round(ARM, STEP + 1, 2000, 13, order, result)

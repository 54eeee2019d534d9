"""Answers of the viewer's API about evaluations that nobody ran, in the shapes of the real ones."""

from __future__ import annotations

from typing import Any

from coevo_gym.runs.evals.comparison import ChangedTask, ComparedType, Comparison
from coevo_gym.view.model.comparing import Compared
from coevo_gym.view.model.evals import (
    EpisodePage,
    EpisodeRow,
    EvalDetail,
    EvalList,
    EvalRow,
    EvaluationDetail,
    TaskOutcome,
    TypeRow,
)
from coevo_gym.view.model.rounds import RoundRow
from coevo_gym.view.model.steps import GroupPage, GroupRow, StepTable
from coevo_gym.view.rows import Shape, TaskBrief
from tests.view import made_up

ASKED = "I am looking for a lightweight rain jacket in navy, size large, under 60 dollars."
TAGS = ("category:fashion", "subset:few-shot")


def row(id: str, success: float, *, finished: bool = True, samples: int = 4) -> EvalRow:
    total = 60 * samples
    return EvalRow(
        id=id, name=id, path=f"evals/{id}", source="runs/shop-1", policy="coevolve", model="tiny",
        benchmark="webshop", split="val", n_tasks=60, samples=samples,
        done=total if finished else 90, total=total, lost=2, finished=finished,
        running=not finished, success=success, low=success - 0.09, high=success + 0.09,
        updated_at="2026-01-05T10:00:00Z",
    )  # fmt: skip


def _types() -> tuple[TypeRow, ...]:
    categories = [
        ("fashion", 31, 0.61),
        ("beauty", 20, 0.44),
        ("garden", 8, 0.3),
        ("grocery", 1, 0.0),
    ]
    rows = [
        TypeRow(kind="category", value=value, tasks=n, success=success,
                low=max(0.0, success - 1.5 / n**0.5), high=min(1.0, success + 1.5 / n**0.5))
        for value, n, success in categories
    ]  # fmt: skip
    few = TypeRow(kind="subset", value="few-shot", tasks=60, success=0.5, low=0.4, high=0.6)
    return (*rows, few)


def detail(eval: EvalRow) -> EvalDetail:
    return EvalDetail(
        eval=eval, notice="", score=0.71, scenario_success=0.25, steps=7.4,
        end_reasons={"finished": 190, "max_steps": 42, "invalid_actions": 8},
        failures={"argument_mismatch": 80, "not_reached": 42},
        pass_at={"1": 0.5, "2": 0.63, "4": 0.72}, types=_types(),
        tokens={"prompt": 120_400, "completion": 9_300, "usd": 0.42},
        panel={"name": "webshop-val-60", "hash": "3f" * 32, "declared": True},
        protocol={"hash": "9a" * 32, "parts": {"max_steps": 15, "samples": 4, "temperature": 1.0}},
        cite="webshop-val-60@3f3f3f3f3f3f: success 50.0 % [40.0, 60.0], 60 tasks x 4, protocol "
        "9a9a9a9a9a9a, shop-1 coevolve, coevo_gym 0.1.0",
        config={"policy": "coevolve", "split": "val", "max_steps": 15, "env": {}},
    )  # fmt: skip


def episodes(samples: int = 4, n: int = 12) -> EpisodePage:
    rows = tuple(
        EpisodeRow(
            id=f"{task:064x}.{sample}", task=f"{task:064x}", name=f"webshop/{task}",
            instruction=ASKED, sample=sample, position=sample, tags=TAGS,
            success=(task + sample) % 3 > 0,
            score=1.0 if (task + sample) % 3 else 0.5, steps=3 + (5 * task + sample) % 12,
            end_reason="finished" if (task + sample) % 3 else "max_steps", stored=True,
            failure="" if (task + sample) % 3 else "not_reached",
            failed_turn=None if (task + sample) % 3 else 2,
        )
        for task in range(n)
        for sample in range(samples)
    )  # fmt: skip
    return EpisodePage(rows=rows, total=len(rows), page=1, pages=1, per_page=500)


def _changed(which: str, n: int) -> tuple[ChangedTask, ...]:
    won = which == "won"
    return tuple(
        ChangedTask(f"{which}-{i}", f"webshop/{which}-{i}", ASKED, TAGS, float(not won), float(won))
        for i in range(n)
    )


def comparison() -> Compared:
    won, lost = _changed("won", 13), _changed("lost", 4)
    stats = Comparison(
        a="evals/before", b="evals/after", benchmark="webshop", split="val", tasks=60,
        only_in_a=0, only_in_b=0, samples_a=(1, 1), samples_b=(1, 1), success_a=0.4,
        success_b=0.55, difference=0.15, low=0.02, high=0.28, p=0.035,
        better=13, worse=4, both=20, neither=23, won=won, lost=lost,
        uneven=("max_steps: 15 in A, 20 in B",), panels="", trained=False,
        types=tuple(
            ComparedType(kind="category", value=value, tasks=n, success_a=a, success_b=b, won=w,
                         lost=x)
            for value, n, a, b, w, x in (
                ("fashion", 40, 0.5, 0.6, 7, 3), ("beauty", 20, 0.2, 0.45, 6, 1)
            )
        ),
    )  # fmt: skip
    places = ("evals/before", "evals/after")
    links = [{task.id: f"{at}/episodes/{task.id}.0" for task in (*won, *lost)} for at in places]
    return Compared(
        found=stats, verdict=stats.verdict, test=stats.test_name,
        place_a=places[0], place_b=places[1],
        links_a=links[0], links_b=links[1], places=(*places, "runs/shop-1/static"),
    )  # fmt: skip


def arm_evaluation(step: int = 20) -> EvaluationDetail:
    tasks = tuple(
        TaskOutcome(
            id=f"{i:064x}", name=f"webshop/{i}", instruction=ASKED, tags=TAGS, success=i % 3 > 0,
            share=float(i % 3 > 0), episodes=1, score=1.0 if i % 3 else 0.4,
            end_reason="finished", steps=4 + i % 9, before=i % 4 > 0,
            failure="" if i % 3 else ("argument_mismatch", "missing_tool_call")[i % 2],
        )
        for i in range(60)
    )  # fmt: skip
    return EvaluationDetail(
        run="shop-1", arm="coevolve", step=step, split="val", steps=(0, 10, 20), success=0.66,
        low=0.53, high=0.77, types=_types(), tasks=tasks,
    )  # fmt: skip


def step_table(arm: str, rounds: tuple[int, ...]) -> StepTable:
    """Six steps of an arm, with rounds after some of them; the first one finds D_0."""
    round_rows = tuple(
        RoundRow(
            id=f"round-{i}", arm=arm, step=step, env_steps=100 * step, first=i == 0, kinds={},
            contexts=4, drafts=8, accepted=6, held=0, rejected={}, pool_size=10 + 6 * i,
            steps_spent=40, gate_steps=20, seconds=1.0,
        )
        for i, step in enumerate((0, *rounds))
    )  # fmt: skip
    return StepTable(
        arm=arm, step=tuple(range(1, 7)), env_steps=tuple(range(100, 700, 100)), groups=(2,) * 6,
        episodes=(8,) * 6, successes=(4,) * 6, signals={"rare": (1, 0, 2, 0, 0, 3)},
        stored=(8,) * 6, rounds=round_rows,
        series={
            "curriculum.pool_size": (10.0, 10.0, 16.0, 16.0, 22.0, 22.0),
            "curriculum.share_explore_steps": (0.1, 0.1, 0.1, 0.2, 0.2, None),
        },
    )  # fmt: skip


def groups(arm: str) -> GroupPage:
    """One task falls from 4 of 4 to 1 of 4, one rises from nothing to 4 of 4, one stays."""
    practised = {"falls": (4, 4, 1), "rises": (0, 2, 4), "stays": (3, 3, 3)}
    rows = tuple(
        GroupRow(
            id=f"{name}-{step}", arm=arm, step=step, size=4, episodes=4, successes=successes,
            task=TaskBrief(id=name, name=name, instruction=f"The task that {name}"),
            score=successes / 4, signals=(), stored=True,
        )
        for name, outcomes in practised.items()
        for step, successes in zip((1, 3, 5), outcomes, strict=True)
    )  # fmt: skip
    return GroupPage(rows=rows, total=len(rows), page=1, pages=1, per_page=500)


def _json(shape: Shape) -> Any:
    return shape.model_dump(mode="json")


BEFORE, AFTER = row("before", 0.4, samples=1), row("after", 0.55)
GOING = row("going", 0.5, finished=False).model_copy(
    update={"policy": "openai:good", "model": "openai:good"}
)
ANSWERS: dict[str, Any] = {
    "about": {"version": "1", "exported": False, "kinds": [], "home": ""},
    "evals": _json(EvalList(evals=(AFTER, BEFORE, GOING))),
    "tables": made_up.ANSWERS["tables"],
    "evals/after": _json(detail(AFTER)),
    "evals/before": _json(detail(BEFORE)),
    "evals/after/episodes": _json(episodes()),
    "evals/before/episodes": _json(episodes(samples=1)),
    "compare": _json(comparison()),
    "runs/shop-1/evaluations/coevolve/20": _json(arm_evaluation()),
    "runs/shop-1/arms/static/steps": _json(step_table("static", ())),
    "runs/shop-1/arms/coevolve/steps": _json(step_table("coevolve", (2, 4))),
    "runs/shop-1/arms/coevolve/groups": _json(groups("coevolve")),
    "runs/shop-1/arms/static/groups": _json(groups("static")),
}
PLACES = {
    "evaluations": "#/evals",
    "evaluation": "#/evals/after",
    "evaluation of one sample": "#/evals/before",
    "comparison": "#/compare?a=evals%2Fbefore&b=evals%2Fafter",
    "comparison with nothing": "#/compare",
    "evaluation of an arm": "#/runs/shop-1/evaluations/coevolve/20",
}

"""Answers of the viewer's API that no run gave: every page has something to show.

``ANSWERS`` holds them by path. ``hostile(answer)`` is an answer whose every free text is an attack.
"""

from __future__ import annotations

from typing import Any

RUN, ARMS = "shop-1", ("static", "coevolve")
TASK, PARENT, CHILD = "a" * 64, "b" * 64, "c" * 64
ASKED = "I am looking for a lightweight rain jacket in navy, size large, under 60 dollars."

KINDS = [
    {"name": "forgetting", "label": "forgetting", "colour": "#3f6fa8", "dark": "#7aa7e0"},
    {"name": "boundary", "label": "boundary", "colour": "#c98a00", "dark": "#e0b040"},
    {"name": "rare", "label": "rare", "colour": "#a03070", "dark": "#dd7fb2"},
]


def _brief(id: str = TASK, asked: str = ASKED, origin: str = "evolved") -> dict[str, Any]:
    return {"id": id, "name": f"webshop/{id[:6]}", "instruction": asked, "origin": origin}


def _paged(rows: list[Any], **more: Any) -> dict[str, Any]:
    return {"rows": rows, "total": len(rows), "page": 1, "pages": 1, "per_page": 50, **more}


def _progress(state: str = "finished") -> dict[str, Any]:
    if state != "training":
        return {"state": state, "arms_done": 2, "arms_total": 2, "share": 1.0}
    return {
        "state": state, "phase": "train coevolve", "arm": "coevolve", "arms_done": 1,
        "arms_total": 2, "done": 1200, "total": 2000, "unit": "env steps", "share": 0.8,
        "elapsed_s": 312.0, "eta_s": 78.0, "usd": 0.0, "tokens": 0, "facts": {"success": "31 %"},
        "updated_at": "2026-01-05T10:00:00Z",
    }  # fmt: skip


def _arm(name: str, trained: bool = True, success: float = 0.48) -> dict[str, Any]:
    return {
        "name": name, "method": name if trained else "", "trained": trained, "success": success,
        "low": success - 0.06, "high": success + 0.06, "score": success + 0.2, "n_tasks": 400,
        "env_steps": 80123 if trained else 0, "steps": 40 if trained else 0,
        "rounds": 5 if name == "coevolve" else 0, "pool_size": 40, "groups": 640,
        "trajectories": 1200, "signals": {"forgetting": 31, "boundary": 80, "rare": 12},
        "drafts": 96 if name == "coevolve" else 0, "accepted": 41 if name == "coevolve" else 0,
        "tokens": 0, "usd": 0.0, "mixed_groups": 0.4, "explored": 0.1, "mark": "", "over": True,
        "rollout_tokens": 41_230 if trained else None,
        "gradient_tokens": 16_490 if trained else None,
    }  # fmt: skip


def _points(arm: str, base: float) -> list[dict[str, Any]]:
    return [
        {
            "arm": arm, "step": step, "env_steps": 2000 * step, "success": base + step / 200,
            "low": base + step / 200 - 0.05, "high": base + step / 200 + 0.05, "score": 0.6,
            "episodes": 400, "kept": True,
        }
        for step in range(0, 41, 10)
    ]  # fmt: skip


def _series(arm: str) -> dict[str, Any]:
    steps = list(range(1, 41))
    return {
        "arm": arm, "step": steps, "env_steps": [2000 * n for n in steps],
        "success": [0.2 + n / 100 + (n % 5) / 50 for n in steps],
    }  # fmt: skip


def trajectory_row(position: int = 0, *, arm: str = "coevolve", step: int = 7) -> dict[str, Any]:
    """A training episode in a list; those at odd places failed."""
    won = position % 2 == 0
    return {
        "id": f"{arm}.g{step}.{position}", "arm": arm, "step": step, "group": f"g{step}",
        "position": position, "task": _brief(), "policy_version": step, "success": won,
        "score": 1.0 if won else 0.5, "end_reason": "solved" if won else "failed", "steps": 4,
        "failure": "" if won else "argument_mismatch", "failed_turn": None,
        "errors": 0 if won else 1, "signals": [] if won else ["boundary"],
        "advice": [ADVICE] if won else [], "advantage": 0.87 if won else -0.87,
    }  # fmt: skip


def _shop(page: str, **more: Any) -> dict[str, Any]:
    buttons = {
        "search": ["Search"],
        "results": ["Back to Search", "Next >"],
        "item": ["Back to Search", "< Prev", "Description", "Features", "Reviews", "Buy Now"],
        "done": [],
    }
    return {
        "kind": "shop", "page": page, "instruction": ASKED, "buttons": buttons[page],
        "number": None, "found": None, "products": [], "title": "", "price": "", "asin": "",
        "options": [], "texts": [], **more,
    }  # fmt: skip


PRODUCTS = [
    {"asin": f"B0{n:08d}", "title": f"{name} rain jacket, packable and seam-sealed", "price": price}
    for n, (name, price) in enumerate(
        [("Harbour", "$54.00"), ("Northlight", "$48.50"), ("Fell & Moor", "$72.99 to $89.00")]
    )
]
OPTIONS = [
    {"name": "color", "values": ["navy", "moss", "signal red"], "chosen": "navy"},
    {"name": "size", "values": ["small", "medium", "large"], "chosen": ""},
]


def _step(number: int, action: str, page: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "number": number, "observation": f"WebShop [SEP] Instruction: [SEP] {ASKED} [SEP] Search",
        "raw": None, "page": page, "said": "", "action": action, "calls": [], "error_kind": "",
        "reward": 0.0, "terminated": False, "truncated": False, "choices": None, "taken": None,
        "tokens": None, "policy_version": 7, "advantage": 0.87, "extras": {}, "cut": False, **more,
    }  # fmt: skip


def _choices(actions: list[str], index: int) -> dict[str, Any]:
    rest = 0.28 / max(1, len(actions) - 1)
    return {
        "choices": [
            {"text": action, "probability": 0.72 if i == index else rest}
            for i, action in enumerate(actions)
        ],
        "taken": index,
    }


TOKENS = [
    {"text": text, "id": 100 + i, "logprob": -abs((i * 37 % 11) - 3) / 3}
    for i, text in enumerate(
        ["The ", "cheap", "est ", "one ", "in ", "navy ", "fits", ". ", "click", "[large]"]
    )
]


def steps() -> list[dict[str, Any]]:
    """Four steps in the shop: a choice, a page of results, an item with tokens, a purchase."""
    results = _shop("results", number=1, found=23, products=PRODUCTS)
    item = _shop(
        "item", title=PRODUCTS[0]["title"], price="$54.00", asin=PRODUCTS[0]["asin"],
        options=OPTIONS,
    )  # fmt: skip
    clicks = [f"click[{product['asin'].lower()}]" for product in PRODUCTS]
    many = [*clicks, "click[back to search]", "click[next >]", *(f"click[{n}]" for n in range(9))]
    return [
        _step(1, "search[navy rain jacket]", _shop("search"), said="search[navy rain jacket]\n"),
        _step(2, clicks[0], results, **_choices(many, 0)),
        _step(
            3, "click[large]", item, tokens=TOKENS, said="The cheapest in navy fits.",
            calls=["click"], extras={"webshop.asin": PRODUCTS[0]["asin"]},
        ),
        _step(
            4, "click[buy now]", item, said="Buy it: click[buy now]", reward=1.0,
            terminated=True, error_kind="invalid_action",
            **_choices(["click[buy now]", "click[< prev]"], 0),
        ),
    ]  # fmt: skip


LABELS = (
    "pass", "argument_mismatch", "missing_tool_call", "empty_turn_model_response",
    "invalid_tool_call", "recovery_failure", "state_mismatch", "spurious_tool_call",
    "response_mismatch", "not_reached", "instance_mismatch",
)  # fmt: skip


ADVICE = "e1" * 8


TEXTS = {"content": "Choose every option before buying.", "when_to_use": "jackets with sizes"}


STEP_LABELS = (1, 0, -1, 1)


def _step_labels() -> list[dict[str, Any]]:
    """Labels of all steps of an episode: of the whole, and one note for each label."""
    about = {"kind": "attribution", "failure": False, "turn": None, "turns": None,
             "source": "replay"}  # fmt: skip
    tones = {1: "good", -1: "bad"}
    return [
        about | {"label": "examined", "tone": "", "step": None, "value": 0.0,
                 "labels": list(STEP_LABELS)},
        *(
            about | {"label": tones[label], "tone": tones[label], "step": n, "value": label}
            for n, label in enumerate(STEP_LABELS, 1)
            if label
        ),
    ]  # fmt: skip


def notes() -> list[dict[str, Any]]:
    """What was noted about an episode: of each of its turns, of a step, and of the whole."""
    about = {"failure": False, "step": None, "turn": None, "turns": None, "source": "rule"}
    labels = ("pass", "argument_mismatch", "not_reached")
    return [
        *(
            about | {"kind": "turn_label", "label": label, "failure": n == 1,
                     "tone": "bad" if n == 1 else "", "turn": n + 1,
                     "turns": 3, "value": 0.0}
            for n, label in enumerate(labels)
        ),
        about | {"kind": "credit", "label": "turned_it", "failure": True, "tone": "bad",
                 "step": 3, "value": 0.5},
        about | {"kind": "credit", "label": "", "value": -0.25, "source": "model",
                 "says": {"lesson": "Choose every option before buying."}},
        *(
            about | {"kind": "outlook", "label": "", "step": n, "value": 0.9 - n / 5,
                     "source": "model", "floor": 0.4,
                     "expected": [{"text": text, "likeness": 0.9 - n / 5},
                                  {"text": "", "likeness": 0.0}]}
            for n, text in ((1, "A page with jackets."), (2, None), (3, "Thank you!"))
        ),
        *_step_labels(),
    ]  # fmt: skip


def arm_notes(arm: str = "coevolve") -> dict[str, Any]:
    """The table of an arm's notes: labels, numbers, three interfaces and three pieces of advice."""
    lines = [f"tool_{i}: required: id, name; unit is one of metres, miles." for i in range(9)]
    empty = {"tone": "", "first": 1, "last": 120, "early": None, "late": None, "value": None,
             "likeness": None, "floor": None, "n_tasks": 3, "says": [], "why": "",
             "episodes": []}  # fmt: skip
    episodes = [{"id": f"{arm}.g7.{i}", "step": 7} for i in range(2)]
    labels = [
        empty | {"kind": "turn_label", "label": label, "n": 400 - 30 * k, "early": 0.3 - k / 40,
                 "late": 0.2, "tone": "" if label in ("pass", "not_reached") else "bad",
                 "episodes": episodes[: k % 3]}
        for k, label in enumerate(LABELS)
    ]  # fmt: skip
    numbers = empty | {"kind": "outlook", "label": "", "n": 1200, "value": 0.7, "likeness": 0.8,
                       "floor": 0.5}  # fmt: skip
    interfaces = [
        empty | {"kind": "interface", "label": f"{i}f9a1c07", "n": 1, "first": 13 * i + 1,
                 "last": 40 * i + 1, "says": lines[: 4 * i], "episodes": episodes[:i]}
        for i in range(3)
    ]  # fmt: skip
    about = empty | {"kind": "experiences", "first": 2, "n_tasks": 1, "tone": "good"}
    advice = [
        about | {"label": ADVICE, "n": 3, "value": 0.4, "says": [*TEXTS.values()]},
        about | {"label": "e2" * 8, "n": 0, "says": ["Compare prices."]},
        about | {"label": "e3" * 8, "n": 8, "value": -0.5, "says": [*TEXTS.values()],
                 "tone": "bad", "why": "harmful"},
    ]  # fmt: skip
    return {"arm": arm, "rows": [*labels, numbers, *interfaces, *advice], "left": 0}


RECEIPT = [
    "Thank you for shopping with us!", "Your code:", "None", "Purchased", "asin", "B000000000",
    "options", '{"color": "navy", "size": "large"}', "attrs", "None", "Target", "asin", "options",
    "instuction text", "Reward", "Your score (min 0.0, max 1.0)", "0.5", "Reward Details", "None",
]  # fmt: skip


def trajectory(position: int = 1, *, arm: str = "coevolve") -> dict[str, Any]:
    """A whole training episode."""
    row = trajectory_row(position, arm=arm)
    siblings = [
        {name: trajectory_row(n)[name] for name in ("position", "success", "score", "end_reason",
                                                    "steps", "failure", "failed_turn", "signals")}
        | {"id": trajectory_row(n, arm=arm)["id"]}
        for n in range(4)
    ]  # fmt: skip
    return {
        "id": row["id"], "of": "training", "run": RUN, "arm": arm, "step": 7, "group": "g7",
        "position": position, "size": 4, "split": "train", "notice": "", "task": _brief(),
        "instruction": ASKED, "system": "You are a shopper.", "steps": steps(),
        "last_observation": "Thank you for shopping with us!",
        "last_page": _shop("done", texts=RECEIPT),
        "grade": {
            "success": row["success"], "score": row["score"], "end_reason": row["end_reason"],
            "report": {"r_type": 1.0, "r_att": 0.5, "r_option": 0.0, "r_price": 1.0,
                       "missing": ["size large"]},
            "withheld": "",
        },
        "signals": [
            {"kind": kind, "evidence": {"successes": 2, "episodes": 4, "window": 8}}
            for kind in row["signals"]
        ],
        "siblings": siblings, "policy_version": 7, "advantage": row["advantage"],
        "cue_ids": ["recover-from-errors", f"exp:{ADVICE},gone"],
        "advice": [{"id": ADVICE, "texts": TEXTS}],
        "interface": "2f9a1c07" * 8,
        "shown_by": ["tool_1: required: id, name.", "tool_2: required: id."], "notes": notes(),
        "stored": {"choices": True, "tokens": True, "advantages": True},
        "before": None, "after": trajectory_row(2)["id"],
    }  # fmt: skip


def _practice(arm: str, won: int) -> dict[str, Any]:
    return {"arm": arm, "groups": 3, "episodes": 12, "successes": won}


def task_row(id: str = TASK, *, round: str = "round-4") -> dict[str, Any]:
    """A task in a list; without a round it is the benchmark's own."""
    return {
        "id": id, "name": f"webshop/evolved/{id[:12]}", "instruction": ASKED,
        "origin": "evolved" if round else "native", "split": "train", "arms": list(ARMS),
        "round": round, "step": 20 if round else None, "signal": "boundary" if round else "",
        "first": round == "round-0", "parents": [PARENT] if id == TASK else [TASK],
        "children": 1, "generation": 1 if round else 0,
        "practice": [_practice("static", 3), _practice("coevolve", 9)], "episodes": 24,
        "successes": 12, "success": 0.5,
    }  # fmt: skip


def _exchange(action: str, error: str = "") -> dict[str, Any]:
    return {"action": action, "observation": f"{ASKED} [SEP] Page 1", "error_kind": error}


CONTEXT = {
    "id": "d1", "kind": "boundary", "task": _brief(PARENT, origin="native"),
    "summary": "Two of four rollouts chose the size before the colour and bought the wrong one.",
    "success": False, "actions": ["search[jacket]", "click[buy now]"],
    "evidence": [_exchange("search[jacket]"), _exchange("click[large]", "not_on_page")],
    "last_observation": "Thank you!", "contrast": ["search[navy jacket]", "click[large]"],
    "target": [], "signal": {"kind": "boundary", "evidence": {"successes": 2, "episodes": 4}},
    "brief": {"summary": "It forgot the size.", "exploration_objectives": ["look at sizes"]},
    "problems": [],
}  # fmt: skip


def draft_row(n: int = 0) -> dict[str, Any]:
    """A draft in a list; only the first was accepted."""
    return {
        "id": f"draft{n}", "arm": "coevolve", "round": "round-4", "step": 20, "first": False,
        "position": n, "accepted": n == 0, "gate": "" if n == 0 else "duplicate",
        "reason": "" if n == 0 else "Three words apart from a task of the pool.",
        "arms": ["coevolve"], "signal": "boundary", "context": "d1",
        "task": _brief() if n == 0 else None,
        "instruction": ASKED,
    }  # fmt: skip


def draft(n: int = 0) -> dict[str, Any]:
    """A draft with its walk and what each gate said."""
    return {
        "draft": draft_row(n),
        "gates": [
            {"gate": "split", "passed": True, "said": ""},
            {"gate": "duplicate", "passed": n == 0, "said": draft_row(n)["reason"]},
            {"gate": "replay", "passed": True if n == 0 else None, "said": ""},
        ],
        "asked": ASKED, "actions": ["search[navy rain jacket]", "click[buy now]"],
        "body": {"benchmark": "webshop", "scenario": "B0"}, "proposal": None, "context": CONTEXT,
        "walks": [{"number": 0, "exchanges": [_exchange("search[rain]"), _exchange("click[b0]")]}],
        "elsewhere": [], "decision": None,
        "joined": [{"arm": "coevolve", "round": "round-4"}],
    }  # fmt: skip


def _node(id: str, generation: int, round: str) -> dict[str, Any]:
    names = ("name", "instruction", "origin", "arms", "round", "first", "signal", "parents")
    row = task_row(id, round=round)
    card = {name: row[name] for name in ("id", *names, "success")}
    return {"id": id, "generation": generation, "task": card}


def task() -> dict[str, Any]:
    """A whole task with a parent and a child."""
    return {
        "task": task_row(), "instruction": ASKED, "scenario": "B000000000", "subset": "builtin",
        "tags": ["category:jackets"], "solution": ["search[navy rain jacket]", "click[buy now]"],
        "verifier": {"attributes": ["lightweight"], "price": 60.0}, "world": {"goal": 3},
        "withheld": "",
        "lineage": {
            "nodes": [_node(PARENT, 1, ""), _node(TASK, 0, "round-4"), _node(CHILD, -1, "round-5")],
            "more": 0,
        },
        "story": draft(),
        "practice": [
            {"id": f"g{step}", "arm": arm, "step": step, "task": _brief(), "size": 4,
             "episodes": 4, "successes": won, "score": won / 4, "signals": [], "stored": True}
            for arm, won_at in (("static", (1, 1, 1)), ("coevolve", (2, 3, 4)))
            for step, won in zip((7, 18, 31), won_at, strict=True)
        ],
        "arms": [_practice("static", 3), _practice("coevolve", 9)], "decision": None,
        "interfaces": [
            {"arm": "coevolve", "before": "coevolve.g7.0", "before_step": 7,
             "after": "coevolve.g31.2", "after_step": 31}
        ],
    }  # fmt: skip


def round_row(n: int = 4) -> dict[str, Any]:
    """A round of evolution."""
    return {
        "id": f"round-{n}", "arm": "coevolve", "step": 5 * n, "env_steps": 9000 * n,
        "first": n == 0, "kinds": {"boundary": 4, "rare": 2}, "contexts": 6, "drafts": 12,
        "accepted": 5, "held": 0, "rejected": {"duplicate": 4, "replay": 3}, "pool_size": 40 + n,
        "steps_spent": 410, "gate_steps": 260, "seconds": 12.5, "calls": 0, "tokens": 0,
        "usd": 0.0, "usage": {},
    }  # fmt: skip


def group_row(step: int = 7) -> dict[str, Any]:
    """A group of four rollouts, two of which solved the task."""
    return {
        "id": f"g{step}", "arm": "coevolve", "step": step, "task": _brief(), "size": 4,
        "episodes": 4, "successes": 2, "score": 0.75, "signals": ["boundary"], "stored": True,
    }  # fmt: skip


def step_table(n: int = 120) -> dict[str, Any]:
    """An arm's steps; more of them than a page holds."""
    every = list(range(1, n + 1))
    return {
        "arm": "coevolve", "step": every, "env_steps": [2000 * i for i in every],
        "groups": [16] * n, "episodes": [64] * n, "successes": [20 + i % 30 for i in every],
        "signals": {"boundary": [i % 5 for i in every], "rare": [i % 2 for i in every]},
        "stored": [32] * n, "series": {"loss": [1 / i for i in every], "kl": [0.01] * n},
        "rounds": [round_row(i) for i in range(6)],
    }  # fmt: skip


def evaluation() -> dict[str, Any]:
    """An evaluation on held-out tasks; the first of them got worse, the second better."""

    def outcome(n: int) -> dict[str, Any]:
        return {
            "id": f"{n}" * 64, "name": f"webshop/val/{n}", "instruction": ASKED, "tags": [],
            "success": n % 2 == 1, "share": float(n % 2), "episodes": 1, "score": 0.5,
            "end_reason": "failed", "steps": 6, "before": n % 4 in (0, 3),
        }  # fmt: skip

    return {
        "run": RUN, "arm": "coevolve", "step": 20, "split": "val", "steps": [10, 20],
        "success": 0.5, "low": 0.4, "high": 0.6, "types": [],
        "tasks": [outcome(n) for n in range(8)],
    }  # fmt: skip


def run(state: str = "finished") -> dict[str, Any]:
    """A run with two arms."""
    return {
        "id": RUN, "name": RUN, "path": "runs/shop-1", "benchmark": "webshop", "model": "tiny",
        "seed": 0, "split": "val", "progress": _progress(state),
        "headline": "coevolve solves 54.0 % of 400 held-out tasks, 6.0 points more than static.",
        "arms": [_arm("random", False, 0.02), *(_arm(name) for name in ARMS)],
        "evaluations": [*_points("static", 0.25), *_points("coevolve", 0.3)],
        "training": [_series(arm) for arm in ARMS],
        "gates": {"duplicate": 30, "replay": 21, "substance": 4}, "record": "all",
        "signals": {"boundary": 80, "forgetting": 31, "rare": 12},
        "stores": {"choices": True, "tokens": False, "advantages": True},
        "config": {"seed": 0, "loop": {"max_steps": 40}}, "manifest": {"git": "abc"},
        "notes": ["Both arms began with the same tasks."],
    }  # fmt: skip


def run_row(state: str = "finished") -> dict[str, Any]:
    """The run in the list."""
    return {
        "id": RUN, "name": RUN, "path": "runs/shop-1", "benchmark": "webshop", "model": "tiny",
        "seed": 0, "arms": list(ARMS), "progress": _progress(state), "success": 0.54, "low": 0.49,
        "high": 0.59, "trajectories": 10720, "tasks": 131, "problem": "", "mixed_groups": 0.4,
        "rollout_tokens": 82_460, "gradient_tokens": 32_980,
    }  # fmt: skip


def measures() -> dict[str, Any]:
    """Measures of the run, with an arm that evolved and one that did not."""
    numbers = {
        "groups": 640.0, "mixed_groups": 0.41, "mixed_groups_recent": 0.28, "steps_mixed": 900.0,
        "steps_all_fail": 300.0, "steps_all_pass": 600.0, "reserve": 12.4, "tags_covered": 18.0,
        "contexts": 30.0, "candidates": 96.0, "accepted": 41.0, "pass_rate": 41 / 96, "yield": 3.2,
        "conversion": 1 / 3, "share_explore_steps": 0.1, "share_gate_steps": None,
        "gradient_tokens": 16_490.0, "gradient_share": 0.4,
    }  # fmt: skip
    usage = {
        "calls": 201, "cached": 3, "prompt_tokens": 655_040, "completion_tokens": 70_220,
        "usd": 0.37, "seconds": 10.0, "used": 190, "repaired": 4, "by_rule": 7,
    }  # fmt: skip
    return {
        "arms": [
            {"arm": "static", "numbers": {}, "signals": 123, "rounds": 0, "round_time": None},
            {"arm": "coevolve", "numbers": numbers, "signals": 123, "rounds": 5, "round_time": 0.2},
        ],
        "cross": [
            {"baseline": "static", "ours": "coevolve", "both": 120, "only_baseline": 21,
             "only_ours": 66, "neither": 93},
        ],
        "final": {"test, once": {"warm-up": 0.31, "coevolve": 0.6}},
        "lengths": [{"policy": "coevolve", "solved": [2, 2, 4], "failed": [4, 15]}],
        "usage": [
            {"arm": "D_0", "purpose": "explore", "usage": usage},
            {"arm": "coevolve", "purpose": "summary", "usage": usage},
        ],
        "warmup_loss": [2.3, 1.1, None, 0.4],
    }  # fmt: skip


def task_set() -> dict[str, Any]:
    """The task set of the arm that evolved."""
    return {
        "arms": [
            {"arm": "coevolve", "self_similarity": [0.5, 0.4, 0.38],
             "distance": [None, 0.1, 0.2]},
        ],
        "similarity": [{"label": "D_0", "counts": [0, 3, 5]}, {"label": "new", "counts": [1, 1]}],
    }  # fmt: skip


def _hit(what: str, path: str) -> dict[str, Any]:
    return {
        "what": what, "path": path, "run": RUN, "title": "webshop", "text": ASKED, "note": "static",
    }  # fmt: skip


TABLE, EVAL_TABLE, LEDGER = "growth", "models", "webshop-val"


def table() -> dict[str, Any]:
    """A table of an experiment: two rows with three seeds, and a baseline from their runs."""
    success = {"name": "success", "title": "success", "share": True}
    steps = {"name": "env_steps", "title": "env steps", "share": False}
    compared = {
        "baseline": "static", "seeds": 3, "mean": 0.1, "sd": 0.02, "low": 0.05, "high": 0.15,
        "wins": 3, "ties": 0, "p": 0.25, "p_sign": 0.25,
    }  # fmt: skip
    lines = [
        {
            "key": key, "label": f"{key}: {ASKED}", "seeds": 3, "mean": mean, "sd": 0.04,
            "comparisons": [compared] if key == "coevolve" else [],
            "columns": {"env_steps": 80_000.0}, "paper": {"success": 51.2},
        }
        for key, mean in (("start", 0.3), ("static", 0.5), ("coevolve", 0.6))
    ]  # fmt: skip
    cells = [
        {
            "row": row, "seed": seed, "run": RUN if seed == 1 else None,
            "state": "finished" if seed < 3 else "training",
            "value": 0.5 if seed < 3 else None,
        }
        for row in ARMS
        for seed in (1, 2, 3)
    ]  # fmt: skip
    return {
        "id": TABLE, "title": ASKED, "source": "a paper", "path": "runs/growth",
        "benchmark": "webshop", "budget": "tiny", "metric": success, "lines": lines,
        "columns": [steps], "cells": cells, "notes": [ASKED], "written": True,
    }  # fmt: skip


def table_curves() -> dict[str, Any]:
    """The mean success of the table's rows: with a band, and of one seed."""
    x = [0.0, 1000.0, 2000.0]
    curves = [
        {
            "label": f"coevolve: {ASKED}", "seeds": 3, "x": x, "mean": [0.3, 0.5, 0.6],
            "low": [0.25, 0.45, 0.55], "high": [0.35, 0.55, 0.65],
        },
        {"label": "static", "seeds": 1, "x": x, "mean": [0.3, 0.4, 0.5], "low": [], "high": []},
    ]  # fmt: skip
    return {"curves": curves, "problem": ""}


def eval_table() -> dict[str, Any]:
    """A table of evaluations: finished, running, failed and missing cells, some with two seeds."""
    numbers = {
        "planned": 1, "seeds": 1, "tasks": 20, "success": 0.5, "low": 0.3, "high": 0.7, "sd": None,
        "episodes": 20, "lost": 0, "tokens": 1_200, "usd": 0.0,
    }  # fmt: skip
    none = {"seeds": 0, "tasks": 0, "success": None, "low": None, "high": None, "tokens": 0}
    results = [
        {"row": "large", "column": "shop", "state": "finished", **numbers},
        {"row": "large", "column": "files", "state": "finished", **numbers, "planned": 2,
         "seeds": 2, "sd": 0.02},
        {"row": "small", "column": "shop", "state": "failed", **numbers, **none},
        {"row": "small", "column": "files", "state": "missing", **numbers, **none, "planned": 2},
    ]  # fmt: skip
    states = {
        ("large", "shop", 0): "finished", ("large", "files", 1): "finished",
        ("large", "files", 2): "finished", ("small", "shop", 0): "failed",
        ("small", "files", 1): "running", ("small", "files", 2): "missing",
    }  # fmt: skip
    cells = [
        {
            "row": row, "column": column, "seed": seed, "state": state,
            "eval": None if state == "missing" else f"{EVAL_TABLE}~{row}-{column}-{seed}",
            "done": 7 if state == "running" else 0, "total": 20 if state == "running" else 0,
            "problem": ASKED if state == "failed" else "",
        }
        for (row, column, seed), state in states.items()
    ]  # fmt: skip
    return {
        "id": EVAL_TABLE, "title": "Two models", "path": "evals/models",
        "heads": ["model", "shop, %", "files, %", "tokens of models", "USD"],
        "lines": [
            ["large", "50.0 [30.0, 70.0]", "50.0 [30.0, 70.0] ± 2.0", "2,400", "price not set"],
            ["small", "failed", "–", "", ""],
        ],
        "results": results, "cells": cells,
        "explanations": ["Success with its 95 % interval over 20 tasks."], "notes": [ASKED],
    }  # fmt: skip


def ledger_brief() -> dict[str, Any]:
    return {
        "id": LEDGER, "benchmark": "webshop", "split": "val", "panel": "", "evals": ["a", "b"],
        "names": ["a", "b"],
    }  # fmt: skip


def ledger() -> dict[str, Any]:
    """Two evaluations in one table."""
    rows = [
        {
            "label": name, "results": [f"evals/{name}"], "tasks": 100, "success": 0.5, "low": 0.4,
            "high": 0.6, "means": [0.5], "repeat_sd": None, "repeat_low": None, "repeat_high": None,
            "difference": {
                "mean": 0.1, "low": 0.0, "high": 0.2, "repeat_low": None, "repeat_high": None
            },
            "notes": [ASKED],
        }
        for name in ("a", "b")
    ]  # fmt: skip
    evals = {f"evals/{name}": name for name in ("a", "b")}
    return {"brief": ledger_brief(), "rows": rows, "evals": evals, "remarks": [ASKED]}


_AT = f"runs/{RUN}"
_ARM = f"{_AT}/arms/coevolve"
ANSWERS: dict[str, Any] = {
    "about": {
        "version": "0", "exported": False, "made_at": None, "left_out": [], "home": "",
        "kinds": [kind | {"fires": True} for kind in KINDS],
    },
    "runs": {"runs": [run_row(), run_row("training") | {"id": "shop-2", "name": "shop-2"}],
             "evals": []},
    _AT: run(),
    f"{_AT}/measures": measures(),
    f"{_AT}/task-set": task_set(),
    f"{_ARM}/steps": step_table(),
    f"{_AT}/arms/static/steps": step_table() | {"arm": "static"},
    f"{_ARM}/notes": arm_notes(),
    f"{_AT}/arms/static/notes": {"arm": "static", "rows": [], "left": 0},
    f"{_ARM}/rounds": {"rows": [round_row(n) for n in range(6)]},
    f"{_ARM}/rounds/round-4": {
        "round": round_row(), "contexts": [CONTEXT], "drafts": [draft_row(n) for n in range(4)],
    },
    f"{_ARM}/groups": _paged([group_row(n) for n in range(7, 12)]),
    f"{_ARM}/groups/g7": {
        "group": group_row(), "trajectories": [trajectory_row(n) for n in range(4)],
        "before": None, "after": "g18",
    },
    f"{_AT}/trajectories": _paged(
        [trajectory_row(n) for n in range(4)], failures=["argument_mismatch"]
    ),
    **{f"{_AT}/trajectories/coevolve.g7.{n}": trajectory(n) for n in range(4)},
    f"{_AT}/tasks": _paged([task_row(), task_row(PARENT, round="")]),
    f"{_AT}/tasks/{TASK}": task(),
    f"{_AT}/drafts": _paged(
        [draft_row(n) for n in range(4)], gates={"duplicate": 3}, accepted=1,
        examples={"duplicate": {"Three words apart from a task of the pool.": 3}},
    ),
    f"{_AT}/drafts/draft0": draft(),
    f"{_AT}/evaluations/coevolve/20": evaluation(),
    "evals": {"evals": []},
    "tables": {
        "tables": [
            {"id": TABLE, "title": ASKED, "path": "runs/growth", "cells": {"finished": 4}},
            {"id": "from-file", "title": ASKED, "path": "runs/from-file", "cells": {}},
        ],
        "eval_tables": [
            {"id": EVAL_TABLE, "title": ASKED, "models": 2, "benchmarks": 2,
             "cells": {"finished": 3, "running": 1, "failed": 1, "missing": 1}},
        ],
        "ledgers": [ledger_brief()],
    },
    f"tables/{TABLE}": table(),
    f"tables/{TABLE}/curves": table_curves(),
    f"eval-tables/{EVAL_TABLE}": eval_table(),
    f"ledgers/{LEDGER}": ledger(),
    "search": {
        "q": "jacket", "hits": [_hit("task", f"{_AT}/tasks/{TASK}"),
                                _hit("trajectory", f"{_AT}/trajectories/coevolve.g7.1")],
        "totals": {"task": 1, "trajectory": 1},
    },
}  # fmt: skip
"""Answers by path."""

PLACES = {
    "runs": "#/",
    "run": f"#/{_AT}",
    "arm": f"#/{_ARM}",
    "round": f"#/{_ARM}/rounds/round-4",
    "groups": f"#/{_ARM}/groups",
    "group": f"#/{_ARM}/groups/g7",
    "trajectories": f"#/{_AT}/trajectories",
    "trajectory": f"#/{_AT}/trajectories/coevolve.g7.1",
    "tasks": f"#/{_AT}/tasks",
    "task": f"#/{_AT}/tasks/{TASK}",
    "drafts": f"#/{_AT}/drafts",
    "draft": f"#/{_AT}/drafts/draft0",
    "arms": f"#/{_AT}/arms",
    "task-arms": f"#/{_AT}/tasks/{TASK}/arms",
    "side": f"#/side?a={_AT}%2Ftrajectories%2Fcoevolve.g7.0&b={_AT}%2Ftrajectories%2Fcoevolve.g7.1",
    "search": f"#/search?q=jacket&run={RUN}",
    "terms": "#/terms?term=sr",
    "table": f"#/tables/{TABLE}",
    "eval-table": f"#/eval-tables/{EVAL_TABLE}",
    "ledger": f"#/ledgers/{LEDGER}",
}
"""A place of each view."""

ATTACK = (
    "<script>window.hit=1</script><img src=x onerror='window.hit=1'>"
    "<svg onload='window.hit=1'></svg>javascript:window.hit=1 {{7*7}} ${7*7} "
    "\u202egnp.exe\u202c\u2066\u200b\x00\x1b[31m\x07\ufeff\ud800 \U000e0041 &lt;b&gt; "
)
_NAMES = frozenset(
    (
        "advice", "after", "arm", "arms", "before", "child", "colour", "context", "dark", "draft",
        "end_reason", "format", "gate", "group", "home", "id", "kind", "of", "only", "origin",
        "page", "parent", "parents", "path", "places", "record", "round", "run", "signal",
        "signals", "split", "state", "task_id", "tone", "unit", "what",
    )
)  # fmt: skip
"""Fields that name a thing, or hold one of a few words: they stay as they are."""


def add_attacks(answer: Any, attack: str = ATTACK, name: str = "") -> Any:
    """The answer with an attack in each of its free texts."""
    if isinstance(answer, str):
        is_name = name in _NAMES or answer in (RUN, *ARMS)
        return answer if is_name else f"{answer} {attack}"
    if isinstance(answer, list):
        return [add_attacks(item, attack, name) for item in answer]
    if isinstance(answer, dict):
        free = name in ("evidence", "report", "extras", "config", "manifest", "body", "verifier")
        return {
            (
                f"{key}{attack[:60]}" if free and not isinstance(value, dict | list) else key
            ): add_attacks(value, attack, key)
            for key, value in answer.items()
        }
    return answer

"""Rows that grow: what a user's function proposes is used only if it is new and proven."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from coevo_gym import EvolvingTaskSampler, from_rows
from coevo_gym.core.errors import ConfigError, EnvBackendError, ModelError
from coevo_gym.core.evolution import (
    Attempt,
    Context,
    Proposal,
    Round,
    RoundResult,
    Verdict,
)
from coevo_gym.core.registry import METHODS
from coevo_gym.core.task import Split
from coevo_gym.curricula.explore.evolver import GatedEvolver
from coevo_gym.curricula.explore.explorer import ScriptedExplorer
from coevo_gym.curricula.gates.gates import GateResult, default_gates, run_gates
from coevo_gym.envs.rows import RowFindings, RowsBenchmark
from coevo_gym.envs.rows.row import parse_row
from tests import ten_rows

Row = dict[str, Any]
ROWS = [{"prompt": f"What is {n} + 3?", "answer": n + 3, "split": "train"} for n in range(20)]
HELD_OUT = {"prompt": "What is 100 + 3?", "answer": 103, "split": "test"}


def check(row: Row, answer: str) -> bool:
    return answer.strip() == str(row["answer"])


def growing(*proposed: object, **more: Any) -> RowsBenchmark:
    """Rows, and a function that always proposes the same ones."""
    rows = [*ROWS, HELD_OUT]
    return from_rows(rows, more.pop("verify", check), propose=lambda row, _: [*proposed], **more)


def judged(benchmark: RowsBenchmark) -> list[GateResult]:
    """The verdicts on all that is proposed for the first row."""
    train = benchmark.tasks("train")
    context = Context(kind="boundary", task=train[0])
    (exploration,) = ScriptedExplorer(benchmark).explore([context], [np.random.default_rng(0)])
    gates = default_gates(benchmark, train)
    return [run_gates(gates, draft, context=context) for draft in exploration.drafts]


NEW = {"prompt": "What is 50 + 3?", "answer": 53}


def test_a_new_row_with_a_correct_answer_becomes_a_training_task() -> None:
    sums = growing({**NEW, "tags": ["goal:sum"], "choices": ["53", "54"]})
    (result,) = judged(sums)
    task = result.task
    assert result.verdict.accepted, result.verdict.reason
    assert task is not None
    assert (task.instruction, task.solution, task.split) == (NEW["prompt"], ("53",), Split.TRAIN)
    assert (task.origin, task.parents) == ("evolved", (sums.tasks("train")[0].id,))
    assert task.world.row is None, "the agent's side does not get the answer"  # type: ignore[attr-defined]
    env = sums.make()
    env.reset(options={"task": task})
    assert env.step("53")[1] == 1.0
    gates = {check.gate for check in result.verdict.checks}
    assert {"split_leak", "near_duplicate", "build", "replay", "prefix", "empty_agent"} <= gates


def test_a_new_row_may_have_any_other_fields() -> None:
    (result,) = judged(growing({**NEW, "invalid": "no"}))
    assert result.verdict.accepted, result.verdict.reason


REJECTED: dict[str, tuple[object, str, str]] = {
    "an existing row, with other blanks and case": (
        {"prompt": "  what is 3 + 3? ", "answer": 6}, "near_duplicate", "the same as that of",
    ),
    "a held-out row under another id": (
        {**HELD_OUT, "id": "mine", "split": "train"}, "split_leak", "is a test scenario",
    ),
    "a held-out row with other blanks and case": (
        {"prompt": "WHAT is\u200b 100 + 3?", "answer": 103}, "split_leak", "is a test scenario",
    ),
    "a wrong answer": ({**NEW, "answer": "about 50"}, "prefix", "scores 0.00 at the end"),
    "no answer": ({"prompt": NEW["prompt"]}, "build", "verify raised KeyError|cannot be checked"),
    "not a row": ("What is 50 + 3?", "build", "is invalid"),
    "no prompt": ({"answer": 4}, "build", "neither a prompt nor messages"),
    "a number that is not JSON": ({**NEW, "x": math.nan}, "build", "nan is not a finite number"),
    "an unknown split": ({**NEW, "split": "dev"}, "build", "is invalid"),
}  # fmt: skip


@pytest.mark.parametrize("what", REJECTED)
def test_a_row_that_is_not_new_or_not_proven_is_rejected_with_a_reason(what: str) -> None:
    row, gate, reason = REJECTED[what]
    verify = (lambda row, answer: answer == "103") if what == "a wrong answer" else check
    (result,) = judged(growing(row, verify=verify))
    assert result.task is None
    assert result.verdict.gate == gate, result.verdict.reason
    assert re.search(reason, result.verdict.reason), result.verdict.reason


def test_a_row_that_the_empty_answer_solves_is_rejected() -> None:
    (result,) = judged(growing(NEW, verify=lambda row, answer: True))
    assert (result.verdict.gate, result.task) == ("empty_agent", None)


def test_a_row_with_an_inconsistent_verify_function_is_rejected() -> None:
    calls: list[str] = []

    def moody(row: Row, answer: str) -> bool:
        calls.append(answer)
        return answer == "53" and calls.count("53") % 2 == 0

    (result,) = judged(growing(NEW, verify=moody))
    assert not result.verdict.accepted
    assert result.verdict.gate in ("replay", "prefix")


@pytest.mark.parametrize(
    ("verify", "reason"),
    [
        (lambda row, answer: 1 // 0, "verify raised ZeroDivisionError"),
        (lambda row, answer: math.nan, "got nan"),
        (lambda row, answer: row["of another kind"], "verify raised KeyError"),
    ],
)
def test_a_row_on_which_the_verify_function_fails_is_rejected(
    verify: Callable[[Row, str], Any], reason: str
) -> None:
    (result,) = judged(growing(NEW, verify=verify))
    assert result.verdict.gate == "build"
    assert reason in result.verdict.reason


def test_an_unreachable_judge_stops_the_round_and_rejects_no_row() -> None:
    def down(row: Row, answer: str) -> bool:
        raise ModelError("the server is down")

    with pytest.raises(EnvBackendError, match="the server is down"):
        judged(growing(NEW, verify=down))


def test_a_reference_function_provides_answers_and_demonstrations() -> None:
    def solve(row: Row) -> str:
        return str(int(row["prompt"].split()[2]) + 3)

    rows = [{"prompt": row["prompt"], "sum": row["answer"]} for row in ROWS]
    sums = from_rows(
        rows,
        lambda row, answer: answer == solve(row),
        propose=lambda row, findings: {"prompt": NEW["prompt"]},
        reference=solve,
    )
    assert sums.demonstration(sums.tasks("train")[0]) != ()
    draft = sums.propose(Context(kind="rare", task=sums.tasks("train")[0]), rng())[0]
    assert sums.build(draft).solution == ("53",)


def test_the_reference_of_a_row_proves_it_and_is_not_part_of_its_task() -> None:
    sums = growing(
        {"prompt": NEW["prompt"], "reference": "53"},
        verify=lambda row, answer: answer == row.get("reference", row.get("answer")),
    )
    (result,) = judged(sums)
    assert result.task is not None, result.verdict.reason
    assert result.task.solution == ("53",)
    guesses = from_rows([{"number": n, "split": "test"} for n in range(3)], env=ten_rows.Guessing)
    copy = parse_row({"number": 1, "reference": "1", "answer": 1}, prompted=False)
    assert guesses.split_of(copy.scenario) is Split.TEST


def test_an_accept_function_proves_a_row_without_an_answer() -> None:
    def accept(row: Row) -> bool | str:
        return True if row["prompt"].endswith("!") else "not a shout"

    def loud(row: Row, answer: str) -> bool:
        return answer.isupper()

    shouts = growing({"prompt": "Shout!"}, {"prompt": "Say."}, verify=loud, accept=accept)
    good, bad = judged(shouts)
    assert good.task is not None, good.verdict.reason
    assert good.task.solution == ()
    assert (bad.verdict.gate, bad.verdict.reason) == ("build", "not a shout")
    always = growing({"prompt": "S!"}, verify=lambda row, answer: 1.0, accept=accept)
    assert judged(always)[0].verdict.gate == "empty_agent"


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize(
    ("propose", "reason"),
    [
        (lambda row, findings: 1 // 0, "propose raised ZeroDivisionError"),
        (lambda row, findings: "rows", "must return rows"),
        (lambda row, findings: None, "must return rows"),
    ],
)
def test_a_failing_propose_function_gives_a_verdict_and_does_not_stop_the_round(
    propose: Callable[[Row, RowFindings], Any], reason: str
) -> None:
    sums = from_rows(ROWS, check, propose=propose)
    context = Context(kind="boundary", task=sums.tasks("train")[0])
    result = GatedEvolver(sums, ScriptedExplorer(sums)).run(
        Round(id="round-0", contexts=(context,), budget=4, seed=0)
    )
    (verdict,) = result.verdicts
    assert reason in verdict.reason
    assert result.accepted == ()


def test_propose_gets_the_attempts_of_the_agent() -> None:
    seen: list[tuple[Row, RowFindings]] = []

    async def propose(row: Row, findings: RowFindings) -> list[Row]:
        seen.append((row, findings))
        return [{"prompt": f"{row['prompt']} And {len(seen)}?", "answer": row["answer"]}]

    sums = from_rows(ROWS, check, propose=propose)
    env = EvolvingTaskSampler(sums.make(), "coevolve", group_size=4, evolve_every_groups=2)
    size = len(env.session.curriculum.pool)  # type: ignore[attr-defined]
    assert size == len(ROWS), "the pool starts with the rows"
    for n in range(60):
        env.reset()
        wanted = env.unwrapped.task.solution[0]  # type: ignore[attr-defined]
        env.step(wanted if n % 2 else "no idea")
    row, findings = next(one for one in seen if one[1].kind == "boundary")
    assert findings.summary == "2 of 4 rollouts succeeded."
    assert {(one.answer, one.score) for one in findings.attempts} == {
        ("no idea", 0.0), (str(row["answer"]), 1.0),
    }  # fmt: skip
    assert sum(one.success for one in findings.attempts) == 2
    assert env.session.metrics()["pool_size"] > size
    assert all(isinstance(one, Attempt) for one in findings.attempts)


@pytest.mark.parametrize("method", METHODS.names())
def test_only_evolving_methods_add_rows_to_the_pool(method: str) -> None:
    ten = ten_rows.ten("methods")
    env = EvolvingTaskSampler(ten.make(), method, group_size=2, evolve_every_groups=4)
    for n in range(60):
        env.reset()
        env.step(env.unwrapped.task.solution[0] if n % 2 else "")  # type: ignore[attr-defined]
    grown = env.session.metrics()["pool_size"] > len(ten.tasks("train"))
    assert grown is (method in ("coevolve", "random_append", "signal_blind"))
    env.close()


def test_the_seed_makes_proposals_repeatable() -> None:
    def result(seed: int) -> RoundResult:
        ten = ten_rows.ten("again")
        round = Round(id="round-0", n_unguided=3, budget=30, seed=seed)
        return GatedEvolver(ten, ScriptedExplorer(ten)).run(round)

    assert result(1).accepted == result(1).accepted != result(2).accepted


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=20)


@given(st.lists(TEXTS.filter(str.strip), min_size=3, max_size=12), st.integers(0, 99))
def test_a_proposed_copy_of_a_held_out_row_is_never_accepted(prompts: list[str], seed: int) -> None:
    rows = [{"prompt": prompt, "answer": "a"} for prompt in prompts]
    copies = [
        {**row, "id": f"x{n}", "prompt": f" {row['prompt'].upper()}\u200b"}
        for n, row in enumerate(rows)
    ]
    benchmark = from_rows(rows, check, propose=lambda row, findings: copies)
    held_out = {task.scenario for split in ("val", "test") for task in benchmark.tasks(split)}
    train = benchmark.tasks("train")
    assume(train)
    gates = default_gates(benchmark, train)
    for draft in benchmark.propose(
        Context(kind="rare", task=train[0]), np.random.default_rng(seed)
    ):
        task = run_gates(gates, draft).task
        assert task is None or task.scenario not in held_out


# Rows that a model proposes.


def proposal(turn: str, *actions: str) -> Proposal:
    return Proposal(description="", turns=(turn,), actions=actions, confidence=1.0)


def test_a_row_proposed_by_a_model_passes_the_same_gates() -> None:
    sums = from_rows([*ROWS, HELD_OUT], check, propose="model")
    train = sums.tasks("train")
    context = Context(kind="boundary", task=sums.open(train[0]))
    gates = default_gates(sums, train)

    def verdict(*words: str) -> Verdict:
        return run_gates(gates, proposal(*words), context=context).verdict

    good = run_gates(gates, proposal("What is 7 + 70?", "Let me see.", "77"), context=context)
    assert good.task is not None, good.verdict.reason
    assert (good.task.instruction, good.task.parents) == ("What is 7 + 70?", (train[0].id,))
    assert verdict('{"prompt": "What is 8 + 70?", "answer": 78}', "78").accepted
    assert verdict("What is 3 + 3?", "6").gate == "near_duplicate"
    assert verdict("What is 100 + 3?", "103").gate == "split_leak"
    with pytest.raises(ConfigError, match=r'Set explorer\.kind = "model"'):
        judged(sums)
    with pytest.raises(ConfigError, match='propose must be a function or "model"'):
        from_rows(ROWS, check, propose="models")  # type: ignore[arg-type]


def test_a_model_proposes_rows_of_an_env_as_json() -> None:
    guesses = from_rows(
        [{"number": n, "split": "train"} for n in range(5)], env=ten_rows.Guessing, propose="model"
    )
    context = Context(kind="rare", task=guesses.tasks("train")[0])
    row = '{"number": 7, "most": 9}'
    draft = guesses.draft(proposal(row, "5", "7"), context)
    assert guesses.build(draft).solution == ("5", "7")
    result = run_gates(default_gates(guesses), proposal(row, "5", "7"), context=context)
    assert result.task is not None
    assert result.task.solution == ("7",), "what is not needed is left out"


# Verifiers that hang.


def test_a_hanging_verify_function_rejects_a_proposed_row_and_loses_an_episode() -> None:
    hung = threading.Event()

    def hangs(row: Row, answer: str) -> bool:
        return hung.wait(60)

    sums = growing(NEW, verify=hangs, timeout_s=0.1)
    (result,) = judged(sums)
    assert result.verdict.gate == "build"
    assert "verify did not return within 0.1 s" in result.verdict.reason
    env = sums.make()
    env.reset()
    with pytest.raises(EnvBackendError, match=r"did not return within 0\.1 s"):
        env.step("53")
    assert env.unwrapped.info["score"] == -1.0, "no score, not 0"  # type: ignore[attr-defined]
    hung.set()

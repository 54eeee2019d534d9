"""Benchmarks of rows and a function: from prompts to evaluations and curricula."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coevo_gym
from coevo_gym import EvolvingTaskSampler, from_rows
from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.errors import ConfigError, EnvBackendError, SplitLeakError, TaskError
from coevo_gym.core.task import Split
from coevo_gym.envs.rows import RowsBenchmark
from coevo_gym.envs.rows.conversations import RowRules
from coevo_gym.envs.workers.starting import can_run_workers
from coevo_gym.testing.contract import Poison

ROWS = [
    {
        "id": f"sum-{n}",
        "prompt": f"What is {n} + 3?",
        "answer": n + 3,
        "choices": [str(n + 2), str(n + 3), str(n + 4)],
        "tags": [f"parity:{'odd' if n % 2 else 'even'}"],
    }
    for n in range(60)
]


def check(row: dict[str, Any], answer: str) -> bool:
    return answer.strip() == str(row["answer"])


@pytest.fixture(scope="module")
def sums() -> RowsBenchmark:
    return from_rows(ROWS, check, name="threes")


def play(benchmark: RowsBenchmark, answer: str, number: int = 0) -> tuple[float, dict[str, Any]]:
    env = benchmark.make()
    env.reset(options={"task": benchmark.tasks("train")[number]})
    _, reward, terminated, truncated, info = env.step(answer)
    assert (terminated, truncated) == (True, False)
    return float(reward), info


def test_rows_and_a_verify_function_make_a_benchmark() -> None:
    rows = [{"prompt": f"{n} + {n} = ?", "sum": 2 * n} for n in range(5)]
    doubles = from_rows(rows, lambda row, answer: answer.strip() == str(row["sum"]))
    assert [len(doubles.tasks(split)) for split in ("train", "val", "test")] == [3, 1, 1]
    row = coevo_gym.evaluate(doubles.name, "scripted")
    assert (row.success, row.n_tasks) == (0.0, 1), "these rows have no answers"
    row = coevo_gym.evaluate(doubles.name, "random")
    assert (row.success, row.n_tasks) == (0.0, 1), "and no choices to draw from"


def test_the_env_supports_choices_vectors_and_tags(sums: RowsBenchmark) -> None:
    env = gym.make(sums.env_id)
    observation, info = env.reset(options={"task_id": "threes/sum-7"})
    assert observation == "What is 7 + 3?"
    assert info["admissible"] == ("9", "10", "11")
    assert env.step("10")[1:4] == (1.0, True, False)
    vector = gym.make_vec(sums.env_id, num_envs=3, split="val")
    prompts, _ = vector.reset(seed=1)
    assert len(prompts) == 3
    assert sums.tags(sums.tasks("train")[0])[0].startswith("parity:")


def test_reference_answers_always_succeed_and_random_ones_sometimes(sums: RowsBenchmark) -> None:
    for split in ("train", "val", "test"):
        for task in sums.tasks(split):
            result = sums.replay(task, sums.demonstration(task))
            assert result.solves, task.name
    assert coevo_gym.evaluate("threes", "scripted").success == 1.0
    assert 0 < coevo_gym.evaluate("threes", "random", samples=8).success < 1


def test_a_policy_never_sees_the_other_fields_of_a_row() -> None:
    rows = [{"prompt": f"Question {n}", "secret": "LEAKED", "answer": "LEAKED"} for n in range(9)]
    hidden = from_rows(rows, lambda row, answer: row["secret"] in answer)
    env = hidden.make()
    bare = env.unwrapped
    task = hidden.tasks("train")[0]
    observation, info = env.reset(options={"task": Poison(bare).poison_task(task)})  # type: ignore[arg-type]
    assert "LEAKED" not in observation + json.dumps(info)
    assert "LEAKED" not in repr(bare.view)  # type: ignore[attr-defined]


def test_messages_become_a_prompt_and_a_system_message() -> None:
    talk = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi!"},
        {"role": "user", "content": "Who are you?"},
    ]
    chat = from_rows([{"messages": talk[:2]}, {"messages": talk}, {"prompt": "p"}], check)
    tasks = [task for split in ("train", "val", "test") for task in chat.tasks(split)]
    systems = {task.instruction: task.world.system for task in tasks}  # type: ignore[attr-defined]
    assert systems["Hello"] == "Be brief."
    assert systems["User: Hello\n\nAssistant: Hi!\n\nUser: Who are you?"] == "Be brief."
    assert systems["p"] == ""


# Splits.

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=20)


@given(st.lists(TEXTS.filter(str.strip), min_size=3, max_size=30), st.randoms())
def test_a_held_out_row_with_another_id_blanks_or_case_stays_held_out(
    prompts: list[str], rng: Any
) -> None:
    rows = [{"prompt": prompt} for prompt in prompts]
    again = [
        {"id": f"x{n}", "prompt": f" {prompt.upper()}\u200b "} for n, prompt in enumerate(prompts)
    ]
    benchmark = RowsBenchmark("some", from_rows_read(rows), RowRules(check))
    copies = {row.id: row for row in from_rows_read(again)}
    for split in (Split.TRAIN, Split.VAL, Split.TEST):
        for task in benchmark.tasks(split):
            copy = copies[task.name.replace("some/", "x")]
            if copy.scenario == task.scenario:
                words = {"instruction": copy.request, "scenario": copy.scenario, "name": copy.id}
                claim = task.model_copy(update={**words, "split": Split.TRAIN})
                assert benchmark.side_of(claim) is split


def from_rows_read(rows: list[dict[str, Any]]) -> list[Any]:
    from coevo_gym.envs.rows.row import PromptRow

    return [PromptRow.model_validate(row) for row in rows]


def test_a_copy_of_a_held_out_row_is_refused_as_training(sums: RowsBenchmark) -> None:
    task = sums.tasks("test")[0]
    changes = {"instruction": task.instruction.upper() + " ", "scenario": "another", "name": "mine"}
    copy = task.model_copy(update={**changes, "split": Split.TRAIN})
    with pytest.raises(SplitLeakError, match="belongs to a test task"):
        sums.make().reset(options={"task": copy})


def test_a_training_task_with_the_row_of_a_held_out_task_is_refused(sums: RowsBenchmark) -> None:
    held_out, mine = sums.tasks("test")[0], sums.tasks("train")[0]
    disguised = mine.model_copy(update={"verifier": held_out.verifier, "name": "mine"})
    assert sums.side_of(disguised) is Split.TEST
    with pytest.raises(SplitLeakError):
        sums.make().reset(options={"task": disguised})


def test_a_prompt_that_is_listed_as_training_and_as_test_is_a_test_task() -> None:
    rows = [{"prompt": "p", "split": split, "id": split} for split in ("train", "test")]
    both = from_rows(rows, check)
    assert [len(both.tasks(split)) for split in ("train", "val", "test")] == [0, 0, 2]


def test_splits_do_not_change_when_rows_are_added(sums: RowsBenchmark) -> None:
    more = from_rows([*ROWS, *({"prompt": f"New {n}"} for n in range(40))], check)
    for split in (Split.TRAIN, Split.VAL, Split.TEST):
        instructions = {task.instruction for task in sums.tasks(split)}
        assert instructions <= {task.instruction for task in more.tasks(split)}


def test_rows_may_name_their_splits() -> None:
    rows = [{"prompt": str(n), "split": "test" if n < 4 else "train"} for n in range(9)]
    given_ones = from_rows([*rows, {"prompt": "without"}], check)
    assert [len(given_ones.tasks(split)) for split in ("train", "val", "test")] == [6, 0, 4]


# Several turns.


def ask_twice(row: dict[str, Any], messages: list[dict[str, str]]) -> str | None:
    if [message["role"] for message in messages][-1] != "assistant" or len(messages) > 3:
        return None
    return f"And {row['then']}?"


def test_a_respond_function_can_play_the_user() -> None:
    rows = [{"prompt": f"Say {n}.", "then": n + 1} for n in range(9)]
    talks = from_rows(rows, lambda row, answer: answer == str(row["then"]), respond=ask_twice)
    task = talks.tasks("train")[0]
    then = task.verifier.row["then"]  # type: ignore[attr-defined]
    env = talks.make()
    assert env.reset(options={"task": task})[0] == f"Say {then - 1}."
    assert env.step("one")[:4] == (f"And {then}?", 0.0, False, False)
    assert env.step(str(then))[1:4] == (1.0, True, False)
    assert talks.replay(task, ["one", str(then)]).solves
    limited = talks.make(max_steps=1)
    limited.reset(options={"task": task})
    assert limited.step("one")[1:4] == (0.0, False, True)


class Counter:
    """A user's env in a few lines: count to a number, one step at a time."""

    closed = 0

    def reset(self, row: dict[str, Any]) -> str:
        self.wanted, self.now = row["to"], 0
        return f"Count to {self.wanted}."

    def step(self, text: str) -> tuple[str, float, bool]:
        self.now = self.now + 1 if text == "more" else self.now
        done = text == "done"
        return f"It is {self.now}.", float(done and self.now == self.wanted), done

    def close(self) -> None:
        Counter.closed += 1


class GymCounter(gym.Env[str, str]):
    """The same as a Gymnasium env."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.inner = Counter()
        return self.inner.reset(options["row"]), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, done = self.inner.step(action)
        return observation, reward, done, False, {}


@pytest.mark.parametrize("factory", [Counter, GymCounter])
def test_a_users_own_env_needs_no_prompt_and_no_verify_function(factory: Callable[[], Any]) -> None:
    counting = from_rows([{"to": n} for n in range(1, 13)], env=factory, max_turns=20)
    closed = Counter.closed
    for task in counting.tasks("train")[:3]:
        to = json.loads(task.instruction)["to"]
        env = counting.make()
        assert env.reset(options={"task": task})[0] == f"Count to {to}."
        for n in range(to):
            assert env.step("more")[0] == f"It is {n + 1}."
        assert env.step("done")[1:4] == (1.0, True, False)
        assert counting.replay(task, [*["more"] * to, "done"]).solves
        assert not counting.replay(task, ["done"]).solves
    assert factory is GymCounter or Counter.closed >= closed + 9, "one for each episode"
    sampler = EvolvingTaskSampler(counting.make(), "plr", group_size=2)
    for _ in range(12):
        sampler.reset()
        sampler.step("more")
        sampler.step("done")
    assert sampler.session.metrics()["groups"] >= 5


workers = pytest.mark.skipif(not can_run_workers(), reason="worker processes need Linux")


@pytest.mark.parametrize("mode", ["in_process", pytest.param("process", marks=workers)])
def test_an_agent_does_not_see_the_fields_of_a_row_without_a_prompt(mode: str) -> None:
    counting = from_rows([{"to": 7}], env=Counter, name="secret", shares={"train": 1.0})
    task = counting.tasks("train")[0]
    assert task.instruction == '{"to":7}'
    envs = gym.make_vec(counting.env_id, num_envs=2, mode=mode)
    envs.reset(options={"tasks": [task, task]})
    envs.step(["more", "done"])
    for env in envs.unwrapped.envs:  # type: ignore[attr-defined]
        assert env.unwrapped.view.instruction == "Count to 7."
    envs.close()


class Steps(Counter):
    """Reward each step with an equal share of 1."""

    def step(self, text: str) -> tuple[str, float, bool]:
        self.now += 1
        return "", 1 / self.wanted, self.now == self.wanted


@pytest.mark.parametrize("n", [3, 10, 22, 49])
def test_rewards_that_sum_to_one_up_to_rounding_are_a_success(n: int) -> None:
    steps = from_rows([{"to": n}], env=Steps, max_turns=n)
    env = steps.make(reward_mode="score")
    env.reset(options={"task": steps.tasks("train")[0]})
    *_, (_, reward, terminated, _, info) = [env.step("") for _ in range(n)]
    assert (reward, terminated, info["success"]) == (1.0, True, True)


class Stored(Counter):
    """Keep the count in a database that only the thread that opened it may use."""

    def reset(self, row: dict[str, Any]) -> str:
        self.database = sqlite3.connect(":memory:")
        return super().reset(row)

    def step(self, text: str) -> tuple[str, float, bool]:
        self.database.execute("select 1").fetchone()
        observation, reward, done = super().step(text)
        return observation, np.float64(reward), np.bool_(done)  # type: ignore[return-value]

    def close(self) -> None:
        self.database.close()


def test_all_calls_of_an_episode_come_from_one_thread() -> None:
    stored = from_rows([{"to": 1}], env=Stored)
    env = stored.make()
    env.reset(options={"task": stored.tasks("train")[0]})
    assert env.step("more")[1:3] == (0.0, False)
    assert env.step("done")[1:3] == (1.0, True)
    env.close()


class Broken(Counter):
    def step(self, text: str) -> Any:
        return {"raises": 1 // (text != "raises"), "shape": "words"}.get(text, (1, 2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raises", "step raised ZeroDivisionError"),
        ("shape", r"step must return \(observation, reward, done\).*got 'words'"),
        ("other", r"got \(1, 2\)"),
    ],
)
def test_a_failing_env_of_a_user_loses_the_episode(text: str, message: str) -> None:
    broken = from_rows([{"to": 1}], env=Broken)
    env = broken.make()
    env.reset(options={"task": broken.tasks("train")[0]})
    with pytest.raises(EnvBackendError, match=message):
        env.step(text)


def test_missing_and_conflicting_functions_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs verify"):
        from_rows(ROWS)
    with pytest.raises(ConfigError, match="not both"):
        from_rows(ROWS, check, respond=ask_twice, env=Counter)
    with pytest.raises(ConfigError, match="max_turns must be a positive int"):
        from_rows(ROWS, check, respond=ask_twice, max_turns=0)


# Functions that fail.


def rounded(row: dict[str, Any], answer: str) -> float:
    return 0.5


async def later(row: dict[str, Any], answer: str) -> bool:
    await asyncio.sleep(0)
    return answer == "yes"


def test_verify_may_return_a_score_and_may_be_asynchronous() -> None:
    reward, info = play(from_rows([{"prompt": "p"}], rounded), "x")
    assert (reward, info["score"], info["success"]) == (0.0, 0.5, False)
    asked = from_rows([{"prompt": "p"}], later)
    assert [play(asked, answer)[0] for answer in ("yes", "no")] == [1.0, 0.0]


def test_verify_may_return_numpy_numbers() -> None:
    def same(row: dict[str, Any], answer: str) -> Any:
        return np.bool_(answer == "x")

    def half(row: dict[str, Any], answer: str) -> Any:
        return np.float32(0.5)

    near = from_rows([{"prompt": "p"}], same)
    assert [play(near, answer)[0] for answer in "xy"] == [1.0, 0.0]
    scored = from_rows([{"prompt": "q"}], half)
    assert play(scored, "x")[1]["score"] == 0.5


def hangs(row: dict[str, Any], answer: str) -> bool:
    time.sleep(30)
    return True


FAILING: dict[str, tuple[Callable[[dict[str, Any], str], Any], str]] = {
    "raises": (
        lambda row, answer: int(answer) > 0,
        r"ValueError: invalid literal.*a verdict is False",
    ),
    "not a number": (lambda row, answer: float("nan"), r"score in \[0, 1\], got nan"),
    "too large": (lambda row, answer: 2, r"score in \[0, 1\], got 2"),
    "nothing": (lambda row, answer: None, "got None"),
    "another type": (lambda row, answer: "yes", "got 'yes'"),
    "exits": (lambda row, answer: exit(1), r"RuntimeError: SystemExit\(1\)"),
    "hangs": (hangs, r"did not return within 0\.2 s"),
}


@pytest.mark.parametrize("how", FAILING)
def test_a_failing_verify_function_loses_the_episode_instead_of_scoring_it(how: str) -> None:
    verify, message = FAILING[how]
    failing = from_rows([{"prompt": f"p{n}", "id": n} for n in range(4)], verify, timeout_s=0.2)
    with pytest.raises(EnvBackendError, match=message) as raised:
        play(failing, "words")
    assert "for the answer 'words'" in str(raised.value)
    with pytest.raises(EnvBackendError, match=message):
        coevo_gym.evaluate(failing.name, "scripted", sets={"evaluation.n_tasks": 1})


def test_verify_is_called_once_per_episode() -> None:
    asked: list[str] = []

    def verify(row: dict[str, Any], answer: str) -> bool:
        asked.append(answer)
        return len(asked) % 2 == 1

    moody = from_rows([{"prompt": "p"}], verify)
    rewards = [play(moody, "x")[0] for _ in range(4)]
    assert (rewards, len(asked)) == ([1.0, 0.0, 1.0, 0.0], 4)


def test_changes_that_verify_makes_to_a_row_are_discarded() -> None:
    def verify(row: dict[str, Any], answer: str) -> bool:
        row["answer"] = answer
        return len(row) == 2

    benchmark = from_rows([{"prompt": "p", "answer": "a"}], verify)
    assert play(benchmark, "b")[0] == 1.0
    assert benchmark.demonstration(benchmark.tasks("train")[0]) == ("a",)


def test_verify_gets_the_whole_row() -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "p", "answer": True, "note": [1.0, None]},
        {"messages": [{"role": "user", "content": "q", "name": "Ann"}], "answer": 2.5},
    ]
    judged: list[dict[str, Any]] = []

    def verify(row: dict[str, Any], answer: str) -> bool:
        judged.append(row)
        return True

    benchmark = from_rows(rows, verify, shares={"train": 1.0})
    for number, row in enumerate(rows):
        play(benchmark, "x", number)
        assert json.dumps(judged[-1]) == json.dumps(row)
    first, second = benchmark.tasks("train")
    assert [benchmark.demonstration(task) for task in (first, second)] == [("True",), ("2.5",)]


# Bad input.


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "at least one row"),
        ([{"question": "p"}], "Row 1 has neither a prompt nor messages"),
        ([{"prompt": "p"}, {"prompt": "q", "tags": ["odd"]}], "Row 2: a tag must have the form"),
        ([{"prompt": "p", "split": "dev"}], "Row 1 is invalid: split: Input should be 'train'"),
        ([{"prompt": "p", "x": float("nan")}], "Row 1 is invalid: nan is not a finite number"),
        (["p"], "Row 1 is invalid: Input should be a valid dictionary"),
        ([{"prompt": "p", "split": "held_out"}], "Row 1 is invalid: split: Input should be"),
        ([{"prompt": "p", "choices": ["a", 1]}], r"Row 1 is invalid: choices\.1: Input should be"),
        (
            [{"prompt": "p", "id": 1}, {"prompt": "q", "id": 1}],
            "Different rows have the same id: '1'",
        ),
        ([{"messages": [{"role": "assistant", "content": "p"}]}], "must be from the user"),
    ],
)
def test_invalid_rows_are_refused(rows: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_rows(rows, check)


@pytest.mark.parametrize(
    "settings",
    [{"shares": {"train": 2.0, "val": -1.0}}, {"timeout_s": 0}, {"timeout_s": "soon"}],
    ids=["shares", "timeout 0", "timeout as text"],
)
def test_invalid_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        from_rows(ROWS, check, **settings)


@pytest.mark.parametrize("stem", ["2024-Rows", "Größe", "my rows.v2"])
def test_any_file_name_gives_a_valid_benchmark_name(tmp_path: Path, stem: str) -> None:
    file = tmp_path / f"{stem}.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in ROWS))
    benchmark = from_rows(file, check)
    assert get_benchmark(benchmark.name) is benchmark


def test_a_benchmark_name_cannot_be_reused_for_other_rows(sums: RowsBenchmark) -> None:
    again = from_rows(ROWS, lambda row, answer: True, name="threes")
    assert get_benchmark("threes") is again, "a notebook's cell may be run again"
    assert play(again, "wrong")[0] == 1.0
    from_rows(ROWS, check, name="threes")
    with pytest.raises(ConfigError, match="Other rows are already registered as 'threes'"):
        from_rows(ROWS[:5], check, name="threes")
    with pytest.raises(ConfigError, match="already a benchmark 'webshop'"):
        from_rows(ROWS, check, name="webshop")
    with pytest.raises(TaskError, match="no subset"):
        sums.tasks("train", "hard")


# Curricula and commands.


@pytest.mark.parametrize("method", ["static", "sec", "plr", "curriculum", "coevolve"])
def test_a_sampler_practises_rows_with_every_curriculum(sums: RowsBenchmark, method: str) -> None:
    curriculum = method
    env = EvolvingTaskSampler(sums.make(), curriculum, group_size=4)
    rng = iter(range(10_000))
    seen = set()
    for _ in range(80):
        _, info = env.reset()
        seen.add(info["task_id"])
        env.step(info["admissible"][next(rng) % 3])
    metrics = env.session.metrics()
    assert metrics["groups"] >= 19
    train = {task.id for task in sums.tasks("train")}
    assert len(seen) > 5
    assert seen <= train


def parity(n: int) -> RowsBenchmark:
    rows = [
        {
            "prompt": f"Is {i} odd or even? Its last digit is {i % 10}.",
            "choices": ["odd", "even"],
            "answer": "odd" if i % 2 else "even",
        }
        for i in range(n)
    ]
    return from_rows(rows, check, name="parity")


def trained(n_steps: int, *arms: str) -> Any:
    settings = {"benchmark": "parity", "arms": arms, "loop": {"max_steps": n_steps}}
    return coevo_gym.train({**settings, "warmup": {"n_tasks": 8}, "name": "parity"})


def test_a_run_trains_on_all_training_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = parity(40)
    summary = trained(1, "static", "coevolve", "sec")
    assert [row.name for row in summary.table[2:]] == ["static", "coevolve", "sec"]
    for outcome in summary.arms.values():
        assert outcome["pool_size"] == len(rows.tasks("train"))
        assert outcome["rounds"] == 0


@pytest.mark.slow
def test_training_on_rows_improves_a_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    parity(300)
    *_, before, after = trained(40, "static").table
    assert after.low > before.high, "of a rule that two words of the prompt tell"


def test_coevo_eval_evaluates_a_file_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from coevo_gym import cli

    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    Path("mine.py").write_text("def check(row, answer):\n    return answer == str(row['answer'])\n")

    def run(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr("sys.argv", ["coevo", "eval", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        done = capsys.readouterr()
        assert exit_.value.code == code, done.out + done.err
        return done.out + done.err

    given_options = ("rows.jsonl", "--verify", "mine.py:check", "--policy")
    assert "100.0%" in run(*given_options, "scripted")
    assert "already done" in run(*given_options, "scripted")
    Path("mine.py").write_text("def check(row, answer):\n    return answer == '1'\n")
    assert "already done" not in run(*given_options, "scripted"), "another function"
    assert "also pass --verify" in run("rows.jsonl", "--policy", "random", code=2)
    assert "Did you mean 'check'" in run("rows.jsonl", "--verify", "mine.py:chek", code=2)
    assert "FILE.py:FUNCTION" in run("rows.jsonl", "--verify", "mine", code=2)
    Path("mine.py").write_text("1 / 0")
    assert "ZeroDivisionError" in run("rows.jsonl", "--verify", "mine.py:check", code=2)
    Path("rows.jsonl").write_text('{"prompt": "p"}\n{')
    Path("mine.py").write_text("def check(row, answer):\n    return True\n")
    assert "not a JSONL file of rows" in run(*given_options, "scripted", code=2)

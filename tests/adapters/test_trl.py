"""TRL's GRPOTrainer learns on a curriculum: real generation, tool calls parsed from its text."""

from __future__ import annotations

import inspect
import json
import math
import multiprocessing
import pickle
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import pytest

pytest.importorskip("transformers")

from transformers.utils import get_json_schema

import coevo_gym
from coevo_gym import CurriculumSession, EvolvingTaskSampler, from_rows
from coevo_gym.core.benchmark import get_benchmark, starts_with_native_tasks, tools_of
from coevo_gym.core.errors import ConfigError, EnvBackendError, StoreError
from coevo_gym.core.evolution import Signal
from coevo_gym.core.notations import read_action_calls
from coevo_gym.core.task import Split, Task
from coevo_gym.core.tool_calls import Call
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.growth.signal_growth import GrowthConfig, SignalGrowth
from coevo_gym.curricula.pool_curriculum import PoolCurriculum
from coevo_gym.curricula.session.stream import scripted_evolver
from coevo_gym.envs.rows import RowFindings
from coevo_gym.prompts import parse_prompt
from coevo_gym.testing.scripted_models import tiny_chat_model
from coevo_gym.trainers.adapters.checkpoint import FILE
from coevo_gym.trainers.adapters.trl import OVER, Environment, TRLPlug, check_chat_template
from tests import toy
from tests.adapters.tiny_qwen import HEAD, HeldToOptions, make_tiny_qwen
from tests.agents.tiny_llama import CHATML, make_tiny_tokenizer

K, ROWS = 4, 2


class Watched(PoolCurriculum):
    """A growing curriculum that remembers what it was told."""

    def __init__(self, tasks: Sequence[Task] = ()) -> None:
        config = GrowthConfig(initial_size=4, growth={"every_groups": 4}, detector={"n_min": 4})
        super().__init__(tasks=tasks, growth=SignalGrowth(config))
        self.groups: list[Group] = []
        self.fired: list[Signal] = []

    def record(self, groups: Any) -> list[Signal]:
        fired = super().record(groups)
        self.groups += groups
        self.fired += fired
        return fired


def make_plug(env_id: str = "Toy-v0") -> tuple[TRLPlug, Watched]:
    bare: Any = gym.make(env_id).unwrapped
    curriculum = Watched(
        bare.tasks if starts_with_native_tasks(bare.benchmark_with_hold_out) else ()
    )
    evolver = scripted_evolver(bare)
    session = CurriculumSession(curriculum, evolver, group_size=K, groups_per_step=ROWS)
    return TRLPlug(env_id, session, prompt=parse_prompt(toy.PROMPT)), curriculum


def test_the_environment_offers_the_model_one_described_tool() -> None:
    public = {name for name, _ in inspect.getmembers(Environment, inspect.isfunction)}
    assert {name for name in public if not name.startswith("_")} == {"reset", "act", "get_reward"}
    schema = get_json_schema(make_plug()[0].make_environment().act)["function"]
    assert list(schema["parameters"]["properties"]) == ["action"]
    assert schema["description"]


def schemas_of_bfcl() -> str:
    return tools_of(get_benchmark("bfcl"))


def tools_of_trl(plug: TRLPlug) -> dict[str, Any]:
    """The tools that the trainer finds in an environment, as it describes them to the model."""
    env = plug.make_environment()
    members = inspect.getmembers(type(env), predicate=inspect.isfunction)
    names = [n for n, _ in members if n not in ("reset", "get_reward") and n[0] != "_"]
    return {name: get_json_schema(getattr(env, name))["function"] for name in names}


def test_bfcl_functions_become_typed_tools() -> None:
    plug = TRLPlug("CoEvolve-BFCL-v0", curriculum="coevolve", group_size=8)
    tools = tools_of_trl(plug)
    official = {one["function"]["name"]: one["function"] for one in json.loads(schemas_of_bfcl())}
    assert tools.keys() == {*official, "answer"}
    for name, tool in official.items():
        mine, theirs = tools[name]["parameters"], tool["parameters"]
        assert mine["properties"].keys() == theirs["properties"].keys()
        assert sorted(mine.get("required", ())) == sorted(theirs.get("required", ()))
        for key, schema in theirs["properties"].items():
            assert mine["properties"][key]["type"] == schema["type"], (name, key)
            assert schema["description"].split()[0] in mine["properties"][key]["description"]

    env: Any = plug.make_environment()
    prompt = env.reset(**plug.rows(1, split="val")[0])
    assert "<tool_call>" not in prompt
    assert "`answer`" in prompt
    offered = json.loads(env._rollout.info["bfcl.tools"])
    other = next(iter(official.keys() - {tool["function"]["name"] for tool in offered}))
    assert f"there is no function '{other}'" in getattr(env, other)()
    assert env.answer(text="Done.")
    assert env.get_reward() == 0.0


def test_a_bfcl_task_solved_with_typed_tools_is_rewarded() -> None:
    plug = TRLPlug("CoEvolve-BFCL-v0", curriculum="coevolve", group_size=2)
    env: Any = plug.make_environment()
    row = plug.rows(1, split="val")[0]
    env.reset(**row)
    task = env._rollout._task
    for message in task.solution:
        calls = read_action_calls(message, schemas_of_bfcl())
        for call in calls:
            assert isinstance(call, Call)
            getattr(env, call.name)(**call.arguments)
        if not calls:
            env.answer(text=message)
    assert env.get_reward() == 1.0


@pytest.mark.slow
def test_appworld_apis_are_called_with_typed_tools(appworld_root: Path) -> None:
    plug = TRLPlug("CoEvolve-AppWorld-v0", curriculum="coevolve", group_size=2)
    assert {*tools_of_trl(plug)} == {"run_code", "call_api", "show_api_doc", "complete_task"}
    env: Any = plug.make_environment()
    env.reset(**plug.rows(1, split="val")[0])
    assert "login" in env.show_api_doc(app_name="spotify", api_name="login")
    called = env.call_api(app_name="supervisor", api_name="show_profile", arguments={})
    assert "first_name" in called
    assert "Execution failed" in env.call_api(app_name="no app", api_name="x")
    assert env.run_code(code="x = 2\nprint(x + 1)").startswith("3")
    assert env.complete_task() == f"Execution successful.\n\n{OVER}"
    assert env.get_reward() == 0.0


ROWS_OF_APPLES = [
    {"prompt": f"What do {n} apples cost?", "apples": n, "each": 3} for n in range(20)
]


def cost(row: dict[str, Any], fruit: str, kind: Literal["red", "green"] = "red") -> int:
    """Look up a price.

    Args:
        fruit: The name of a fruit.
        kind: Its colour.
    """
    return int(row["each"])


class Sums:
    def times(self, numbers: list[int], by: int | None = None) -> list[int]:
        """Multiply numbers."""
        return [number * (by or 1) for number in numbers]


def right(row: dict[str, Any], answer: str) -> bool:
    return answer.strip() == str(row["apples"] * row["each"])


def test_user_defined_functions_become_typed_tools() -> None:
    apples = from_rows(ROWS_OF_APPLES, right, tools=[cost, Sums], name="apples")
    plug = TRLPlug(apples, group_size=2)
    tools = tools_of_trl(plug)
    assert tools.keys() == {"cost", "times", "answer"}
    assert tools["cost"]["description"] == "Look up a price."
    assert tools["cost"]["parameters"]["required"] == ["fruit"]
    assert tools["cost"]["parameters"]["properties"]["kind"]["enum"] == ["red", "green"]
    assert tools["times"]["parameters"]["properties"]["numbers"] == {
        "type": "array",
        "items": {"type": "integer"},
        "description": "numbers",
    }
    begin(plug, n_generations=2)
    first, second = (plug.make_environment() for _ in range(2))
    prompts = [env.reset(**plug.rows(1)[0]) for env in (first, second)]
    number = int(prompts[0].rpartition("do ")[2].removesuffix(" apples cost?"))
    env: Any = first
    assert env.cost(fruit="apple") == "3"
    assert env.times(numbers=[number], by=3) == f"[{number * 3}]"
    assert "valid integer" in env.times(numbers=["x"])
    assert env.answer(text=str(number * 3)) == OVER
    assert [env.get_reward() for env in (first, second)] == [1.0, 0.0]
    assert plug.session.metrics()["groups"] == 1


def answer_of(text: str, **more: Any) -> dict[str, Any]:
    """A message of the model, as the trainer passes it to a reward function."""
    return {"role": "assistant", "content": text, **more}


def test_the_last_message_can_be_the_answer() -> None:
    apples = from_rows(ROWS_OF_APPLES, right, tools=[cost], name="apples_in_words")
    plug = TRLPlug(apples, group_size=4, answers="text")
    assert tools_of_trl(plug).keys() == {"cost"}
    begin(plug, n_generations=4)
    envs: list[Any] = [plug.make_environment() for _ in range(4)]
    assert not hasattr(envs[0], "get_reward"), "the trainer would ask for it before it is judged"
    prompts = {env.reset(**plug.rows(1)[0]) for env in envs}
    number = int(prompts.pop().removeprefix("What do ").removesuffix(" apples cost?"))
    assert not prompts
    assert envs[0].cost(fruit="apple") == "3"
    result, answer = {"role": "tool", "name": "cost", "content": "3"}, answer_of(str(3 * number))
    completions = [
        [answer_of("", tool_calls=["…"]), result, answer],
        [answer],
        [answer_of("words")],
        [answer_of(str(3 * number), tool_calls=["…"])],
    ]
    assert plug.reward(completions=completions, environments=envs, prompts=[]) == [1.0, 1.0, 0, 0]
    assert plug.session.metrics()["groups"] == 1
    with pytest.raises(ConfigError, match="does not pass its environments"):
        plug.reward(completions=completions)


def test_an_answer_that_could_not_be_judged_has_no_reward() -> None:
    def fails(row: dict[str, Any], answer: str) -> bool:
        return int(answer) > 0

    plug = TRLPlug(from_rows(ROWS_OF_APPLES, fails, name="failing"), group_size=2, answers="text")
    envs: list[Any] = [plug.make_environment() for _ in range(2)]
    begin(plug, n_generations=2)
    for env in envs:
        env.reset(**plug.rows(1)[0])
    assert plug.reward(completions=[[answer_of("one")], [answer_of("1")]], environments=envs) == [
        None,
        1.0,
    ]


def test_text_answers_are_refused_where_an_episode_has_several_requests() -> None:
    talks = from_rows(ROWS_OF_APPLES, right, respond=lambda row, messages: None)
    for several in (talks, "CoEvolve-BFCL-v0", "Toy-v0"):
        with pytest.raises(ConfigError, match="may consist of several requests"):
            TRLPlug(several, group_size=2, answers="text")
    apples = from_rows(ROWS_OF_APPLES, right, name="apples_by_tool")
    plug = TRLPlug(apples, group_size=2)
    with pytest.raises(ConfigError, match="Remove reward_funcs"):
        plug.reward(completions=[[answer_of("3")]], environments=[plug.make_environment()])


def test_a_tool_named_like_an_environment_method_is_refused() -> None:
    def answer(text: str) -> str:
        return text

    benchmark = from_rows(ROWS_OF_APPLES, right, tools=[answer])
    with pytest.raises(ConfigError, match="must not be called 'answer' here"):
        TRLPlug(benchmark)


def play_elsewhere(factory: Any, row: dict[str, Any], queue: Any) -> None:
    """Play a group in another process, as a trainer does that samples there."""
    envs = [factory() for _ in range(2)]
    prompts = [env.reset(**row) for env in envs]
    queue.put((prompts[0] == prompts[1], [env.get_reward() for env in envs]))


@pytest.mark.slow
def test_environments_in_another_process_use_the_session_of_the_trainer() -> None:
    session = CurriculumSession(PoolCurriculum(coevo_gym.tasks("bfcl", "train")[:4]), group_size=2)
    plug = TRLPlug("CoEvolve-BFCL-v0", session)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    factory = pickle.loads(pickle.dumps(plug.make_environment))
    assert factory.__self__.session.metrics() == plug.session.metrics()
    begin(plug, n_generations=2)
    plug.version = 3
    child = context.Process(
        target=play_elsewhere, args=(plug.make_environment, plug.rows(1)[0], queue)
    )
    child.start()
    assert queue.get(timeout=300) == (True, [0.0, 0.0])
    child.join()
    assert plug.session.metrics()["groups"] == 1
    assert not plug.session.outstanding_tickets


def begin(plug: TRLPlug, *, n_generations: int = K, world_size: int = 1) -> None:
    """Make the calls that a trainer makes of its callbacks before the first step."""
    settings = SimpleNamespace(num_generations=n_generations, world_size=world_size)
    callback, state = plug.make_callback(), SimpleNamespace(global_step=0)
    callback.on_train_begin(settings, state, None)
    callback.on_step_begin(settings, state, None)


def test_training_in_several_processes_is_refused_with_advice() -> None:
    plug, _ = make_plug()
    plug.make_environment()
    serve = f"coevo serve toy --group-size {K} --groups-per-step {ROWS}"
    with pytest.raises(ConfigError, match=f"of the 2 processes .*`{serve}`.*HTTPSession"):
        begin(plug, world_size=2)


def test_missing_trainer_arguments_raise_before_the_first_step() -> None:
    with pytest.raises(ConfigError, match=r"Pass environment_factory=plug\.make_environment"):
        begin(make_plug()[0])
    plug, _ = make_plug()
    env = plug.make_environment()
    with pytest.raises(ConfigError, match=r"Pass callbacks=\[plug\.make_callback\(\)\]"):
        env.reset(**plug.rows(1)[0])
    env.reset(**plug.rows(1, split="val")[0])  # an evaluation before training needs no callback
    with pytest.raises(ConfigError, match=f"Set num_generations={K}"):
        begin(plug, n_generations=K + 1)
    begin(plug)
    env.reset(**plug.rows(1)[0])


def test_a_session_is_created_from_a_curriculum_name_also_for_user_defined_rows() -> None:
    toy_prompt = parse_prompt(toy.PROMPT)
    plug = TRLPlug("Toy-v0", curriculum="coevolve", group_size=2, prompt=toy_prompt)
    plug.make_environment()
    begin(plug, n_generations=2)
    with pytest.raises(ConfigError, match="With session=, do not pass curriculum"):
        TRLPlug("Toy-v0", plug.session, curriculum="sec", prompt=toy_prompt)

    rows = [{"prompt": f"What is {n} + 1?", "sum": str(n + 1)} for n in range(30)]
    sums = from_rows(rows, lambda row, answer: answer.strip() == row["sum"])
    mine = TRLPlug(sums.env_id, curriculum="sec", group_size=2)
    copies = [mine.make_environment() for _ in range(2)]
    begin(mine, n_generations=2)
    observations = [env.reset(**mine.rows(1)[0]) for env in copies]
    assert observations[0] == observations[1], "copies of a row get the same task"
    number = int(observations[0].rpartition("is ")[2].removesuffix(" + 1?"))
    for env, answer in zip(copies, (number + 1, "words"), strict=True):
        env.act(str(answer))
    assert [env.get_reward() for env in copies] == [1.0, 0.0]
    assert mine.session.metrics()["groups"] == 1


def test_a_fault_ends_the_episode_without_a_reward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plug, _ = make_plug()
    env = plug.make_environment()
    begin(plug)
    row = plug.rows(1)[0]
    observation = env.reset(**row)
    assert "act" in observation
    assert "Press buttons." in observation

    def broken(self: Any, action: str) -> Any:
        raise EnvBackendError("the engine is gone")

    monkeypatch.setattr(toy.ToyEnv, "_act", broken)
    assert env.act("press red") == OVER
    assert env.act("press red") == OVER
    assert env.get_reward() is None
    assert not plug.session.outstanding_tickets


@pytest.mark.filterwarnings("ignore")
def test_a_chat_template_without_tool_support_is_refused_before_the_env_is_created() -> None:
    pytest.importorskip("trl")
    from trl.chat_template_utils import qwen3_chat_template

    tokenizer = make_tiny_tokenizer()
    session = make_plug()[0].session
    refused = {
        CHATML: "does not support tools.*such as Qwen3",
        qwen3_chat_template + " ": "TRL does not recognise the chat template",
    }
    for template, message in refused.items():
        tokenizer.chat_template = template
        with pytest.raises(ConfigError, match=message):
            TRLPlug("no such env", session, tokenizer=tokenizer)
    tokenizer.response_template = {}
    check_chat_template(tokenizer)  # says itself how its calls are parsed
    tokenizer = make_tiny_tokenizer()
    tokenizer.chat_template = qwen3_chat_template
    check_chat_template(tokenizer)
    assert getattr(tokenizer, "response_template", None) is None


def test_evaluation_rows_contain_tasks_of_their_split_and_are_not_trained_on() -> None:
    plug, curriculum = make_plug()
    held_out = {task.id for task in toy.BENCHMARK.tasks(Split.VAL)}
    rows = plug.rows(5, split="val")
    assert {row["task"] for row in rows} <= held_out
    env = plug.make_environment()
    env.reset(**rows[0])
    assert env.get_reward() == 0.0
    assert not curriculum.groups
    assert plug.session.ticket_counts["taken"] == 0


class Run(NamedTuple):
    """A training that is over."""

    trainer: Any
    plug: TRLPlug
    curriculum: Watched
    aligned: list[bool]
    before: list[Any]


def train(
    folder: Path, steps: int, *, resume: bool = False, env_id: str = "Toy-v0", **settings: Any
) -> Run:
    pytest.importorskip("trl")
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
    from trl.chat_template_utils import qwen3_chat_template

    plug, curriculum = make_plug(env_id)
    model, tokenizer = make_tiny_qwen(qwen3_chat_template)
    model.generate = partial(model.generate, prefix_allowed_tokens_fn=HeldToOptions(tokenizer))
    known: dict[str, Any] = {
        "per_device_train_batch_size": K * ROWS,
        "per_device_eval_batch_size": K,
        "num_generations": K,
        "max_steps": steps,
        "max_completion_length": 600,
        "learning_rate": 3e-3,
        "lr_scheduler_type": "constant",  # else it depends on how long a training is to last
        "save_steps": 2,
        "logging_steps": 1,
    }
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        args=GRPOConfig(
            output_dir=str(folder),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            disable_tqdm=True,
            seed=1,
            **known | settings,
        ),
        train_dataset=Dataset.from_list(plug.rows(8)),
        eval_dataset=Dataset.from_list(plug.rows(1, split="val")),
        environment_factory=plug.make_environment,
        callbacks=[plug.make_callback()],
    )
    aligned: list[bool] = []
    score = trainer._calculate_rewards

    def watched(*args: Any, **kwargs: Any) -> Any:
        ids = [env._rollout.info["task_id"] for env in trainer.environments]
        aligned.extend(len(set(ids[i : i + K])) == 1 for i in range(0, len(ids), K))
        return score(*args, **kwargs)

    trainer._calculate_rewards = watched
    before = [weight.detach().clone() for weight in model.parameters()]
    trainer.train(resume_from_checkpoint=resume or None)
    return Run(trainer, plug, curriculum, aligned, before)


# Several threads of a model so small wait for each other more than they work.
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_training_updates_the_model_and_grows_the_pool_without_evaluation_tasks(
    tmp_path: Path,
) -> None:
    run = train(tmp_path, 5, eval_strategy="steps", eval_steps=5)
    curriculum, log = run.curriculum, run.trainer.state.log_history
    assert all(run.aligned)
    assert len(curriculum.groups) == 5 * ROWS
    assert all(group.is_whole for group in curriculum.groups)
    versions = [{t.policy_version for t in g.trajectories} for g in curriculum.groups]
    assert versions == [{step} for step in range(5) for _ in range(ROWS)]
    outcomes = [t.success for group in curriculum.groups for t in group.trajectories]
    rewards = [line["rewards/Environment/mean"] for line in log if "loss" in line]
    assert sum(rewards) / len(rewards) == pytest.approx(sum(outcomes) / len(outcomes))
    assert 0 < sum(outcomes) < len(outcomes)
    assert {signal.kind for signal in curriculum.fired}
    assert run.plug.session.metrics()["pool_size"] > 4
    assert log[-2]["curriculum/rounds"] >= 2
    moved = zip(run.before, run.trainer.model.parameters(), strict=True)
    assert any((a != b).any() for a, b in moved)
    practised = {group.task.split for group in curriculum.groups}
    assert practised == {Split.TRAIN}
    assert any("eval_reward" in line for line in log)
    assert (
        run.plug.session.ticket_counts["taken"] == 5 * ROWS * K
    )  # those of evaluation are not among them


class Pressing:
    """The toy as a user's env."""

    def reset(self, row: dict[str, Any]) -> str:
        self.order, self.pressed = row["order"], list[str]()
        return self.page()

    def page(self) -> str:
        pressed = " ".join(self.pressed) or "nothing"
        return f"Press {', '.join(self.order)}. Pressed: {pressed}."

    def step(self, text: str) -> tuple[str, float, bool]:
        done = text == "done"
        if not done:
            self.pressed.append(text.removeprefix("press "))
        return self.page(), float(done and self.pressed == self.order), done


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_training_on_a_user_defined_env_grows_the_pool_and_resumes(tmp_path: Path) -> None:
    def more(row: dict[str, Any], findings: RowFindings) -> list[dict[str, Any]]:
        i = findings.seed % 5
        return [{"order": [toy.COLOURS[i], *row["order"]], "split": "train"}]

    pressing = from_rows(
        [{"order": [c], "split": "train"} for c in toy.COLOURS]
        + [{"order": ["x"], "split": "val"}],
        env=Pressing,
        propose=more,
        reference=lambda row: [*(f"press {colour}" for colour in row["order"]), "done"],
        name="pressing",
    )
    train(tmp_path, 2, env_id=pressing.env_id)
    resumed = train(tmp_path, 4, resume=True, env_id=pressing.env_id)
    assert len(resumed.curriculum.groups) == 2 * ROWS
    outcomes = [t.success for group in resumed.curriculum.groups for t in group.trajectories]
    assert 0 < sum(outcomes) < len(outcomes)
    assert resumed.plug.session.metrics()["pool_size"] > len(toy.COLOURS)
    moved = zip(resumed.before, resumed.trainer.model.parameters(), strict=True)
    assert any((a != b).any() for a, b in moved)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_run_resumed_from_a_checkpoint_equals_an_uninterrupted_run(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", 4)
    train(tmp_path / "parts", 2)
    resumed = train(tmp_path / "parts", 4, resume=True)
    assert len(resumed.curriculum.groups) == 2 * ROWS
    ends = [run.plug.session.state_dict() for run in (whole, resumed)]
    assert ends[0] == ends[1]
    weights = [list(run.trainer.model.parameters()) for run in (whole, resumed)]
    assert all((a == b).all() for a, b in zip(*weights, strict=True))
    (tmp_path / "parts" / "checkpoint-4" / FILE).unlink()
    with pytest.raises(StoreError, match="contains no curriculum"):
        train(tmp_path / "parts", 5, resume=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_rollout_lost_to_a_fault_gets_no_advantage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, calls = EvolvingTaskSampler.step, 0

    def sometimes(self: Any, action: str) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise EnvBackendError("a worker died")
        return step(self, action)

    monkeypatch.setattr(EvolvingTaskSampler, "step", sometimes)
    run = train(tmp_path, 1)
    rewards = run.trainer._logs["rewards"]["Environment"]
    advantages = run.trainer._logs["advantages"]
    lost = [i for i, reward in enumerate(rewards) if math.isnan(reward)]
    assert len(lost) == 1
    assert advantages[lost[0]] == 0.0
    assert sorted(len(group.trajectories) for group in run.curriculum.groups) == [K - 1, K]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_num_generations_that_differs_from_the_group_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Set num_generations=4"):
        train(tmp_path, 1, num_generations=2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_trainer_describes_typed_tools_and_runs_their_calls(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer
    from trl.chat_template_utils import qwen3_chat_template

    apples = from_rows(ROWS_OF_APPLES, right, tools=[cost, Sums], name="apples_of_trl")
    plug = TRLPlug(apples, curriculum="sec", group_size=2)
    call = '<tool_call>\n{"name": "cost", "arguments": {"fruit": "apple"}}\n</tool_call><|im_end|>'
    model, tokenizer = tiny_chat_model(qwen3_chat_template, texts=(call,))
    ids = tokenizer(call, add_special_tokens=False)["input_ids"]
    end = tokenizer("Done.<|im_end|>", add_special_tokens=False)["input_ids"]

    def hold(_: int, so_far: Any) -> list[int]:
        """Say the call, and, once it has a result, that it is done."""
        text = tokenizer.decode(so_far)
        prompts.append(text)
        answered = tokenizer(text.rpartition(HEAD)[2], add_special_tokens=False)["input_ids"]
        wanted = end if "<tool_response>" in text else ids
        return [wanted[len(answered)]] if len(answered) < len(wanted) else [tokenizer.pad_token_id]

    prompts: list[str] = []
    model.generate = partial(model.generate, prefix_allowed_tokens_fn=hold)
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        args=GRPOConfig(
            output_dir=str(tmp_path),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            disable_tqdm=True,
            per_device_train_batch_size=2,
            num_generations=2,
            max_completion_length=200,
            max_steps=1,
            logging_steps=1,
        ),
        train_dataset=Dataset.from_list(plug.rows(2)),
        environment_factory=plug.make_environment,
        callbacks=[plug.make_callback()],
    )
    trainer.train()
    assert '"name": "times"' in prompts[0]
    assert "<tool_response>\n3\n</tool_response>" in prompts[-1]
    assert plug.session.metrics()["groups"] == 1
    assert trainer.state.log_history[0]["tools/failure_frequency"] == 0.0

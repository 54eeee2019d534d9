"""All that reads what somebody else has written, with what it is fed and what it may raise."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis.strategies import SearchStrategy
from pydantic import BaseModel

from coevo_gym.agents.advice.advisor import Unreadable, read_answer
from coevo_gym.agents.chat.history import without_marks
from coevo_gym.agents.endpoint.endpoint import read_refusal, read_reply, retry_after_s
from coevo_gym.agents.lm.model_shape import shape_of
from coevo_gym.core.errors import ConfigError, DataError, ModelError, StoreError, TaskError
from coevo_gym.core.task import Task
from coevo_gym.core.task_file import read_tasks
from coevo_gym.core.trajectory_json import eval_trajectory_from_json, trajectory_from_json
from coevo_gym.envs.alfworld.data import read_official_games
from coevo_gym.envs.appworld.env import code_of
from coevo_gym.envs.bfcl.engine.official_calls import parse_message
from coevo_gym.envs.bfcl.env import BFCLEnv
from coevo_gym.envs.webshop.engine.shop_session import parse_action
from coevo_gym.envs.webshop.official import load_official_catalogue
from coevo_gym.prompts.answers import action_of
from coevo_gym.prompts.inquiry import load_inquiry, parse_inquiry
from coevo_gym.prompts.loader import load_prompt, parse_prompt
from coevo_gym.prompts.template import read_prompt_source
from coevo_gym.runs.config.sources import load_config
from coevo_gym.runs.config.table_files import parse_seeds
from coevo_gym.runs.evals.job import parse_env_arguments
from coevo_gym.runs.experiments import definition
from coevo_gym.runs.manifest import read_manifest
from coevo_gym.runs.tasks.importing import Importer
from coevo_gym.store.answers import completion_from_json
from coevo_gym.store.eval_folder import EvalFolder
from coevo_gym.store.folder import RunFolder, read_json, read_lines
from tests.fuzz.documents import files, lines, objects, texts
from tests.runs import stored_round

ROOT = Path(__file__).parents[2]
TASK = json.loads(stored_round.SECOND.to_json())
DRAFT = stored_round.DRAFTS[4].model_dump(mode="json")
PRESETS = [path.read_text() for path in (ROOT / "coevo_gym" / "presets").glob("*.toml")]
TABLES = [path.read_text() for path in (ROOT / "coevo_gym/runs/experiments/tables").glob("*.toml")]
PROMPT = (ROOT / "prompts" / "webshop.j2").read_text()
INQUIRY = (ROOT / "prompts" / "coevolve" / "judge.j2").read_text()
TRAJECTORY = {
    "task_id": "t", "score": 1.0, "success": True, "end_reason": "solved", "report": {"a": [1]},
    "steps": [
        {"observation": "A room.", "shown": "A room.", "action": "go", "reward": 1.0,
         "decision": {"context": {"instruction": "Do.", "observation": "A room.", "info": {"a": 1},
                                  "history": []},
                      "choices": ["go", "stay"], "index": 0, "logprob": -0.7}},
        {"observation": "A hall.", "shown": "A hall.", "action": "stop",
         "decision": {"prompt_ids": [1, 2], "ids": [3], "logprobs": [-0.5]}},
    ],
}  # fmt: skip
REPLY = {
    "choices": [{"message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}
REFUSAL = {"error": {"code": "context_length_exceeded", "type": "x", "message": "too long"}}
ANSWER = (
    '<think>Hm.</think>```json\n{"name": "a", "numbers": [1, 2], "inner": {"a": {"b": 1}}}\n```'
)
COMPLETION = {
    "text": "Hi.", "finish": "stop", "usage": {"calls": 1},
    "decision": {"prompt_ids": [1], "ids": [2, 3], "logprobs": [-0.5, -0.1]},
}  # fmt: skip
SHAPE = {
    "num_attention_heads": 4, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128,
    "vocab_size": 99, "num_experts": 2, "moe_intermediate_size": 8, "num_experts_per_tok": 1,
}  # fmt: skip
LINE = {
    "task": "webshop/1", "id": "0123", "sample": 0, "score": 1.0, "success": True, "steps": 3,
    "end_reason": "solved",
}  # fmt: skip
GAMES_SHARE = {"pddl_domain": "(define)", "grammar": "g"}
GAME = {"id": "train/a/b", "task": "put", "pddl_problem": "(define)", "walkthrough": ["look"]}
PRODUCT = {
    "asin": "B000000000", "name": "Mug", "category": "a", "query": "mug", "pricing": "$10.00",
    "small_description": ["Red."], "full_description": "A mug.", "product_category": "a › b",
    "customization_options": {"color": [{"value": "red", "image": None}]}, "images": [],
    "instructions": [{"instruction": "a mug", "attributes": ["red"], "options": ["red"]}],
}  # fmt: skip


class Answer(BaseModel):
    """A schema that a model might have to fill in."""

    name: str
    numbers: list[int] = []
    inner: dict[str, dict[str, int]] = {}


class Reader(NamedTuple):
    """A parser.

    Attributes:
        read: takes what is drawn, and for files a folder to put it into.
        fed: what it is given.
        errors: what it may raise, and nothing else.
    """

    read: Callable[[Any, Path], object]
    fed: SearchStrategy[Any]
    errors: tuple[type[Exception], ...] = ()


def from_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    """Reads a file."""

    def put_and_read(data: bytes, folder: Path) -> object:
        path = folder / name
        path.write_bytes(data)
        return read(path)

    return put_and_read


def from_value(read: Callable[[Any], object]) -> Callable[[Any, Path], object]:
    """Reads a value."""
    return lambda value, _: read(value)


def _read_shop(path: Path) -> object:
    (path.parent / "items_ins_v2_1000.json").write_text('{"B000000000": {"attributes": ["red"]}}')
    return load_official_catalogue(path.parent)


def _read_games(path: Path) -> object:
    path.write_bytes(lzma.compress(path.read_bytes(), preset=0))
    return list(read_official_games(path))


def _prepend_share(games: bytes) -> bytes:
    return json.dumps(GAMES_SHARE).encode() + b"\n" + games


TOOL_CALL = '<tool_call>{"name": "cd", "arguments": {"folder": "a"}}</tool_call>'
ENV_ARGUMENTS = ("max_steps=3", "hold_out=0.5", "mode=train", 'tasks=["a"]', "subset=base", "a=")
SETS = ("loop.max_env_steps=3", "arms=static,coevolve", "arm.a.method=static", "learner.lr=1e-3")
NAMES = texts("webshop", "coevolve/judge", "mine.j2", "coevo_gym:prompts/webshop.j2", "../a.j2")

READERS = {
    "action of an answer": Reader(
        from_value(lambda text: (action_of(text, "action"), action_of(text, "text"))),
        texts("<think>A.</think><action>go</action>", "go"),
    ),
    "value of an answer": Reader(
        from_value(lambda text: read_answer(text, Answer)), texts(ANSWER), (Unreadable,)
    ),
    "marks of an answer": Reader(
        from_value(without_marks), texts('<drop>1-3, 9</drop> <note n="1">it</note>')
    ),
    "tool calls": Reader(from_value(parse_message), texts(TOOL_CALL, "[cd(folder='a'), ls()]")),
    "shop actions": Reader(from_value(parse_action), texts("search[red mug]", "click[buy now]")),
    "code of an answer": Reader(from_value(code_of), texts("So:\n```python\nprint(1)\n```\nDone.")),
    "reply of an endpoint": Reader(
        from_value(read_reply),
        objects(REPLY).map(json.dumps).map(str.encode) | files(json.dumps(REPLY)),
    ),
    "refusal of an endpoint": Reader(
        from_value(read_refusal),
        objects(REFUSAL).map(json.dumps).map(str.encode) | files(json.dumps(REFUSAL)),
    ),
    "Retry-After": Reader(
        from_value(retry_after_s), texts("2", "1e400", "Wed, 21 Oct 2015 07:28:00 GMT", "-0001")
    ),
    "prompt": Reader(from_value(parse_prompt), texts(PROMPT), (ConfigError,)),
    "inquiry": Reader(from_value(parse_inquiry), texts(INQUIRY), (ConfigError,)),
    "prompt's file": Reader(from_file("mine.j2", load_prompt), files(PROMPT), (ConfigError,)),
    "inquiry's file": Reader(from_file("mine.j2", load_inquiry), files(INQUIRY), (ConfigError,)),
    "prompt's name": Reader(from_value(load_prompt), NAMES, (ConfigError,)),
    "inquiry's name": Reader(from_value(read_prompt_source), NAMES, (ConfigError,)),
    "task": Reader(
        from_value(Task.from_json),
        files(json.dumps(TASK)) | objects(TASK).map(json.dumps),
        (TaskError,),
    ),
    "task file": Reader(from_file("mine.jsonl", read_tasks), lines(TASK), (TaskError,)),
    "imported file": Reader(
        from_file("mine.jsonl", lambda path: list(Importer().judge(path))),
        lines(TASK, DRAFT),
    ),
    "settings file": Reader(
        from_file("mine.toml", lambda path: load_config(path, environ={})),
        files(*PRESETS),
        (ConfigError,),
    ),
    "settings on the command line": Reader(
        from_value(lambda item: load_config(None, sets=[item], environ={})),
        texts(*SETS),
        (ConfigError,),
    ),
    "settings from the environment": Reader(
        from_value(
            lambda text: load_config(None, environ={"COEVO_CFG__LOOP__MAX_ENV_STEPS": text})
        ),
        texts("3", "none"),
        (ConfigError,),
    ),
    "table of runs": Reader(
        from_file("mine.toml", lambda path: definition.load_experiment(str(path))),
        files(*TABLES),
        (ConfigError,),
    ),
    "seeds": Reader(
        from_value(lambda text: parse_seeds(text, (1, 2))),
        texts("3", "1-4,9", "1,", "5-99999999999999", "99999999999999"),
        (ConfigError,),
    ),
    "env arguments": Reader(
        from_value(lambda item: parse_env_arguments(BFCLEnv, [item])),
        texts(*ENV_ARGUMENTS),
        (ConfigError,),
    ),
    "trajectory": Reader(from_value(trajectory_from_json), objects(TRAJECTORY), (ValueError,)),
    "evaluation trajectory": Reader(
        from_value(eval_trajectory_from_json), objects(TRAJECTORY), (ValueError,)
    ),
    "stored answer": Reader(
        from_value(completion_from_json), objects(COMPLETION), (ValueError, KeyError)
    ),
    "JSON file of a run": Reader(
        from_file("a.json", read_json), files('{"a": [1]}'), (StoreError,)
    ),
    "lines of a run": Reader(from_file("a.jsonl", read_lines), files('{"a": [1]}\n{"b": 2}')),
    "manifest": Reader(
        from_file("manifest.json", lambda path: read_manifest(RunFolder(path.parent))),
        objects({"schema": 1, "config": {"name": "a"}}).map(json.dumps).map(str.encode),
        (StoreError,),
    ),
    "results of an evaluation": Reader(
        from_file("results.jsonl", lambda path: EvalFolder(path.parent).read_results()),
        lines(LINE),
        (StoreError,),
    ),
    "shape of a model": Reader(
        from_file("config.json", lambda path: shape_of(str(path.parent))),
        objects(SHAPE).map(json.dumps).map(str.encode) | files(json.dumps(SHAPE)),
        (ModelError,),
    ),
    "ALFWorld's games": Reader(
        from_file("games.jsonl.xz", _read_games),
        lines(GAME).map(_prepend_share) | lines(GAMES_SHARE, GAME),
        (DataError,),
    ),
    "WebShop's products": Reader(
        from_file("items_shuffle_1000.json", _read_shop),
        objects([PRODUCT]).map(json.dumps).map(str.encode) | files(json.dumps([PRODUCT])),
        (DataError,),
    ),
}

"""The columns of exported rows, and their types in Parquet and in a data card.

A type is ``string``, ``int64``, ``float64`` or ``bool``; ``[type]`` is a list, and a mapping of
names to types is a record. JSON of any form is text, so that every loader reads every row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Kind = str | list[Any] | Mapping[str, Any]


class DataColumn(NamedTuple):
    """A column of exported rows.

    Attributes:
        name: name of the column.
        about: description for readers.
        kind: type of its values.
    """

    name: str
    about: str
    kind: Kind = "string"


ABOUT: tuple[DataColumn, ...] = (
    DataColumn("id", "Id of the episode in its run or evaluation, as in the viewer."),
    DataColumn("run", "Name of the run or evaluation; TABLE~ROW-SEED for a cell of a table."),
    DataColumn("benchmark", "The benchmark."),
    DataColumn("model", "The policy's model; empty for a baseline."),
    DataColumn("of", "training or evaluation."),
    DataColumn("split", "Split of the task."),
    DataColumn("held_out", "True if the task is held out, so nothing may learn from it.", "bool"),
    DataColumn("notice", "The warning of a held-out episode; empty for a training task."),
    DataColumn("arm", "The arm, or the evaluated policy."),
    DataColumn(
        "step", "Learner step at which the episode was recorded; 0 outside of runs.", "int64"
    ),
    DataColumn("group", "Id of the group of rollouts; empty for an evaluation."),
    DataColumn("position", "Index in the group, or among the task's episodes.", "int64"),
    DataColumn("task", "Id of the task: a hash of its content."),
    DataColumn("task_name", "Name of the task."),
    DataColumn("instruction", "The task's instruction."),
    DataColumn("success", "True if the task was solved.", "bool"),
    DataColumn("score", "The benchmark's score, in [0, 1].", "float64"),
    DataColumn("end_reason", "Why the episode ended."),
    DataColumn("failure", "The benchmark's kind of failure; empty if solved or unknown."),
    DataColumn("failed_turn", "Turn that failed, from 1; null if there is only one.", "int64"),
    DataColumn("env_steps", "Number of env steps.", "int64"),
    DataColumn("policy_version", "Updates before the episode began; -1 if unknown.", "int64"),
    DataColumn("signals", "Kinds of signals that the episode emitted.", ["string"]),
    DataColumn("advantage", "Mean advantage used for learning; null if not stored.", "float64"),
    DataColumn("cues", "Ids of the cues in its prompts, if it was coached.", ["string"]),
)
"""Facts about an episode, which are the first columns of every row."""
_FUNCTION = {"name": "string", "arguments": "string"}
TOOL_CALLS: Mapping[str, Any] = {
    "tool_calls": [{"id": "string", "type": "string", "function": _FUNCTION}],
    "tool_call_id": "string",
}
"""Fields of a message if the policy's endpoint got calls as JSON."""


def chat_columns(*, calls_tools: bool) -> tuple[DataColumn, ...]:
    """Return the columns of rows that contain chats.

    Args:
        calls_tools: True if messages may contain calls as JSON.
    """
    message = {"role": "string", "content": "string", **(TOOL_CALLS if calls_tools else {})}
    return (
        *ABOUT,
        DataColumn("part", "Index among the chats of the episode.", "int64"),
        DataColumn(
            "parts", "Number of chats; several if prompts leave out earlier messages.", "int64"
        ),
        DataColumn("exact", "True if a model was sent exactly these messages.", "bool"),
        DataColumn("prompt_messages", "Number of messages before the first answer.", "int64"),
        DataColumn("messages", "The messages, with the policy's answers.", [message]),
        DataColumn("tools", "The tools of the last prompt, as JSON; null for none."),
    )


STEP: Mapping[str, Kind] = {
    "observation": "string",
    "shown": "string",
    "said": "string",
    "action": "string",
    "calls": ["string"],
    "error_kind": "string",
    "reward": "float64",
    "terminated": "bool",
    "truncated": "bool",
    "extras": "string",
    "advantage": "float64",
    "policy_version": "int64",
    "prompt": ["int64"],
    "answer": "int64",
    "tools": "int64",
    "prompt_tokens": "int64",
    "completion_tokens": "int64",
    "prompt_ids": ["int64"],
    "ids": ["int64"],
    "logprobs": ["float64"],
    "choices": ["string"],
    "choice": "int64",
    "answer_s": "float64",
    "env_s": "float64",
}
"""Fields of a step."""
EPISODES: tuple[DataColumn, ...] = (
    *ABOUT,
    DataColumn("exact", "True if the exact messages that a model was sent are stored.", "bool"),
    DataColumn(
        "messages",
        "Each distinct message once. A step's prompt and answer are indices of this list.",
        [{"role": "string", "content": "string"}],
    ),
    DataColumn(
        "tools", "Each distinct list of tools once, as JSON; steps contain its index.", ["string"]
    ),
    DataColumn(
        "steps",
        "The steps. shown: the observation if an interface changed it; extras: the benchmark's "
        "JSON; ids, logprobs: the sampled tokens, or the log-probability of each choice, rounded "
        "to 4 decimal places; answer_s, env_s: wall seconds of the answer and the env step; -1, "
        "null and empty values: not stored.",
        [STEP],
    ),
    DataColumn("last_observation", "The observation after the last step."),
    DataColumn("report", "The grader's report, as JSON; partial scores only if held out."),
)
"""Columns of rows that contain whole episodes."""


def to_arrow(columns: tuple[DataColumn, ...], arrow: Any) -> Any:
    """Return the Parquet schema of columns. ``arrow`` is the module pyarrow."""

    def kind_of(kind: Kind) -> Any:
        if isinstance(kind, str):
            return {
                "string": arrow.string(),
                "int64": arrow.int64(),
                "float64": arrow.float64(),
                "bool": arrow.bool_(),
            }[kind]
        if isinstance(kind, list):
            return arrow.list_(kind_of(kind[0]))
        return arrow.struct([(name, kind_of(part)) for name, part in kind.items()])

    return arrow.schema(
        [
            arrow.field(column.name, kind_of(column.kind), metadata={"description": column.about})
            for column in columns
        ]
    )


def to_yaml(columns: tuple[DataColumn, ...]) -> Iterator[str]:
    """Yield the lines of a data card that tell ``datasets`` the columns' types."""
    for column in columns:
        yield from _yaml_of(column.name, column.kind, "  ")


def _yaml_of(name: str, kind: Kind, indent: str) -> Iterator[str]:
    yield f"{indent}- name: {name}"
    if isinstance(kind, str):
        yield f"{indent}  dtype: {kind}"
        return
    inner = kind[0] if isinstance(kind, list) else kind
    key = "list" if isinstance(kind, list) else "struct"
    if isinstance(inner, str):
        yield f"{indent}  {key}: {inner}"
        return
    yield f"{indent}  {key}:"
    for part, part_kind in inner.items():
        yield from _yaml_of(part, part_kind, f"{indent}  ")

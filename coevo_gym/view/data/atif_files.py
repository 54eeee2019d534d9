"""ATIF files of any program, converted to an evaluation that the viewer shows.

Each agent step becomes a step whose observation is the text since the step before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import digest
from coevo_gym.core.reading import open_regular
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.task import Split, freeze
from coevo_gym.core.trajectory import EndReason, EvalTrajectory, Step, TokenDecision
from coevo_gym.store.database import RunStore
from coevo_gym.store.eval_folder import EvalFolder, EvalLine
from coevo_gym.store.folder import append_lines, write_json
from coevo_gym.store.reader import EvaluatedTask
from coevo_gym.view.data.atif import import_atif
from coevo_gym.view.library import folder_name

SUFFIXES = (".json", ".jsonl")
"""File name extensions of ATIF files."""
_MAX_CHARS = 4_000_000
_POLICY = "agent"


class ForeignEpisode(NamedTuple):
    """A trajectory from an ATIF file.

    Attributes:
        line: its results.
        task: the known facts about its task.
        trajectory: its steps.
        model: its model, or "".
        is_graded: True if the file states whether it succeeded.
    """

    line: EvalLine
    task: EvaluatedTask
    trajectory: EvalTrajectory
    model: str
    is_graded: bool


def find_atif_files(name: str) -> list[Path]:
    """Return the ATIF files at a path: a file, or the files in a folder. [] for other names."""
    path = Path(name)
    if path.is_file() and path.suffix in SUFFIXES:
        return [path]
    if not path.is_dir() or (path / "manifest.json").exists() or (path / "config.json").exists():
        return []
    return sorted(
        file
        for folder in (path, *(one for one in path.iterdir() if one.is_dir()))
        for file in folder.iterdir()
        if file.suffix in SUFFIXES and file.name != "export.json" and _is_atif(file)
    )


def _is_atif(file: Path) -> bool:
    with open_regular(file) as opened:
        return b'"ATIF-v' in opened.read(10_000)


def read_atif_files(name: str, files: Sequence[Path], parent: Path) -> tuple[EvalFolder, int]:
    """Convert ATIF files to an evaluation.

    Args:
        name: the path that the user gave.
        files: the files.
        parent: folder in which the evaluation's folder is created.

    Returns:
        The evaluation's folder, and the number of trajectories that do not state an outcome.

    Raises:
        ConfigError: if a file is not ATIF.
        ImportError: if the package ``atif`` is missing.
    """
    episodes = [one for file in files for one in _episodes_of(file)]
    if not episodes:
        raise ConfigError(f"{name} contains no ATIF trajectory.")
    place = Path(name)
    folder = EvalFolder(parent / (place.stem if place.is_file() else folder_name(place)))
    folder.path.mkdir(parents=True, exist_ok=True)
    splits, models = {one.task.split for one in episodes}, {one.model for one in episodes}
    config = {
        "policy": _POLICY,
        "model": ", ".join(sorted(models - {""})),
        "source": name,
        "benchmark": "atif",
        # Among several splits, a held-out one: then no export contains the episodes by default.
        "split": min(splits - {str(Split.TRAIN)}, default=str(Split.TRAIN)),
        "n_tasks": len(episodes),
        "tasks": "",
        "samples": 1,
        "files": [str(file) for file in files],
    }
    with closing(RunStore(folder.database)) as store:
        store.add_evaluated_tasks(one.task for one in episodes)
        for one in episodes:
            store.add_eval_episode(_POLICY, 0, one.line.database_row, one.trajectory)
    append_lines(folder.results, [one.line.model_dump(mode="json") for one in episodes])
    write_json(folder.config, config)
    write_json(folder.summary, {})
    return folder, sum(not one.is_graded for one in episodes)


def _episodes_of(file: Path) -> Iterator[ForeignEpisode]:
    trajectory_type = import_atif().Trajectory
    with open_regular(file) as opened:
        data = opened.read()
    lines = data.split(b"\n") if file.suffix == ".jsonl" else [data]
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{file}, line {number}" if file.suffix == ".jsonl" else str(file)
        try:
            whole = trajectory_type.model_validate_json(line).to_json_dict()
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise ConfigError(
                f"{where} is not an ATIF trajectory: {place and f'{place}: '}{first['msg']}. See "
                "https://github.com/harbor-framework/harbor for the format, or give the name of a "
                "run."
            ) from error
        name = file.stem if len(lines) < 3 else f"{file.stem}-{number}"
        yield from _with_subagents(name, whole)


def _with_subagents(name: str, whole: Mapping[str, Any]) -> Iterator[ForeignEpisode]:
    name = whole.get("trajectory_id") or name
    yield _to_episode(name, whole)
    for one in whole.get("subagent_trajectories") or ():
        yield from _with_subagents(f"{name}/{one['trajectory_id']}", {**one, "trajectory_id": None})


def _to_episode(name: str, whole: Mapping[str, Any]) -> ForeignEpisode:
    steps, last, asked = _to_steps(whole["steps"])
    extra = whole.get("extra") or {}
    final = (whole.get("final_metrics") or {}).get("extra") or {}
    reward = next((one[key] for one in (extra, final) for key in ("score", "reward")
                   if isinstance(one.get(key), (int, float))), None)  # fmt: skip
    success = next((one["success"] for one in (extra, final)
                    if isinstance(one.get("success"), bool)), None)  # fmt: skip
    solved = reward is not None and reward >= 1 if success is None else success
    score = min(1.0, max(0.0, float(solved if reward is None else reward)))
    reason = str(extra.get("end_reason", ""))
    end = EndReason(reason) if reason in [*EndReason] else EndReason.AGENT_DONE
    asked = str(extra.get("instruction") or asked)
    id = digest([name, asked, len(steps)])
    split = extra.get("split") if extra.get("split") in [*Split] else str(Split.TRAIN)
    totals = whole.get("final_metrics") or {}
    line = EvalLine(
        id=id, sample=0, name=name, scenario=name, success=solved, score=score, steps=len(steps),
        end_reason=str(end), seed=0, prompt_tokens=totals.get("total_prompt_tokens") or 0,
        completion_tokens=totals.get("total_completion_tokens") or 0,
        usd=totals.get("total_cost_usd") or 0.0,
    )  # fmt: skip
    trajectory = EvalTrajectory(
        task_id=id, steps=steps, score=score, success=solved, end_reason=end, last_observation=last
    )
    task = EvaluatedTask(id, name, str(split), "", name, asked, ())
    model = str(whole["agent"].get("model_name") or whole["agent"]["name"])
    return ForeignEpisode(line, task, trajectory, model, reward is not None or success is not None)


def _to_steps(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[Step, ...], str, str]:
    """Return the agent's steps, the last observation, and the user's first message."""
    steps, seen, asked = list[Step](), list[str](), ""
    for row in rows:
        text = _text_of(row["message"])
        results = (row.get("observation") or {}).get("results", ())
        if row["source"] != "agent" or row.get("is_copied_context"):
            asked = asked or (text if row["source"] == "user" else "")
            seen += [text, *(_text_of(one.get("content")) for one in results)]
            continue
        calls = row.get("tool_calls") or ()
        answer = "\n\n".join(filter(None, (row.get("reasoning_content") or "", text)))
        action = (row.get("extra") or {}).get("action")
        if not isinstance(action, str):
            action = "\n".join(map(_call_to_text, calls)) or text
        observation = "\n\n".join(filter(None, seen))
        steps.append(
            Step(
                observation,
                observation,
                clean_text(action, _MAX_CHARS),
                _decision_of(row.get("metrics") or {}),
                calls=tuple(call["function_name"] for call in calls),
                said="" if answer == action else answer,
                extras=freeze({"model": row["model_name"]} if row.get("model_name") else {}),
            )
        )
        seen = [_text_of(one.get("content")) for one in results]
    return tuple(steps), "\n\n".join(filter(None, seen)), asked


def _call_to_text(call: Mapping[str, Any]) -> str:
    return f"{call['function_name']}({json.dumps(call['arguments'], ensure_ascii=False)})"


def _decision_of(metrics: Mapping[str, Any]) -> TokenDecision | None:
    ids, logprobs = metrics.get("completion_token_ids"), metrics.get("logprobs")
    if not ids or not logprobs or len(ids) != len(logprobs):
        return None
    return TokenDecision(tuple(metrics.get("prompt_token_ids") or ()), tuple(ids), tuple(logprobs))


def _text_of(content: Any) -> str:
    """Return a message's text. Pictures and sounds are named."""
    if isinstance(content, str):
        return clean_text(content, _MAX_CHARS)
    parts = content or ()
    texts = (part.get("text") or f"[{part['type']}: {part['source']['path']}]" for part in parts)
    return clean_text("\n".join(texts), _MAX_CHARS)

"""Episodes in the Agent Trajectory Interchange Format (ATIF) 1.8.

Each chat of an episode becomes a trajectory. Its agent steps contain the policy's exact answers;
what the policy was sent next is the observation of the step before it, so no message is lost.
Assistant messages that only repeat earlier answers are marked as copied context.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from coevo_gym import __version__
from coevo_gym.core.trajectory_json import WALL_TIMES
from coevo_gym.provision import explain_missing
from coevo_gym.store.sampled import TokensSampled
from coevo_gym.view.data.chats import Chat, chats_of
from coevo_gym.view.data.episodes import StoredEpisode

VERSION = "ATIF-v1.8"


def import_atif() -> Any:
    """Import and return the package ``atif``.

    Raises:
        ImportError: if it is missing; the message says how to install it.
    """
    with explain_missing("ATIF files need the package atif.", "export"):
        import atif
    return atif


def atif_trajectories(episode: StoredEpisode) -> Iterator[dict[str, Any]]:
    """Yield an ATIF trajectory as JSON for each chat of an episode."""
    chats = chats_of(episode)
    for part, chat in enumerate(chats):
        id = episode.about["id"]
        yield {
            "schema_version": VERSION,
            "session_id": episode.about["run"],
            "trajectory_id": id if len(chats) == 1 else f"{id}.part-{part}",
            "agent": _agent(episode, chat),
            "steps": list(_steps(episode, chat, last=part + 1 == len(chats))),
            "final_metrics": _final_metrics(episode, chat),
            "extra": {**episode.about, "part": part, "parts": len(chats), "exact": chat.exact},
        }


def _agent(episode: StoredEpisode, chat: Chat) -> dict[str, Any]:
    agent: dict[str, Any] = {"name": f"coevo_gym {episode.about['arm']}", "version": __version__}
    if episode.about["model"]:
        agent["model_name"] = episode.about["model"]
    if not chat.tools:
        return agent
    try:
        tools = json.loads(chat.tools)
    except ValueError:
        tools = None
    if isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools):
        return {**agent, "tool_definitions": tools}
    return {**agent, "extra": {"tools": chat.tools}}  # another form of tools


def _steps(episode: StoredEpisode, chat: Chat, *, last: bool) -> Iterator[dict[str, Any]]:
    steps = list[dict[str, Any]]()
    answers = {place: chat.first + n for n, place in enumerate(chat.answers)}
    for place, message in enumerate(chat.messages):
        role, before = message["role"], steps[-1] if steps else None
        if place in answers:
            steps.append(_agent_step(message) | _of_env_step(episode, answers[place], chat.exact))
        elif role == "assistant":
            steps.append(_agent_step(message) | {"is_copied_context": True})
        elif role in ("user", "tool") and before is not None and before["source"] == "agent":
            _observe(before, message["content"], role, message.get("tool_call_id"))
        else:
            source = role if role == "system" else "user"
            steps.append({"source": source, "message": message["content"]})
    seen = episode.body.get("last_observation", "")
    if last and seen and steps and steps[-1]["source"] == "agent":
        _observe(steps[-1], seen, "")
    for number, step in enumerate(steps, start=1):
        yield {"step_id": number, **step}


def _agent_step(message: Mapping[str, Any]) -> dict[str, Any]:
    step: dict[str, Any] = {"source": "agent", "message": message["content"]}
    if calls := message.get("tool_calls"):
        step["tool_calls"] = [
            {
                "tool_call_id": call["id"],
                "function_name": call["function"]["name"],
                "arguments": json.loads(call["function"]["arguments"]),
            }
            for call in calls
        ]
    return step


def _of_env_step(episode: StoredEpisode, number: int, exact: bool) -> dict[str, Any]:
    step = episode.body["steps"][number]
    extra = {
        "action": step["action"],
        "reward": step.get("reward", 0.0),
        "calls": list(step.get("calls", ())),
        "error_kind": step.get("error_kind", ""),
        **{name: step[name] for name in WALL_TIMES if name in step},
    }
    metrics = _metrics(episode, number) if exact else {}
    return {"extra": extra, **({"metrics": metrics} if metrics else {})}


def _metrics(episode: StoredEpisode, number: int) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    prompt, completion = episode.body["transcript"]["tokens"][number]
    if completion:
        metrics |= {"prompt_tokens": prompt, "completion_tokens": completion}
    decision = episode.sampled[number] if episode.sampled is not None else None
    if isinstance(decision, TokensSampled):
        metrics["completion_token_ids"] = list(decision.ids)
        metrics["logprobs"] = list(decision.logprobs)
        if decision.prompt_ids is not None:
            metrics["prompt_token_ids"] = list(decision.prompt_ids)
            metrics.setdefault("prompt_tokens", len(decision.prompt_ids))
            metrics.setdefault("completion_tokens", len(decision.ids))
    return metrics


def _observe(step: dict[str, Any], text: str, role: str, call: str | None = None) -> None:
    """Add an observation to a step. The role is that of the message that shows it; "" for none."""
    known = {one["tool_call_id"] for one in step.get("tool_calls", ())}
    result: dict[str, Any] = {"content": text, "extra": {"role": role}}
    if call is not None:
        result["extra"]["tool_call_id"] = call
    if call in known:
        result["source_call_id"] = call
    step.setdefault("observation", {"results": []})["results"].append(result)


def _final_metrics(episode: StoredEpisode, chat: Chat) -> dict[str, Any]:
    about = episode.about
    total: dict[str, Any] = {
        "total_steps": len(chat.answers),
        "extra": {name: about[name] for name in ("success", "score", "end_reason")},
    }
    if chat.exact:
        counts = episode.body["transcript"]["tokens"]
        counts = counts[chat.first : chat.first + len(chat.answers)]
        total["total_prompt_tokens"] = sum(prompt for prompt, _ in counts)
        total["total_completion_tokens"] = sum(completion for _, completion in counts)
    return total

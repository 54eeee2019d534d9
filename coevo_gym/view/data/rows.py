"""Whole episodes as rows of a table, and summaries of runs as data frames."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from coevo_gym.core.trajectory import UNKNOWN_VERSION
from coevo_gym.core.trajectory_json import WALL_TIMES
from coevo_gym.core.transcript import NOTHING
from coevo_gym.store.sampled import ChoicesMade, Sampled, TokensSampled
from coevo_gym.view.data.episodes import StoredEpisode


def episode_row(episode: StoredEpisode) -> dict[str, Any]:
    """Return an episode as a row; see :data:`~coevo_gym.view.data.columns.EPISODES`."""
    body, sampled = episode.body, episode.sampled
    transcript, advantages = body.get("transcript"), episode.advantages
    each = advantages if isinstance(advantages, Sequence) else None
    steps = []
    for number, step in enumerate(body["steps"]):
        advantage = each[number] if each is not None and number < len(each) else None
        steps.append(
            {
                "observation": step["observation"],
                "shown": "" if step["shown"] == step["observation"] else step["shown"],
                "said": step.get("said", ""),
                "action": step["action"],
                "calls": step.get("calls", []),
                "error_kind": step.get("error_kind", ""),
                "reward": step.get("reward", 0.0),
                "terminated": step.get("terminated", False),
                "truncated": step.get("truncated", False),
                "extras": to_json_text(step.get("extras")),
                "advantage": advantages if each is None else advantage,
                **_chat_fields(transcript, number),
                **_sampled_fields(sampled[number] if sampled is not None else None),
                **{name: step.get(name) for name in WALL_TIMES},
            }
        )
    texts = transcript["messages"] if transcript else ()
    return {
        **episode.about,
        "exact": transcript is not None,
        "messages": [{"role": role, "content": text} for role, text in texts],
        "tools": list(transcript["tools"]) if transcript else [],
        "steps": steps,
        "last_observation": body.get("last_observation", ""),
        "report": to_json_text(body.get("report")),
    }


def to_json_text(value: Any) -> str:
    """Return a JSON value as text, or "" if it is empty."""
    return json.dumps(value, ensure_ascii=False) if value else ""


def _chat_fields(transcript: Any, number: int) -> dict[str, Any]:
    if transcript is None:
        return {
            "prompt": [], "answer": NOTHING, "tools": NOTHING,
            "prompt_tokens": 0, "completion_tokens": 0,
        }  # fmt: skip
    prompt_tokens, completion_tokens = transcript["tokens"][number]
    return {
        "prompt": transcript["prompts"][number],
        "answer": transcript["answers"][number],
        "tools": transcript["offered"][number],
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
    }


def _sampled_fields(decision: Sampled | None) -> dict[str, Any]:
    version = UNKNOWN_VERSION if decision is None else decision.policy_version
    tokens = decision if isinstance(decision, TokensSampled) else None
    chosen = decision if isinstance(decision, ChoicesMade) else None
    return {
        "policy_version": version,
        "prompt_ids": list(tokens.prompt_ids or ()) if tokens else [],
        "ids": list(tokens.ids) if tokens else [],
        "logprobs": [] if decision is None else list(decision.logprobs),
        "choices": list(chosen.choices) if chosen else [],
        "choice": chosen.taken if chosen else NOTHING,
    }

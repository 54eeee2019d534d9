"""Reads the messages back from an exported ATIF trajectory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def messages_of(trajectory: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a trajectory from :func:`atif_trajectories`, in OpenAI's form."""
    messages: list[dict[str, Any]] = []
    for step in trajectory["steps"]:
        source = step["source"]
        message = {
            "role": "assistant" if source == "agent" else source,
            "content": step["message"],
        }
        if calls := step.get("tool_calls"):
            message["tool_calls"] = [
                {
                    "id": call["tool_call_id"],
                    "type": "function",
                    "function": {
                        "name": call["function_name"],
                        "arguments": json.dumps(call["arguments"]),
                    },
                }
                for call in calls
            ]
        messages.append(message)
        for result in (step.get("observation") or {}).get("results", ()):
            extra = result.get("extra") or {}
            call = {name: extra[name] for name in ("tool_call_id",) if name in extra}
            if extra.get("role"):
                messages.append({"role": extra["role"], **call, "content": result["content"]})
    return messages

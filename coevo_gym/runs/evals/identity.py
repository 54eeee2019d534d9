"""The identity of an evaluation: the values that its numbers depend on, as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from coevo_gym.core.evolution import digest
from coevo_gym.core.task import thaw
from coevo_gym.runs.config import RunConfig
from coevo_gym.runs.config.keys import flat
from coevo_gym.runs.evals.job import EvalJob
from coevo_gym.runs.manifest import git_commit, prompt_id, task_set_hash, versions
from coevo_gym.store.secrets import without_secrets

SCHEMA = 1
_ASIDE = ("source", "git_commit")
"""Values that are stored but not compared: the name of a run may change, and so may its code if the
numbers do not."""
_OF_A_MACHINE = {"device", "gradient_checkpointing", "pack_tokens"}
_OF_AN_ENDPOINT = {"model", "base_url", "send_temperature"}
_RENAMED = {"settings.chat.context": "settings.chat.history"}
"""Keys of older versions, and their names now."""
_ADDED = {"settings.chat.style": "plain", "settings.chat.memory": "rule"}
"""Keys that older versions did not write, and what they did."""
_MOST = 5


def identity(job: EvalJob) -> dict[str, Any]:
    """Return the settings that an evaluation's numbers depend on."""
    assembly = job.assembly
    config = assembly.config
    found = {
        "schema": SCHEMA,
        "source": job.source,
        "policy": job.policy,
        "model": job.model,
        "weights": job.weights,
        "benchmark": config.benchmark.name,
        "subset": config.benchmark.subset,
        "hold_out": config.benchmark.hold_out,
        "max_steps": config.benchmark.max_steps or assembly.env_class.default_max_steps,
        "env": thaw(assembly.env_arguments),
        "split": job.split,
        "n_tasks": len(job.tasks),
        "tasks": task_set_hash(job.tasks),
        "samples": job.samples,
        "temperature": job.temperature,
        **({} if job.trials is None else {"trials": job.trials._asdict()}),
        "seed": config.seed,
        "prompt": prompt_id(config) if job.model else {},
        "settings": _settings(config) if job.model else {},
        "versions": versions(config),
        "git_commit": git_commit(),
    }
    kept: dict[str, Any] = without_secrets(found)
    return kept


def default_name(job: EvalJob, of: Mapping[str, Any]) -> str:
    """Return a name for an unnamed evaluation; it differs whenever any value differs."""
    benchmark = job.assembly.config.benchmark.name
    parts = [job.source, job.policy, *([benchmark] if job.elsewhere else []), job.split]
    parts += [f"x{job.samples}"] if job.samples > 1 else []
    parts += [] if job.trials is None else [f"{job.trials.n}-trials"]
    words = (re.sub(r"[^A-Za-z0-9._]+", "-", part).strip("-.") for part in parts)
    return "-".join([*(word for word in words if word), digest(of)[:8]])


def differences(there: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences of two evaluations, each as ``what: one there, another now``."""
    before, after = (
        {_RENAMED.get(key, key): value for key, value in flat(found)} for found in (there, now)
    )
    for found in (before, after):
        if "settings.chat.history" in found:
            found.update({key: value for key, value in _ADDED.items() if key not in found})
    keys = [key for key in dict.fromkeys([*after, *before]) if key not in _ASIDE]
    return [
        f"{key}: {_brief(before.get(key))} there, {_brief(after.get(key))} now"
        for key in keys
        if before.get(key) != after.get(key)
    ]


def in_words(found: list[str]) -> str:
    """Differences as one text, the first few of many."""
    more = f"; and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return "; ".join(found[:_MOST]) + more


def _settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings for the policy's reading and answering, without those for its speed."""
    policy = config.policy
    if policy.kind == "tiny":
        return {"tiny": policy.tiny.model_dump(mode="json")}
    chat = {"chat": policy.chat.model_dump(mode="json", exclude={"temperature"})}
    if policy.kind == "openai":
        asked = policy.endpoint.model_dump(mode="json", include=_OF_AN_ENDPOINT)
        return {**chat, "endpoint": asked}
    return {**chat, "language_model": policy.model.model_dump(mode="json", exclude=_OF_A_MACHINE)}


def _brief(value: Any) -> str:
    text = "none" if value is None or value == "" else str(value)
    if re.fullmatch(r"[0-9a-f]{32,}", text):  # a hash
        return text[:12]
    return text if len(text) <= 60 else f"{text[:59]}…"

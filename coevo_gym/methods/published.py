"""The papers' published settings, and functions that report how a run's settings differ.

CoEvolve's settings are from its Tables 3 and 9 (arXiv 2604.15840), Role-Agent's from its Table 5
(arXiv 2606.10917), and AgentEvolver's from its published code, with the lower clip from the paper
(arXiv 2511.10395). The methods' pages in ``docs/methods`` describe our choices for settings that
the papers do not specify.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

_MODELS = ("Qwen3-4B-Instruct-2507", "Qwen2.5-7B-Instruct", "Qwen3-30B-A3B-Instruct-2507")
"""The model releases that CoEvolve's paper uses."""
_IN_ALL: Mapping[str, Any] = {
    "policy.model.lora_rank": 0,
    "policy.chat.temperature": 0.9,
    "policy.chat.max_answer_tokens": 4096,
    "warmup.n_tasks": 0,
    "rollout.group_size": 8,
    "learner.lr": 1e-6,
    "learner.clip_low": 0.20,
    "learner.clip_high": 0.28,
    "learner.kl_coef": 1e-3,
}
"""Settings of every paper, unless the paper's own settings below say otherwise."""
_WITH_EXPLORER: Mapping[str, Any] = {
    "policy.model.max_context": 25_580,
    "explorer.kind": "model",
    "explorer.model.kind": "openai",
    "curriculum.initial_size": 100,
    "learner.epochs": 1,
    "learner.minibatches": 4,
    "loop.groups_per_step": 32,
}
"""Settings of the papers in which a model explores."""
_OF_PAPER: Mapping[str, Mapping[str, Any]] = {
    "coevolve": {
        **_IN_ALL,
        **_WITH_EXPLORER,
        "policy.chat.thinking": False,
        "policy.chat.max_episode_tokens": None,
        "explorer.model.endpoint.model": "qwen3-max",
        "curriculum.growth.every_groups": 320,
        "loop.max_steps": 120,
        "loop.evolve_every_steps": 10,
        "evaluation.temperature": 0.0,
    },
    "role_agent": {
        **_IN_ALL,
        "learner.states": "similar",
        "loop.max_steps": 150,
        "loop.groups_per_step": 16,
        "evaluation.temperature": 0.0,
        "evaluation.n_tasks": 128,
        "analyst.temperature": 0.5,
        "method.questions": 128,
    },
    "agentevolver": {
        **_IN_ALL,
        **_WITH_EXPLORER,
        "policy.chat.max_episode_tokens": 21_580,
        "explorer.max_steps": 30,
        "explorer.model.endpoint.model": "qwen-plus",
        "analyst.model.endpoint.model": "qwen-plus",
        "method.native": False,
        "method.reward": "judge",
        "method.judge_reference": True,
        "method.breadth_steps": 3,
        "method.depth_window": 17,
        "method.experiences": 5,
        "method.guided_share": 0.5,
        "method.alpha": 0.1,
        "learner.clip_low": 0.28,
    },
}
_OF_BENCHMARK: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "coevolve": {
        "alfworld": {"benchmark.max_steps": 15, "evaluation.final": ["test"]},
        "appworld": {
            "benchmark.max_steps": 30,
            "evaluation.final": ["test_normal", "test_challenge"],
        },
        "bfcl": {
            "benchmark.subset": "base",
            "benchmark.max_steps": 30,
            "evaluation.final": ["base"],
        },
        "webshop": {"benchmark.max_steps": 15, "evaluation.final": ["test"]},
    },
    "role_agent": {
        "alfworld": {"benchmark.max_steps": 50},
        "webshop": {"benchmark.max_steps": 15},
    },
    "agentevolver": {
        "appworld": {
            "benchmark.max_steps": 30,
            "loop.max_steps": 113,
            "evaluation.final": ["test_normal"],
        },
        "bfcl": {
            "benchmark.subset": "base",
            "benchmark.max_steps": 30,
            "method.depth_window": 27,
            "loop.max_steps": 150,
            "evaluation.final": ["base"],
        },
    },
}
PAPERS = tuple(_OF_PAPER)
"""The papers that :func:`differences_from_paper` accepts."""


def paper_covers(benchmark: str, model: str, methods: Collection[str]) -> bool:
    """Return True if CoEvolve's paper has results for a run's benchmark, model and methods.

    Args:
        benchmark: name of the benchmark.
        model: path of the model, whose last part identifies it.
        methods: names of the run's methods; if one is from another paper, the result is False.
    """
    ours, others = {"static", "coevolve"}, {*PAPERS} - {"coevolve"}
    known = benchmark in _OF_BENCHMARK["coevolve"] and Path(model).name in _MODELS
    return known and bool(ours & {*methods}) and not others & {*methods}


def differences_from_paper(
    benchmark: str, settings: Mapping[str, Any], paper: str = "coevolve"
) -> dict[str, str]:
    """Return the settings that differ from a paper's settings, with both values as text.

    Args:
        benchmark: name of the benchmark.
        settings: an arm's settings, as JSON values by dotted key. Settings that do not exist for
            the arm's kind of learner or policy are not compared.
        paper: one of ``PAPERS``.

    Example:
        >>> differences_from_paper("appworld", {"benchmark.max_steps": 30, "learner.lr": 1e-5})
        {'learner.lr': "1e-05, the paper's 1e-06"}
    """
    papers = {**_OF_PAPER[paper], **_OF_BENCHMARK[paper].get(benchmark, {})}
    return {
        key: f"{_format_value(settings[key])}, the paper's {_format_value(value)}"
        for key, value in papers.items()
        if key in settings and settings[key] != value
    }


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

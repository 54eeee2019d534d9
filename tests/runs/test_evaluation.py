"""Models and baselines are evaluated on a benchmark, without a run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from coevo_gym.agents.chat.agent import ChatAgent
from coevo_gym.agents.endpoint.openai_policy import OpenAIPolicy
from coevo_gym.cli import app
from coevo_gym.core.errors import CoevoError, ConfigError, ModelError, SplitLeakError
from coevo_gym.prompts import load_prompt
from coevo_gym.runs.assembly import Assembly
from coevo_gym.runs.config import load_config
from coevo_gym.testing import make_env
from tests.agents.fake_openai import FakeOpenAI, Refuse, Say


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations are folders: each test has a place for its own."""
    monkeypatch.chdir(tmp_path)


def coevo(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["eval", *arguments], catch_exceptions=True)


def endpoint(server: FakeOpenAI) -> list[str]:
    settings = {
        "policy.endpoint.base_url": server.url,
        "policy.endpoint.api_key_env": "none",
        "policy.endpoint.max_attempts": 1,
        "benchmark.max_steps": 1,
        "evaluation.n_tasks": 2,
    }
    return [f"--set={key}={value}" for key, value in settings.items()]


def first_prompts() -> list[list[tuple[str, str]]]:
    """What a model is told at first in the two tasks that are evaluated."""
    settings = load_config(None, sets=["benchmark=webshop", "evaluation.n_tasks=2"], environ={})
    tasks = Assembly(settings.config).held_out_tasks
    with OpenAIPolicy(settings.config.policy.endpoint) as policy:
        agent = ChatAgent(policy, load_prompt("webshop"))
        views = [make_env("webshop", task).view for task in tasks]
        return [[(m.role, m.content) for m in agent.messages(view)] for view in views]


def test_an_endpoint_is_evaluated_and_its_cost_printed() -> None:
    with FakeOpenAI() as server:
        for prompt in first_prompts():
            server.expect(prompt, Say("<action>search[mug]</action>", usage=(100, 7)))
        done = coevo("webshop", "--policy", "openai:fake", "--json", *endpoint(server))
        assert done.exit_code == 0, done.output
        assert not server.problems
    summary = json.loads(done.stdout)
    assert (summary["name"], summary["n_tasks"], summary["success"]) == ("openai:fake", 2, 0.0)
    spent = summary["evaluation"]
    assert (spent["prompt_tokens"], spent["completion_tokens"]) == (200, 14)
    assert "200 tokens sent and 14 answered, price not set" in " ".join(done.stderr.split())


def test_a_failing_endpoint_is_an_error_and_not_a_failed_episode() -> None:
    with FakeOpenAI() as server:
        for prompt in first_prompts():
            server.expect(prompt, Refuse(500), Refuse(500))
        done = coevo("webshop", "--policy", "openai:fake", *endpoint(server))
    assert isinstance(done.exception, ModelError)


@pytest.mark.parametrize(
    ("say", "shares", "warning"),
    [
        (
            Say(None, "length", reasoning="First I"),
            (1.0, 1.0),
            "2 of 2 answers were empty (2 cut at 512 tokens): raise policy.chat.max_answer_tokens",
        ),
        (
            Say("I might say <action>click[buy now]</action> but", "length"),
            (1.0, 1.0),
            "2 of 2 answers were empty (2 cut at 512 tokens): raise policy.chat.max_answer_tokens",
        ),
        (Say("I will. <acti", "length"), (1.0, 1.0), "2 of 2 answers were empty (2 cut at 512"),
        (
            Say(None, "tool_calls", tool_calls=({"id": "1"},)),
            (1.0, 0.0),
            "2 of 2 answers were empty (0 cut at 512 tokens): look at the model's answers",
        ),
        (Say("<action>search[mug]</action>"), (0.0, 0.0), ""),
    ],
)
def test_empty_and_truncated_answers_are_reported(
    say: Say, shares: tuple[float, float], warning: str
) -> None:
    with FakeOpenAI(answer=lambda messages: say) as server:
        arguments = ["webshop", "--policy=openai:fake", "--name=few", *endpoint(server)]
        done = coevo(*arguments, "--set=policy.chat.thinking=true")
    assert done.exit_code == 0, done.output
    output = " ".join(done.output.split())
    assert warning in output
    assert ("answers were empty" in output) == bool(warning)
    assert f"Answers: {shares[0]:.1%} empty, {shares[1]:.1%} cut at the token limit" in output
    before, _, _ = output.partition("openai:fake: 1/2")
    assert "policy.chat.max_answer_tokens, for example to 2048" in before
    answers = json.loads(Path("evals/few/summary.json").read_text())["answers"]
    assert (answers["empty"], answers["cut"], answers["total"]) == (*shares, 2)


def test_a_filtered_prompt_ends_its_episode_and_is_not_sent_again() -> None:
    asked, filtered = first_prompts()
    with FakeOpenAI() as server:
        server.expect(asked, Say("<action>search[mug]</action>"))
        server.expect(filtered, Refuse(400, "Blocked.", "content_filter"))
        arguments = ["webshop", "--policy=openai:fake", "--json", "--name=f", *endpoint(server)]
        summary, again = (json.loads(coevo(*arguments).stdout) for _ in range(2))
        assert len(server.bodies) == 2
    assert summary["end_reasons"] == again["end_reasons"] == {"max_steps": 1, "refused": 1}
    assert (summary["episodes"], summary["lost"]) == (2, 0)


@pytest.mark.parametrize("policy", ["random", "scripted"])
def test_baselines_need_no_model(policy: str) -> None:
    done = coevo("webshop", "--policy", policy, "--json", "--set=evaluation.n_tasks=3")
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert summary["n_tasks"] == 3
    assert (summary["success"] == 1.0) is (policy == "scripted")


def test_the_env_option_passes_arguments_to_the_env() -> None:
    few = ["--policy=scripted", "--json", "--set=benchmark.subset=base"]
    index = json.loads(coevo("bfcl", "--split=test", *few).stdout)
    every = json.loads(coevo("bfcl", "--split=test", "--env=scheme=all200", *few).stdout)
    assert index["n_tasks"] < every["n_tasks"] == 200
    refused = coevo("bfcl", "--split=train", "--env=scheme=all200", *few)
    assert isinstance(refused.exception, SplitLeakError)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (["webshop"], ConfigError, "Set the policy (--policy) to transformers:MODEL"),
        (["webshop", "--policy=static"], ConfigError, "got 'static'"),
        (["webshop", "--policy=openai:"], ConfigError, "has no model name"),
        (["webshop", "--policy=random", "--env=scheme"], ConfigError, "the form name=value"),
        (["webshop", "--policy=transformers:nowhere"], ModelError, "nowhere"),
        (["webshp", "--policy=random"], ConfigError, "Did you mean 'webshop'?"),
    ],
)
def test_a_wrong_command_is_refused_with_advice(
    arguments: list[str], kind: type[CoevoError], message: str
) -> None:
    done = coevo(*arguments)
    assert isinstance(done.exception, kind)
    assert re.search(re.escape(message), str(done.exception))


def test_evaluating_a_run_refuses_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some-run").mkdir()
    (tmp_path / "some-run" / "manifest.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    done = coevo("some-run", "--set=seed=1")
    assert isinstance(done.exception, ConfigError)
    assert "only work with a benchmark" in str(done.exception)


def test_an_endpoint_policy_cannot_be_trained() -> None:
    settings = load_config(None, sets=["policy.kind=openai"], environ={}).config
    with pytest.raises(ConfigError, match="can be evaluated"):
        Assembly(settings).policy  # noqa: B018 (made on demand)

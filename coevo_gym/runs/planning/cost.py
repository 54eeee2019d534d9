"""Estimates of the cost of model calls in rounds, studies and evaluations.

Requests and answer tokens are upper bounds. They assume that every round is run, that every walk
takes all of its steps, and that every answer has the maximum length and has to be repaired. Prompt
tokens depend on the env's observations, and are estimated for long pages.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from coevo_gym.agents.endpoint.endpoint import EndpointConfig
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import Round, RoundResult
from coevo_gym.core.spend import NO_USAGE, Caps, Cost, Meter, Prices, Usage
from coevo_gym.core.task import FrozenDict, FrozenModel
from coevo_gym.runs.config import ArmConfig, RunConfig, arm_configs
from coevo_gym.runs.config.run_sections import ExplorerModelSettings
from coevo_gym.runs.planning.plan import (
    max_learner_steps,
    max_rounds,
    max_steps_per_episode,
    n_initial_tasks,
)
from coevo_gym.runs.progress_reports import ProgressSink
from coevo_gym.trainers.protocols import LoopState


class Spending:
    """A running total of a run's costs: warm-up, initial tasks and arms."""

    def __init__(self, progress: ProgressSink) -> None:
        self._progress = progress
        self._pieces: dict[str, Cost] = {}
        self._first: list[tuple[Round, Cost]] = []

    def set_cost(self, piece: str, cost: Cost) -> None:
        """Update the cost of one part of the run, such as an arm."""
        self._pieces[piece] = cost
        self._progress.set_cost(self._total_cost)

    def report_search_cost(self, meter: Meter) -> None:
        """Report the cost of finding initial tasks while the search runs."""
        over = sum((cost for _, cost in self._first), Cost())
        self._progress.set_cost(self._total_cost + meter.total.subtract_to_zero(over))

    def add_first_round_cost(self, round: Round, result: RoundResult) -> None:
        """Record the cost of a round that found initial tasks."""
        self._first.append((round, Cost.from_usages(result.env_steps, *result.usage.values())))
        self._progress.set_cost(self._total_cost)

    def set_arm_cost(self, name: str, first: Round | None, state: LoopState) -> None:
        """Update an arm's cost. The cost of its initial tasks is counted separately."""
        begun = next((cost for round, cost in self._first if round == first), Cost())
        self.set_cost(
            f"arm {name}",
            Cost.from_usages(state.env_steps, state.total_usage).subtract_to_zero(begun),
        )

    @property
    def _total_cost(self) -> Cost:
        return sum((cost for _, cost in self._first), sum(self._pieces.values(), Cost()))


ACT_TOKENS = 3_000
"""Prompt tokens per step of a policy: the benchmark's instructions, and the last few pages."""
WALK_TOKENS = 9_000
"""Prompt tokens per exploration step: the benchmark's instructions, guidance, and up to 24,000
characters of earlier steps."""
QUESTION_TOKENS = 7_000
"""Prompt tokens of a summary, a reflection, proposals or a study's question: 24,000 characters of
evidence, and the instructions around it."""
_AGAIN = 2
"""Maximum requests per question: an unusable answer is requested a second time."""


class CostEstimate(FrozenModel):
    """The maximum cost of querying one model in rounds and studies, or in an evaluation.

    Attributes:
        model: the model, with its location.
        paid: True if requests may cost money: the model has a price, or runs on another party's
            machine.
        rounds: maximum rounds, including those that find the initial tasks; None for an evaluation.
        cost: the maximum cost within the caps; the number of prompt tokens is approximate.
        key_env: environment variable with the key, or several; "" for none.
        caps: the caps that are set, by key.
        questions: maximum number of questions that studies ask.
    """

    model: str
    paid: bool
    rounds: int | None
    cost: Usage
    key_env: str = ""
    caps: Mapping[str, int | float] = FrozenDict()
    questions: int = 0

    def to_rows(self) -> Iterator[tuple[str, str]]:
        """Yield the estimate as (name, amount) pairs, with the amounts as text."""
        if self.rounds is None:
            yield "model", self.model
        else:
            explores = self.rounds > 0 or not self.questions
            yield "explorer's model" if explores else "analyst's model", self.model
            if explores:
                yield "rounds that query this model", f"at most {self.rounds}"
            if self.questions:
                yield "queries from studies", f"at most {self.questions:,}"
        if self.key_env:
            yield "key sent to this model", f"from {self.key_env}, if the variable is set"
        yield "requests to this model", f"at most {self.cost.calls:,}"
        prompt_tokens, answered = self.cost.prompt_tokens, self.cost.completion_tokens
        yield (
            "tokens sent and received",
            f"at most about {prompt_tokens:,}, and at most {answered:,}",
        )
        if self.cost.usd:
            yield "price", f"at most about {self.cost.usd:,.2f} USD"
        elif self.paid:
            yield "price", "unknown, because the endpoint's prices are not set"
        if self.caps:
            yield (
                "caps on this model",
                ", ".join(f"{key} = {cap:,}" for key, cap in self.caps.items()),
            )
        elif self.paid:
            keys = ("policy.endpoint.max_usd_total", "policy.endpoint.max_tokens_total")
            if self.rounds is not None:
                keys = ("advisor.max_usd_total", "advisor.max_tokens_total")
            yield "warning: no caps on this model", f"set {' or '.join(keys)}"


def estimate_costs(config: RunConfig) -> list[CostEstimate]:
    """Return a cost estimate for each model that a run may query, or [] for a replay."""
    if config.tape.mode == "replay":
        return []
    by_model: dict[str, CostEstimate] = {}
    firsts: set[tuple[str, int]] = set()

    def add(estimate: CostEstimate) -> None:
        known = by_model.get(estimate.model)
        by_model[estimate.model] = estimate if known is None else _merge_estimates(known, estimate)

    for arm in arm_configs(config).values():
        if arm.explorer.kind == "model":
            name, n, own = (
                _model_with_location(arm.explorer.model),
                n_initial_tasks(config, arm),
                arm.finds_own_tasks,
            )
            with_first = n > 0 and (own or (name, n) not in firsts)
            add(_explorer_estimate(config, arm, name, with_first=with_first))
            if not own:
                firsts.add((name, n))
        if arm.questions_per_step:
            add(_studies_estimate(config, arm))
    return [_apply_total_caps(estimate) for estimate in by_model.values() if estimate.cost.calls]


def estimate_evaluation_cost(
    config: RunConfig, episodes: int, questions: int = 0
) -> list[CostEstimate]:
    """Estimate the cost of an evaluation whose policy runs behind a model endpoint.

    ``episodes`` is the number of episodes still to be played, and ``questions`` is the maximum
    number of questions about failures.
    """
    endpoint, chat = config.policy.endpoint, config.policy.chat
    if config.policy.kind != "openai" or not episodes:
        return []
    requests = 2 if chat.memory == "model" else 1  # per step
    cost = _request_usage(ACT_TOKENS, chat.max_answer_tokens)
    cost = cost.times(episodes * max_steps_per_episode(config) * requests)
    cost += _request_usage(QUESTION_TOKENS, chat.max_answer_tokens).times(questions * _AGAIN)
    estimate = CostEstimate(
        model=_endpoint_with_location(endpoint),
        paid=may_cost_money(endpoint),
        rounds=None,
        cost=_add_price(cost, endpoint.prices),
        key_env=endpoint.api_key_env or "",
        caps=_caps_by_setting(endpoint.caps, "policy.endpoint"),
    )
    return [_apply_total_caps(estimate)]


def merge_evaluation_costs(asked: Sequence[CostEstimate]) -> list[CostEstimate]:
    """Add up the estimates of several evaluations by model, whose caps include all of them."""
    by_model: dict[str, CostEstimate] = {}
    for one in asked:
        known = by_model.get(one.model)
        by_model[one.model] = one if known is None else _merge_estimates(known, one)
    whole = (one.model_copy(update={"rounds": None}) for one in by_model.values())
    return [_apply_total_caps(one) for one in whole]


def refuse_if_paid(asked: list[CostEstimate]) -> None:
    """Refuse to start anything that may cost money unless the user has agreed to the cost.

    Raises:
        ConfigError: if work may cost money; the message says how much, and how to agree.
    """
    if paid := [estimate for estimate in asked if estimate.paid]:
        raise ConfigError(
            f"{describe_costs(paid)}\nTo accept the cost, pass --yes (yes=True in Python)."
        )


def describe_costs(paid: list[CostEstimate]) -> str:
    """Describe the cost that the user has to agree to."""
    what = "evaluation" if paid[0].rounds is None else "run"
    lines = [f"This {what} queries a model that may cost money."]
    for estimate in paid:
        lines += [f"  {what}: {how_much}" for what, how_much in estimate.to_rows()]
    return "\n".join(lines)


def may_cost_money(endpoint: EndpointConfig) -> bool:
    """Return True if an endpoint may cost money: it has a price or is on a public host."""
    return any(endpoint.prices) or not is_local(endpoint.base_url)


def is_local(url: str) -> bool:
    """Return True if a URL points to this machine or a private network.

    Example:
        >>> is_local("http://127.0.0.1:8000/v1"), is_local("https://api.openai.com/v1")
        (True, False)
    """
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host


def _model_with_location(model: ExplorerModelSettings) -> str:
    if model.kind == "policy":
        return "the policy being trained"
    return (
        _endpoint_with_location(model.endpoint)
        if model.kind == "openai"
        else f"{model.kind}:{model.model.path}"
    )


def _endpoint_with_location(endpoint: EndpointConfig) -> str:
    return f"{endpoint.model} at {endpoint.base_url}"


def _explorer_estimate(
    config: RunConfig, arm: ArmConfig, name: str, *, with_first: bool
) -> CostEstimate:
    curriculum, model = arm.curriculum, arm.explorer.model
    n_first = 4 * curriculum.initial_size  # one context for each draft that it may try
    rounds = max_rounds(config, arm)
    first = _round_usage(config, arm, n_first, n_first, guided=False)
    whole, growth = first.times(with_first), curriculum.growth
    if growth.kind != "none":
        studies = growth.kind in ("blind", "signals")
        later = _round_usage(config, arm, growth.max_round_contexts, growth.drafts, guided=studies)
        whole += later.times(rounds)
    estimate = _model_estimate(arm, model, name, whole, "explorer.model.endpoint")
    return estimate.model_copy(update={"rounds": rounds + with_first})


def _studies_estimate(config: RunConfig, arm: ArmConfig) -> CostEstimate:
    """Return the maximum cost of an arm's studies, assuming that all answers need repair."""
    model, steps = arm.analyst.model, max_learner_steps(config)
    question = _request_usage(QUESTION_TOKENS, arm.analyst.max_answer_tokens).times(_AGAIN)
    asked = arm.questions_per_step.values()
    step = sum((_apply_round_caps(arm.advisor, question.times(n)) for n in asked), NO_USAGE)
    estimate = _model_estimate(
        arm, model, _model_with_location(model), step.times(steps), "analyst.model.endpoint"
    )
    return estimate.model_copy(update={"questions": sum(asked) * steps})


def _model_estimate(
    arm: ArmConfig, model: ExplorerModelSettings, name: str, cost: Usage, endpoint: str
) -> CostEstimate:
    """Create a model's cost estimate; the caller fills in the rounds and questions.

    ``endpoint`` is the settings key of the model's endpoint.
    """
    remote, caps = model.kind == "openai", _caps_by_setting(arm.advisor, "advisor")
    if remote:
        cost = _add_price(cost, model.endpoint.prices)
        caps |= _caps_by_setting(model.endpoint.caps, endpoint)
    paid = remote and may_cost_money(model.endpoint)
    key_env = (model.endpoint.api_key_env or "") if remote else ""
    return CostEstimate(model=name, paid=paid, rounds=0, cost=cost, key_env=key_env, caps=caps)


def _round_usage(
    config: RunConfig, arm: ArmConfig, contexts: int, drafts: int, *, guided: bool
) -> Usage:
    """Return the maximum cost of one round."""
    explorer = arm.explorer
    steps = min(explorer.max_steps, max_steps_per_episode(config))
    question = _request_usage(QUESTION_TOKENS, explorer.max_answer_tokens).times(_AGAIN)
    act = _request_usage(WALK_TOKENS, explorer.max_action_tokens)
    context = act.times(steps * explorer.walks) + question.times(explorer.walks + guided)
    gates = NO_USAGE
    if arm.gates.has_gate("judge"):
        gates += question
    if arm.gates.has_gate("solve") and arm.gates.solve.solver == "explorer":
        gates += act.times(max_steps_per_episode(config) * arm.gates.solve.tries)
    return _apply_round_caps(arm.advisor, context.times(contexts) + gates.times(drafts))


def _apply_round_caps(caps: Caps, cost: Usage) -> Usage:
    """Limit the estimated cost of a round or study to the per-round caps."""
    capped, most = cost, caps.max_calls_per_round
    if most is not None and capped.calls > most:
        capped = _scale_tokens_and_price(capped, most / capped.calls).model_copy(
            update={"calls": most}
        )
    most = caps.max_tokens_per_round
    if most is not None and capped.tokens > most:
        capped = _scale_tokens_and_price(capped, most / capped.tokens)
    return capped


def _request_usage(prompt_tokens: int, answered: int) -> Usage:
    return Usage(calls=1, prompt_tokens=prompt_tokens, completion_tokens=answered)


def _add_price(usage: Usage, prices: Prices) -> Usage:
    usd = prices.usd(usage.prompt_tokens, usage.completion_tokens)
    return usage.model_copy(update={"usd": usd})


def _caps_by_setting(caps: Caps, key: str) -> dict[str, float]:
    """Return the cost caps that are set, keyed by setting."""
    return {f"{key}.{name}": cap for name, cap in caps.model_dump(exclude_none=True).items()}


def _apply_total_caps(estimate: CostEstimate) -> CostEstimate:
    """Limit a cost estimate to the run's overall cost caps."""
    caps, cost = estimate.caps.items(), estimate.cost
    tokens = [cap for key, cap in caps if key.endswith("max_tokens_total")]
    dollars = [cap for key, cap in caps if key.endswith("max_usd_total")]
    share = min(1.0, min(tokens, default=math.inf) / max(1, cost.tokens))
    if cost.usd:
        share = min(share, min(dollars, default=math.inf) / cost.usd)
    return estimate.model_copy(update={"cost": _scale_tokens_and_price(cost, share)})


def _scale_tokens_and_price(usage: Usage, share: float) -> Usage:
    """Scale token counts and price by a factor, leaving the number of requests unchanged."""
    return Usage(
        calls=usage.calls,
        prompt_tokens=math.ceil(usage.prompt_tokens * share),
        completion_tokens=math.ceil(usage.completion_tokens * share),
        usd=usage.usd * share,
    )


def _merge_estimates(one: CostEstimate, other: CostEstimate) -> CostEstimate:
    return CostEstimate(
        model=one.model,
        paid=one.paid,
        rounds=(one.rounds or 0) + (other.rounds or 0),
        cost=one.cost + other.cost,
        key_env=", ".join(dict.fromkeys(name for name in (one.key_env, other.key_env) if name)),
        caps={**one.caps, **other.caps},
        questions=one.questions + other.questions,
    )

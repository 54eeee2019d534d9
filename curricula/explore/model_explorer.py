"""An explorer that uses a language model to summarise rollouts, explore, and propose tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
from numpy.random import Generator

from coevo_gym.core.benchmark import Benchmark, operations_of, require_proposable, restrictions_of
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import Context, ContextBrief, Explored, Walk
from coevo_gym.core.inquiry import Advisor
from coevo_gym.core.seams import Agent, Sampling
from coevo_gym.core.task import FrozenDict, thaw
from coevo_gym.curricula.explore.abstract import Abstract
from coevo_gym.curricula.explore.explorer import (
    BUDGET,
    Exploration,
    Found,
    require_explorable,
    select_fittest,
)
from coevo_gym.curricula.explore.guide import Guide, hides_request
from coevo_gym.curricula.explore.summarise import Summarise
from coevo_gym.curricula.explore.walks import MakeEnv, Walked, Walks, WalkStart
from coevo_gym.curricula.growth.evidence import exchanges_of, opening_of
from coevo_gym.curricula.signals import UNGUIDED
from coevo_gym.prompts.inquiry import InquiryPrompt, load_inquiry
from coevo_gym.prompts.template import CuePrompt, load_cue

SAMPLING = Sampling(temperature=0.7, max_tokens=2_048)
"""Default sampling settings for summaries and proposals."""


@dataclass(slots=True)
class _Stay:
    """The state of a context while it is being explored."""

    context: Context
    rng: Generator
    brief: ContextBrief | None = None
    walked: list[Walked] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    skipped: str = ""

    @property
    def walks(self) -> tuple[Walk, ...]:
        return tuple(
            Walk(
                context_id=self.context.id,
                number=number,
                exchanges=exchanges_of(walked.rollout),
                opening=opening_of(walked.rollout),
            )
            for number, walked in enumerate(self.walked)
        )

    def to_exploration(self) -> Exploration:
        return Exploration(
            drafts=tuple(self.found),
            env_steps=sum(len(walked.rollout.steps) for walked in self.walked),
            explored=Explored(
                context=self.context,
                brief=self.brief,
                walks=self.walks,
                problems=tuple(self.problems),
            ),
            skipped=self.skipped,
        )


class ModelExplorer:
    """An explorer that uses a language model and works in four stages.

    Contexts are explored together: one batch of questions summarises their rollouts
    (:class:`Summarise`), an agent explores from all contexts (:class:`Walks`) with instructions
    (:class:`Guide`), and the agent's walks are turned into proposals (:class:`Abstract`). Second
    walks start after the first walks and see their actions. Each stage has a fallback: rules
    summarise a rollout if the model does not, and the benchmark's own rules draft tasks from walks
    without proposals. A bad model answer never raises an error.

    Unguided contexts and contexts with a target start from open tasks: the same world without a
    goal. The agent sees the target, and only the best-fitting result is kept.

    Args:
        benchmark: the benchmark, which must support model-based exploration.
        advisor: the advisor for summaries and proposals.
        agent: the agent that explores, which should remember its last exchanges.
        unguided: agent for unguided exploration; None to use the same agent.
        prompts: folder with the prompt files ``summary``, ``guide`` and ``abstract``, and
            ``target`` for contexts with a target.
        tasks: description of valid tasks in the env; "" if there is none.
        walks: walks per context.
        max_steps: maximum steps per walk, at most the env's own limit.
        concurrency: maximum number of contexts explored at the same time.
        max_envs: maximum number of concurrent walks.
        sampling: sampling settings for the answers.
        make_env: creates a fresh env; None for ``gym.make(benchmark.env_id)``.
        inputs: more inputs for the prompts, as JSON; each prompt gets the inputs that its header
            declares. They cannot replace the explorer's own inputs.

    Raises:
        ConfigError: if models cannot explore the benchmark, a prompt does not exist, or no prompt
            declares one of ``inputs``.
    """

    def __init__(
        self,
        benchmark: Benchmark,
        advisor: Advisor,
        agent: Agent,
        *,
        prompts: str,
        unguided: Agent | None = None,
        tasks: str = "",
        walks: int = 2,
        max_steps: int = 18,
        concurrency: int = 8,
        max_envs: int = 16,
        sampling: Sampling = SAMPLING,
        make_env: MakeEnv | None = None,
        inputs: Mapping[str, Any] = FrozenDict(),
    ) -> None:
        self.prompts, self.told = prompts, inputs
        self._check_inputs()
        self.benchmark = require_proposable(benchmark)
        self.concurrency = concurrency
        self.summarise = Summarise(
            advisor,
            f"{prompts}/summary",
            sampling,
            tasks=tasks,
            operations=lambda context: operations_of(self.benchmark, context.task),
            inputs=inputs,
        )
        self.guide = Guide(
            f"{prompts}/guide", f"{prompts}/target", n_actions=max_steps, tasks=tasks, inputs=inputs
        )
        self.n_walks, self.unguided = walks, unguided
        self.walks = Walks(
            agent,
            make_env or (lambda: gym.make(benchmark.env_id)),
            max_steps=max_steps,
            max_envs=max_envs,
        )
        self.abstract = Abstract(
            advisor,
            f"{prompts}/abstract",
            sampling,
            tasks=tasks,
            restrictions=lambda task, walks: restrictions_of(self.benchmark, task, walks),
            inputs=inputs,
        )

    @property
    def identity(self) -> Mapping[str, Any]:
        """The explorer's settings, apart from its models. Runs share rounds only if these match.

        It contains the prompt folder, the prompts' hashes and extra inputs, and the identities of
        agents that have an identity.
        """
        hashes = {prompt.label: prompt.hash for prompt in self._load_prompts()}
        fields = {"prompts": self.prompts, "files": hashes, "told": thaw(self.told)}
        agents = [getattr(one, "identity", {}) for one in (self.walks.agent, self.unguided)]
        return {**fields, "agents": agents} if any(agents) else fields

    def _load_prompts(self) -> Iterator[InquiryPrompt | CuePrompt]:
        """Yield the explorer's prompt files; the file for targets is optional."""
        for name in ("summary", "abstract"):
            yield load_inquiry(f"{self.prompts}/{name}")
        yield load_cue(f"{self.prompts}/guide")
        with suppress(ConfigError):
            yield load_cue(f"{self.prompts}/target")

    def _check_inputs(self) -> None:
        if self.told:
            known = {name for prompt in self._load_prompts() for name in prompt.header.inputs}
            if unknown := sorted(self.told.keys() - known):
                raise ConfigError(
                    f"No prompt in {self.prompts} declares the inputs {', '.join(unknown)}. Add "
                    "them to the header of a prompt that uses them, or do not pass them."
                )

    def explore(
        self, contexts: Sequence[Context], rngs: Sequence[Generator]
    ) -> Sequence[Exploration]:
        """Explore the env, starting from each context's task; see :class:`Explorer`."""
        for context in contexts:
            require_explorable(self.benchmark, context.task)
        stays = [_Stay(*each) for each in zip(contexts, rngs, strict=True)]
        self._summarise(stays)
        self._walk([stay for stay in stays if not stay.skipped])
        self._abstract([stay for stay in stays if not stay.skipped])
        for stay in stays:
            stay.found = [*select_fittest(stay.found, stay.context, self.benchmark)]
        return [stay.to_exploration() for stay in stays]

    def _summarise(self, stays: Sequence[_Stay]) -> None:
        summaries = self.summarise([stay.context for stay in stays])
        for stay, summary in zip(stays, summaries, strict=True):
            stay.brief = summary.brief
            if summary.problem == BUDGET:
                stay.skipped = BUDGET
            elif summary.problem:
                stay.problems.append(f"The rollout was summarised by rule: {summary.problem}")

    def _walk(self, stays: Sequence[_Stay]) -> None:
        """Run the walks; a context's later walks see the actions of its earlier walks."""
        free = [stay for stay in stays if stay.context.kind == UNGUIDED]
        led = [stay for stay in stays if stay.context.kind != UNGUIDED]
        for _ in range(self.n_walks):
            for group, agent in ((led, None), (free, self.unguided)):
                if group:
                    ways = self.walks.run([self._walk_start(stay) for stay in group], agent)
                    for stay, way in zip(group, ways, strict=True):
                        stay.walked.append(way)
        for stay in stays:
            walked = stay.walked
            for number, way in enumerate(walked, start=1):
                if way.problem:
                    n = len(way.rollout.steps)
                    stay.problems.append(f"Walk {number} ended after {n} steps: {way.problem}")
            if not any(way.rollout.steps for way in walked):
                problems = [way.problem for way in walked if way.problem]
                unsent = any(way.unsent for way in walked)
                stay.skipped = BUDGET if unsent else "; ".join(dict.fromkeys(problems))

    def _walk_start(self, stay: _Stay) -> WalkStart:
        context = stay.context
        task = self.benchmark.open(context.task) if hides_request(context) else context.task
        earlier = [walked.rollout.actions for walked in stay.walked if walked.rollout.steps]
        return WalkStart(task, self.guide(context, stay.brief, earlier), stay.rng)

    def _abstract(self, stays: Sequence[_Stay]) -> None:
        """Use the model to turn walks into proposals. If the model fails, make drafts by rule."""
        ways = [
            (stay, walk, walked)
            for stay in stays
            for walk, walked in zip(stay.walks, stay.walked, strict=True)
        ]
        for of_some in self.abstract([(stay.context, walk) for stay, walk, _ in ways]):
            for place, proposal in of_some.proposals:
                ways[place][0].found.append(proposal)
            if not of_some.problem:
                continue
            for place in of_some.walks:
                stay, walk, walked = ways[place]
                stay.problems.append(
                    f"Walk {walk.number + 1} was turned into drafts by rule: {of_some.problem}"
                )
                stay.found += self.benchmark.drafts(walked.rollout, stay.context, stay.rng)

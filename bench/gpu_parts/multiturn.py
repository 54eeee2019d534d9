"""Sampling and updates with conversations of many turns, by the settings of a preset.

A scripted environment appends an observation to each answer, and the conversation goes on at once,
so answers join and leave the batch all the time. Answers have no stop tokens; their lengths, and
those of prompts and observations, are log-normal and always the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from math import log
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from gpu_parts.card import free_memory, peak_memory, time_call
from gpu_parts.conversations import Conversation, Lengths, Range, random_conversations
from gpu_parts.equal import make_trajectories
from gpu_parts.subjects import Subject, use_bf16_on
from gpu_parts.training import estimate_memory

import coevo_gym
from coevo_gym.agents.chat.format import ChatFormat
from coevo_gym.agents.lm.language_model import ModelConfig
from coevo_gym.agents.lm.transformers_policy import TransformersPolicy
from coevo_gym.core.seams import Message, Prompt, Sampling
from coevo_gym.core.trajectory import Group, TokenDecision
from coevo_gym.runs.config import load_config
from coevo_gym.trainers.grpo import GRPO
from coevo_gym.trainers.settings import GRPOConfig

PRESET = "coevolve_appworld_qwen3_4b_h100"


class Amount(NamedTuple):
    """The amount of work.

    Attributes:
        episodes: number of conversations.
        live: number of conversations that are sampled together.
        group_size: number of conversations with the same first prompt.
        turns: number of answers in a conversation.
        lengths: distributions of lengths.
        caches: sizes of the prefix cache, in GiB.
        updated: number of conversations in the update.
        sets: changes to the preset's settings.
    """

    episodes: int
    live: int
    group_size: int
    turns: int
    lengths: Lengths
    caches: tuple[float, ...]
    updated: int
    sets: tuple[str, ...] = ()

    def conversations(self) -> list[Conversation]:
        """Return the conversations, group by group."""
        return random_conversations(
            self.episodes, self.turns, self.lengths, group_size=self.group_size
        )


AMOUNTS = {
    "cuda": Amount(
        episodes=128,
        live=64,
        group_size=8,
        turns=12,
        lengths=Lengths(Range(800, 0.3, 2000), Range(60, 1.0, 512), Range(120, 0.6, 1000)),
        caches=(4.0, 40.0),
        updated=64,
    ),
    "cpu": Amount(
        episodes=4,
        live=3,
        group_size=2,
        turns=2,
        lengths=Lengths(Range(40, 0.3), Range(4, 0.8, 12), Range(8, 0.6)),
        caches=(0.00002, 0.01),
        updated=4,
        sets=(
            "policy.model.max_context=1024",
            "policy.model.lora_rank=4",
            "learner.microbatch_tokens=256",
        ),
    ),
}
"""Amounts of work by device; that for a CPU only suffices to check that all parts run."""


class Played(NamedTuple):
    """The outcome of sampling conversations.

    Attributes:
        seconds: wall time.
        turns: number of complete answers.
        episodes: number of conversations that have ended.
        must_read: prompt tokens that must be read for these answers, if each is read once.
    """

    seconds: float
    turns: int
    episodes: int
    must_read: int


def measure_sampling(subject: Subject, device: str, limit_s: float) -> Iterator[dict[str, Any]]:
    """Yield a row per size of the prefix cache; each may take ``limit_s`` seconds."""
    amount = AMOUNTS[device]
    conversations = amount.conversations()
    for gib in amount.caches:
        free_memory(device)
        sets = (*amount.sets, f"policy.model.prefix_cache_gib={gib}")
        with use_bf16_on(device):
            policy = make_policy(subject, device, sets)
            played = play(policy, conversations, amount.live, limit_s)
        yield {
            "model": subject.name,
            "cache_gib": gib,
            **_sampling_numbers(policy, played),
            "complete": played.episodes == len(conversations),
            "peak_memory": peak_memory(device),
            "planned_memory": _plan(subject, sets, "sampling"),
        }
        del policy


def measure_update(subject: Subject, device: str, limit_s: float) -> Iterator[dict[str, Any]]:
    """Yield one row: an update, and the CUDA graphs captured before and after it.

    Each live conversation has one turn, then there is a small update, one more turn, the measured
    update, and a last turn. A turn may take ``limit_s`` seconds.
    """
    amount = AMOUNTS[device]
    first_turns = [one._replace(turns=one.turns[:1]) for one in amount.conversations()]
    first_turns = first_turns[: amount.live]
    free_memory(device)
    with use_bf16_on(device):
        policy = make_policy(subject, device, amount.sets)
        groups = scripted_groups(amount.conversations(), subject.shape.vocabulary)
        learner = GRPO(policy, _learner_settings(amount.sets))
        captures = [0]
        for n_groups in (1, amount.updated // amount.group_size):
            play(policy, first_turns, amount.live, limit_s)
            captures.append(int(_graph_counts(policy)["captures"]))
            free_memory(device)
            timed = time_call(device, lambda: learner.update(groups[:n_groups]))  # noqa: B023
            peak = peak_memory(device)
        play(policy, first_turns, amount.live, limit_s)
        captures.append(int(_graph_counts(policy)["captures"]))
    metrics = timed.result
    tokens = int(metrics["tokens"] - metrics["samples"])  # a segment's last token is not processed
    yield {
        "model": subject.name,
        "episodes": amount.updated,
        "tokens": tokens,
        "tokens_sampled": int(metrics["tokens_sampled"]),
        "update_s": timed.seconds,
        "tokens_per_s": tokens / timed.seconds,
        "sampler_kl": metrics["sampler_kl"],
        "captures": np.diff(captures).tolist(),
        "peak_memory": peak,
        "planned_memory": _plan(subject, amount.sets, "update"),
    }


def make_policy(subject: Subject, device: str, sets: Sequence[str]) -> TransformersPolicy:
    """Return a policy with the preset's settings, whose answers have no stop tokens."""
    settings = load_config(PRESET, sets=sets).config.policy.model
    changes = {"path": subject.folder, "device": device}
    policy = TransformersPolicy(ModelConfig.model_validate({**settings.model_dump(), **changes}))

    class Endless(ChatFormat):
        stop_ids = ()

    policy.format = Endless(policy.tokenizer)
    return policy


def play(
    policy: TransformersPolicy,
    conversations: Sequence[Conversation],
    live: int,
    limit_s: float,
) -> Played:
    """Sample conversations, ``live`` at a time, until all have ended or the time is over."""
    rng = np.random.default_rng(0)
    firsts = {one.group: _random_text(rng, one.first) for one in conversations}
    news = [[_random_text(rng, turn.observation) for turn in one.turns] for one in conversations]
    waiting = iter(range(len(conversations)))
    turns = [0] * len(conversations)
    done: dict[int, TokenDecision] = {}
    groups: set[int] = set()
    must_read = 0
    started = perf_counter()
    with policy.stream() as answers:

        def ask(i: int, text: str, after: TokenDecision | None = None) -> None:
            sampling = Sampling(1.0, conversations[i].turns[turns[i]].answer)
            seed = (i, turns[i])
            answers.add(i, Prompt((Message("user", text),), sampling, after=after, seed=seed))

        for i in (next(waiting) for _ in range(min(live, len(conversations)))):
            ask(i, firsts[conversations[i].group])
        while len(answers) and perf_counter() - started < limit_s:
            for i, completion in answers.step():
                assert isinstance(completion.decision, TokenDecision)
                group, text = conversations[i].group, news[i][turns[i]]
                must_read += _n_unread(completion.decision, done.get(i), group in groups)
                done[i] = completion.decision
                groups.add(group)
                turns[i] += 1
                if turns[i] < len(conversations[i].turns):
                    ask(i, text, completion.decision)
                elif (other := next(waiting, None)) is not None:
                    ask(other, firsts[conversations[other].group])
    episodes = sum(n == len(one.turns) for n, one in zip(turns, conversations, strict=True))
    return Played(perf_counter() - started, sum(turns), episodes, must_read)


def _n_unread(decision: TokenDecision, earlier: TokenDecision | None, shared: bool) -> int:
    """Return the number of prompt tokens without keys and values, if all earlier ones are kept.

    A sampled answer's last token has none, and the last token of a shared prompt is read again.
    """
    if earlier is not None:
        return len(decision.prompt_ids) - len(earlier.prompt_ids) - len(earlier.ids) + 1
    return 1 if shared else len(decision.prompt_ids)


def scripted_groups(conversations: Sequence[Conversation], vocabulary: int) -> list[Group]:
    """Return episodes of random tokens with the lengths of the conversations."""
    rng = np.random.default_rng(0)
    task = coevo_gym.tasks("webshop", "train")[0]
    groups = []
    for number, members in groupby(conversations, key=lambda one: one.group):
        own = list(members)
        first = _random_ids(rng, vocabulary, own[0].first)
        decided = [_random_decisions(rng, vocabulary, first, one) for one in own]
        trajectories = make_trajectories(task.id, decided)
        groups.append(Group(f"g{number}", task, len(own), trajectories))
    return groups


def _random_decisions(
    rng: np.random.Generator, vocabulary: int, first: tuple[int, ...], one: Conversation
) -> list[TokenDecision]:
    decisions, prompt = [], first
    for turn in one.turns:
        ids = _random_ids(rng, vocabulary, turn.answer)
        decisions.append(TokenDecision(prompt, ids, (-log(vocabulary),) * len(ids)))
        prompt = (*prompt, *ids, *_random_ids(rng, vocabulary, turn.observation))
    return decisions


def _random_ids(rng: np.random.Generator, vocabulary: int, n: int) -> tuple[int, ...]:
    return tuple(rng.integers(vocabulary, size=n).tolist())


def _random_text(rng: np.random.Generator, n: int) -> str:
    """Return ``n`` digits, each of which is a token."""
    return "".join(map(str, rng.integers(10, size=n)))


def _learner_settings(sets: Sequence[str]) -> GRPOConfig:
    learner = load_config(PRESET, sets=sets).config.learner
    assert isinstance(learner, GRPOConfig)
    return learner


def _plan(subject: Subject, sets: Sequence[str], phase: str) -> int:
    """Return the planner's estimate of a phase's peak bytes on a GPU."""
    own = ("policy.kind=transformers", f"policy.model.path={subject.folder}")
    return estimate_memory(PRESET, (*own, *sets), subject.shape).peaks[phase]


def _graph_counts(policy: TransformersPolicy) -> dict[str, float]:
    """Return the counts of the policy's graph decoder; zeros on a CPU, where it has none."""
    decoder = policy._decoder
    if decoder is None:
        return {"captures": 0, "capture_s": 0.0, "declined": 0}
    return asdict(decoder.counts)


def _sampling_numbers(policy: TransformersPolicy, played: Played) -> dict[str, Any]:
    counts = policy.sampling_counts
    return {
        **asdict(counts),
        **_graph_counts(policy),
        **played._asdict(),
        "tokens_per_s": counts.sampled / played.seconds,
        "reused_share": counts.reused / max(1, counts.read + counts.reused),
        "graphless_share": 1 - counts.decoded_with_graph / max(1, counts.decoded),
        "rows_per_pass": counts.rows / max(1, counts.passes),
    }

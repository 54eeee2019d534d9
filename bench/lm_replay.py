"""Processor time of sampling the episodes of a run again, in three ways.

"wait": the episodes' next prompts wait until the longest answer has ended. "join": each prompt
joins the batch as soon as it exists. "guess": repeated tokens are also guessed, as the policy does
on a CPU; see :mod:`coevo_gym.agents.lm.repetition`.

Episodes are replayed 8 at a time. Each draw is computed as usual and then replaced by the recorded
token, so all ways sample the same answers. The ways take turns, and the smallest time of each
counts. The model computes in fp32 on one thread.

The episodes are those of an export, a folder with ``train.jsonl``:

     coevo train webshop_smollm2 --name recorded --set store.record=all
     coevo export recorded --format jsonl
     python bench/lm_replay.py recorded-jsonl --model smollm2

The exit code is 1 if a way takes longer than the one before it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch

from coevo_gym.agents.lm import sampler as sampling
from coevo_gym.agents.lm.answers import Ask, Ids, SamplingCounts
from coevo_gym.agents.lm.blocked_weights import BlockedWeights
from coevo_gym.agents.lm.cached_attention import draw_tokens
from coevo_gym.agents.lm.causal_lm import head_of
from coevo_gym.agents.lm.language_model import ModelConfig
from coevo_gym.agents.lm.prefix_cache import PrefixCache
from coevo_gym.agents.lm.transformers_policy import TransformersPolicy

LIVE = 8
"""Number of episodes at a time."""
MAX_BEYOND = 32
"""Tokens that an answer might have had after its stop token, which guesses may reach."""


class Turn(NamedTuple):
    """A recorded prompt and its answer."""

    prompt: Ids
    answer: Ids


class Replay(sampling.TokenSampler[tuple[int, int]]):
    """A sampler that computes each draw, and then replaces it by the recorded token.

    Args:
        episodes: the recorded turns of each episode; keys are places of an episode and a turn.
        stop_ids: ids that end an answer.
        options: other arguments of the sampler.
    """

    def __init__(
        self, episodes: Sequence[Sequence[Turn]], stop_ids: Sequence[int], **options: Any
    ) -> None:
        super().__init__(
            stop_ids=stop_ids, max_pass_tokens=2**16, prefixes=PrefixCache(2**32), **options
        )
        self._episodes = episodes

    def ask(self, episode: int, turn: int) -> None:
        """Add a turn's prompt."""
        prompt, answer = self._episodes[episode][turn]
        most = len(answer) + (MAX_BEYOND if answer[-1] in self._stop_ids else 0)
        self.add((episode, turn), Ask(prompt, 1.0, most, (episode, turn)))

    def _draw_eagerly(self, rows: Any, *, most_guessed: int = 0) -> Any:
        recorded = list[int]()
        for row in rows:
            episode, turn = row.key
            rest = self._episodes[episode][turn].answer[len(row.ids) :]
            n = 1 + len(row.guess(most_guessed))
            recorded += [*rest, *rest[-1:] * n][:n]  # draws after an answer's end do not count

        def draw_recorded(*arguments: Any) -> Any:
            _, logprobs = draw_tokens(*arguments)
            return torch.tensor(recorded), logprobs

        with mock.patch.object(sampling, "draw_tokens", draw_recorded):
            return super()._draw_eagerly(rows, most_guessed=most_guessed)


def read_episodes(folder: Path) -> list[list[Turn]]:
    """Return the turns of all episodes whose token ids are stored."""
    with (folder / "train.jsonl").open(encoding="utf-8") as lines:
        rows = [json.loads(line)["steps"] for line in lines]
    episodes = [
        [Turn(tuple(step["prompt_ids"]), tuple(step["ids"])) for step in steps] for steps in rows
    ]
    return [
        turns for turns in episodes if turns and all(one.prompt and one.answer for one in turns)
    ]


class Way(NamedTuple):
    """A way of sampling.

    Attributes:
        joins: True if a prompt joins the batch while answers to others are sampled.
        guesses: True if repeated tokens are guessed.
    """

    joins: bool
    guesses: bool


WAYS = {"wait": Way(False, False), "join": Way(True, False), "guess": Way(True, True)}


def replay(
    policy: TransformersPolicy, episodes: Sequence[Sequence[Turn]], way: Way
) -> tuple[float, SamplingCounts]:
    """Sample all episodes; return the processor time in seconds, and the counts.

    Answers that differ from the recorded ones would be a fault of the sampler.
    """
    counts, cpu_s = SamplingCounts(), 0.0
    most_guessed = sampling._most_guessed if way.guesses else lambda n_rows: 0
    for start in range(0, len(episodes), LIVE):
        live = episodes[start : start + LIVE]
        sampler = Replay(live, [*policy.format.stop_ids], model=policy.model, counts=counts)
        following = [(episode, 0) for episode in range(len(live))]
        started = time.process_time()
        with mock.patch.object(sampling, "_most_guessed", most_guessed):
            while following or len(sampler):
                if way.joins or not len(sampler):
                    for episode, turn in following:
                        sampler.ask(episode, turn)
                    following = []
                for (episode, turn), answer in sampler.step():
                    assert answer.ids == live[episode][turn].answer
                    if turn + 1 < len(live[episode]):
                        following.append((episode, turn + 1))
        cpu_s += time.process_time() - started
    return cpu_s, counts


def main() -> int:
    """Print a table; return 1 if a way takes longer than the one before it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("export", type=Path, help="folder of an export with --format jsonl")
    parser.add_argument("--model", default="smollm2", help="the run's model (default: smollm2)")
    parser.add_argument("--episodes", type=int, default=16, help="episodes (default: 16)")
    parser.add_argument("--repeats", type=int, default=3, help="repeats of each way (default: 3)")
    options = parser.parse_args()
    try:
        episodes = read_episodes(options.export)[: options.episodes]
    except OSError as error:
        parser.error(f"{error}. Pass the folder that `coevo export RUN --format jsonl` has written")
    if not episodes:
        parser.error(f"{options.export} has no episodes with token ids")
    torch.set_num_threads(1)
    policy = TransformersPolicy(ModelConfig(path=options.model, device="cpu"))
    blocked = BlockedWeights(policy.model, policy.model.dtype, head_of(policy.model))
    costs: dict[str, list[tuple[float, SamplingCounts]]] = {name: [] for name in WAYS}
    with torch.no_grad(), blocked.use():
        replay(policy, [episodes[0][:1]], WAYS["wait"])  # a process's first passes take longer
        for _ in range(options.repeats):
            for name, way in WAYS.items():
                costs[name].append(replay(policy, episodes, way))
    n_tokens = sum(len(turn.answer) for turns in episodes for turn in turns)
    print(f"{len(episodes)} episodes, {n_tokens:,} sampled tokens\n")
    print("| way | passes | answers per pass | guessed | right | CPU s | CPU s to wait |")
    print("|---|---|---|---|---|---|---|")
    times = [min(cpu_s for cpu_s, _ in runs) for runs in costs.values()]
    for (name, runs), cpu_s in zip(costs.items(), times, strict=True):
        counts = runs[0][1]
        print(
            f"| {name} | {counts.passes} | {counts.rows / counts.passes:.1f} | {counts.guessed} "
            f"| {counts.right_guesses} | {cpu_s:.1f} | {cpu_s / times[0]:.2f} |"
        )
    return 0 if times == sorted(times, reverse=True) else 1


if __name__ == "__main__":
    sys.exit(main())

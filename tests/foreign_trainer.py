"""A trainer that has never heard of curricula: it knows reset and step."""

from __future__ import annotations

import gymnasium
from gymnasium.utils import seeding

from coevo_gym import EvolvingTaskSampler


def guess(observation, info, n, rng):  # type: ignore[no-untyped-def]
    """Do what the text names, in that order; now and then anything."""
    query = observation[-80:].replace("[SEP]", " ")
    offered = info["admissible"] or (f"search[{query}]",)
    if rng.random() < 0.25:
        return offered[int(rng.integers(len(offered)))]
    names = [action.split()[-1].removeprefix("click[").rstrip("]") for action in offered]
    places = [observation.lower().find(name) for name in names]
    matches = [action for at, action in sorted(zip(places, offered, strict=True)) if at >= 0]
    return matches[n] if n < len(matches) else offered[-1]


def train(env, episodes, seed=0):  # type: ignore[no-untyped-def]
    """Repeat what was rewarded before; returns (task id, reward or None if it was bored)."""
    rng, _ = seeding.np_random(seed)
    memory, log = {}, []
    for _ in range(episodes):
        first, info = env.reset()
        task_id, observation, actions, over = info["task_id"], first, [], False
        known = memory.get(first, []) if rng.random() < 0.5 else []
        bored = rng.random() < 0.1
        while not over and not (bored and actions):
            n = len(actions)
            actions.append(known[n] if n < len(known) else guess(observation, info, n, rng))
            observation, reward, terminated, truncated, info = env.step(actions[-1])
            over = terminated or truncated
        if over and reward > 0:
            memory[first] = actions
        log.append((task_id, reward if over else None))
    return log


if __name__ == "__main__":
    train(EvolvingTaskSampler(gymnasium.make("coevo_gym:CoEvolve-WebShop-v0")), 100)

"""Each adapter that takes a session also takes the session of a server."""

from __future__ import annotations

import multiprocessing
import pickle
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from coevo_gym import EvolvingTaskSampler, EvolvingVectorSampler
from coevo_gym.agents.scripted import RandomAgent
from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.errors import ConfigError
from coevo_gym.curricula.session.http_session import HTTPSession
from coevo_gym.curricula.session.stream import run_session_episodes
from coevo_gym.episodes.env_pool import EnvPool
from coevo_gym.prompts import parse_prompt
from coevo_gym.serve.ray_actor import connect_session
from coevo_gym.trainers.adapters import rllib
from coevo_gym.trainers.adapters.chat_rollout import ChatRollout
from coevo_gym.trainers.adapters.checkpoint import load_session, save_session
from tests import toy
from tests.serve.standing import open_session, run_server
from tests.serve.test_http_session import served

K = 2
PROMPT = parse_prompt(toy.PROMPT)


def play_sampler(session: HTTPSession) -> None:
    env = EvolvingTaskSampler(gym.make("Toy-v0"), session=session)
    for _ in range(K):
        env.reset()
        env.step("done")
    env.close()


def play_vector_sampler(session: HTTPSession) -> None:
    envs = EvolvingVectorSampler(gym.make_vec("Toy-v0", K), session=session)
    envs.reset()
    envs.step(["done"] * K)
    envs.close()


def play_worker(session: HTTPSession) -> None:
    agent = RandomAgent(get_benchmark("toy").choices, np.random.default_rng(0))
    envs = EnvPool(lambda: gym.make("Toy-v0"), max_envs=K)
    assert run_session_episodes(session, agent, envs, episodes=K) == K


def play_chats(session: HTTPSession) -> None:
    rollouts = [ChatRollout("Toy-v0", session, prompt=PROMPT) for _ in range(K)]
    openings = [rollout.begin(slot="row 0") for rollout in rollouts]
    assert openings[0] == openings[1]
    for rollout in rollouts:
        rollout.send_answer("<action>done</action>")
        assert rollout.end() == 0.0


def play_trl(session: HTTPSession) -> None:
    pytest.importorskip("transformers")
    from coevo_gym.trainers.adapters.trl import TRLPlug
    from tests.adapters.test_trl import begin

    plug = TRLPlug("Toy-v0", session, prompt=PROMPT)
    envs: list[Any] = [plug.make_environment() for _ in range(K)]
    with pytest.raises(ConfigError, match=f"group size is {K}, but .* Set num_generations={K}"):
        begin(plug, n_generations=K + 1)
    begin(plug, n_generations=K, world_size=2)
    assert len({env.reset(**plug.rows(1)[0]) for env in envs}) == 1
    for env in envs:
        env.act("<action>done</action>")
        assert env.get_reward() == 0.0


def play_rllib(session: HTTPSession) -> None:
    config = {"session": session.address, "max_choices": 4, "dim": 8, "env_kwargs": {}}
    env = rllib.make_env({**config, "env_id": "Toy-v0", "split": "train"})
    for _ in range(K):
        env.reset()
        over = False
        while not over:
            *_, terminated, truncated, _ = env.step(0)
            over = terminated or truncated
    env.close()


def play_sb3(session: HTTPSession) -> None:
    pytest.importorskip("stable_baselines3")
    from coevo_gym.trainers.adapters.sb3 import make_envs

    envs = make_envs("Toy-v0", K, max_choices=4, dim=8, session=session)
    envs.reset()
    while session.ticket_counts["reported"] < K:
        envs.step(np.zeros(K, np.int64))
    envs.close()


def play_skyrl(session: HTTPSession) -> None:
    pytest.importorskip("skyrl_gym")
    script = Path(__file__).parents[2] / "docs" / "trainers" / "skyrl_env.py"
    text = runpy.run_path(str(script))["CurriculumText"]
    text.env_id, text.session, text.prompt = "Toy-v0", session, PROMPT
    for _ in range(K):
        env = text(extras={"slot": "row 0"})
        env.init([])
        assert env.step("<action>done</action>")["done"]


PLAYERS = [
    play_sampler,
    play_vector_sampler,
    play_worker,
    play_chats,
    play_trl,
    play_rllib,
    play_sb3,
    play_skyrl,
]


@pytest.mark.parametrize("play", PLAYERS)
def test_an_adapter_plays_a_group_of_a_served_session(
    play: Callable[[HTTPSession], None], tmp_path: Path
) -> None:
    with served(tmp_path, group_size=K, groups_per_step=2) as session:
        play(session)
        assert session.metrics()["rounds"] == 1, "the round that finds the first tasks"
        counts = session.ticket_counts
        assert counts["reported"] == K
        assert not counts["lapsed"]
        assert session.state_dict()["ledger"]["groups"][0]["task"]
        save_session(session, tmp_path / "checkpoint")
        load_session(session, tmp_path / "checkpoint")
        assert not session.outstanding_tickets


def test_a_sampler_in_a_child_process_takes_a_served_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object())
    with served(tmp_path, group_size=K) as session:
        play_sampler(session)
        assert session.metrics()["groups"] == 1


def test_a_pickled_trl_environment_plays_in_the_groups_of_its_plug(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from coevo_gym.trainers.adapters.trl import TRLPlug
    from tests.adapters.test_trl import begin

    with served(tmp_path, group_size=K) as session:
        plug = TRLPlug("Toy-v0", session, prompt=PROMPT)
        factory = pickle.loads(pickle.dumps(plug.make_environment))
        begin(plug, n_generations=K)
        plug.version = 3
        envs: list[Any] = [plug.make_environment(), factory()]
        assert len({env.reset(**plug.rows(1)[0]) for env in envs}) == 1
        assert [ticket.policy_version for ticket in session.outstanding_tickets] == [3, 3]
        for env in envs:
            env.act("<action>done</action>")
        assert session.metrics()["groups"] == 1


def test_slots_of_a_killed_training_are_not_continued_by_the_next(tmp_path: Path) -> None:
    """Otherwise the K copies of a row would get two tasks: the old group has fewer places left."""
    pytest.importorskip("transformers")
    from coevo_gym.trainers.adapters.trl import TRLPlug
    from tests.adapters.test_trl import begin

    with served(tmp_path, group_size=K, groups_per_step=2) as session:
        for n_copies in (K - 1, K):
            plug = TRLPlug("Toy-v0", session, prompt=PROMPT)
            envs: list[Any] = [plug.make_environment() for _ in range(n_copies)]
            begin(plug, n_generations=K)
            for env in envs:
                env.reset(**plug.rows(1)[0])
        *_, first, second = session.outstanding_tickets
        assert first.group_id == second.group_id


def test_a_session_is_found_by_its_address(tmp_path: Path) -> None:
    with run_server(open_session(tmp_path / "a.db")) as server:
        session = connect_session(server.address)
        assert isinstance(session, HTTPSession)
        assert session.address == server.address

"""ReST: rollouts are gathered, the best are imitated, and a stop in mid-Grow changes nothing."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from pydantic import TypeAdapter, ValidationError  # noqa: E402

from coevo_gym.agents.choice import ChoiceAgent  # noqa: E402
from coevo_gym.agents.tiny.policy import TinyConfig, TinyPolicy  # noqa: E402
from coevo_gym.core.errors import ConfigError, SplitLeakError  # noqa: E402
from coevo_gym.core.task import Split  # noqa: E402
from coevo_gym.core.trajectory import EndReason, Group  # noqa: E402
from coevo_gym.episodes.env_pool import EnvPool  # noqa: E402
from coevo_gym.trainers.credit import Credit, LeaveOneOut  # noqa: E402
from coevo_gym.trainers.demonstrations import demonstrate  # noqa: E402
from coevo_gym.trainers.grpo import GRPO  # noqa: E402
from coevo_gym.trainers.learners import make_learner  # noqa: E402
from coevo_gym.trainers.ppo import PPO  # noqa: E402
from coevo_gym.trainers.rest import ReST, indices_above  # noqa: E402
from coevo_gym.trainers.segments import count_sampled  # noqa: E402
from coevo_gym.trainers.settings import (  # noqa: E402
    GRPOConfig,
    ImitationConfig,
    ImproveConfig,
    LearnerConfig,
    PPOConfig,
    RestConfig,
)
from coevo_gym.trainers.sft import imitate  # noqa: E402
from tests.toy import BENCHMARK  # noqa: E402
from tests.trainers.episodes import FakeLanguageModel, batch, group, trajectory  # noqa: E402
from tests.trainers.test_ppo import Valued, collect  # noqa: E402

TRAIN, VAL = BENCHMARK.tasks(Split.TRAIN), BENCHMARK.tasks(Split.VAL)
QUICK = ImproveConfig(max_epochs=3, lr=0.1)


def learner(seed: int = 0, **settings: Any) -> ReST:
    defaults = {"grow_steps": 2, "imitation": QUICK, "thresholds": (0.0, 0.5)}
    return ReST(FakeLanguageModel(seed), RestConfig(**(defaults | settings)), seed=seed)


def table(one: ReST) -> torch.Tensor:
    return next(iter(one.policy.parameters())).detach().clone()


def scored(score: float) -> Group:
    (original,) = batch(FakeLanguageModel(), groups=1, size=2)
    trajectories = (dataclasses.replace(t, score=score) for t in original.trajectories)
    return dataclasses.replace(original, trajectories=tuple(trajectories))


def test_select_above_excludes_scores_equal_to_the_threshold() -> None:
    assert indices_above([0.0, 0.5, 0.51, 1.0], 0.5) == [2, 3]


class TestGrow:
    def test_nothing_is_learned_before_the_last_grow_step(self) -> None:
        one = learner()
        before, groups = table(one), batch(FakeLanguageModel())
        first = one.update(groups, one.advantages(groups))
        assert "watched_loss" not in first
        assert (first["gathered"], one.version) == (12.0, 0)
        assert torch.equal(table(one), before)
        second = one.update(groups)
        assert second["gathered"] == 24.0
        assert second["watched_loss"] > 0
        assert one.version == 2  # two thresholds
        assert not torch.equal(table(one), before)
        assert one.update(groups)["gathered"] == 12.0

    def test_only_imitated_tokens_carry_a_gradient(self) -> None:
        one = learner(imitation=ImproveConfig(max_epochs=2, lr=0.1, holdout=0.0))
        good, best = scored(0.3), scored(1.0)
        assert one.update([good])["tokens_with_gradient"] == 0.0
        imitated = sum(count_sampled(t) for group in (good, best) for t in group.trajectories)
        assert one.update([best, scored(0.0)])["tokens_with_gradient"] == imitated > 0

    def test_accepted_shares_are_relative_to_all_rollouts_that_were_not_lost(self) -> None:
        one = learner(grow_steps=1, thresholds=(0.0, 0.25, 0.5))
        lost = trajectory([None], end=EndReason.WORKER_LOST)
        metrics = one.update([scored(0.0), scored(0.3), scored(1.0), group(lost)])
        shares = [metrics[f"accepted_share@{name}"] for name in ("0", "0.25", "0.5")]
        assert shares == pytest.approx([4 / 6, 4 / 6, 2 / 6])

    def test_without_accepted_rollouts_the_policy_is_unchanged(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        one = learner(grow_steps=1)
        before = table(one)
        metrics = one.update([scored(0.0)])
        assert metrics["accepted_share@0"] == 0.0
        assert "watched_loss" not in metrics
        assert torch.equal(table(one), before)
        assert "none of 2 rollouts" in caplog.text
        assert one.version == 0
        assert one.update([])["success"] == 0.0

    def test_improve_from_selects_the_weights_that_an_improve_starts_from(self) -> None:
        tables = {}
        for start in ("start", "last"):
            for thresholds in ((0.0, 0.5), (0.5,)):
                one = learner(grow_steps=1, thresholds=thresholds, improve_from=start)
                one.update([scored(0.3), scored(1.0)])
                tables[start, len(thresholds)] = table(one)
        assert not torch.allclose(tables["start", 2], tables["last", 2])
        assert not torch.allclose(tables["last", 2], tables["last", 1])
        # The last threshold alone makes the policy; only the order of its batches is drawn anew.
        torch.testing.assert_close(tables["start", 2], tables["start", 1])

    def test_only_rollouts_that_an_improve_will_imitate_have_an_advantage(self) -> None:
        assert learner().advantages([scored(0.0), scored(0.3)]) == [[0.0, 0.0], [1.0, 1.0]]

    def test_held_out_tasks_are_refused(self) -> None:
        one = learner(grow_steps=1)
        with pytest.raises(SplitLeakError):
            one.update([dataclasses.replace(scored(1.0), task=VAL[0])])

    @pytest.mark.parametrize("stop", [1, 2, 3])
    def test_a_learner_restored_during_a_grow_continues_exactly(self, stop: int) -> None:
        steps = [batch(FakeLanguageModel(), seed=n) for n in range(4)]
        straight = learner(seed=4, grow_steps=3)
        for groups in steps[:stop]:
            straight.update(groups)
        buffer = io.BytesIO()
        torch.save([straight.policy.state_dict(), straight.state_dict(reference=False)], buffer)
        buffer.seek(0)
        policy_state, state = torch.load(buffer, weights_only=True)
        resumed = learner(seed=5, grow_steps=3)
        resumed.policy.load_state_dict(policy_state)
        resumed.load_state_dict(state)
        for groups in steps[stop:]:
            assert straight.update(groups) == resumed.update(groups)
        assert torch.equal(table(straight), table(resumed))


class TestSettings:
    READ = TypeAdapter(LearnerConfig)

    def test_a_section_without_a_kind_is_a_policy_gradient(self) -> None:
        assert self.READ.validate_python({"lr": 0.5, "advantage": "rloo"}) == GRPOConfig(
            lr=0.5, advantage="rloo"
        )
        assert self.READ.validate_python(PPOConfig()) == PPOConfig()
        assert self.READ.validate_python({"kind": "ppo", "level": "token"}).level == "token"
        settings = self.READ.validate_python({"kind": "rest", "imitation": {"lr": 0.5}})
        assert (settings.imitation.lr, settings.imitation.max_epochs) == (0.5, 20)

    @pytest.mark.parametrize(
        ("section", "message"),
        [
            ({"kind": "ppo", "advantage": "rloo"}, "advantage"),
            ({"kind": "sarsa"}, "sarsa"),
            ({"kind": "rest", "thresholds": [0.5, 0.0]}, "thresholds must increase"),
            ({"kind": "rest", "thresholds": [1.0]}, "less than 1"),
        ],
    )
    def test_invalid_learner_settings_are_refused(
        self, section: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ValidationError, match=message):
            self.READ.validate_python(section)

    def test_the_kind_setting_selects_the_learner(self) -> None:
        credit = Credit(LeaveOneOut())
        pg = make_learner(GRPOConfig(), FakeLanguageModel(), credit, 3)
        assert isinstance(pg, GRPO)
        assert pg.credit is credit
        assert isinstance(make_learner(PPOConfig(), Valued()), PPO)
        assert isinstance(make_learner(RestConfig(), FakeLanguageModel()), ReST)

    @pytest.mark.parametrize("settings", [PPOConfig(), RestConfig()], ids=lambda one: one.kind)
    def test_credit_is_refused_for_learners_that_do_not_use_it(
        self, settings: PPOConfig | RestConfig
    ) -> None:
        with pytest.raises(
            ConfigError, match=f"kind '{settings.kind}' does not use credit assignment"
        ):
            make_learner(settings, Valued(), Credit(LeaveOneOut()))


def test_rest_accepts_more_rollouts_and_lowers_the_loss_over_time(envs: EnvPool) -> None:
    """The watched loss falls within an Improve, and more and more rollouts are accepted."""
    policy = TinyPolicy(TinyConfig(dropout=0.1), seed=1)
    agent = ChoiceAgent(policy, BENCHMARK.choices)
    few = ImitationConfig(max_epochs=12, lr=1e-3, batch_decisions=8)
    imitate(policy, demonstrate(TRAIN[:10], envs, BENCHMARK, agent), few)
    settings = RestConfig(grow_steps=2, imitation=ImproveConfig(max_epochs=12, lr=1e-3))
    one = ReST(policy, settings, seed=1)
    improved = []
    for step in range(6):
        rng = np.random.default_rng(step)
        tasks = [TRAIN[int(i)] for i in rng.integers(len(TRAIN), size=12)]
        metrics = one.update(collect(policy, envs, tasks, size=8, seed=step))
        if "watched_loss" in metrics:
            improved.append(metrics)
    assert len(improved) == 3
    shares = [metrics["accepted_share@0.5"] for metrics in improved]
    assert shares == sorted(shares)
    assert shares[-1] > shares[0] + 0.2
    assert improved[0]["watched_loss"] < improved[0]["watched_loss_first"]
    assert improved[-1]["watched_loss"] < improved[0]["watched_loss"]

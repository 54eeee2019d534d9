from __future__ import annotations

import copy
import dataclasses
import io
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from coevo_gym.core.errors import TrainingDiverged  # noqa: E402
from coevo_gym.core.trajectory import EndReason, Group, TokenDecision, Trajectory  # noqa: E402
from coevo_gym.trainers.grpo import GRPO, GRPOConfig, k3  # noqa: E402
from coevo_gym.trainers.segments import segments  # noqa: E402
from coevo_gym.trainers.update.loss import LossInputs  # noqa: E402
from coevo_gym.trainers.update.ranks import split_rows  # noqa: E402
from tests.trainers.episodes import (  # noqa: E402
    VOCABULARY,
    FakeLanguageModel,
    batch,
    conversation,
    group,
    trajectory,
)

ONE_STEP: dict[str, Any] = {"epochs": 1, "lr": 0.1, "max_grad_norm": 1e9}


def gradient(
    groups: list[Group], advantages: list[list[Any]] | None = None, seed: int = 0, **settings: Any
) -> torch.Tensor:
    """The gradient of one update of one step."""
    model = FakeLanguageModel(seed)
    GRPO(model, GRPOConfig(**(ONE_STEP | settings))).update(groups, advantages)
    assert model.table.grad is not None
    return model.table.grad


def by_hand(
    model: FakeLanguageModel, terms: list[tuple[TokenDecision, float]], divisor: float
) -> torch.Tensor:
    """Gradient of -sum(advantage * log-probability) / divisor: the ratio is 1, the KL term flat."""
    table = model.table.detach().clone().requires_grad_()
    logps = torch.log_softmax(table, dim=1)
    loss = torch.zeros(())
    for decision, advantage in terms:
        before = (decision.prompt_ids[-1], *decision.ids[:-1])
        for b, i in zip(before, decision.ids, strict=True):
            loss = loss - advantage * logps[b, i] / divisor
    (grad,) = torch.autograd.grad(loss, table)
    return grad


def gradients_of(learner: GRPO, model: FakeLanguageModel) -> list[torch.Tensor]:
    """Filled with the gradient of each step that the learner's optimiser is asked for."""
    seen: list[torch.Tensor] = []
    step = learner._optimizer.step

    def note(loss: float) -> float | None:
        assert model.table.grad is not None
        seen.append(model.table.grad.clone())
        return step(loss)

    learner._optimizer.step = note  # type: ignore[method-assign]
    return seen


def sample_conversations(
    *lengths: list[int], seed: int = 0
) -> tuple[list[list[TokenDecision]], list[Trajectory]]:
    """Conversations of the first model; every other one solved."""
    model, rng = FakeLanguageModel(), np.random.default_rng(seed)
    decisions = [conversation(model, rng, one) for one in lengths]
    return decisions, [trajectory(one, success=k % 2 == 1) for k, one in enumerate(decisions)]


class TestGradient:
    def test_the_gradient_is_that_of_the_sampled_tokens_only(self) -> None:
        decisions, trajectories = sample_conversations([2, 4], [3])
        terms = [(d, 1.0 if k else -1.0) for k, one in enumerate(decisions) for d in one]
        expected = by_hand(FakeLanguageModel(), terms, divisor=9)
        actual = gradient([group(*trajectories)], [[-1.0, 1.0]])
        torch.testing.assert_close(actual, expected)

    def test_each_step_can_have_its_own_advantage(self) -> None:
        decisions, trajectories = sample_conversations([2, 4], [3])
        terms = [(decisions[0][0], 0.5), (decisions[0][1], -2.0), (decisions[1][0], 1.0)]
        expected = by_hand(FakeLanguageModel(), terms, divisor=9)
        actual = gradient([group(*trajectories)], [[[0.5, -2.0], 1.0]])
        torch.testing.assert_close(actual, expected)

    def test_the_advantage_of_a_step_without_a_decision_is_ignored(self) -> None:
        decisions, _ = sample_conversations([2, 4], [3])
        first = trajectory([decisions[0][0], None, decisions[0][1]])
        terms = [(decisions[0][0], 0.5), (decisions[0][1], -2.0), (decisions[1][0], 1.0)]
        actual = gradient([group(first, trajectory(decisions[1]))], [[[0.5, 9.0, -2.0], [1.0]]])
        torch.testing.assert_close(actual, by_hand(FakeLanguageModel(), terms, divisor=9))

    @pytest.mark.parametrize(
        ("settings", "divisors"),
        [
            ({"loss_mean": "token"}, (9, 9)),
            ({"loss_mean": "trajectory"}, (2 * 6, 2 * 3)),
            ({"loss_mean": "constant", "constant_tokens": 10}, (20, 20)),
        ],
    )
    def test_loss_mean_sets_the_divisor_of_the_gradient(
        self, settings: dict[str, Any], divisors: tuple[int, int]
    ) -> None:
        decisions, trajectories = sample_conversations([2, 4], [3])
        expected = sum(
            by_hand(FakeLanguageModel(), [(d, 1.0 if k else -1.0) for d in one], divisors[k])
            for k, one in enumerate(decisions)
        )
        actual = gradient([group(*trajectories)], [[-1.0, 1.0]], **settings)
        torch.testing.assert_close(actual, expected)

    @pytest.mark.parametrize("loss_mean", ["token", "trajectory", "constant"])
    @pytest.mark.parametrize("fresh", [False, True])
    def test_microbatches_of_any_size_give_the_same_gradient(
        self, loss_mean: str, fresh: bool
    ) -> None:
        groups = batch(FakeLanguageModel(), fresh=fresh)
        settings = {"loss_mean": loss_mean, "old_logprobs": "recomputed", "kl_coef": 0.1}
        whole = gradient(groups, seed=1, **settings)
        for size in (1, 7, 20):
            actual = gradient(groups, seed=1, microbatch_tokens=size, **settings)
            torch.testing.assert_close(actual, whole, atol=1e-6, rtol=1e-5)

    def test_one_merged_segment_gives_the_same_gradient_as_two(self) -> None:
        decisions, _ = sample_conversations([2, 4], [3])
        first, second = decisions[0]
        anew = dataclasses.replace(second, prompt_ids=(5, *second.prompt_ids))
        assert (len(segments([first, second])), len(segments([first, anew]))) == (1, 2)
        one, two = (
            gradient([group(trajectory(both), trajectory([]))], [[[0.5, 1.0], []]])
            for both in ([first, second], [first, anew])
        )
        torch.testing.assert_close(one, two)  # the fake's context is the token before

    @pytest.mark.parametrize("loss_mean", ["token", "trajectory", "constant"])
    @pytest.mark.parametrize("minibatches", [2, 3, 4])
    @pytest.mark.parametrize("microbatch_tokens", [4096, 1])
    def test_the_mean_gradient_of_minibatches_equals_that_of_the_batch(
        self, loss_mean: str, minibatches: int, microbatch_tokens: int
    ) -> None:
        # Very unequal, and in one of these orders the two short ones share a minibatch.
        _, trajectories = sample_conversations([10], [10], [400], [400])
        groups = [group(*trajectories[:2]), group(*trajectories[2:])]
        settings = {"loss_mean": loss_mean, "kl_coef": 0.0, "lr": 1e-12}
        whole = gradient(groups, **settings)
        split = settings | {"minibatches": minibatches, "microbatch_tokens": microbatch_tokens}
        for seed in range(6):
            model = FakeLanguageModel()
            learner = GRPO(model, GRPOConfig(**(ONE_STEP | split)), seed=seed)
            seen = gradients_of(learner, model)
            learner.update(groups)
            assert len(seen) == minibatches
            mean = torch.stack(seen).mean(dim=0)
            torch.testing.assert_close(mean, whole, atol=1e-6, rtol=1e-4)

    def test_with_a_trajectory_mean_every_trajectory_weighs_the_same_in_any_minibatch(self) -> None:
        decisions, trajectories = sample_conversations([10], [10], [400], [400])
        groups = [group(*trajectories[:2]), group(*trajectories[2:])]
        once = {"loss_mean": "trajectory", "kl_coef": 0.0, "lr": 1e-12, "minibatches": 4}
        model = FakeLanguageModel()
        learner = GRPO(model, GRPOConfig(**(ONE_STEP | once)))
        seen = gradients_of(learner, model)
        learner.update(groups, [[1.0, 1.0], [1.0, 1.0]])
        # Each alone in its minibatch: the gradient of its own mean, whatever its length.
        for one in decisions:
            expected = by_hand(FakeLanguageModel(), [(one[0], 1.0)], divisor=len(one[0].ids))
            assert any(torch.allclose(expected, actual, atol=1e-6) for actual in seen)


@pytest.mark.parametrize("loss_mean", ["token", "trajectory", "constant"])
def test_clip_fraction_is_a_share_even_in_unequal_minibatches(loss_mean: str) -> None:
    _, trajectories = sample_conversations([10], [10], [400], [400])
    groups = [group(*trajectories[:2]), group(*trajectories[2:])]
    config = GRPOConfig(loss_mean=loss_mean, minibatches=4, lr=1e-12, epochs=1)  # type: ignore[arg-type]
    # Every ratio is e^10 and every surrogate with a positive advantage is clipped.
    far = [
        dataclasses.replace(one, trajectories=tuple(map(_long_ago, one.trajectories)))
        for one in groups
    ]
    metrics = GRPO(FakeLanguageModel(), config).update(far, [[1.0, 1.0], [1.0, 1.0]])
    assert metrics["clip_fraction"] == pytest.approx(1.0)


def test_each_trajectory_can_have_its_own_upper_clip() -> None:
    """Ratios of 1.5: over the clip of all, under that of the first trajectory of each group."""
    _, trajectories = sample_conversations([3], [2], [4], [1])
    seldom = [_long_ago(one, gap=math.log(1.5)) for one in trajectories]
    groups = [group(*seldom[:2]), group(*seldom[2:])]
    clips = [[0.6, 0.28], [0.6, 0.28]]
    model, decisions = FakeLanguageModel(), [one.steps[0].decision for one in trajectories]
    learner = GRPO(model, GRPOConfig(**ONE_STEP, kl_coef=0))
    metrics = learner.update(groups, [[1.0, 1.0], [1.0, 1.0]], clip_high=clips)
    assert metrics["clip_fraction"] == pytest.approx(3 / 10)
    terms = [(d, 1.5) for d in decisions[::2] if isinstance(d, TokenDecision)]
    assert model.table.grad is not None
    torch.testing.assert_close(
        model.table.grad, by_hand(FakeLanguageModel(), terms, divisor=10), atol=1e-6, rtol=1e-5
    )
    everywhere = learner.update(groups, [[1.0, 1.0], [1.0, 1.0]])
    assert everywhere["clip_fraction"] > 0.9


def test_clip_high_cued_applies_only_to_trajectories_with_stripped_cues() -> None:
    """The update equals one with a clip per trajectory; cues that are not stripped do not count."""
    _, trajectories = sample_conversations([3], [2], [4], [1])
    seldom = [_long_ago(one, gap=math.log(1.5)) for one in trajectories]
    seldom[0] = _uncued(seldom[0])
    seldom[1] = dataclasses.replace(seldom[1], cue_ids=("kept",))
    groups = [group(*seldom[:2]), group(*seldom[2:])]
    # What was sampled after cues has a ratio of 1 to itself; two steps, so that clips can act.
    settings = {**ONE_STEP, "epochs": 2, "lr": 0.5, "kl_coef": 0.0, "old_logprobs": "recomputed"}
    weights = []
    for own, clips in (
        ({"clip_high": 0.01, "clip_high_cued": 0.6}, None),
        ({"clip_high": 0.01}, [[0.6, 0.01], [0.01, 0.01]]),
        ({"clip_high": 0.01}, None),
        ({"clip_high": 0.01, "clip_high_cued": 0.01}, None),
    ):
        learner = GRPO(model := FakeLanguageModel(), GRPOConfig(**{**settings, **own}))
        learner.update(groups, [[1.0, 0.5], [1.0, -1.0]], clip_high=clips)
        weights.append(model.table.detach().clone())
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[2], weights[3])
    assert not torch.equal(weights[0], weights[2])


def test_a_ratio_of_1_5_is_clipped_in_free_trajectories_but_not_in_guided_ones() -> None:
    """The first of two steps raises a ratio to exactly 1.5, and the second sees 1.28 or 1.5.

    Of V equally likely tokens Adam's first step raises one logit by lr and lowers the others by lr.
    Its ratio becomes V e^(2 lr) / (e^(2 lr) + V - 1), which is 1.5 for
    e^(2 lr) = 1.5 (V - 1) / (V - 1.5): 9 / 5.5 for 7 tokens. Its probability is then 1.5 / 7, and
    5.5 / 42 that of each other token.
    """
    assert VOCABULARY == 7
    free = TokenDecision((1,), (2,), (-math.log(7),))
    guided = TokenDecision((5, 3), (4,), (-math.log(7),), trained_prompt_ids=(3,))
    model = FakeLanguageModel()
    with torch.no_grad():
        model.table.zero_()
    settings = {"lr": math.log(9 / 5.5) / 2, "max_grad_norm": 1e9, "kl_coef": 0.0, "epochs": 2}
    clips = {"clip_high": 0.28, "clip_high_cued": 0.6, "old_logprobs": "recomputed"}
    learner = GRPO(model, GRPOConfig(**settings, **clips))  # type: ignore[arg-type]
    seen = gradients_of(learner, model)
    metrics = learner.update([group(trajectory([free]), trajectory([guided]))], [[1.0, 1.0]])
    assert metrics["clip_fraction"] == pytest.approx((0 + 1 / 2) / 2)
    first, second = seen
    # Of 2 positions: -(1 - 1/7) / 2 for the token, and 1/7 / 2 for each other one.
    for row, token in ((1, 2), (3, 4)):
        expected = torch.full((7,), 1 / 14)
        expected[token] = -6 / 14
        torch.testing.assert_close(first[row], expected)
    # 1.28 is a constant. A ratio of 1.5 counts: -1.5 (1 - 1.5/7) / 2 and 1.5 (5.5/42) / 2.
    expected = torch.full((7,), 1.5 * 5.5 / 84)
    expected[4] = -1.5 * 5.5 / 14
    torch.testing.assert_close(second[3], expected, atol=1e-6, rtol=1e-5)
    assert not second[1].any()


def _uncued(episode: Trajectory) -> Trajectory:
    """The same, trained without the cues that it was sampled with."""
    (step,) = episode.steps
    assert isinstance(step.decision, TokenDecision)
    decision = dataclasses.replace(step.decision, trained_prompt_ids=step.decision.prompt_ids)
    return dataclasses.replace(episode, steps=(dataclasses.replace(step, decision=decision),))


def test_upper_clips_are_matched_to_the_groups_that_are_learned_from() -> None:
    _, trajectories = sample_conversations([3], [2], [4], [1])
    seldom = [_long_ago(one, gap=math.log(1.5)) for one in trajectories]
    broken, whole = dataclasses.replace(group(*seldom[:2]), size=3), group(*seldom[2:])
    learner = GRPO(FakeLanguageModel(), GRPOConfig(**ONE_STEP))
    metrics = learner.update(
        [broken, whole], [[1.0, 1.0], [1.0, 1.0]], clip_high=[[0.28, 0.28], [0.6, 0.6]]
    )
    assert metrics["clip_fraction"] == 0.0


def _long_ago(episode: Trajectory, *, gap: float = 10.0) -> Trajectory:
    """The same, but sampled by a policy that hardly ever did so."""
    (step,) = episode.steps
    assert isinstance(step.decision, TokenDecision)
    rare = tuple(logprob - gap for logprob in step.decision.logprobs)
    decision = dataclasses.replace(step.decision, logprobs=rare)
    return dataclasses.replace(episode, steps=(dataclasses.replace(step, decision=decision),))


@pytest.mark.parametrize("loss_mean", ["token", "constant"])
def test_clip_fraction_is_a_share_of_positions(loss_mean: str) -> None:
    config = GRPOConfig(epochs=1, loss_mean=loss_mean, constant_tokens=1000)  # type: ignore[arg-type]
    groups = batch(FakeLanguageModel(seed=8))  # sampled by another model
    logps = torch.log_softmax(FakeLanguageModel().table.detach(), dim=1)
    clipped = []
    for episode in (t for one in groups for t in one.trajectories):
        for step in episode.steps:
            d = step.decision
            assert isinstance(d, TokenDecision)
            before = (d.prompt_ids[-1], *d.ids[:-1])
            for b, i, recorded in zip(before, d.ids, d.logprobs, strict=True):
                ratio = math.exp(float(logps[b, i]) - recorded)
                clipped.append(ratio > 1.28 if episode.success else ratio < 0.8)
    metrics = GRPO(FakeLanguageModel(), config).update(groups)
    assert 0 < np.mean(clipped) < 1
    assert metrics["clip_fraction"] == pytest.approx(np.mean(clipped))


class TestExcludedRollouts:
    def test_a_lost_rollout_does_not_change_the_gradient(self) -> None:
        _, trajectories = sample_conversations([2, 4], [3], [1, 1])
        _, (odd,) = sample_conversations([5], seed=9)
        lost = trajectory([s.decision for s in odd.steps], end=EndReason.WORKER_LOST)
        expected = gradient([group(*trajectories)])
        torch.testing.assert_close(gradient([group(*trajectories, lost)]), expected)
        assert expected.abs().max() > 0

    @pytest.mark.parametrize("end", [EndReason.MAX_TOKENS, EndReason.CONTEXT_OVERFLOW])
    def test_overlong_trajectories_count_in_the_group_but_not_in_the_loss(
        self, end: EndReason
    ) -> None:
        decisions, (failed, solved) = sample_conversations([2, 4], [3])
        cut = trajectory(decisions[0], end=end)
        uncut = gradient([group(failed, solved)], overlong="mask")
        masked = gradient([group(cut, solved)], overlong="mask")
        value = 0.5 / (math.sqrt(0.5) + 1e-6)
        expected = by_hand(FakeLanguageModel(), [(decisions[1][0], value)], divisor=3)
        torch.testing.assert_close(masked, expected)
        assert not torch.allclose(uncut, masked)
        torch.testing.assert_close(gradient([group(cut, solved)]), uncut)
        metrics = GRPO(FakeLanguageModel(), GRPOConfig(overlong="mask")).update(
            [group(cut, solved)]
        )
        assert metrics["masked_share"] == 0.5

    def test_no_update_is_made_if_all_rollouts_are_lost(self) -> None:
        _, trajectories = sample_conversations([2], [3])
        lost = [
            trajectory([s.decision for s in t.steps], end=EndReason.WORKER_LOST)
            for t in trajectories
        ]
        model = FakeLanguageModel()
        metrics = GRPO(model).update([group(*lost)])
        assert (metrics["decisions"], metrics["masked_share"], model.version) == (0.0, 1.0, 0)


class TestOldLogprobs:
    def test_recomputed_logprobs_equal_recorded_ones_if_the_sampler_is_the_learner(self) -> None:
        groups = batch(FakeLanguageModel())
        tables = []
        for old in ("recorded", "recomputed"):
            model = FakeLanguageModel()
            settings = {"old_logprobs": old, "epochs": 3, "minibatches": 2, "lr": 0.1}
            metrics = GRPO(model, GRPOConfig(**settings), seed=5).update(groups)
            tables.append(model.table.detach())
        torch.testing.assert_close(*tables, atol=1e-5, rtol=1e-4)
        assert metrics["sampler_kl"] == pytest.approx(0.0, abs=1e-9)
        assert metrics["importance"] == pytest.approx(1.0)

    @pytest.mark.parametrize("epochs", [1, 2])
    def test_recomputed_logprobs_start_with_ratio_1_for_any_sampler(self, epochs: int) -> None:
        groups = batch(FakeLanguageModel(seed=8))  # sampled by another model
        config = GRPOConfig(
            old_logprobs="recomputed", epochs=epochs, lr=1e-12, importance_cap=None, kl_coef=0.0
        )
        model = FakeLanguageModel()
        metrics = GRPO(model, config).update(groups)
        assert metrics["clip_fraction"] == 0.0
        assert metrics["sampler_kl"] > 0.01
        passes = {1: 1, 2: 3}[epochs]  # one step needs no pass of its own
        assert len(model.calls) == passes

    @pytest.mark.parametrize("cap", [2.0, 0.9])
    def test_the_surrogate_is_importance_weighted_up_to_the_cap(self, cap: float) -> None:
        sampler, model = FakeLanguageModel(seed=8), FakeLanguageModel()
        rng = np.random.default_rng(0)
        decisions = [conversation(sampler, rng, [4, 2]), conversation(sampler, rng, [5])]
        groups = [group(*(trajectory(one) for one in decisions))]
        logps = torch.log_softmax(model.table.detach(), dim=1)
        expected, weights, gaps = torch.zeros(VOCABULARY, VOCABULARY), [], []
        for k, one in enumerate(decisions):
            for d in one:
                before = (d.prompt_ids[-1], *d.ids[:-1])
                for b, i, recorded in zip(before, d.ids, d.logprobs, strict=True):
                    ratio = math.exp(float(logps[b, i]) - recorded)
                    weights.append(min(ratio, cap))
                    gaps.append((ratio > cap, float(k3(torch.tensor(recorded), logps[b, i]))))
                    token = TokenDecision((b,), (i,), (recorded,))
                    expected += by_hand(model, [(token, weights[-1] * (1 if k else -1))], 11)
        settings = {"old_logprobs": "recomputed", "importance_cap": cap}
        actual = gradient(groups, [[-1.0, 1.0]], **settings)
        torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-4)
        config = GRPOConfig(**(ONE_STEP | settings))
        metrics = GRPO(FakeLanguageModel(), config).update(groups, [[-1.0, 1.0]])
        assert metrics["importance"] == pytest.approx(np.mean(weights))
        capped, divergence = zip(*gaps, strict=True)
        assert metrics["importance_capped_share"] == pytest.approx(np.mean(capped))
        assert 0 < np.mean(capped) < 1
        assert metrics["sampler_kl"] == pytest.approx(np.mean(divergence), rel=1e-4)


def test_logprobs_of_unsampled_positions_are_refused() -> None:
    class OneTooMany(FakeLanguageModel):
        def logprobs(self, samples: Any) -> Any:
            logp, mask = super().logprobs(samples)
            return torch.cat([logp, logp[:, :1]], dim=1), torch.cat([mask, mask[:, :1]], dim=1)

    with pytest.raises(ValueError, match="Only sampled positions"):
        GRPO(OneTooMany()).update(batch(FakeLanguageModel()))


@pytest.mark.parametrize("value", [0.5, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("old", ["recorded", "recomputed"])
def test_impossible_recorded_logprobs_are_refused(value: float, old: Any) -> None:
    """A user's sampler that records probabilities, for example, would get wrong weights."""
    model = FakeLanguageModel()
    decisions, trajectories = sample_conversations([3, 4], [3, 4])
    first = decisions[0][0]
    wrong = dataclasses.replace(first, logprobs=(value, *first.logprobs[1:]))
    trajectories[0] = trajectory([wrong, *decisions[0][1:]], success=True)
    before = model.table.detach().clone()
    learner = GRPO(model, GRPOConfig(old_logprobs=old))
    with pytest.raises(ValueError, match=f"1 of 14 recorded .* are impossible, such as {value}"):
        learner.update([group(*trajectories)])
    assert torch.equal(model.table, before)


def test_recomputed_logprobs_use_the_sampling_temperature() -> None:
    model, rng = FakeLanguageModel(), np.random.default_rng(0)
    decisions = [conversation(model, rng, [6, 4], temperature=0.5) for _ in range(2)]
    trajectories = [trajectory(one, success=k == 1) for k, one in enumerate(decisions)]
    config = GRPOConfig(old_logprobs="recomputed", epochs=1)
    metrics = GRPO(model, config).update([group(*trajectories)])
    assert metrics["sampler_kl"] == pytest.approx(0.0, abs=1e-9)


class TestDegenerateShare:
    def test_a_group_is_not_degenerate_if_a_length_penalty_separates_equal_outcomes(self) -> None:
        _, trajectories = sample_conversations([2], [4])
        equal = group(*(dataclasses.replace(t, success=False) for t in trajectories))
        settings: dict[str, Any] = {"overlong_max_tokens": 4, "overlong_buffer_tokens": 2}
        for overlong, share in (("keep", 1.0), ("penalty", 0.0)):
            learner = GRPO(FakeLanguageModel(), GRPOConfig(overlong=overlong, **settings))
            assert learner.update([equal])["degenerate_share"] == share
            advantages = learner.advantages([equal])[0]
            assert any(value != 0.0 for value in advantages) is (share == 0.0)

    def test_a_group_is_degenerate_if_a_length_penalty_evens_out_its_outcomes(self) -> None:
        # The success is long: 1 - 1, against 0 - 0 of the short failure.
        _, trajectories = sample_conversations([2], [4])
        settings: dict[str, Any] = {"overlong_max_tokens": 4, "overlong_buffer_tokens": 2}
        learner = GRPO(FakeLanguageModel(), GRPOConfig(overlong="penalty", **settings))
        assert learner.update([group(*trajectories)])["degenerate_share"] == 1.0

    def test_the_degenerate_share_follows_advantages_passed_by_the_caller(self) -> None:
        _, trajectories = sample_conversations([2, 1], [4])
        both = [group(*trajectories)] * 2
        metrics = GRPO(FakeLanguageModel()).update(both, [[0.0, 0.0], [[0.0, 0.5], 0.0]])
        assert metrics["degenerate_share"] == 0.5


class TestTokensWithGradient:
    def test_tokens_of_equal_groups_and_masked_trajectories_are_left_out(self) -> None:
        _, (failed, other) = sample_conversations([2, 3], [5])
        equal = group(failed, dataclasses.replace(other, success=False))
        mixed = group(*sample_conversations([2, 4], [3])[1])
        decisions, (_, solved) = sample_conversations([7], [1, 1])
        cut = trajectory(decisions[0], end=EndReason.MAX_TOKENS)
        learner = GRPO(FakeLanguageModel(), GRPOConfig(overlong="mask"))
        metrics = learner.update([equal, mixed, group(cut, solved)])
        assert metrics["tokens_sampled"] == 5 + 5 + 6 + 3 + 2
        assert metrics["tokens_with_gradient"] == 6 + 3 + 2
        learner = GRPO(FakeLanguageModel(), GRPOConfig(overlong="keep"))
        metrics = learner.update([equal, mixed, group(cut, solved)])
        assert metrics["tokens_with_gradient"] == 6 + 3 + 7 + 2

    def test_advantages_of_steps_and_tokens_count_by_position(self) -> None:
        one = group(*sample_conversations([2, 4], [3, 5])[1])
        advantages = [[[0.0, -0.5], [[0.0, 0.5, 0.25], 0.0]]]
        assert GRPO(FakeLanguageModel()).update([one], advantages)["tokens_with_gradient"] == 4 + 2

    def test_an_update_without_samples_has_none(self) -> None:
        broken = dataclasses.replace(batch(FakeLanguageModel())[0], size=9)
        assert GRPO(FakeLanguageModel()).update([broken])["tokens_with_gradient"] == 0.0


class TestWarmup:
    def test_the_learning_rate_rises_linearly_and_then_stays_constant(self) -> None:
        config = GRPOConfig(lr=0.4, lr_warmup_steps=4, epochs=1, minibatches=2, kl_coef=0.0)
        learner = GRPO(FakeLanguageModel(), config)
        rates = [learner.update(batch(FakeLanguageModel()))["lr"] for _ in range(4)]
        assert rates == pytest.approx([(0.1 + 0.2) / 2, (0.3 + 0.4) / 2, 0.4, 0.4])

    def test_without_warmup_the_learning_rate_is_constant(self) -> None:
        learner = GRPO(FakeLanguageModel(), GRPOConfig(lr=0.3, epochs=2))
        assert [learner.update(batch(FakeLanguageModel()))["lr"] for _ in range(2)] == [0.3, 0.3]

    def test_warmup_makes_the_first_steps_smaller(self) -> None:
        moved = []
        for steps in (0, 10):
            model = FakeLanguageModel()
            before = model.table.detach().clone()
            config = GRPOConfig(lr=0.1, lr_warmup_steps=steps, epochs=1)
            GRPO(model, config).update(batch(FakeLanguageModel()))
            moved.append((model.table.detach() - before).abs().max().item())
        assert moved[1] == pytest.approx(moved[0] / 10, rel=1e-3)  # Adam's first step is its rate

    def test_a_skipped_step_is_not_counted_in_the_warmup(self) -> None:
        config = GRPOConfig(lr=0.4, lr_warmup_steps=4, epochs=1)
        learner = GRPO(Breaks(1), config)
        learner.update(batch(FakeLanguageModel()))
        assert learner.update(batch(FakeLanguageModel()))["lr"] == pytest.approx(0.1)

    def test_a_learner_restored_during_warmup_continues_exactly(self) -> None:
        config = GRPOConfig(lr=0.1, lr_warmup_steps=3, epochs=1, minibatches=2)
        straight = GRPO(FakeLanguageModel(), config)
        straight.update(batch(FakeLanguageModel(), seed=1))
        resumed = GRPO(FakeLanguageModel(seed=9), config)
        resumed.policy.load_state_dict(straight.policy.state_dict())
        resumed.load_state_dict(copy.deepcopy(straight.state_dict()))
        first, second = (
            learner.update(batch(FakeLanguageModel(), seed=2)) for learner in (straight, resumed)
        )
        assert first["lr"] == second["lr"] == pytest.approx(0.1)
        tables = [learner.policy.state_dict()["table"] for learner in (straight, resumed)]
        torch.testing.assert_close(*tables, atol=0, rtol=0)


def test_a_state_without_a_reference_uses_the_initial_policy_as_reference() -> None:
    config = GRPOConfig(kl_coef=0.5, lr=0.1)
    straight = GRPO(FakeLanguageModel(), config)
    straight.update(batch(FakeLanguageModel(), seed=1))
    resumed = GRPO(FakeLanguageModel(), config)  # from what the first one began with
    resumed.policy.load_state_dict(straight.policy.state_dict())
    resumed.load_state_dict(straight.state_dict(reference=False))
    first, second = (
        learner.update(batch(FakeLanguageModel(), seed=2)) for learner in (straight, resumed)
    )
    assert first["kl"] == second["kl"] > 0


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"epochs": 1, "old_logprobs": "recomputed"}, True),
        ({"epochs": 2, "old_logprobs": "recomputed"}, False),
        ({"epochs": 1, "minibatches": 2, "old_logprobs": "recomputed"}, False),
        ({"epochs": 1, "old_logprobs": "recorded"}, False),
    ],
)
def test_clips_without_effect_are_warned_about(
    settings: dict[str, Any], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    learner = GRPO(FakeLanguageModel(), GRPOConfig(**settings, lr=0.3))
    assert ("clip_low and clip_high have no effect" in caplog.text) is warned
    metrics = learner.update(batch(FakeLanguageModel(seed=8)))
    assert (metrics["clip_fraction"] == 0) is warned


class Breaks(FakeLanguageModel):
    """Gives log-probabilities that are no numbers in these of its passes with gradients."""

    def __init__(self, *bad: int, inf: bool = False) -> None:
        super().__init__()
        self.bad, self.passes, self.wrong = bad, 0, torch.inf if inf else torch.nan

    def logprobs(self, samples: Any) -> Any:
        logp, mask = super().logprobs(samples)
        if torch.is_grad_enabled():
            self.passes += 1
            if self.passes in self.bad:
                logp = logp * self.wrong
        return logp, mask


class TestNonfinite:
    def test_a_nonfinite_step_is_skipped_and_counted(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        settings = {"lr": 0.1, "epochs": 2, "minibatches": 1}
        broken, sound = Breaks(1), FakeLanguageModel()
        metrics = GRPO(broken, GRPOConfig(**settings)).update(batch(FakeLanguageModel()))
        # What is left is one epoch: neither weights nor moments know of the other.
        GRPO(sound, GRPOConfig(**(settings | {"epochs": 1}))).update(batch(FakeLanguageModel()))
        torch.testing.assert_close(broken.table, sound.table, atol=0, rtol=0)
        assert metrics["nonfinite_steps"] == 1.0
        assert all(math.isfinite(value) for value in metrics.values())
        assert caplog.text.count("optimiser step skipped") == 1

    @pytest.mark.parametrize("inf", [False, True])
    def test_an_update_of_only_nonfinite_steps_changes_nothing(self, inf: bool) -> None:
        model = Breaks(1, 2, inf=inf)
        learner = GRPO(model, GRPOConfig(epochs=2, minibatches=1, lr=0.1))
        before = model.table.detach().clone()
        metrics = learner.update(batch(FakeLanguageModel()))
        torch.testing.assert_close(model.table.detach(), before, atol=0, rtol=0)
        assert metrics["nonfinite_steps"] == 2.0
        assert "loss" not in metrics
        after = learner.update(batch(FakeLanguageModel()))
        assert after["nonfinite_steps"] == 0.0
        assert math.isfinite(after["loss"])

    def test_three_nonfinite_steps_in_a_row_raise_even_across_updates_and_a_resume(self) -> None:
        config = GRPOConfig(epochs=1, minibatches=1)
        learner = GRPO(Breaks(1, 2, 4, 5), config)
        for _ in range(5):  # the third is sound and the count begins anew
            learner.update(batch(FakeLanguageModel()))
        resumed = GRPO(Breaks(1), config)
        resumed.load_state_dict(learner.state_dict())
        before = resumed.policy.state_dict()["table"]
        with pytest.raises(TrainingDiverged, match=r"3 optimiser steps in a row .* loss=nan"):
            resumed.update(batch(FakeLanguageModel()))
        torch.testing.assert_close(resumed.policy.state_dict()["table"], before, atol=0, rtol=0)

    def test_a_step_with_an_infinite_gradient_is_skipped(self) -> None:
        class Steep(FakeLanguageModel):
            def logprobs(self, samples: Any) -> Any:
                logp, mask = super().logprobs(samples)
                if logp.requires_grad:
                    logp.register_hook(lambda slope: slope * torch.inf)
                return logp, mask

        model = Steep()
        before = model.table.detach().clone()
        metrics = GRPO(model, GRPOConfig(epochs=1)).update(batch(FakeLanguageModel()))
        assert metrics["nonfinite_steps"] == 1.0
        torch.testing.assert_close(model.table.detach(), before, atol=0, rtol=0)


def test_no_reference_is_copied_without_a_kl_term() -> None:
    class NoCopy(FakeLanguageModel):
        def frozen_copy(self) -> FakeLanguageModel:
            raise AssertionError("a copy of the model that nobody needs")

    GRPO(NoCopy(), GRPOConfig(kl_coef=0.0)).update(batch(FakeLanguageModel()))


def test_an_update_returns_exactly_the_expected_metrics() -> None:
    metrics = GRPO(FakeLanguageModel(), GRPOConfig(epochs=1)).update(batch(FakeLanguageModel()))
    names = "loss policy_loss kl clip_fraction grad_norm entropy advantage_std reward success"
    shares = "degenerate_share broken_groups masked_share idle_share"
    counts = "groups decisions samples tokens tokens_sampled old_s reference_s step_s"
    counts += " nonfinite_steps lr tokens_with_gradient sampler_kl"
    assert set(metrics) == {*names.split(), *shares.split(), *counts.split()}
    assert metrics["success"] == metrics["reward"] == 0.5
    assert metrics["tokens"] > metrics["tokens_sampled"] > metrics["decisions"]
    assert metrics["decisions"] > metrics["samples"] == 12


def test_grpo_learns_the_rewarded_tokens() -> None:
    model, rng = FakeLanguageModel(), np.random.default_rng(0)
    learner = GRPO(model, GRPOConfig(lr=0.1, kl_coef=0.0))

    def play() -> Trajectory:
        decisions = conversation(model, rng, [1, 1])
        return trajectory(decisions, success=all(d.ids == (3,) for d in decisions))

    before = np.mean([play().success for _ in range(200)])
    for _ in range(50):
        learner.update([group(*(play() for _ in range(16))) for _ in range(2)])
    after = np.mean([play().success for _ in range(200)])
    assert before < 0.1
    assert after > 0.9


def test_a_restored_learner_continues_exactly() -> None:
    config = GRPOConfig(minibatches=2, old_logprobs="recomputed", advantage="gigpo")
    straight = GRPO(FakeLanguageModel(), config, seed=3)
    straight.update(batch(FakeLanguageModel(), seed=1))
    buffer = io.BytesIO()
    torch.save([straight.policy.state_dict(), straight.state_dict()], buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=False)
    resumed = GRPO(FakeLanguageModel(seed=9), config, seed=9)
    resumed.policy.load_state_dict(copy.deepcopy(saved[0]))
    resumed.load_state_dict(saved[1])
    second = batch(FakeLanguageModel(), seed=2)
    for learner in (straight, resumed):
        learner.update(second)
    tables = [learner.policy.state_dict()["table"] for learner in (straight, resumed)]
    torch.testing.assert_close(*tables, atol=0, rtol=0)
    assert resumed.version == 2


def test_split_rows_makes_parts_within_the_token_limit_or_of_one_sample() -> None:
    tokens = np.array([3, 3, 9, 1, 2, 4])
    pieces = split_rows(np.array([0, 1, 2, 3, 4, 5]), tokens, 6)
    assert [part.tolist() for part in pieces] == [[0, 1], [2], [3, 4], [5]]
    assert [part.tolist() for part in split_rows(np.array([2, 5]), tokens, 6)] == [[2], [5]]


class TestIdleSamples:
    """Samples with advantage 0 are not computed unless another loss term acts on them."""

    def groups(self) -> list[Group]:
        _, mixed = sample_conversations([2, 4], [3], seed=1)
        _, other = sample_conversations([3], [5, 2], [1], seed=2)
        failed = [dataclasses.replace(t, success=False, score=0.0) for t in other]
        return [group(*mixed), group(*failed)]

    def updated(
        self, reads_all: bool, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, **settings: Any
    ) -> tuple[GRPO, FakeLanguageModel, list[torch.Tensor]]:
        model = FakeLanguageModel()
        model.table = torch.nn.Parameter(model.table.detach().to(dtype))
        usual = {"epochs": 2, "minibatches": 3, "kl_coef": 0.0, "lr": 0.05}
        learner = GRPO(model, GRPOConfig(**(usual | settings)), seed=4)
        if reads_all:
            none = lambda batch: torch.zeros(len(batch.samples), dtype=torch.bool)  # noqa: E731
            monkeypatch.setattr(learner, "_idle_mask", none)
        seen = gradients_of(learner, model)
        for _ in range(3):
            learner.update(self.groups())
        return learner, model, seen

    @pytest.mark.parametrize("loss_mean", ["token", "trajectory", "constant"])
    @pytest.mark.parametrize("old_logprobs", ["recorded", "recomputed"])
    def test_skipping_idle_samples_changes_no_weight(
        self, loss_mean: str, old_logprobs: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = {"loss_mean": loss_mean, "old_logprobs": old_logprobs}
        for dtype, tolerance in ((torch.float64, 1e-7), (torch.float32, 1e-5)):
            actual = self.updated(False, monkeypatch, dtype, **settings)
            expected = self.updated(True, monkeypatch, dtype, **settings)
            assert actual[0]._optimizer.steps == expected[0]._optimizer.steps == 18
            torch.testing.assert_close(actual[1].table, expected[1].table, atol=tolerance, rtol=0)
            for one, other in zip(actual[2], expected[2], strict=True):
                torch.testing.assert_close(one, other, rtol=tolerance, atol=1e-8)
            assert sum(map(len, actual[1].calls)) < sum(map(len, expected[1].calls))

    def test_idle_samples_are_computed_if_a_kl_term_acts(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        actual = self.updated(False, monkeypatch, torch.float32, kl_coef=0.1)
        expected = self.updated(True, monkeypatch, torch.float32, kl_coef=0.1)
        assert actual[1].calls == expected[1].calls

    def test_idle_samples_are_computed_for_a_custom_loss(self) -> None:
        class Own(GRPO):
            def loss(self, inputs: LossInputs) -> Mapping[str, torch.Tensor]:
                return {"loss": inputs.mean(inputs.logp)}

        learner = Own(FakeLanguageModel(), GRPOConfig(epochs=1, minibatches=1, kl_coef=0.0))
        _, failed = self.groups()
        metrics = learner.update([failed])
        assert metrics["idle_share"] == 0.0
        assert metrics["grad_norm"] > 0.0
        assert not {"policy_loss", "kl", "clip_fraction"} & metrics.keys()

    def test_a_minibatch_of_only_idle_samples_still_takes_its_step(self) -> None:
        model = FakeLanguageModel()
        learner = GRPO(model, GRPOConfig(epochs=1, minibatches=1, kl_coef=0.0, lr=0.1))
        mixed, failed = self.groups()
        assert learner.update([mixed])["idle_share"] == 0.0
        before, read = model.table.detach().clone(), len(model.calls)
        metrics = learner.update([failed])
        assert (metrics["idle_share"], metrics["grad_norm"]) == (1.0, 0.0)
        assert len(model.calls) == read
        assert learner._optimizer.steps == 2
        assert not torch.equal(model.table, before)  # by the optimiser's averages alone

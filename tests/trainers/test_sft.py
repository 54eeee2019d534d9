from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from coevo_gym.agents.choice import ChoiceAgent  # noqa: E402
from coevo_gym.agents.tiny.policy import TinyConfig, TinyPolicy  # noqa: E402
from coevo_gym.core.errors import (  # noqa: E402
    ConfigError,
    EnvBackendError,
    SplitLeakError,
    TrainingDiverged,
)
from coevo_gym.core.task import Split, Task  # noqa: E402
from coevo_gym.core.trajectory import (  # noqa: E402
    ChoiceDecision,
    Decision,
    EndReason,
    EvalTrajectory,
    Group,
    Sample,
    Segment,
    Step,
    TokenDecision,
    Trajectory,
    View,
)
from coevo_gym.episodes.evaluation import evaluate  # noqa: E402
from coevo_gym.episodes.runner import EnvPool  # noqa: E402
from coevo_gym.store.checkpoint import Checkpoints  # noqa: E402
from coevo_gym.trainers.demonstrations import (  # noqa: E402
    Demonstrations,
    demonstrate,
    demonstrations_from_rollouts,
)
from coevo_gym.trainers.sft import (  # noqa: E402
    Imitation,
    ImitationConfig,
    ImitationStep,
    Imitator,
    imitate,
)
from tests.faults import BreaksOn  # noqa: E402
from tests.toy import BENCHMARK, ToyBenchmark  # noqa: E402

TRAIN, VAL = BENCHMARK.tasks(Split.TRAIN), BENCHMARK.tasks(Split.VAL)
SMALL = TinyConfig(buckets=256, dim=8, hidden=32)
END = 0


def choosing(policy: TinyPolicy) -> ChoiceAgent:
    return ChoiceAgent(policy, BENCHMARK.choices)


class Bigrams:
    """A language model over bytes that sees one byte back, and keeps what it was asked."""

    def __init__(self) -> None:
        self.version = 0
        self.logits = torch.nn.Parameter(torch.zeros(128, 128, dtype=torch.float64))
        self.asked: list[Sequence[Sample]] = []

    def logprobs(self, samples: Sequence[Sample]) -> tuple[Any, Any]:
        self.asked.append(samples)
        rows = []
        for sample in samples:
            assert isinstance(sample, Segment)
            ids, sampled = torch.tensor(sample.ids), torch.tensor(sample.sampled)
            logp = self.logits[ids[:-1]].log_softmax(dim=1)  # (L - 1, V)
            rows.append(logp.gather(1, ids[1:, None])[:, 0][sampled[1:]])
        mask = torch.nn.utils.rnn.pad_sequence(
            [torch.ones(len(row), dtype=torch.bool) for row in rows], batch_first=True
        )
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), mask

    def parameters(self) -> list[Any]:
        return [self.logits]

    def train(self, mode: bool = True) -> None:
        pass


class ByteAgent:
    """Says an action and END; what it said before stays in its prompt as it was sampled."""

    def decision_for(self, view: View, action: str) -> TokenDecision | None:
        if action == "press nothing":
            return None
        prompt: tuple[int, ...] = ()
        for turn in view.history:
            answer = turn.decision.ids if turn.decision else tuple(turn.action.encode())
            prompt += (*turn.observation.encode(), *answer)
        ids = (*action.encode(), END)
        return TokenDecision((*prompt, *view.observation.encode()), ids, (0.0,) * len(ids))


def token_demonstrations(envs: EnvPool, n_tasks: int) -> Demonstrations:
    return demonstrate(TRAIN[:n_tasks], envs, BENCHMARK, ByteAgent())


def learn(policy: Any, demonstrations: Demonstrations, config: ImitationConfig) -> Imitation:
    return imitate(policy, demonstrations, config)


class OnlyDone(ToyBenchmark):
    def choices(self, view: View) -> tuple[str, ...]:
        return ("done",)


class Detour(ToyBenchmark):
    def demonstration(self, task: Task) -> tuple[str, ...]:
        return ("press nothing", *task.solution)


class TestDemonstrate:
    def test_steps_and_tasks_that_cannot_be_imitated_are_counted(self, envs: EnvPool) -> None:
        wrong = TRAIN[1].model_copy(update={"solution": ("press red", "done")})
        agent = ChoiceAgent(TinyPolicy(SMALL), OnlyDone().choices)
        demonstrations = demonstrate([TRAIN[0], wrong], envs, OnlyDone(), agent)
        assert demonstrations.skipped == len(TRAIN[0].solution) - 1 + 1
        assert demonstrations.unsolved == 1
        assert [len(decisions) for decisions in demonstrations.decisions] == [1]

    def test_episodes_lost_by_the_engine_are_left_out(self) -> None:
        last = TRAIN[0].solution[-2]
        breaks = EnvPool(lambda: BreaksOn(gym.make("Toy-v0"), last))
        spared = next(task for task in TRAIN if last not in task.solution)
        agent = choosing(TinyPolicy(SMALL))
        demonstrations = demonstrate([TRAIN[0], spared, TRAIN[0]], breaks, BENCHMARK, agent)
        assert len(demonstrations.decisions) == 1
        assert demonstrations.unsolved == 2
        with pytest.raises(EnvBackendError, match="the engine is gone"):
            demonstrate(TRAIN[:1], breaks, BENCHMARK, agent)

    def test_the_demonstration_of_the_benchmark_is_played(self, envs: EnvPool) -> None:
        demonstrations = demonstrate(TRAIN[:1], envs, Detour(), choosing(TinyPolicy(SMALL)))
        assert (demonstrations.env_steps, demonstrations.skipped, demonstrations.unsolved) == (
            5,
            1,
            0,
        )
        chosen = [
            d.choices[d.index] for d in demonstrations.decisions[0] if isinstance(d, ChoiceDecision)
        ]
        assert chosen == list(TRAIN[0].solution)

    def test_a_choice_has_the_same_context_as_in_a_rollout(self, envs: EnvPool) -> None:
        demonstrations = demonstrate(TRAIN[:1], envs, BENCHMARK, choosing(TinyPolicy(SMALL)))
        for number, decision in enumerate(demonstrations.decisions[0]):
            assert isinstance(decision, ChoiceDecision)
            assert [turn.action for turn in decision.context.history] == list(
                TRAIN[0].solution[:number]
            )
        assert demonstrations.texts[0] == TRAIN[0].instruction
        assert len(demonstrations.texts) == 2 * len(TRAIN[0].solution)

    def test_a_prompt_extends_the_earlier_demonstrations(self, envs: EnvPool) -> None:
        demonstrations = token_demonstrations(envs, 2)
        for decisions in demonstrations.decisions:
            tokens = [d for d in decisions if isinstance(d, TokenDecision)]
            assert len(tokens) == 4
            for before, after in itertools.pairwise(tokens):
                so_far = before.prompt_ids + before.ids
                assert after.prompt_ids[: len(so_far)] == so_far
        assert demonstrations.texts == []

    def test_a_skipped_step_stays_in_later_prompts(self, envs: EnvPool) -> None:
        demonstrations = demonstrate(TRAIN[:1], envs, Detour(), ByteAgent())
        first = demonstrations.decisions[0][0]
        assert isinstance(first, TokenDecision)
        assert bytes(first.prompt_ids).count(b"press nothing") == 1
        assert demonstrations.skipped == 1

    def test_tasks_of_other_splits_are_refused(self, envs: EnvPool) -> None:
        with pytest.raises(SplitLeakError, match="val task"):
            demonstrate(VAL[:1], envs, BENCHMARK, ByteAgent())


def episode(task: Task, score: float, *decisions: Decision | None) -> Trajectory:
    steps = tuple(Step("seen", "seen", "done", decision) for decision in decisions)
    return Trajectory(
        task_id=task.id, steps=steps, score=score, success=score == 1, end_reason=EndReason.FAILED
    )


def decision_of(number: int) -> TokenDecision:
    return TokenDecision((number,), (number, END), (-0.5, -0.25))


class TestAcceptedRollouts:
    def test_only_rollouts_scored_above_the_threshold_are_accepted(self) -> None:
        scores = (0.0, 0.5, 0.51, 1.0)
        episodes = tuple(episode(TRAIN[0], s, decision_of(i + 1)) for i, s in enumerate(scores))
        group = Group("g", TRAIN[0], 8, episodes)
        demonstrations = demonstrations_from_rollouts([group], above=0.5)
        assert demonstrations.decisions == ((decision_of(3), decision_of(4)),)
        assert (demonstrations.skipped, demonstrations.unsolved, demonstrations.env_steps) == (
            0,
            2,
            0,
        )

    def test_rollouts_of_a_task_are_grouped_together(self) -> None:
        groups = [
            Group(str(i), task, 1, (episode(task, 1.0, decision_of(i + 1)),))
            for i, task in enumerate((TRAIN[0], TRAIN[1], TRAIN[0]))
        ]
        demonstrations = demonstrations_from_rollouts(groups, above=0.0)
        assert demonstrations.decisions == ((decision_of(1), decision_of(3)), (decision_of(2),))

    def test_steps_without_a_decision_are_skipped_and_counted(self) -> None:
        scripted, mixed = (
            episode(TRAIN[0], 1.0, None, None),
            episode(TRAIN[1], 1.0, None, decision_of(1)),
        )
        groups = [Group("a", TRAIN[0], 1, (scripted,)), Group("b", TRAIN[1], 1, (mixed,))]
        demonstrations = demonstrations_from_rollouts(groups, above=0.8)
        assert demonstrations.decisions == ((decision_of(1),),)
        assert demonstrations.skipped == 3

    def test_tasks_of_other_splits_and_evaluation_episodes_are_refused(self) -> None:
        group = Group("g", VAL[0], 1, (episode(VAL[0], 1.0, decision_of(1)),))
        with pytest.raises(SplitLeakError, match="val task"):
            demonstrations_from_rollouts([group], above=0.0)
        evaluated = EvalTrajectory(
            task_id=TRAIN[0].id, steps=(), score=1.0, success=True, end_reason=EndReason.SOLVED
        )
        group = Group("g", TRAIN[0], 1, (evaluated,))  # type: ignore[arg-type]
        with pytest.raises(SplitLeakError, match="EvalTrajectory"):
            demonstrations_from_rollouts([group], above=0.0)


class TestImitateChoices:
    def test_imitation_converges_and_solves_unseen_tasks(self, envs: EnvPool) -> None:
        policy = TinyPolicy(seed=0)
        demonstrations = demonstrate(TRAIN[:40], envs, BENCHMARK, choosing(policy))
        policy.fit_word_weights(demonstrations.texts)
        imitation = imitate(policy, demonstrations, seed=0)
        assert imitation.converged
        assert imitation.watched[imitation.best_epoch - 1] < 0.2 * imitation.watched[0]
        learned = evaluate(choosing(policy).greedy(), VAL, envs)
        assert learned.success_rate > 0.8

    def test_empty_demonstrations_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="nothing to imitate"):
            imitate(TinyPolicy(SMALL), Demonstrations((), 0, 0, 0))

    def test_imitation_stops_at_max_epochs(self, envs: EnvPool) -> None:
        policy = TinyPolicy(SMALL)
        demonstrations = demonstrate(TRAIN[:4], envs, BENCHMARK, choosing(policy))
        imitation = imitate(policy, demonstrations, ImitationConfig(max_epochs=2, holdout=0))
        assert not imitation.converged
        assert imitation.losses == imitation.watched
        assert len(imitation.losses) == 2
        assert policy.version == 1

    def test_imitation_stops_without_the_minimum_improvement(self, envs: EnvPool) -> None:
        policy = TinyPolicy(SMALL)
        demonstrations = demonstrate(TRAIN[:4], envs, BENCHMARK, choosing(policy))
        wanted = ImitationConfig(min_improvement=0.9, patience_epochs=2)
        imitation = imitate(policy, demonstrations, wanted)
        assert imitation.converged
        assert len(imitation.losses) == 3  # no loss can fall by as much after the first epoch

    def test_the_weights_of_the_best_epoch_are_restored(self, envs: EnvPool) -> None:
        policies = [TinyPolicy(SMALL, seed=1) for _ in range(2)]
        demonstrations = demonstrate(TRAIN[:10], envs, BENCHMARK, choosing(policies[0]))
        # So high a rate reaches a loss of 0 within a dozen epochs, and none is better after that.
        wild = ImitationConfig(lr=1.0, max_epochs=30, patience_epochs=30)
        imitation = imitate(policies[0], demonstrations, wild)
        assert imitation.best_epoch < len(imitation.losses)
        shorter = wild.model_copy(update={"max_epochs": imitation.best_epoch})
        again = imitate(policies[1], demonstrations, shorter)
        assert again.best_epoch == len(again.losses) == imitation.best_epoch
        for one, other in zip(*(p.parameters() for p in policies), strict=True):
            torch.testing.assert_close(one, other, atol=0, rtol=0)


class TestImitator:
    """Fine-tuning resumed from a saved state equals fine-tuning that was never interrupted."""

    WILD = ImitationConfig(lr=0.1, max_epochs=16, patience_epochs=16, batch_decisions=7)
    """The best epoch is not the last, so that kept weights are saved too.

    With this learning rate, the loss either rises again, or falls to 0 long before the last epoch.
    """

    def policy(self) -> TinyPolicy:
        return TinyPolicy(SMALL, seed=1)

    @pytest.fixture
    def demonstrations(self, envs: EnvPool) -> Demonstrations:
        return demonstrate(TRAIN[:10], envs, BENCHMARK, choosing(self.policy()))

    @pytest.mark.parametrize("config", [WILD, ImitationConfig(max_epochs=4, holdout=0)])
    def test_resuming_after_any_epoch_equals_an_uninterrupted_run(
        self, demonstrations: Demonstrations, config: ImitationConfig, tmp_path: Path
    ) -> None:
        straight = self.policy()
        expected = imitate(straight, demonstrations, config, seed=3)
        assert (expected.best_epoch < len(expected.losses)) is (config is self.WILD)
        for stopped in range(len(expected.losses) + 1):
            policy = self.policy()
            imitator = Imitator(policy, demonstrations, config, seed=3)
            for _ in range(stopped):
                imitator.run_epoch()
            state = {"policy": policy.state_dict(), "imitator": imitator.state_dict()}
            Checkpoints(tmp_path).save(stopped, state)
            saved = Checkpoints(tmp_path).load_at(stopped).state
            policy = TinyPolicy(SMALL, seed=9)
            policy.load_state_dict(saved["policy"])
            again = Imitator(policy, demonstrations, config, seed=3).load_state_dict(
                saved["imitator"]
            )
            while not again.is_over:
                again.run_epoch()
            assert again.finish() == expected
            for one, other in zip(policy.parameters(), straight.parameters(), strict=True):
                assert torch.equal(one, other)

    @pytest.mark.parametrize("config", [WILD, ImitationConfig(max_epochs=3, batch_decisions=9)])
    @pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 5])
    def test_resuming_after_any_step_equals_an_uninterrupted_run(
        self, demonstrations: Demonstrations, config: ImitationConfig, every: int, tmp_path: Path
    ) -> None:
        straight = self.policy()
        steps: list[ImitationStep] = []
        whole = Imitator(straight, demonstrations, config, seed=3)
        while not whole.is_over:
            whole.run_epoch(steps.append)
        expected = whole.finish()
        assert whole.steps_per_epoch > 2
        for most in range(0, len(steps), every):
            policy, retold = self.policy(), list[ImitationStep]()
            imitator = Imitator(policy, demonstrations, config, seed=3)

            def stop(retold: list[ImitationStep] = retold, most: int = most) -> bool:
                return len(retold) == most

            while imitator.steps < most or not stop():
                imitator.run_epoch(retold.append, stop)
            assert (imitator.steps, len(imitator.losses)) == (
                most,
                most // imitator.steps_per_epoch,
            )
            state = {"policy": policy.state_dict(), "imitator": imitator.state_dict()}
            Checkpoints(tmp_path).save(most, state)
            saved = Checkpoints(tmp_path).load_at(most).state
            policy = TinyPolicy(SMALL, seed=9)
            policy.load_state_dict(saved["policy"])
            again = Imitator(policy, demonstrations, config, seed=3).load_state_dict(
                saved["imitator"]
            )
            while not again.is_over:
                again.run_epoch(retold.append)
            assert again.finish() == expected
            assert retold == steps
            for one, other in zip(policy.parameters(), straight.parameters(), strict=True):
                assert torch.equal(one, other)

    def test_a_state_of_other_demonstrations_is_refused(self, envs: EnvPool) -> None:
        policy, config = Bigrams(), ImitationConfig(max_epochs=2)
        imitator = Imitator(policy, token_demonstrations(envs, 4), config)
        imitator.run_epoch()
        other = Imitator(policy, token_demonstrations(envs, 5), config)
        with pytest.raises(ValueError, match="different demonstrations or a different seed"):
            other.load_state_dict(imitator.state_dict())

    def test_skipped_steps_are_counted_across_resumes(self, envs: EnvPool) -> None:
        class Once(Bigrams):
            def logprobs(self, samples: Sequence[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
                logp, mask = super().logprobs(samples)
                return (logp * torch.nan if len(self.asked) == 2 else logp), mask

        policy, demonstrations = Once(), token_demonstrations(envs, 4)
        config = ImitationConfig(batch_decisions=1, max_epochs=2)
        first = Imitator(policy, demonstrations, config)
        first.run_epoch()
        second = Imitator(policy, demonstrations, config).load_state_dict(first.state_dict())
        second.run_epoch()
        assert second.finish().nonfinite_steps == 1

    def test_each_optimiser_step_is_reported(self, envs: EnvPool) -> None:
        steps: list[ImitationStep] = []
        imitator = Imitator(
            Bigrams(),
            token_demonstrations(envs, 5),
            ImitationConfig(batch_decisions=2, holdout=0),
        )
        imitator.run_epoch(steps.append)
        assert [at.step for at in steps] == [1, 2, 3]
        assert imitator.steps_per_epoch == 3
        assert 0 < steps[0].tokens < steps[1].tokens < steps[2].tokens
        assert steps[0].loss == pytest.approx(np.log(128))
        assert steps[-1].loss == imitator.losses[0]


class TestImitateTokens:
    def test_an_episode_is_one_segment_and_only_answers_have_gradients(self, envs: EnvPool) -> None:
        policy = Bigrams()
        config = ImitationConfig(max_epochs=1, holdout=0)
        learn(policy, token_demonstrations(envs, 1), config)
        ((segment,),) = policy.asked
        assert isinstance(segment, Segment)
        tokens = [
            token for token, sampled in zip(segment.ids, segment.sampled, strict=True) if sampled
        ]
        assert bytes(tokens).decode().split("\0")[:-1] == list(TRAIN[0].solution)
        last = len(segment.ids) - 1
        assert segment.sampled[last]
        assert policy.logits.grad is not None
        touched = policy.logits.grad.abs().sum(dim=1) > 0
        conditions = {segment.ids[i - 1] for i in range(1, last + 1) if segment.sampled[i]}
        assert set(touched.nonzero()[:, 0].tolist()) == conditions

    def test_the_loss_is_the_mean_over_sampled_positions(self, envs: EnvPool) -> None:
        config = ImitationConfig(max_epochs=1, holdout=0, batch_tokens=400)
        imitation = learn(Bigrams(), token_demonstrations(envs, 3), config)
        assert imitation.losses[0] == pytest.approx(np.log(128))

    def test_several_passes_equal_one_batch(self, envs: EnvPool) -> None:
        policies, longest = list[Bigrams](), list[int]()
        demonstrations = token_demonstrations(envs, 6)
        # One task more with a single short answer: a mean of means would differ.
        short = (TokenDecision((65,), (66, END), (0.0, 0.0)),)
        demonstrations = demonstrations._replace(decisions=(*demonstrations.decisions, short))
        for batch_tokens in (16_384, 450):
            policy = Bigrams()
            config = ImitationConfig(
                max_epochs=3, batch_tokens=batch_tokens, batch_decisions=4, max_grad_norm=0.05
            )
            learn(policy, demonstrations, config)
            policies.append(policy)
            asked = [[len(s.ids) for s in part if isinstance(s, Segment)] for part in policy.asked]
            longest.append(max(map(sum, asked)))
        assert longest[0] > 450 >= longest[1]
        assert len(policies[1].asked) > len(policies[0].asked)
        torch.testing.assert_close(policies[0].logits, policies[1].logits, atol=1e-9, rtol=1e-9)

    def test_adam_uses_the_fused_kernel_with_exact_square_roots(
        self, envs: EnvPool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The other kernels use MKL's square roots, which differ between processors."""
        optimizers, adamw = [], torch.optim.AdamW

        def make_and_remember(*args: Any, **settings: Any) -> torch.optim.AdamW:
            optimizers.append(adamw(*args, **settings))
            return optimizers[-1]

        monkeypatch.setattr(torch.optim, "AdamW", make_and_remember)
        config = ImitationConfig(max_epochs=2, holdout=0)
        learn(Bigrams(), token_demonstrations(envs, 2), config)
        assert [one.param_groups[0]["fused"] for one in optimizers] == [True]

    def test_a_segment_longer_than_a_pass_gets_its_own_pass(self, envs: EnvPool) -> None:
        policies = [Bigrams(), Bigrams()]
        for policy, batch_tokens in zip(policies, (10_000, 20), strict=True):
            config = ImitationConfig(max_epochs=2, holdout=0, batch_tokens=batch_tokens)
            learn(policy, token_demonstrations(envs, 2), config)
        assert {len(part) for part in policies[1].asked} == {1}
        torch.testing.assert_close(policies[0].logits, policies[1].logits, atol=1e-9, rtol=1e-9)

    def test_the_gradient_is_clipped(self, envs: EnvPool) -> None:
        policy = Bigrams()
        config = ImitationConfig(max_epochs=1, max_grad_norm=1e-3)
        learn(policy, token_demonstrations(envs, 2), config)
        assert policy.logits.grad is not None
        assert policy.logits.grad.norm().item() == pytest.approx(1e-3, rel=1e-2)

    def test_nonfinite_losses_raise_training_diverged(self, envs: EnvPool) -> None:
        policy = Bigrams()
        policy.logits.data[:] = torch.nan
        with pytest.raises(TrainingDiverged, match="diverged in epoch 1: the loss is nan"):
            learn(policy, token_demonstrations(envs, 2), ImitationConfig())
        few = ImitationConfig(batch_decisions=1)
        with pytest.raises(TrainingDiverged, match=r"3 optimiser steps in a row .* loss=nan"):
            learn(policy, token_demonstrations(envs, 4), few)

    def test_a_single_nonfinite_step_is_skipped_and_counted(self, envs: EnvPool) -> None:
        class Once(Bigrams):
            def logprobs(self, samples: Sequence[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
                logp, mask = super().logprobs(samples)
                return (logp * torch.nan if len(self.asked) == 2 else logp), mask

        policy = Once()
        imitation = learn(policy, token_demonstrations(envs, 4), ImitationConfig(batch_decisions=1))
        assert imitation.nonfinite_steps == 1
        assert np.isfinite(imitation.losses).all()
        assert imitation.losses[-1] < imitation.losses[0]
        assert torch.isfinite(policy.logits).all()

    def test_imitating_accepted_rollouts_makes_their_answers_likelier(self) -> None:
        policy = Bigrams()
        good = TokenDecision((65,), (66, END), (-4.0, -4.0))
        bad = dataclasses.replace(good, ids=(67, END))
        episodes = (episode(TRAIN[0], 1.0, good), episode(TRAIN[0], 0.0, bad))
        accepted = demonstrations_from_rollouts([Group("g", TRAIN[0], 2, episodes)], above=0.5)
        learn(policy, accepted, ImitationConfig(max_epochs=20, lr=0.1))
        after = policy.logits[65].softmax(dim=0)
        assert after[66] > 0.05 > 1 / 128 > after[67]

"""The two sides of ``grpo_vs_trl.py``: the same updates by this learner and by TRL's trainer."""

from __future__ import annotations

import json
import math
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from shapes import QWEN2_5_1_5B, SMOLLM2_135M

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.2,
    },
    "25m": {
        "vocab_size": 32768,
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
    },
    "135m": SMOLLM2_135M,
    "1.5b": QWEN2_5_1_5B,
}
FIRST_ID = 3  # the ids before are special
ANSWER = 16  # tokens of each answer of a whole step
BETWEEN = 128  # tokens between two answers of a conversation, most of them an observation
NOISE = 0.05  # of a weight's standard deviation, between reference and policy
LR, KL, CLIP_LOW, CLIP_HIGH, MAX_NORM = 1e-6, 1e-3, 0.2, 0.28, 1.0


class Rollout(NamedTuple):
    """The token ids of a trajectory, and a mask of the tokens that the policy sampled."""

    ids: tuple[int, ...]
    sampled: tuple[bool, ...]
    success: bool

    @property
    def first_sampled(self) -> int:
        """Return the position of the first sampled token."""
        return self.sampled.index(True)


class Job(NamedTuple):
    """The settings of both sides."""

    folder: str
    device: str
    groups: int
    group_size: int
    longest: int
    equal: bool
    rows: int
    epochs: int
    updates: int
    threads: int
    seed: int
    whole: bool = False
    turns: int = 1

    @property
    def first_prompt(self) -> int:
        """Return the number of tokens before the first answer of a whole step."""
        return self.longest - self.turns * ANSWER - (self.turns - 1) * BETWEEN

    def random_batch(self) -> list[Rollout]:
        """Return the trajectories, group by group; half of each group succeed.

        In whole steps, each side samples its own ids, and only lengths and successes are used.
        """
        rng = np.random.default_rng(self.seed)
        vocabulary = json.loads((Path(self.folder) / "config.json").read_text())["vocab_size"]
        rollouts = []
        for index in range(self.groups * self.group_size):
            sampled = self._random_mask(rng)
            ids = rng.integers(FIRST_ID, vocabulary, size=len(sampled)).tolist()
            rollouts.append(Rollout(tuple(ids), tuple(sampled), index % 2 == 0))
        return rollouts

    def _random_mask(self, rng: np.random.Generator) -> list[bool]:
        def length(median: float) -> int:
            draw = median if self.equal else rng.lognormal(np.log(median), 0.6)
            return max(1, round(draw))

        if self.whole:
            first = [False] * self.first_prompt + [True] * ANSWER
            return first + ([False] * BETWEEN + [True] * ANSWER) * (self.turns - 1)
        mask = [False] * max(1, self.longest // 8)
        for turn in range(8 if self.equal else int(rng.integers(1, 9))):
            before = length(self.longest / 20) if turn else 0
            room = self.longest - len(mask) - before
            answer = length(self.longest / 40)
            if turn and answer > room:
                break
            mask += [False] * before + [True] * min(answer, room)
        return mask


def padded_width(batch: Sequence[Rollout]) -> int:
    """Return the width of the padded batch; TRL pads prompts left and answers right."""
    return max(r.first_sampled for r in batch) + max(len(r.ids) - r.first_sampled for r in batch)


class Update(NamedTuple):
    """Cost and outcome of one update, or of a whole step.

    Attributes:
        seconds: wall time.
        cpu_seconds: processor time.
        sampling_cpu_seconds: processor time of sampling, or 0 if nothing is sampled.
        update_cpu_seconds: processor time of everything except sampling.
        tokens: tokens of all trajectories.
        loss: the loss.
        grad_norm: norm of the gradient.
        peak_bytes: peak memory so far.
        resident_bytes: memory in use before the first update.
        device: name of the GPU, or "".
    """

    seconds: float
    cpu_seconds: float
    sampling_cpu_seconds: float
    update_cpu_seconds: float
    tokens: int
    loss: float
    grad_norm: float
    peak_bytes: int
    resident_bytes: int
    device: str


class Meter:
    """A meter that measures this process's updates and reports each one to the parent process."""

    def __init__(self, job: Job, channel: Connection) -> None:
        import torch

        self._torch, self._cuda, self._channel = torch, job.device == "cuda", channel
        self._resident = self._peak_bytes() if self._cuda else _resident_bytes()
        self._device = torch.cuda.get_device_name() if self._cuda else ""
        self._channel.send("ready")

    def wait_and_start(self) -> None:
        """Wait for this side's turn and start the clock."""
        self._channel.recv()
        self._started = time.perf_counter(), time.process_time()
        self._sampling = 0.0

    def record_sampling(self) -> None:
        """Record the processor time that sampling has taken."""
        self._sampling = time.process_time() - self._started[1]

    def stop(self) -> None:
        """Stop the clock."""
        if self._cuda:
            self._torch.cuda.synchronize()
        before, cpu_before = self._started
        self._took = time.perf_counter() - before, time.process_time() - cpu_before

    def send_update(self, tokens: int, loss: float, grad_norm: float) -> None:
        """Report the update to the parent process."""
        # The kernel updates the peak lazily, so it may lag behind what is resident now.
        peak = max(self._peak_bytes(), self._resident)
        shares = self._sampling, self._took[1] - self._sampling
        memory = peak, self._resident
        self._channel.send(
            Update(*self._took, *shares, tokens, loss, grad_norm, *memory, self._device)
        )

    def _peak_bytes(self) -> int:
        if self._cuda:
            return int(self._torch.cuda.max_memory_allocated())
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def perturb_weights(model: Any, seed: int) -> None:
    """Change all weights slightly, and identically on both sides."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.numel() > 1:
                noise = torch.randn(weight.shape, generator=generator)
                weight += NOISE * weight.std() * noise.to(weight)


# This learner.


def run_ours(job: Job, channel: Connection) -> None:
    """Measure updates or whole steps of :class:`coevo_gym.trainers.grpo.GRPO`."""
    from coevo_gym.agents.lm.language_model import ModelConfig
    from coevo_gym.agents.lm.transformers_policy import TransformersPolicy
    from coevo_gym.trainers.grpo import GRPO, GRPOConfig
    from coevo_gym.trainers.update import loss

    batch = job.random_batch()
    tokens = job.rows * padded_width(batch)
    model = TransformersPolicy(ModelConfig(path=job.folder, device=job.device, pack_tokens=tokens))
    config = GRPOConfig(
        lr=LR,
        weight_decay=0.0,
        epochs=job.epochs,
        microbatch_tokens=tokens,
        clip_low=CLIP_LOW,
        clip_high=CLIP_HIGH,
        kl_coef=KL,
        max_grad_norm=MAX_NORM,
        old_logprobs="recomputed",
        importance_cap=None,
    )
    learner = GRPO(model, config)  # type: ignore[arg-type]
    perturb_weights(model.model, job.seed)
    if job.whole:
        remove_stop_tokens(model)
    asked = random_prompts(job, model.tokenizer) if job.whole else []
    meter = Meter(job, channel)
    with mock.patch.object(loss, "MAX_KL", math.inf):  # TRL does not bound the KL term
        for _ in range(job.updates):
            meter.wait_and_start()
            if job.whole:
                batch = sample_rollouts(model, asked, job)
                meter.record_sampling()
            metrics = learner.update(as_groups(batch, job.group_size))
            meter.stop()
            meter.send_update(int(metrics["tokens"]), metrics["loss"], metrics["grad_norm"])


def remove_stop_tokens(policy: Any) -> None:
    """Make a policy sample each answer up to its maximum length, with no stop tokens."""
    from coevo_gym.agents.chat.format import ChatFormat

    class Endless(ChatFormat):
        stop_ids = ()

    policy.format = Endless(policy.tokenizer)


def random_prompts(job: Job, tokenizer: Any) -> list[str]:
    """Return a text per group whose chat has the number of tokens of the first prompt."""
    from coevo_gym.agents.chat.format import ChatFormat

    form, rng = ChatFormat(tokenizer), np.random.default_rng(job.seed)
    return [random_chat_text(form, job.first_prompt, rng) for _ in range(job.groups)]


class Room:
    """An environment that shows random digits after each action.

    Attributes:
        n_digits: number of digits of an observation, which each side sets for its chat template.
    """

    n_digits = 0

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def reset(self, **_: Any) -> None:
        """Show nothing, because the prompt shows everything."""

    def act(self, action: str) -> str:
        """Act in the room.

        Args:
            action: the action, in any words.

        Returns:
            What can be seen then.
        """
        return random_digits(self._rng, self.n_digits)


def sample_rollouts(policy: Any, asked: Sequence[str], job: Job) -> list[Rollout]:
    """Play a conversation in a room for each prompt and copy; each answer has 16 tokens."""
    from coevo_gym.core.seams import Message, Prompt, Sampling
    from coevo_gym.core.trajectory import TokenDecision

    answered = TokenDecision((FIRST_ID,), (FIRST_ID,), (0.0,))
    empty_turn = policy.format.prompt_ids_after(answered, (Message("user", ""),))[2:]
    Room.n_digits = BETWEEN - len(empty_turn)
    exactly = Sampling(1.0, ANSWER)
    texts = [text for text in asked for _ in range(job.group_size)]
    rooms = [Room() for _ in texts]
    played: list[list[Any]] = [[] for _ in texts]  # the decisions of each conversation
    with policy.stream() as answers:
        for index, text in enumerate(texts):
            answers.add(index, Prompt((Message("user", text),), exactly))
        while len(answers):
            for index, answer in answers.step():
                played[index].append(answer.decision)
                if len(played[index]) == job.turns:
                    continue
                seen = (Message("user", rooms[index].act(answer.text)),)
                answers.add(index, Prompt(seen, exactly, after=answer.decision))
    return [as_rollout(decisions, success=i % 2 == 0) for i, decisions in enumerate(played)]


def as_rollout(decisions: Sequence[Any], *, success: bool) -> Rollout:
    """Return the token ids of a conversation, with a mask of its answers."""
    ids: tuple[int, ...] = (*decisions[-1].prompt_ids, *decisions[-1].ids)
    sampled = [False] * len(ids)
    for decision in decisions:
        start = len(decision.prompt_ids)
        sampled[start : start + len(decision.ids)] = [True] * len(decision.ids)
    return Rollout(ids, tuple(sampled), success)


def as_groups(batch: Sequence[Rollout], size: int) -> list[Any]:
    """Return the batch as groups for the learner, with a token decision per step."""
    import coevo_gym
    from coevo_gym.core.trajectory import EndReason, Group, Step, Trajectory

    task = coevo_gym.tasks("webshop", "train")[0]
    trajectories = [
        Trajectory(
            task_id=task.id,
            steps=tuple(Step("", "", "", decision) for decision in decisions(rollout)),
            score=float(rollout.success),
            success=rollout.success,
            end_reason=EndReason.AGENT_DONE,
        )
        for rollout in batch
    ]
    starts = range(0, len(batch), size)
    return [Group(str(i), task, size, tuple(trajectories[i : i + size])) for i in starts]


def decisions(rollout: Rollout) -> list[Any]:
    """Return a token decision for each answer, with placeholder log-probabilities."""
    from coevo_gym.core.trajectory import TokenDecision

    turns, at = [], rollout.first_sampled
    while at < len(rollout.ids):
        end = at
        while end < len(rollout.ids) and rollout.sampled[end]:
            end += 1
        ids = rollout.ids[at:end]
        turns.append(TokenDecision(rollout.ids[:at], ids, (-1.0,) * len(ids)))
        at = next((i for i in range(end, len(rollout.ids)) if rollout.sampled[i]), end)
    return turns


# TRL.


def run_trl(job: Job, channel: Connection) -> None:
    """Measure ``trl.GRPOTrainer.train``.

    Without whole steps, its rollout function returns the batch; otherwise TRL samples itself.
    """
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from transformers.trainer_callback import PrinterCallback
    from trl import GRPOTrainer
    from trl.chat_template_utils import qwen3_chat_template
    from trl.trainer import grpo_trainer

    batch, losses = job.random_batch(), []
    norms: list[float] = []
    tokenizer = AutoTokenizer.from_pretrained(job.folder)
    in_rooms = job.whole and job.turns > 1
    if in_rooms:
        tokenizer.chat_template = qwen3_chat_template

    class Measured(GRPOTrainer):  # type: ignore[misc]
        def _generate(self, prompts: list[Any]) -> Any:
            if not job.whole:
                return super()._generate(prompts)
            meter.wait_and_start()
            output = super()._generate(prompts)
            meter.record_sampling()
            self.tokens = sum(len(ids) for side in output[:2] for ids in side)
            return output

        def compute_loss(self, *args: Any, **settings: Any) -> Any:
            loss = super().compute_loss(*args, **settings)
            losses.append(loss.detach())
            return loss

    class Reports(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % job.epochs == 0:
                meter.stop()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "grad_norm" not in logs:
                return
            norms.append(float(logs["grad_norm"]))
            if state.global_step % job.epochs == 0:
                loss = sum(float(value) for value in losses) / job.epochs
                meter.send_update(trainer.tokens, loss, statistics.fmean(norms))
                losses.clear()
                norms.clear()

    def rollouts(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        meter.wait_and_start()
        return {
            "prompt_ids": [list(r.ids[: r.first_sampled]) for r in batch],
            "completion_ids": [list(r.ids[r.first_sampled :]) for r in batch],
            "logprobs": None,
            "env_mask": [
                [int(is_sampled) for is_sampled in r.sampled[r.first_sampled :]] for r in batch
            ],
        }

    with tempfile.TemporaryDirectory() as scratch:
        asked: list[Any] = [str(i) for i in range(job.groups)]
        if job.whole:
            asked = [[{"role": "user", "content": text}] for text in trl_prompts(job, tokenizer)]
        trainer = Measured(
            model=job.folder,
            reward_funcs=lambda **_: [float(rollout.success) for rollout in batch],
            args=trl_settings(job, len(batch), scratch),
            train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in asked]),
            processing_class=tokenizer,
            rollout_func=None if job.whole else rollouts,
            environment_factory=Room if in_rooms else None,
            callbacks=[Reports()],
        )
        trainer.tokens = sum(len(rollout.ids) for rollout in batch)
        trainer.remove_callback(PrinterCallback)
        perturb_weights(trainer.model, job.seed)
        if in_rooms:
            empty = {"role": "tool", "name": "act", "content": ""}
            Room.n_digits = BETWEEN - len(trainer._get_tool_suffix_ids([empty]))
        meter = Meter(job, channel)
        # Models do not write calls at random, so each answer counts as the call of an action.
        with mock.patch.object(grpo_trainer, "parse_response", as_call):
            trainer.train()


def trl_prompts(job: Job, tokenizer: Any) -> list[str]:
    """Return :func:`random_prompts`; in conversations, they leave room for TRL's tools."""
    if job.turns == 1:
        return random_prompts(job, tokenizer)
    from transformers.utils import get_json_schema

    chat = [{"role": "user", "content": ""}]
    tools = [get_json_schema(Room.act)]
    ids = tokenizer.apply_chat_template(
        chat, tools=tools, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    n_digits, rng = job.first_prompt - len(ids), np.random.default_rng(job.seed)
    if n_digits < 0:
        raise ValueError(f"--longest is {-n_digits} tokens too short for TRL's prompt with tools.")
    return [random_digits(rng, n_digits) for _ in range(job.groups)]


def as_call(tokenizer: Any, ids: Sequence[int], **_: Any) -> dict[str, Any]:
    """Return an answer as the call of an action, in place of TRL's parser."""
    function = {"name": "act", "arguments": {"action": tokenizer.decode(ids)}}
    calls = [{"type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def trl_settings(job: Job, size: int, scratch: str) -> Any:
    """Return TRL's settings; settings that are not listed have TRL's defaults."""
    from trl import GRPOConfig

    sampling: dict[str, Any] = {}
    if job.whole:
        exactly = {"min_new_tokens": ANSWER, "max_new_tokens": ANSWER}
        sampling = {
            "max_completion_length": job.longest - job.first_prompt,
            "max_tool_calling_iterations": job.turns - 1,
            "generation_kwargs": exactly,
        }
    return GRPOConfig(
        output_dir=scratch,
        loss_type="dapo",
        epsilon=CLIP_LOW,
        epsilon_high=CLIP_HIGH,
        beta=KL,
        use_bias_correction_kl=False,  # otherwise the KL term is weighted by the ratio
        temperature=1.0,
        max_grad_norm=MAX_NORM,
        learning_rate=LR,
        weight_decay=0.0,
        lr_scheduler_type="constant",
        num_generations=job.group_size,
        num_iterations=job.epochs,
        per_device_train_batch_size=job.rows,
        gradient_accumulation_steps=size // job.rows,
        max_steps=job.updates * job.epochs,
        model_init_kwargs={"dtype": "float32"},
        gradient_checkpointing=False,  # as on the other side
        bf16=job.device == "cuda",
        use_cpu=job.device == "cpu",
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **sampling,
    )


# Texts and processes.


def random_chat_text(
    form: Any, n: int, rng: np.random.Generator, before: Sequence[Any] = ()
) -> str:
    """Return a random user message for which the prompt has ``n`` tokens.

    Args:
        form: the chat format.
        n: number of tokens in the prompt, including those of the template.
        rng: random generator for the text.
        before: messages at the beginning of the prompt.

    Raises:
        ValueError: if the prompt has a different number of tokens.
    """
    from coevo_gym.core.seams import Message

    def length(text: str) -> int:
        return len(form.prompt_ids((*before, Message("user", text))))

    text = random_digits(rng, max(0, n - length("")))
    if length(text) != n:
        raise ValueError(f"The prompt has {length(text)} tokens instead of {n}.")
    return text


def random_digits(rng: np.random.Generator, n: int) -> str:
    """Return ``n`` random digits, which are one token each."""
    return "".join(map(str, rng.integers(10, size=n)))


def run_side(target: Callable[[Job, Connection], None], job: Job, channel: Connection) -> None:
    """Run one side, without printing to standard output."""
    redirect_output()
    import torch

    torch.set_num_threads(job.threads)
    target(job, channel)


def redirect_output() -> None:
    """Reserve standard output for the result, and hide progress bars of libraries."""
    os.dup2(2, 1)
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def save_model_quietly(shape: str, folder: str) -> None:
    """Call :func:`save_model` in a separate process."""
    redirect_output()
    save_model(shape, folder)


def save_model(shape: str, folder: str) -> None:
    """Save a Llama model with random weights, a byte tokenizer and a chat template."""
    import torch
    from gpu_parts.subjects import make_byte_tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_byte_tokenizer()
    config = LlamaConfig(
        **SHAPES[shape],
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
        max_position_embeddings=32768,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)

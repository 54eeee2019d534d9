"""TRL on the toy, in one of several processes that share a served session.

Usage: torchrun trl_ranks.py ADDRESS FOLDER STEPS GROUPS [--resume]. Each process writes what it
does to FOLDER/rank-N.jsonl, line by line: its process id, the tasks and rewards of each step, and
at the end a checksum of its weights.
"""

from __future__ import annotations

import argparse
import json
import os
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template

from coevo_gym.curricula.session.http_session import HTTPSession
from coevo_gym.prompts import parse_prompt
from coevo_gym.trainers.adapters.trl import TRLPlug
from tests import toy
from tests.adapters.tiny_qwen import HeldToOptions, make_tiny_qwen

parser = argparse.ArgumentParser()
parser.add_argument("address")
parser.add_argument("folder", type=Path)
parser.add_argument("steps", type=int)
parser.add_argument("groups", type=int)
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()

torch.set_num_threads(1)
toy.register()
rank, n_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
output = (args.folder / f"rank-{rank}.jsonl").open("a", buffering=1)


def tell(**facts: Any) -> None:
    """Write a line that survives this process."""
    output.write(json.dumps(facts) + "\n")


tell(pid=os.getpid())
session = HTTPSession(args.address)
plug = TRLPlug("Toy-v0", session, prompt=parse_prompt(toy.PROMPT))
model, tokenizer = make_tiny_qwen(qwen3_chat_template)
model.generate = partial(model.generate, prefix_allowed_tokens_fn=HeldToOptions(tokenizer))
trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    args=GRPOConfig(
        output_dir=str(args.folder),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        disable_tqdm=True,
        seed=1,
        per_device_train_batch_size=session.group_size * args.groups // n_ranks,
        num_generations=session.group_size,
        max_steps=args.steps,
        max_completion_length=600,
        learning_rate=3e-3,
        lr_scheduler_type="constant",
        save_steps=2,
        logging_steps=1,
    ),
    train_dataset=Dataset.from_list(plug.rows(12)),
    environment_factory=plug.make_environment,
    callbacks=[plug.make_callback()],
)
score = trainer._calculate_rewards


def score_and_tell(*arguments: Any, **kwargs: Any) -> Any:
    """Score the episodes of all processes, and tell which of them this process has played."""
    tasks = [env._rollout.info["task_id"] for env in trainer.environments]
    rewards = score(*arguments, **kwargs)
    tell(step=plug.version, tasks=tasks, rewards=rewards.tolist())
    return rewards


trainer._calculate_rewards = score_and_tell
trainer.train(resume_from_checkpoint=args.resume or None)
weights = b"".join(weight.detach().numpy().tobytes() for weight in model.parameters())
tell(weights=zlib.crc32(weights), moved=trainer.state.global_step)

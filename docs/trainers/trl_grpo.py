"""Train TRL's GRPOTrainer on a curriculum in WebShop's built-in shop.

    python docs/trainers/trl_grpo.py    # one step of a tiny model with random weights, on a CPU

With ``--model``, the script trains a model that supports tools, on a GPU if there is one. With
``--server``, several processes share the curriculum of a `coevo serve` server:

    coevo serve webshop --group-size 4 --groups-per-step 2 &
    torchrun --nproc_per_node 2 docs/trainers/trl_grpo.py --server http://127.0.0.1:8765 \
        --group-size 4 --groups 2
"""

from __future__ import annotations

import argparse
import os

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template

from coevo_gym.curricula.session.http_session import HTTPSession
from coevo_gym.testing.scripted_models import tiny_chat_model
from coevo_gym.trainers.adapters.trl import TRLPlug

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="", help="folder or hub id; random weights by default")
parser.add_argument("--group-size", type=int, default=2, help="episodes per task")
parser.add_argument("--groups", type=int, default=1, help="tasks per step, of all processes")
parser.add_argument("--server", default="", help="address of `coevo serve`; default: no server")
parser.add_argument("--max-tokens", type=int, default=32, help="sampled tokens per episode")
parser.add_argument("--steps", type=int, default=1)
parser.add_argument("--eval-rows", type=int, default=0, help="validation tasks; 0: no evaluation")
args = parser.parse_args()

if args.model:
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model)
else:
    model, tokenizer = tiny_chat_model(qwen3_chat_template)
if args.server:
    plug = TRLPlug("CoEvolve-WebShop-v0", HTTPSession(args.server), tokenizer=tokenizer)
else:
    plug = TRLPlug(
        "CoEvolve-WebShop-v0",
        curriculum="coevolve",
        group_size=args.group_size,
        groups_per_step=args.groups,
        tokenizer=tokenizer,
    )
n_processes = int(os.environ.get("WORLD_SIZE", "1"))  # set by torchrun
evaluated = Dataset.from_list(plug.rows(args.eval_rows, split="val")) if args.eval_rows else None
trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    args=GRPOConfig(
        output_dir="trl-shop",
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
        max_steps=args.steps,
        num_generations=args.group_size,
        per_device_train_batch_size=args.group_size * args.groups // n_processes,
        max_completion_length=args.max_tokens,
        logging_steps=1,
        eval_strategy="epoch" if evaluated else "no",
        save_strategy="no",
    ),
    train_dataset=Dataset.from_list(plug.rows(2 * args.groups)),
    eval_dataset=evaluated,
    environment_factory=plug.make_environment,
    callbacks=[plug.make_callback()],
)
trainer.train()
for name in ("curriculum/groups", "curriculum/pool_size", "rewards/Environment/mean"):
    trainer.accelerator.print(name, trainer.state.log_history[0][name])

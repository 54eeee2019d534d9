"""A Llama of 94 thousand weights with a tokenizer of its own, for tests; made in less than 1 s."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = (
    "You stand in a kitchen. There is a red apple on the table and a blue mug in the sink.",
    "> go to table 1\nOn the table 1, you see an apple 2, a knife 1 and a plate 3.",
    "> take apple 2 from table 1\nYou pick up the apple 2 from the table 1. Nothing happens.",
    "search[red running shoes] click[buy now] click[size: 9] think: the user wants shoes",
    "system user assistant\nWhat do you do next? Answer with one action. done",
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def make_tiny_tokenizer() -> Any:
    """A byte-level BPE tokenizer of about 300 tokens with a ChatML template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHATML
    return fast


def make_tiny_llama(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    """Save a tiny Llama and its tokenizer, as ``from_pretrained`` reads them.

    Args:
        folder: where to; made if it is not there.
        seed: seed of its weights.
        config: fields of ``LlamaConfig`` that shall differ, such as ``tie_word_embeddings``.

    Returns:
        The folder.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tiny_tokenizer()
    fields = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        # Weights of the usual size would make nearly even distributions, and tests blind.
        "initializer_range": 0.2,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(**(fields | config)))
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder

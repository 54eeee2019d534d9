"""Models, amounts of work and texts for the measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from numpy.random import Generator
from shapes import QWEN2_5_1_5B, QWEN3_4B, SMOLLM2_135M

from coevo_gym.agents.chat.format import ChatFormat
from coevo_gym.agents.lm import language_model
from coevo_gym.agents.lm.model_shape import ModelShape, shape_of
from coevo_gym.agents.lm.stored_models import resolve_model
from coevo_gym.core.errors import ModelNotFetched, ModelNotFound
from coevo_gym.core.seams import Message, Prompt, Sampling

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "1.5b": (
        "qwen2",
        {**QWEN2_5_1_5B, "max_position_embeddings": 32_768, "tie_word_embeddings": True},
    ),
    "4b": (
        "qwen3",
        {**QWEN3_4B, "max_position_embeddings": 40_960, "tie_word_embeddings": True},
    ),
    "smollm2": (
        "llama",
        {**SMOLLM2_135M, "max_position_embeddings": 8192, "tie_word_embeddings": True},
    ),
    "tiny": (
        "llama",
        {
            "vocab_size": 320,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": True,
        },
    ),
}
"""Models with random weights, as a family and fields of its transformers config.

``1.5b`` has the shape of Qwen2.5-1.5B, ``4b`` that of Qwen3-4B, and ``smollm2`` that of
SmolLM2-135M.
"""


class Size(NamedTuple):
    """The amount of work. Lengths are in tokens; ranges are (minimum, maximum).

    Attributes:
        budgets: numbers of tokens per forward pass in training.
        update_tokens: approximate number of tokens per update.
        segment: length of a training segment.
        updates: number of timed updates, after one for warm-up.
        batches: numbers of answers to sample together.
        prompt: length of a prompt.
        answer: range from which the maximum length of each answer is drawn.
        checked: maximum length of an answer in ``equal``.
        matrix: rows of the square matrices used to measure the peak rate.
        copied: bytes of the block used to measure the bandwidth.
    """

    budgets: tuple[int, ...]
    update_tokens: int
    segment: tuple[int, int]
    updates: int
    batches: tuple[int, ...]
    prompt: tuple[int, int]
    answer: tuple[int, int]
    checked: int
    matrix: int
    copied: int


SIZES = {
    "cuda": Size(
        budgets=(8192, 16_384, 32_768),
        update_tokens=65_536,
        segment=(256, 4096),
        updates=2,
        batches=(8, 64, 256),
        prompt=(64, 256),
        answer=(32, 256),
        checked=32,
        matrix=8192,
        copied=2**31,
    ),
    "cpu": Size(
        budgets=(128, 256),
        update_tokens=512,
        segment=(16, 96),
        updates=1,
        batches=(2, 4),
        prompt=(24, 48),
        answer=(2, 8),
        checked=8,
        matrix=256,
        copied=2**24,
    ),
}
"""Sizes by device; those for a CPU only suffice to check that all parts run."""


class Subject(NamedTuple):
    """A model to measure.

    Attributes:
        name: the name to print.
        folder: folder from which transformers loads it.
        shape: shape of the model.
        random: True if its weights are random.
    """

    name: str
    folder: str
    shape: ModelShape
    random: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the model's entry in the results."""
        return {"name": self.name, "random": self.random, "parameters": self.shape.n_parameters}


class Chosen(NamedTuple):
    """The models to measure.

    Attributes:
        checked: the model for ``equal``.
        timed: the models for ``train`` and ``rollout``.
        notes: sentences that say where the models differ from the requested ones.
    """

    checked: Subject
    timed: list[Subject]
    notes: list[str]


def choose_models(model: str, shape: str, folder: Path) -> Chosen:
    """Return the named model and a model with random weights.

    If the named model is not on this machine, a model with random weights and the shape of
    SmolLM2-135M is checked in its place (a tiny one if ``shape`` is tiny). Its speed is only
    measured if there is no other model.

    Args:
        model: folder or name of a model, or ``none``.
        shape: one of :data:`SHAPES`, or ``none``.
        folder: folder where models with random weights are saved.
    """
    shaped = None if shape == "none" else save_random_model(shape, folder / shape)
    if model == "none":
        if shaped is None:
            raise SystemExit("--model and --shape are both none, so there is nothing to measure.")
        return Chosen(shaped, [shaped], [])
    try:
        subject = load_model(model)
    except (ModelNotFetched, ModelNotFound) as error:
        name = "tiny" if shape == "tiny" else "smollm2"
        stand_in = shaped if shaped and shape == name else save_random_model(name, folder / name)
        return Chosen(stand_in, [shaped or stand_in], [f"{error} In its place: {stand_in.name}."])
    return Chosen(subject, [subject, shaped] if shaped else [subject], [])


def load_model(model: str) -> Subject:
    """Return a trained model that is on this machine; nothing is downloaded.

    Raises:
        ModelError: if the model is not in a folder on this machine.
    """
    folder = resolve_model(model)
    shape = shape_of(folder) if Path(folder).is_dir() else None
    if shape is None:
        raise ModelNotFound(f"There is no language model in a folder {model} on this machine.")
    return Subject(Path(model).name, folder, shape)


def make_byte_tokenizer() -> Any:
    """Return a byte tokenizer with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({token: i for i, token in enumerate(vocabulary)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        additional_special_tokens=list(SPECIAL),
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def save_random_model(name: str, folder: Path) -> Subject:
    """Save a model of one of :data:`SHAPES` with random weights and a byte tokenizer; return it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = make_byte_tokenizer()
    family, fields = SHAPES[name]
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = AutoConfig.for_model(family, **fields, bos_token_id=None, **ids)
    device = "cuda" if torch.cuda.is_available() else "cpu"  # a large model takes long on a CPU
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return load_model(str(folder))._replace(name=f"random {name}", random=True)


def random_prompts(
    form: ChatFormat,
    tokenizer: Any,
    n: int,
    rng: Generator,
    *,
    prompt: tuple[int, int],
    answer: tuple[int, int],
) -> list[Prompt]:
    """Return different single-message chats with random lengths and answer limits."""
    frame = len(form.prompt_ids((Message("user", "."),)))
    chats = []
    for _ in range(n):
        length = int(rng.integers(prompt[0], prompt[1], endpoint=True))
        ids = tokenizer(" ".join(map(str, rng.integers(10, 1000, size=length))))["input_ids"]
        text = tokenizer.decode(ids[: max(1, length - frame)])
        most = int(rng.integers(answer[0], answer[1], endpoint=True))
        chats.append(Prompt((Message("user", text),), Sampling(1.0, most)))
    return chats


def prompt_ids(form: ChatFormat, asked: Sequence[Prompt]) -> list[tuple[int, ...]]:
    """Return the prompt's token ids for each chat."""
    return [form.prompt_ids(prompt.messages) for prompt in asked]


@contextmanager
def use_bf16_on(device: str) -> Iterator[None]:
    """Context manager in which models compute in bf16 on this device type, as on a GPU."""
    before = language_model.HALF_ON
    language_model.HALF_ON = device
    try:
        yield
    finally:
        language_model.HALF_ON = before

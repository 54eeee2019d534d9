"""Searching experiences: what tasks find, with lessons as the prompt demands them from a model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import NamedTuple

import pytest

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.seams import Ticket
from coevo_gym.core.task import Split, Task
from coevo_gym.curricula.pool.embed import Embedder, HashingEmbedder, SentenceEmbedder
from coevo_gym.curricula.pool_curriculum import CurriculumConfig
from coevo_gym.methods.agentevolver.coach import ExperienceCoach, retrieval_query
from coevo_gym.methods.agentevolver.experience import Experience
from coevo_gym.methods.agentevolver.experience_pool import ExperiencePool
from coevo_gym.methods.agentevolver.method import AgentEvolverSettings
from coevo_gym.provision import models_home
from tests.needs import sentences

N_TASKS = 100
MODELS = models_home()


class Lesson(NamedTuple):
    """A lesson without names, numbers and results of its task, as ``experience.j2`` demands."""

    when: str
    advice: str


LESSONS = {
    "webshop": (
        Lesson("A user wants a piece of clothing in a certain size and color below a price.",
               "Choose size and color on the item's page before buying, and check the price."),
        Lesson("A user looks for a snack or drink with a dietary property such as sugar free.",
               "Search for the property and the food together, then read the item's features."),
        Lesson("A user asks for a beauty or personal care product with a certain ingredient.",
               "Open the description to see whether the ingredient is there before you buy."),
        Lesson("A user wants furniture or home decor of a certain material within a budget.",
               "Sort out items above the budget by their prices in the list of results."),
        Lesson("A user needs an electronic accessory that fits a certain device.",
               "Put the device into the search words, and choose the variant for it."),
    ),
    "bfcl": (
        Lesson("A user wants files moved, sorted or compared in the folders of a computer.",
               "Look where you are and change the folder first; paths are not accepted."),
        Lesson("A user books a flight and later asks for a change, an invoice or a cancellation.",
               "Keep the booking's id from the answer, and use it in all later calls."),
        Lesson("A user wants to buy or sell shares and to watch stocks.",
               "Look up the symbol and the present price before placing the order."),
        Lesson("A user asks to prepare a car for a trip: fuel, doors, engine, tire pressure.",
               "Lock the doors and press the brake before starting the engine."),
        Lesson("A user wants to send messages to a contact or to post about something.",
               "Log in first, and look up the receiver's id instead of guessing it."),
        Lesson("A user wants a support ticket created, resolved or edited.",
               "Log in, and take the ticket's number from the answer of the call."),
    ),
    "alfworld": (
        Lesson("Put a clean thing from the kitchen in some place.",
               "Take it, clean it at the sink, and only then carry it to the place."),
        Lesson("Heat some food and put it somewhere.",
               "Use the microwave while you hold the food; it need not lie in it."),
        Lesson("Put a cool thing on or in a piece of furniture.",
               "Cool it with the fridge while holding it, then go to the place."),
        Lesson("Look at an object under the light of a lamp.",
               "Take the object first, then use the lamp where it stands."),
        Lesson("Find two of the same thing and put both in one place.",
               "Carry one after the other, and remember where the second was seen."),
    ),
    "appworld": (
        Lesson("Ask for a number or a title in a user's music library or playlists.",
               "Read all pages of the library before counting, and answer with the value alone."),
        Lesson("Send, request or sum up money between friends or roommates.",
               "Look up the people in the contacts, and filter the transactions by date."),
        Lesson("Change or delete notes, files or messages that meet a condition.",
               "List everything, filter in code, and change only what meets the condition."),
        Lesson("Buy, return or review something in an online shop.",
               "Log in with the account's password, and check the order before completing."),
        Lesson("Follow or like artists, songs or albums by what the user has played.",
               "Collect the ids first, and skip what is already followed or liked."),
    ),
}  # fmt: skip


def pool_for(benchmark: str, embed: Embedder) -> ExperiencePool:
    pool = ExperiencePool(embed)
    for lesson in LESSONS[benchmark]:
        experience = Experience(
            when_to_use=lesson.when, content=lesson.advice, task_id="t", source="pair"
        )
        assert pool.admit(experience)
    return pool


def training_tasks(benchmark: str) -> list[Task]:
    """A hundred training tasks, evenly spaced."""
    tasks = get_benchmark(benchmark).tasks(Split.TRAIN)
    return list(tasks[:: max(1, len(tasks) // N_TASKS)])[:N_TASKS]


def share_guided(benchmark: str, embed: Embedder, least: float) -> float:
    coach = ExperienceCoach(
        pool_for(benchmark, embed),
        group_size=2,
        least=least,
        text_of=lambda task: retrieval_query(get_benchmark(benchmark), task),
    )
    tasks = training_tasks(benchmark)
    tickets = [Ticket(f"{n}", task, f"{n}", 1) for n, task in enumerate(tasks)]
    return sum(bool(guidance.cues) for guidance in coach.guide(tickets)) / len(tasks)


@pytest.mark.parametrize("name", LESSONS)
def test_all_training_tasks_find_lessons_by_default(
    name: str, engine: Callable[[str], None]
) -> None:
    engine(name)
    least = AgentEvolverSettings().least_cosine
    assert share_guided(name, HashingEmbedder(), least) == 1.0


@pytest.mark.slow
@pytest.mark.skipif(bool(sentences()), reason=sentences())
@pytest.mark.parametrize("name", LESSONS)
def test_sentence_embeddings_find_lessons_similar_to_the_task(
    name: str, engine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine(name)
    monkeypatch.setattr("coevo_gym.curricula.pool.embed.models_home", lambda: MODELS)
    embed = CurriculumConfig().make_embedder(reads=True)
    assert isinstance(embed, SentenceEmbedder)
    least = AgentEvolverSettings().least_cosine
    assert share_guided(name, embed, least) == 1.0
    assert share_guided(name, embed, 0.3) >= 0.3


def test_later_turns_are_part_of_the_query_only_for_training_tasks() -> None:
    bfcl = get_benchmark("bfcl")
    task = next(task for task in bfcl.tasks(Split.TRAIN) if len(task.world.turns) > 2)
    assert retrieval_query(bfcl, task) == "\n".join(task.world.turns)
    held_out = next(task for task in bfcl.tasks(Split.VAL) if len(task.world.turns) > 2)
    assert retrieval_query(bfcl, held_out) == held_out.instruction == held_out.world.turns[0]


class TestTheDefaultEmbedder:
    @pytest.fixture(autouse=True)
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COEVO_HOME", str(tmp_path))

    @staticmethod
    def there(monkeypatch: pytest.MonkeyPatch) -> None:
        """Pretend that the package and its model are on this machine."""
        module = type(sys)("sentence_transformers")
        module.__spec__ = ModuleSpec("sentence_transformers", None)
        monkeypatch.setitem(sys.modules, "sentence_transformers", module)
        (models_home() / "minilm").mkdir(parents=True)
        (models_home() / "minilm" / "config.json").write_text("{}")

    def test_language_models_use_sentence_embeddings_if_the_model_is_installed(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.there(monkeypatch)
        caplog.set_level("INFO")
        assert isinstance(CurriculumConfig().make_embedder(reads=True), SentenceEmbedder)
        assert caplog.messages == ["similarity search: embedder=sentences"]

    def test_a_warning_names_the_command_to_fetch_a_missing_sentence_model(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.there(monkeypatch)
        (models_home() / "minilm" / "config.json").unlink()
        assert isinstance(CurriculumConfig().make_embedder(reads=True), HashingEmbedder)
        (message,) = caplog.messages
        assert "Run `coevo model fetch minilm`" in message

    def test_policies_that_do_not_read_text_always_use_word_embeddings(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.there(monkeypatch)
        assert isinstance(CurriculumConfig().make_embedder(reads=False), HashingEmbedder)

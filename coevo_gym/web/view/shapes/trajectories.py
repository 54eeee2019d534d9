"""Trajectories: rows of a list, and one whole episode, step by step."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from coevo_gym.web.view.shapes.base import Paged, Shape
from coevo_gym.web.view.shapes.brief import SignalView, TaskBrief
from coevo_gym.web.view.shapes.notes import InterfaceRow, NoteView


class TrajectoryRow(Shape):
    """A training episode in a list.

    Filters: ``arm``, ``step``, ``step_from``, ``step_to``, ``group``, ``task`` (id), ``success``
    (``true`` or ``false``), ``signal`` (kind; or ``any`` or ``none``), ``end`` (reason),
    ``score_from``, ``score_to``, ``steps_from``, ``steps_to`` (env steps), ``version`` (of the
    policy), ``error`` (``true``: an action had no effect), ``q`` (words of the task's name and
    instruction, the id, and the actions). Sorts: ``step`` (usual), ``score``, ``steps``.

    Attributes:
        id: what paths call it: ``ARM.GROUP.POSITION``.
        arm: whose.
        step: step of the learner.
        group: id of its group.
        position: its place in the group, from 0.
        task: what was practised.
        policy_version: version of the policy that acted when it began.
        success: the binary outcome.
        score: the benchmark's own score, in [0, 1].
        end_reason: why it ended.
        steps: env steps taken.
        errors: steps whose action had no effect; null until the index has read the episode.
        signals: kinds that it fired.
        advantage: what it was learned from with: a mean over steps where each has its own; null if
            that is not stored.
    """

    id: str
    arm: str
    step: int
    group: str
    position: int
    task: TaskBrief
    policy_version: int
    success: bool
    score: float
    end_reason: str
    steps: int
    errors: int | None = None
    signals: tuple[str, ...] = ()
    advantage: float | None = None


class TrajectoryPage(Paged):
    """Training episodes.

    Attributes:
        read: share of the run's episodes whose actions can be searched by now, in [0, 1]; the rest
            is being read, and ``q`` finds them by their tasks only.
    """

    rows: tuple[TrajectoryRow, ...]
    read: float = 1.0


class ChoiceView(Shape):
    """One of the candidate actions that a policy chose from.

    Attributes:
        text: the action.
        probability: of taking it, in [0, 1], under the policy as it sampled; null if not stored.
    """

    text: str
    probability: float | None = None


class TokenView(Shape):
    r"""A sampled token.

    Attributes:
        text: what it adds to the answer; several tokens may make up one letter, and are then
            shown by ``\ufffd``. Null if the run does not know its tokens' texts.
        id: its id.
        logprob: its log-probability under the policy as it sampled.
    """

    text: str | None
    id: int
    logprob: float


class ShopOption(Shape):
    """An option of a product: its name, its values, and the one that is chosen; "" for none."""

    name: str
    values: tuple[str, ...]
    chosen: str = ""


class ShopItem(Shape):
    """A product of a list of results."""

    asin: str
    title: str
    price: str


class ShopPage(Shape):
    """A page of the WebShop, taken apart; what cannot be told is empty.

    Attributes:
        kind: always ``shop``.
        page: ``search``, ``results``, ``item``, ``description``, ``features``, ``reviews``,
            ``attributes`` or ``done``.
        instruction: what the shopper was told.
        buttons: what else can be clicked, as it is named on the page.
        number: of a page of results, which one, from 1.
        found: how many results there are in all.
        products: of a page of results, those on it.
        title: of a product's page.
        price: of a product's page, as it stands there.
        asin: of a product's page.
        options: of a product's page.
        texts: the texts of a page behind a product, or of the receipt, in order.
    """

    kind: Literal["shop"] = "shop"
    page: str
    instruction: str = ""
    buttons: tuple[str, ...] = ()
    number: int | None = None
    found: int | None = None
    products: tuple[ShopItem, ...] = ()
    title: str = ""
    price: str = ""
    asin: str = ""
    options: tuple[ShopOption, ...] = ()
    texts: tuple[str, ...] = ()


class TextPage(Shape):
    """What an env without pages of its own showed.

    Attributes:
        kind: always ``text``.
        format: how the observation is best drawn: ``plain``, ``json`` (results of calls), or
            ``code`` (output of a program).
        action: how the action is best drawn: ``plain``, ``calls`` (one call a line), or ``code``
            (Python).
        admissible: actions that were known to be possible; empty where that is not stored.
    """

    kind: Literal["text"] = "text"
    format: Literal["plain", "json", "code"] = "plain"
    action: Literal["plain", "calls", "code"] = "plain"
    admissible: tuple[str, ...] = ()


BehindPage = ShopPage | TextPage


class StepView(Shape):
    """One step of an episode: what was shown, what was done.

    Attributes:
        number: from 1.
        observation: what the policy was shown, word for word.
        raw: the env's own text, where an interface showed the policy another one; else null.
        told: what was added to a language model's prompt before this answer, word for word, with
            its chat template's marks; null where that is not stored. The first has the system text.
        page: the page behind the observation.
        said: the policy's whole answer, where that is more than the action; "".
        action: what was sent to the env.
        calls: names of the engine operations that ran.
        error_kind: why the action had no effect, or "".
        reward: reward of this step.
        terminated: the task's own end.
        truncated: the episode was cut.
        choices: what the policy chose from; null where that is not stored or it did not choose.
        taken: which of the choices it took; null likewise.
        tokens: what it sampled; null where that is not stored or it samples no tokens.
        policy_version: version of the weights that acted; null if not stored.
        advantage: what the step was learned from with; null if not stored.
        extras: the benchmark's own JSON about this step.
        cut: whether a text of it was too long to be shown whole, and was cut.
    """

    number: int
    observation: str
    raw: str | None = None
    told: str | None = None
    page: BehindPage
    said: str = ""
    action: str
    calls: tuple[str, ...] = ()
    error_kind: str = ""
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    choices: tuple[ChoiceView, ...] | None = None
    taken: int | None = None
    tokens: tuple[TokenView, ...] | None = None
    policy_version: int | None = None
    advantage: float | None = None
    extras: dict[str, Any] = Field(default_factory=dict)
    cut: bool = False


class Grade(Shape):
    """What the grader said.

    Attributes:
        success: the binary outcome.
        score: the benchmark's own score, in [0, 1].
        end_reason: why the episode ended.
        report: the grader's JSON; null where it is withheld.
        withheld: why it is withheld; "" if it is not.
        why: why the episode failed, in a few words; "" if it succeeded or nothing is known.
    """

    success: bool
    score: float
    end_reason: str
    why: str = ""
    report: dict[str, Any] | None = None
    withheld: str = ""


class Sibling(Shape):
    """Another episode of the same group, or of the same task in an evaluation."""

    id: str
    position: int
    success: bool
    score: float
    end_reason: str
    steps: int
    signals: tuple[str, ...] = ()


class TrajectoryDetail(Shape):
    """A whole episode.

    Attributes:
        id: what paths call it.
        of: ``training`` or ``evaluation``.
        run: id of the run; of an evaluation, that of the evaluation.
        arm: whose; of an evaluation, the policy.
        step: step of the learner; null of an evaluation.
        group: id of its group; "" of an evaluation.
        position: its place in the group, or which of the task's episodes it is; from 0.
        size: K of its group, or episodes of the task.
        split: of its task. Nothing of another split than ``train`` may reach training.
        notice: what a reader has to know before using it, such as that it is evaluation data; "".
        task: what was asked.
        instruction: the task in words, whole.
        system: what the policy was told before the first observation, as far as it can be put
            together from the run's settings; null for policies that read no chat, or where the
            prompt file has changed since.
        steps: what happened.
        last_observation: what the last action led to.
        last_page: the page behind that.
        grade: what the grader said.
        signals: what it fired.
        siblings: the other episodes of its group, itself included.
        policy_version: version of the policy when it began; null of an evaluation.
        advantage: what it was learned from with, as in its row.
        cue_ids: of each cue that the agent was told, its id.
        interface: version of the interface that the env's text was shown through; "" for none.
        shown_by: what that interface says; null where that was not noted.
        notes: what studies noted about it, in order; of an episode of training alone.
        stored: of ``choices``, ``tokens`` and ``advantages``, whether they are stored of it.
        before: id of the episode before it in the run's order; null for the first.
        after: likewise after it.
    """

    id: str
    of: Literal["training", "evaluation"]
    run: str
    arm: str
    step: int | None
    group: str
    position: int
    size: int
    split: str
    notice: str = ""
    task: TaskBrief
    instruction: str
    system: str | None = None
    steps: tuple[StepView, ...]
    last_observation: str = ""
    last_page: BehindPage
    grade: Grade
    signals: tuple[SignalView, ...] = ()
    siblings: tuple[Sibling, ...] = ()
    policy_version: int | None = None
    advantage: float | None = None
    cue_ids: tuple[str, ...] = ()
    interface: str = ""
    shown_by: InterfaceRow | None = None
    notes: tuple[NoteView, ...] = ()
    stored: dict[str, bool] = Field(default_factory=dict)
    before: str | None = None
    after: str | None = None

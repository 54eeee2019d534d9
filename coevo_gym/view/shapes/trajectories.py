"""Trajectories: rows of a list, and one whole episode, step by step."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from coevo_gym.view.shapes.advice import AdviceText
from coevo_gym.view.shapes.base import Paged, Shape, SignalView, TaskBrief
from coevo_gym.view.shapes.notes import InterfaceRow, NoteView


class TrajectoryRow(Shape):
    """A training episode in a list.

    Filters: ``arm``, ``step``, ``step_from``, ``step_to``, ``group``, ``task`` (id), ``success``
    (``true`` or ``false``), ``signal`` (kind, ``any`` or ``none``), ``end`` (reason),
    ``score_from``, ``score_to``, ``steps_from``, ``steps_to`` (env steps), ``version`` (of the
    policy), ``error`` (``true``: an action had no effect), ``advice`` (id of advice that the
    episode was told, ``any`` or ``none``), ``q`` (words of the task's name and
    instruction, the id, and the actions). Sorts: ``step`` (default), ``score``, ``steps``,
    ``success``, ``advantage``.

    Attributes:
        id: id of the episode in paths: ``ARM.GROUP.POSITION``.
        arm: name of the arm.
        step: learner step.
        group: id of its group.
        position: position in the group, from 0.
        task: the episode's task.
        policy_version: version of the policy at the start of the episode.
        success: the binary outcome.
        score: the benchmark's own score, in [0, 1].
        end_reason: why the episode ended.
        steps: env steps taken.
        errors: number of actions without effect; null until the index has read the episode.
        signals: kinds of signals that the episode fired.
        advice: ids of the advice that its cues name; empty until the index has read the episode.
        advantage: advantage used for learning, averaged over steps if it differs by step; null if
            not stored.
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
    advice: tuple[str, ...] = ()
    advantage: float | None = None


class TrajectoryPage(Paged):
    """A page of training episodes.

    Attributes:
        read: share of the run's episodes whose actions are already searchable, in [0, 1]. For the
            other episodes, ``q`` matches only the task.
    """

    rows: tuple[TrajectoryRow, ...]
    read: float = 1.0


class ChoiceView(Shape):
    """One of the candidate actions that a policy chose from.

    Attributes:
        text: the action.
        probability: probability of the action, in [0, 1], under the sampling policy; null if not
            stored.
    """

    text: str
    probability: float | None = None


class TokenView(Shape):
    r"""A sampled token.

    Attributes:
        text: text that the token adds to the answer. A character that spans several tokens is shown
            as ``\ufffd``. Null if the run does not store token texts.
        id: id of the token.
        logprob: log-probability under the sampling policy.
    """

    text: str | None
    id: int
    logprob: float


class ShopOption(Shape):
    """A product option: its name, its values, and the chosen value, or "" if none is chosen."""

    name: str
    values: tuple[str, ...]
    chosen: str = ""


class ShopItem(Shape):
    """A product in a list of results."""

    asin: str
    title: str
    price: str


class ShopPage(Shape):
    """A parsed WebShop page; fields that cannot be parsed are empty.

    Attributes:
        kind: always ``shop``.
        page: ``search``, ``results``, ``item``, ``description``, ``features``, ``reviews``,
            ``attributes`` or ``done``.
        instruction: the shopper's instruction.
        buttons: texts of the buttons, as shown on the page.
        number: number of a page of results, from 1.
        found: total number of results.
        products: products on a page of results.
        title: product name, on a product page.
        price: displayed price, on a product page.
        asin: product code, on a product page.
        options: product options, on a product page.
        texts: texts of a product subpage or of the receipt, in order.
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
    """The observation of an env that has no page layout of its own.

    Attributes:
        kind: always ``text``.
        format: display format of the observation: ``plain``, ``json`` (results of calls) or
            ``code`` (output of a program).
        action: display format of the action: ``plain``, ``calls`` (one call per line) or ``code``
            (Python).
        admissible: actions known to be possible; empty if not stored.
    """

    kind: Literal["text"] = "text"
    format: Literal["plain", "json", "code"] = "plain"
    action: Literal["plain", "calls", "code"] = "plain"
    admissible: tuple[str, ...] = ()


BehindPage = ShopPage | TextPage


class StepView(Shape):
    """One step of an episode: the observation and the action.

    Attributes:
        number: step number, from 1.
        observation: the exact text that the policy received.
        raw: the env's own text if an interface replaced it, else null.
        told: the exact text added to a language model's prompt before this answer, including chat
            template markers; null if not stored. The first step includes the system text.
        page: the parsed page of the observation.
        said: the policy's full answer if it is longer than the action, else "".
        action: the action sent to the env.
        calls: names of the engine operations that ran.
        error_kind: why the action had no effect, or "".
        reward: reward of this step.
        terminated: true if the task ended.
        truncated: true if the episode was cut.
        choices: candidate actions; null if not stored or the policy does not choose from a list.
        taken: index of the chosen candidate; null if there are no candidates.
        tokens: sampled tokens; null if not stored or the policy samples no tokens.
        policy_version: version of the weights that acted; null if not stored.
        advantage: advantage used for learning; null if not stored.
        extras: the benchmark's own JSON about this step.
        cut: true if a text of the step was too long and was cut.
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


class GradeView(Shape):
    """The grade of an episode.

    Attributes:
        success: the binary outcome.
        score: the benchmark's own score, in [0, 1].
        end_reason: why the episode ended.
        report: the grader's report as JSON; null if withheld.
        withheld: why the report is withheld, or "".
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
        id: id of the episode, used in paths.
        of: ``training`` or ``evaluation``.
        run: id of the run or evaluation.
        arm: name of the arm; in an evaluation, the policy.
        step: learner step; null in an evaluation.
        group: id of its group; "" in an evaluation.
        position: position in the group or among the task's episodes, from 0.
        size: K of the group, or number of episodes of the task.
        split: split of the task. Data of any split other than ``train`` must not reach training.
        notice: a warning to read before using the episode, such as that it is evaluation data, or
            "".
        task: the episode's task.
        instruction: the full instruction.
        system: system text of the policy, as far as it can be reconstructed from the run's
            settings; null if the policy reads no chat or the prompt file has changed since.
        steps: steps of the episode.
        last_observation: the observation after the last action.
        last_page: the parsed page of that observation.
        grade: the grade of the episode.
        signals: signals that the episode fired.
        siblings: all episodes of the group, including this one.
        policy_version: version of the policy at the start; null in an evaluation.
        advantage: advantage used for learning, as in its row.
        cue_ids: ids of the cues given to the agent.
        advice: text of the advice in these cues; training episodes only.
        interface: version of the interface that presented the env's text, or "".
        shown_by: lines that this interface adds; null if not noted.
        notes: notes by studies, in order; training episodes only.
        stored: flags for ``choices``, ``tokens`` and ``advantages``: true if stored for this
            episode.
        before: id of the previous episode in the run's order; null for the first.
        after: id of the next episode in the run's order; null for the last.
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
    grade: GradeView
    signals: tuple[SignalView, ...] = ()
    siblings: tuple[Sibling, ...] = ()
    policy_version: int | None = None
    advantage: float | None = None
    cue_ids: tuple[str, ...] = ()
    advice: tuple[AdviceText, ...] = ()
    interface: str = ""
    shown_by: InterfaceRow | None = None
    notes: tuple[NoteView, ...] = ()
    stored: dict[str, bool] = Field(default_factory=dict)
    before: str | None = None
    after: str | None = None

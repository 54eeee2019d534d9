"""Whatever engines say and people type is data; whatever is taken is what is recorded."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from coevo_gym.agents.scripted import ScriptedAgent
from coevo_gym.core.task import Split, freeze
from coevo_gym.core.trajectory import EndReason, EvalTrajectory
from coevo_gym.episodes import EnvPool, EvalEpisode, Finished, run_one
from coevo_gym.view.grade import GradeCheck, grade_of
from coevo_gym.view.play.game import PlayedGame, RefusedAction
from coevo_gym.view.play.tools import Tool, is_unfinished, parse_line
from coevo_gym.view.shop import SEPARATOR, ShopPage, parse_shop_page
from tests.play.test_tools import TOOLS
from tests.toy import BENCHMARK, ToyEnv

TASK = BENCHMARK.tasks(Split.TRAIN)[0]
NAMES = ("ls", "cd", "mv", "echo", "sort", "find", "add", "send_message", "get_stock_info", "wc")
OFFERED = tuple(Tool(name, "", ()) for name in NAMES)
KNOWN = {*NAMES, "end"}  # the command that ends the turn
PARTS = ("Instruction:", "Back to Search", "Page 1 (Total results: 50)", "< Prev", "b01", "Buy Now")
TAIL = ("Price: $3", "Rating: N.A.", "Description", "Features", "Reviews", "Buy Now")
pieces = st.lists(st.sampled_from(PARTS) | st.text(max_size=9), max_size=9)
kinds = st.sampled_from(("search", "results", "item", "description", "done", "", "odd"))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
ACTIONS = (*(f"press {c}" for c in ("red", "green", "blue", "pink")), "nothing", "")


@given(
    pieces,
    kinds,
    st.lists(st.sampled_from(("b01", "red", "x]y", "< prev")), max_size=4),
    st.booleans(),
)
def test_any_text_is_parsed_as_a_shop_page(
    parts: list[str], kind: str, clicks: list[str], ends: bool
) -> None:
    text = SEPARATOR.join([*parts, *(TAIL if ends else ())])
    choices = tuple(f"click[{text}]" for text in clicks)
    assert isinstance(parse_shop_page(text, {"webshop.page": kind}, choices), ShopPage)


@given(st.text() | st.builds("{}{}".format, st.sampled_from(("mv(", "[mv(", "mv ")), st.text()))
def test_any_line_becomes_a_message_or_a_refusal(line: str) -> None:
    result = parse_line(line, TOOLS)
    assert isinstance(result, (str, RefusedAction))


LETTERS = "abcdefghijklmnopqrstuvwxyzABC_0"
FORMS = (
    "{0}",
    "{0} documents",
    "{0}()",
    " {0} (a=True)",
    "[{0}('a', b=[1, {{}}])]",
    "{0}(a=documents)",
    "{0}('a'",
    "{0}() and more words than a call could have",
    "{0}(ls())",
    "ls(), {0}()",
    "{0}(bar=1), ls()",
    "ls({0}())",
    "files.{0}()",
    '<tool_call>{{"name": "{0}", "arguments": {{}}}}</tool_call>',
    "end {0}()",
)


@st.composite
def misspelt(draw: st.DrawFn) -> str:
    """The name of an offered function with a letter too many, too few, wrong or swapped."""
    name = draw(st.sampled_from([tool.name for tool in OFFERED]))
    at = draw(st.integers(0, len(name) - 1))
    letter = draw(st.sampled_from(LETTERS))
    before, after = name[:at], name[at + 1 :]
    swapped = before + after[:1] + name[at] + after[1:]
    typo = (before + letter + name[at:], before + letter + after, before + after, swapped)
    return draw(st.sampled_from(typo).filter(lambda one: one and one not in KNOWN))


@given(misspelt(), st.sampled_from(FORMS))
@example("0ls", "end {0}()")
def test_a_misspelt_function_takes_no_step(name: str, form: str) -> None:
    result = parse_line(form.format(name), OFFERED)
    assert isinstance(result, RefusedAction)


@given(st.text() | st.lists(st.sampled_from("([{'\"\\\n:#x "), max_size=40).map("".join))
def test_checking_any_code_for_completeness_raises_no_error(code: str) -> None:
    assert is_unfinished(code) in (True, False)


@given(st.dictionaries(st.sampled_from(("tests", "verdicts", "label", "x")), json_values))
def test_any_report_gives_well_formed_checks(report: dict[str, Any]) -> None:
    record = EvalTrajectory(
        task_id="t",
        steps=(),
        score=0.0,
        success=False,
        end_reason=EndReason.FAILED,
        report=freeze(report),
    )
    for check in grade_of(record).checks:
        assert isinstance(check, GradeCheck)
        assert isinstance(check.name, str)
        assert isinstance(check.said, str)


@settings(max_examples=30)
@given(st.lists(st.sampled_from((*ACTIONS, *TASK.solution)), max_size=14))
def test_the_record_contains_exactly_the_accepted_actions(actions: list[str]) -> None:
    game = PlayedGame(ToyEnv(), TASK)
    game.begin()
    for action in actions:
        before = list(game.taken)
        refused = game.act(action) is not None
        assert game.taken == (before if refused else [*before, action])
        assert [step.action for step in game.view.history] == game.taken or game.played
        if game.played is not None:
            break
    else:
        game.give_up()
    assert game.played is not None
    assert game.played.counted.actions == tuple(game.taken)
    if game.played.counted.end_reason is not EndReason.AGENT_DONE:
        outcome = run_one(EvalEpisode(TASK, 0), ScriptedAgent(game.taken), EnvPool(ToyEnv))
        assert isinstance(outcome, Finished)
        assert outcome.record == game.played.counted

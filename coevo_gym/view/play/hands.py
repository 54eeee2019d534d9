"""Translation of a person's input into actions of the benchmark."""

from __future__ import annotations

import codeop
import warnings
from collections.abc import Callable, Mapping

from coevo_gym.core.trajectory import View
from coevo_gym.view.play.game import RefusedAction
from coevo_gym.view.play.tools import NoCall, meant, read_tools


def action_of(benchmark: str, view: View, typed: str) -> str | RefusedAction:
    """Return the action for a person's input, or the reason for a refusal.

    Args:
        benchmark: name of the benchmark.
        view: the person's view.
        typed: the typed text, or a chosen action.
    """
    understand = _MEANINGS.get(benchmark)
    return understand(view, typed) if understand else typed


def _call(view: View, typed: str) -> str | RefusedAction:
    found = meant(typed, read_tools(view))
    return RefusedAction(found.reason, "") if isinstance(found, NoCall) else found


_MEANINGS: Mapping[str, Callable[[View, str], str | RefusedAction]] = {"bfcl": _call}


def is_unfinished(code: str) -> bool:
    r"""Return True if lines of Python are incomplete, as in an interactive shell.

    Example:
        >>> is_unfinished("for name in names:"), is_unfinished("for n in ns:\n    print(n)\n")
        (True, False)
        >>> is_unfinished("print(1)"), is_unfinished("print(1"), is_unfinished("print 1)")
        (False, True, False)
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return codeop.compile_command(code, symbol="single") is None
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return False

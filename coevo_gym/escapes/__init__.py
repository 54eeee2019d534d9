"""Attempts to get out of the sandbox, run to see that they fail.

A :class:`Payload` is one attempt; a :class:`Setup` runs it where it can do no harm, with the
sandbox off and on; :func:`compare` puts both side by side. ``coevo doctor --escape-suite`` runs
:func:`generic_suite`, and the suites of the benchmarks that have their own.
"""

from coevo_gym.escapes.payload import Attempt, Payload, Row, Setup, Suite, Verdict, compare
from coevo_gym.escapes.suite import generic_suite

__all__ = [
    "Attempt",
    "Payload",
    "Row",
    "Setup",
    "Suite",
    "Verdict",
    "compare",
    "generic_suite",
]

"""Attacks on the sandbox, run to verify that they fail.

A :class:`Payload` is one attack. A :class:`Setup` runs it in a harmless setting, with the sandbox
off and on; :func:`run_payloads` collects both results. ``coevo doctor --attack-suite`` runs
:func:`generic_suite` and the benchmarks' own suites.
"""

from coevo_gym.sandbox.attacks.payload import (
    AttackRow,
    AttackRun,
    AttackVerdict,
    Payload,
    Setup,
    Suite,
    run_payloads,
)
from coevo_gym.sandbox.attacks.suite import generic_suite

__all__ = [
    "AttackRow",
    "AttackRun",
    "AttackVerdict",
    "Payload",
    "Setup",
    "Suite",
    "generic_suite",
    "run_payloads",
]

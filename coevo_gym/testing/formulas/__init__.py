"""Registry of all formulas of the methods by name, to verify externally computed numbers.

```bash
python -m coevo_gym.testing.formulas numbers.json --only rloo,ppo
```

A file of numbers is JSON: a list, or an object with the list ``vectors``. Each entry contains the
name of a formula, its inputs and the expected output:

    {"id": "rloo#1", "formula": "rloo", "inputs": {"R": [1, 0, 0]}, "expected": [1, -0.5, -0.5]}

An adapter passes the inputs to the same function that training calls and returns its result; there
is no second implementation. Adapters import late, so that formulas that need no PyTorch run without
it.
"""

from __future__ import annotations

from collections.abc import Mapping

from coevo_gym.testing.formulas.check import Formula
from coevo_gym.testing.formulas.curricula import CURRICULA, METHODS
from coevo_gym.testing.formulas.learning import LEARNING, STATISTICS, TRIALS

FORMULAS: Mapping[str, Formula] = {
    **LEARNING,
    **CURRICULA,
    **STATISTICS,
    **TRIALS,
    **METHODS,
}
"""Formulas by name."""

"""Every formula of the methods by name, for numbers that come from elsewhere.

```bash
python -m coevo_gym.testing.formulas numbers.json --only rloo,ppo
```

A file of numbers is JSON: a list, or an object with the list ``vectors``. Each entry names a
formula and holds what goes in and what comes out:

    {"id": "rloo#1", "formula": "rloo", "inputs": {"R": [1, 0, 0]}, "expected": [1, -0.5, -0.5]}

An adapter takes the inputs, calls the very function that training calls, and gives what it
returns: there is no second implementation. Adapters import late, so that a formula that needs no
PyTorch runs without it.
"""

from __future__ import annotations

from collections.abc import Mapping

from coevo_gym.testing.formulas.check import Formula
from coevo_gym.testing.formulas.curricula import CURRICULA
from coevo_gym.testing.formulas.learning import LEARNING
from coevo_gym.testing.formulas.methods import METHODS
from coevo_gym.testing.formulas.statistics import STATISTICS
from coevo_gym.testing.formulas.trials import TRIALS

FORMULAS: Mapping[str, Formula] = {
    **LEARNING,
    **CURRICULA,
    **STATISTICS,
    **TRIALS,
    **METHODS,
}
"""Formulas by name."""

"""What most processes that tests start import, for :mod:`tests.processes` to import once.

Modules that look at the environment or the terminal when they are imported are left out. PyTorch
uses one thread in all of these processes: the models are tiny, and tests run beside each other.
"""

import os
from importlib import import_module

os.environ["OMP_NUM_THREADS"] = "1"

for name in (
    "coevo_gym.agents.endpoint.openai_policy",
    "coevo_gym.runs.evals.trials",
    "coevo_gym.runs.experiments.making",
    "coevo_gym.runs.train",
    "coevo_gym.serve.server",
    "coevo_gym.view.export.write",
    "tests.toy",
    "openai",
    "torch.optim",
    "typer.main",
):
    import_module(name)

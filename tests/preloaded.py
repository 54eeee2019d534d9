"""What most processes that tests start import, for :mod:`tests.processes` to import once.

Modules that look at the environment or the terminal when they are imported are left out.
"""

from importlib import import_module

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

"""Run code that a model wrote, where it can reach nothing but what it is given.

:func:`launch` starts a program at the strongest level that holds here; :func:`probe` says which
levels do. See ``docs/sandbox.md`` for what each of them covers.
"""

from coevo_gym.sandbox.launch import launch, probe, python_files, strongest
from coevo_gym.sandbox.level import Finding, Level, Limits
from coevo_gym.sandbox.process import Sandboxed
from coevo_gym.sandbox.ready import readable

__all__ = [
    "Finding",
    "Level",
    "Limits",
    "Sandboxed",
    "launch",
    "probe",
    "python_files",
    "readable",
    "strongest",
]

"""Newbench: put the requested thing into the requested box.

Importing this package registers the env, so ``gym.make("coevo_newbench:Newbench-v0")`` works.
``coevo`` finds the package through the entry point for :data:`SPEC` in ``pyproject.toml``.
All other modules are imported when they are needed.
"""

from coevo_gym.core.benchmark import BenchmarkSpec, register_benchmark

SPEC = BenchmarkSpec(
    name="newbench",
    env_id="Newbench-v0",
    benchmark=f"{__name__}.benchmark:BENCHMARK",
    env=f"{__name__}.env:NewbenchEnv",
    world=f"{__name__}.world:NewbenchWorld",
    verifier=f"{__name__}.world:NewbenchVerifier",
    title="put a thing into a box",
    setup=f"{__name__}.setup",
    prompt=f"{__name__}:prompt.j2",
)
register_benchmark(SPEC)

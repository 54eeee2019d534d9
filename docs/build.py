"""Write docs/envs/*.md from the docstrings of the envs. Run by `make docs`."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path

from coevo_gym.core.benchmark import BenchmarkSpec, benchmark_specs

FOLDER = Path(__file__).parent / "envs"
_SECTION = re.compile(r"^([A-Z][A-Za-z ]+):$", re.MULTILINE)


def page(spec: BenchmarkSpec) -> str:
    """One env's page: how to make it, and its docstring."""
    module, _, name = spec.env.partition(":")
    text = inspect.getdoc(getattr(import_module(module), name)) or ""
    text = re.sub(r":(?:class|meth|func|mod|data):`~?([^`]+)`", r"`\1`", text).replace("``", "`")
    body = _SECTION.sub(r"## \1", text)
    body = re.sub(r"^ {4}", "", body, flags=re.MULTILINE)
    return f"""# {spec.env_id}

<!-- Written by `make docs` from the docstring of {name}. -->

```python
import gymnasium as gym

import coevo_gym

env = gym.make("{spec.env_id}")
observation, info = env.reset(seed=0)
task = coevo_gym.tasks("{spec.name}", "val")[0]
observation, info = env.reset(options={{"task": task}})
for action in task.solution:
    observation, reward, terminated, truncated, info = env.step(action)
assert reward == 1.0
```

{body}
"""


def main() -> None:
    """Write every page."""
    FOLDER.mkdir(exist_ok=True)
    for spec in benchmark_specs():
        (FOLDER / f"{spec.name}.md").write_text(page(spec))
        print(f"docs/envs/{spec.name}.md")


if __name__ == "__main__":
    main()

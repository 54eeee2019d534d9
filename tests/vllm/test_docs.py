"""What docs/agents.md shows of vLLM runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.vllm

PAGE = Path(__file__).parents[2] / "docs" / "agents.md"


@pytest.mark.parametrize(
    ("heading", "settings"),
    [
        ("vLLM", "VLLMConfig(gpu_memory_utilization=0.4)"),
        ("vLLM servers", "VLLMConfig(kv_cache_gib=1)"),
    ],
)
def test_an_example_runs_with_a_small_model_on_a_cpu(
    folder: Path, heading: str, settings: str
) -> None:
    section = PAGE.read_text().split(f"\n## {heading}\n")[1]
    match = re.search(r"^```py\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert match is not None
    code = match[1]
    for text, here in {
        '"smollm2"': repr(str(folder)),
        settings: "VLLMConfig(kv_cache_gib=0.25)",
    }.items():
        assert text in code
        code = code.replace(text, here)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=1500, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]

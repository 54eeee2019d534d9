"""What papers report of the runs that presets follow, for the same benchmark and the same model."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple


class Published(NamedTuple):
    """Success rates of a paper, in percent as printed.

    Attributes:
        static: GRPO on the first task set alone.
        coevolve: the same with a set that evolves.
    """

    static: str
    coevolve: str


_COEVOLVE = {
    ("alfworld", "Qwen3-4B"): Published("77.85", "82.86"),
    ("appworld", "Qwen2.5-7B-Instruct"): Published("26.78", "27.98"),
    ("appworld", "Qwen3-30B-A3B"): Published("48.81", "54.76"),
    ("appworld", "Qwen3-4B"): Published("28.57", "35.71"),
    ("bfcl", "Qwen2.5-7B-Instruct"): Published("56.0", "61.5"),
    ("bfcl", "Qwen3-30B-A3B"): Published("64.0", "67.0"),
    ("bfcl", "Qwen3-4B"): Published("58.0", "63.0"),
    ("webshop", "Qwen3-4B"): Published("75.0", "80.6"),
}
_RELEASE = "-Instruct-2507"
"""The release of Qwen3-4B without a thinking mode, which the paper calls Qwen3-4B-Instruct."""
_REMARKS = {
    "bfcl": ", on all 200 base items, of which training here uses a part: compare models as they "
    "are with `coevo eval bfcl --split test --env scheme=all200 --set benchmark.subset=base`, and "
    "nothing trained here",
}


def published(benchmark: str, model: str, methods: Collection[str]) -> str | None:
    """What is published for a benchmark, a model and methods, in words; None if nothing is.

    Args:
        benchmark: name of the benchmark.
        model: its path; it is known by its name, wherever its folder lies.
        methods: names of the methods that a run compares.
    """
    found = _COEVOLVE.get((benchmark, Path(model).name.removesuffix(_RELEASE)))
    numbers = {} if found is None else found._asdict()
    told = ", ".join(f"{name} {rate} %" for name, rate in numbers.items() if name in methods)
    return f"{told} (arXiv 2604.15840){_REMARKS.get(benchmark, '')}" if told else None

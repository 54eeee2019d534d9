"""What some tests need of a machine beyond Python packages.

Where it is missing they are skipped, and one line says what to install; in CI that is an error.
"""

from __future__ import annotations

import shutil
from importlib.util import find_spec

from coevo_gym.curricula.pool.embed import sentence_embedding_advice
from coevo_gym.sandbox import Level, probe

FOUND = {finding.level: finding for finding in probe()}


def alfworld() -> str:
    """Why there is no engine of ALFWorld here, and what to do; "" if there is one."""
    if find_spec("textworld") and find_spec("fast_downward"):
        return ""
    return "ALFWorld's engine is not there: install cmake, g++ and make, then touch pyproject.toml."


def bubblewrap() -> str:
    """Why there is no bubblewrap here, and what to do; "" if it works."""
    finding = FOUND[Level.BUBBLEWRAP]
    return "" if finding.holds else f"Bubblewrap does not work here: {finding.detail}"


def isolation() -> str:
    """Why model-written code cannot be kept apart here; "" if it can."""
    available = any(finding.holds for finding in FOUND.values())
    return "" if available else f"Nothing keeps model-written code apart here. {bubblewrap()}"


def hnswlib() -> str:
    """Why vectors cannot be searched by a graph here, and what to do; "" if they can."""
    if find_spec("hnswlib"):
        return ""
    return "hnswlib is not there: install g++ and Python's headers, then touch pyproject.toml."


def sentences() -> str:
    """Why no sentence can be embedded by a model here, and what to do; "" if it can."""
    lacks = sentence_embedding_advice()
    return lacks and f"Sentence embeddings are not there: {lacks}."


def pyarrow() -> str:
    """Why no Parquet can be written here, and what to do; "" if it can."""
    if find_spec("pyarrow"):
        return ""
    return "pyarrow is not there: install the extra `[export]`."


def sinks() -> str:
    """Why numbers cannot be drawn by other packages here, and what to do; "" if they can."""
    missing = [name for name in ("tensorboard", "wandb") if not find_spec(name)]
    if not missing:
        return ""
    return f"{' and '.join(missing)} are not there: install the extras `[tensorboard,wandb]`."


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
"""The browser that pages are tested in."""


def chromium() -> str:
    """Why pages cannot be opened in a browser here, and what to do; "" if they can."""
    if CHROMIUM and find_spec("playwright"):
        return ""
    if CHROMIUM:
        return "Playwright is not there: install the extra `[dev]`."
    return "Chromium is not there: install it, as by `apt-get install chromium`."


def figures() -> str:
    """Why figures cannot be drawn by other programs here, and what to do; "" if they can."""
    programs = {"rsvg-convert": "librsvg2-bin", "pdftoppm": "poppler-utils"}
    packages = [package for name, package in programs.items() if not shutil.which(name)]
    if packages:
        return f"Figures are not drawn by all programs: apt-get install {' '.join(packages)}."
    return "" if find_spec("matplotlib") else "matplotlib is not there: install the extra `[plot]`."


EMULATOR = shutil.which("qemu-x86_64")
"""The emulator of other processors, for programs of this system."""


def emulator() -> str:
    """Why other processors cannot be emulated here, and what to do; "" if they can."""
    return (
        "" if EMULATOR else "qemu-x86_64 is not there: install it, as by `apt install qemu-user`."
    )


def list_missing() -> list[str]:
    """All that is missing here, a line each."""
    all_of_it = (alfworld(), bubblewrap(), chromium(), figures(), hnswlib(), pyarrow(), sinks())
    return [line for line in all_of_it if line]

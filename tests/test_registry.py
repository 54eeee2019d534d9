"""Names of things that are found when they are asked for."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from coevo_gym.core import registry
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.registry import METHODS, Registry
from coevo_gym.methods.method import MethodSpec


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The methods beside those of two installed packages."""
    entries = [
        EntryPoint("good", "coevo_gym.methods.coevolve:static", "coevo_gym.methods"),
        EntryPoint("broken", "no_such_package.methods:mine", "coevo_gym.methods"),
        EntryPoint("nameless", "coevo_gym.methods.coevolve:gone", "coevo_gym.methods"),
        EntryPoint("static", "coevo_gym.methods.coevolve:coevolve", "coevo_gym.methods"),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    home, default = "coevo_gym.methods:NAMES", "coevo_gym.methods:DEFAULT"
    return Registry("method", home=home, default=default, group="coevo_gym.methods")


def test_every_built_in_name_loads_the_method_with_that_name() -> None:
    for name in METHODS.built_in:
        spec = METHODS.load(name)
        assert isinstance(spec, MethodSpec)
        assert spec.name == name
        assert spec.summary.endswith(".")


def test_installed_packages_add_methods_but_cannot_replace_built_in_ones(methods: Registry) -> None:
    assert {"good", "broken", "coevolve"} <= set(methods.names())
    assert methods.load("good").name == "static"
    assert methods.load("static").name == "static"  # a name of ours cannot be taken


def test_the_error_for_a_method_that_cannot_be_imported_names_it(methods: Registry) -> None:
    with pytest.raises(ConfigError, match=r"'broken' from .*no_such_package.*ModuleNotFoundError"):
        methods.load("broken")
    with pytest.raises(ConfigError, match=r"'nameless' from .* cannot be imported.*gone"):
        methods.load("nameless")


def test_taken_and_unknown_method_names_are_refused(methods: Registry) -> None:
    with pytest.raises(ConfigError, match="'static' is a built-in method"):
        methods.add("static", object())
    with pytest.raises(ConfigError, match=r"'good' from .* already uses this name"):
        methods.add("good", object())
    with pytest.raises(ConfigError, match=r"there is no method 'coevolv'. Did you mean 'coevolve'"):
        methods.load("coevolv")
    methods.add("mine", 1)
    methods.add("mine", 2)
    assert methods.load("mine") == 2


def test_listing_names_imports_no_method() -> None:
    code = (
        "import sys; from coevo_gym.core.registry import METHODS; METHODS.names();"
        "print(*(name for name in sys.modules if name.startswith('coevo_gym.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    assert "coevo_gym.methods" in done.stdout.split()
    assert not [m for m in done.stdout.split() if m.startswith("coevo_gym.methods.")]

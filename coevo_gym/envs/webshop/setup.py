"""Installing the official WebShop data, and saying what is there."""

from __future__ import annotations

from pathlib import Path

from coevo_gym.core.errors import ConfigError, EnvBackendError
from coevo_gym.envs.webshop.official import load_official, official_files
from coevo_gym.envs.webshop.tasks import active_catalogue
from coevo_gym.provision import Installation, data_folder, install_files


def install(source: Path | None) -> Path:
    """Check the official files in a folder and copy them to where they are found again.

    Args:
        source: folder with ``items_shuffle*.json`` and ``items_ins_v2*.json``.

    Returns:
        The folder that holds them now.

    Raises:
        ConfigError: without a folder; the files carry no licence, so nobody may ship them.
        BenchmarkNotInstalled: if a file is missing.
        DataError: if a file is not what it should be.
    """
    if source is None:
        raise ConfigError(
            "The official WebShop files must be fetched by you: their texts carry no licence. "
            "Follow the README of princeton-nlp/WebShop (setup.sh), then run `coevo install "
            "webshop --from DIR`. Nothing is needed for the built-in catalogue."
        )
    load_official(source)
    return install_files("webshop", official_files(source))


def installation() -> Installation:
    """What is in use now."""
    folder = data_folder("webshop")
    try:
        catalogue = active_catalogue()
    except EnvBackendError as error:
        return Installation(False, "own engine, in process", str(error), "no code is run")
    source = "built in" if folder is None else str(folder)
    data = f"{catalogue.name}: {len(catalogue)} products ({source})"
    return Installation(True, "own engine, in process", data, "no code is run")

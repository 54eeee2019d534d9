"""The parts of the built-in world that all tasks share: API docs and base databases."""

import json
from pathlib import Path

from appworld.apps import get_all_apps
from appworld.collections.api_docs import ApiDocCollection
from appworld.collections.models import ModelCollection
from appworld.common.constants import CANARY_STRING
from appworld.common.utils import freeze_time

from .desk import add_words
from .money import add_money
from .music import add_music
from .people import NOW, add_people

ALL_APPS = tuple(get_all_apps())


def write_json(path: Path, value: object) -> None:
    """Write a JSON file, creating its parent folders if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def build_api_docs(data: Path) -> ApiDocCollection:
    """Write the documentation of all public APIs, in the only format that the engine reads."""
    docs = ApiDocCollection.build(
        load_apps=tuple(get_all_apps(skip_admin=True)), include_response_schemas=True
    )
    for app, apis in docs.items():
        marked = {name: {**doc, "canary_string": CANARY_STRING} for name, doc in apis.items()}
        write_json(data / "api_docs" / "standard" / f"{app}.json", marked)
    return docs


def build_base(data: Path, docs: ApiDocCollection) -> None:
    """Write the databases that all tasks start from."""
    home = ":memory:mini-base"
    fields = ("path", "method", "description", "parameters", "response_schemas")
    with freeze_time(NOW):
        models = ModelCollection.load(
            to_db_home_path=home, from_db_home_path=home, load_apps=list(ALL_APPS), create_db=True
        )
        for app, apis in docs.items():
            for name, doc in apis.items():
                described = {field: doc[field] for field in fields}
                models.api_docs.ApiDoc.create_save(app_name_=app, api_name=name, **described)
        add_people(models)
        add_music(models)
        add_money(models)
        add_words(models)
        save(models, data / "base_dbs", "full")


def save(models: ModelCollection, folder: Path, form: str) -> None:
    """Write the databases to a folder, and close them."""
    models.save(
        db_home_path=str(folder),
        format=form,
        app_names=list(ALL_APPS),
        delete_if_exists=True,
        save_model_hashes=True,
    )
    models.close()

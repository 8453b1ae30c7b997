"""Where the templates are: inside an installed package, or beside it in a checkout."""

from __future__ import annotations

from pathlib import Path

from trtbuild.errors import TrtbuildError

FOLDER = "model_repo_templates"


def templates_dir() -> Path:
    """Return the folder of the templates.

    Raises:
        TrtbuildError: it is in neither place.
    """
    package = Path(__file__).resolve().parents[1]
    places = (package / FOLDER, package.parents[1] / FOLDER)
    for place in places:
        if place.is_dir():
            return place
    raise TrtbuildError(f"the templates are missing: looked in {places[0]} and {places[1]}", hint="reinstall trtbuild")

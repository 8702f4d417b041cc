"""Every configuration field has a description that is more than its name."""

from typing import Any, get_args

import pytest
from pydantic import BaseModel

from clew.config.schema import RunConfig


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return every section class in an annotation, unions and their members included."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        nested = [m for f in annotation.model_fields.values() for m in models_in(f.annotation)]
        return [annotation, *nested]
    return [model for part in get_args(annotation) for model in models_in(part)]


SECTIONS = list(dict.fromkeys(models_in(RunConfig)))


def test_the_walk_reaches_union_members() -> None:
    names = {section.__name__ for section in SECTIONS}
    assert {"Adam", "SGD", "PlateauSchedule", "TripleData", "ConvEModel"} <= names
    assert len(SECTIONS) > 12


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_field_is_documented(section: type[BaseModel]) -> None:
    for name, field in section.model_fields.items():
        text = (field.description or "").strip()
        assert text, f"{section.__name__}.{name} has no docstring under it"
        assert text.endswith((".", "`")), f"{section.__name__}.{name}: {text!r} is no sentence"


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_section_is_frozen_and_closed(section: type[BaseModel]) -> None:
    assert section.__doc__
    assert section.model_config["frozen"] is True
    assert section.model_config["extra"] == "forbid"

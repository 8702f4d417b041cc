"""Defaults are constants: a configuration does not check them each time it is read, this does."""

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated, Any

import pytest
from pydantic import TypeAdapter

import clew.config
from clew.config.base import Section

for module in iter_modules(clew.config.__path__, "clew.config."):
    import_module(module.name)


def sections(base: type[Section] = Section) -> Iterator[type[Section]]:
    for section in base.__subclasses__():
        yield section
        yield from sections(section)


@pytest.mark.parametrize("section", sorted(set(sections()), key=str), ids=lambda s: s.__name__)
def test_a_field_takes_its_default_and_leaves_it_as_it_is(section: type[Section]) -> None:
    for name, field in section.model_fields.items():
        if not field.is_required():
            default: Any = field.get_default(call_default_factory=True)
            kind = (
                Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
            )
            assert repr(TypeAdapter(kind).validate_python(default)) == repr(default), name

"""Categories and predicates of the Biolink Model, and how to find them by name."""

import functools
import re
from collections.abc import Iterable
from importlib import resources
from types import MappingProxyType

from pydantic import BaseModel

PREFIX = "biolink:"
NAMED_THING = "biolink:NamedThing"
RELATED_TO = "biolink:related_to"
AFFECTS = "biolink:affects"
REGULATES = "biolink:regulates"

CATEGORY_ALIASES = MappingProxyType(
    {
        "Anatomy": "AnatomicalEntity",
        "ChemicalSubstance": "ChemicalEntity",
        "Compound": "ChemicalEntity",
        "MolecularFunction": "MolecularActivity",
        "PharmacologicClass": "ChemicalRole",
        "SideEffect": "PhenotypicFeature",
        "Symptom": "PhenotypicFeature",
    }
)
"""Kind names of DrugMechDB and Hetionet to Biolink categories."""
ASPECTS = frozenset(
    [
        "absorption",
        "abundance",
        "activity",
        "aggregation",
        "degradation",
        "expression",
        "localization",
        "metabolism",
        "secretion",
        "splicing",
        "stability",
        "synthesis",
        "transport",
        "uptake",
    ]
)
"""Aspects that can increase or decrease: values of `object_aspect_qualifier`."""
DIRECTIONS = {"increases": "increased", "decreases": "decreased"}
REGULATIONS = {"positively": "upregulated", "negatively": "downregulated"}
DENIED = "negated=true"
"""What the name of a relation of KGX ends with, after a semicolon, if its triples are denied."""
Qualifiers = tuple[tuple[str, str], ...]


class Terms(BaseModel):
    """The content of `terms.json`."""

    version: str
    predicates: frozenset[str]
    categories: dict[str, int]
    """Name of a category to its depth; 2 is directly below `named thing`."""


@functools.cache
def terms() -> Terms:
    """Return the terms of the Biolink Model from the file in the package."""
    text = resources.files("clew.biolink").joinpath("terms.json").read_text(encoding="utf-8")
    return Terms.model_validate_json(text)


def category_of(kind: str) -> str | None:
    """Return the category of a kind, such as `biolink:Gene` for `gene`; None if there is none."""
    words = re.split(r"[\s_]+", kind.strip().removeprefix(PREFIX))
    name = "".join(word[:1].upper() + word[1:] for word in words)
    name = CATEGORY_ALIASES.get(name, name)
    return PREFIX + name if name in terms().categories else None


def most_specific(categories: Iterable[str]) -> str | None:
    """Return the deepest category, or the first of several; unknown categories come last.

    None if there are no categories.
    """
    depth = terms().categories
    ranked = sorted(categories, key=lambda name: -depth.get(name.removeprefix(PREFIX), 0))
    return ranked[0] if ranked else None


def predicate_of(name: str) -> tuple[str, Qualifiers]:
    """Return the predicate and qualifiers for the name of a relation.

    `increases activity of` is `biolink:affects` with an aspect and a direction, as in the Biolink
    Model, and the qualifiers in a name made from KGX (`biolink:affects;key=value`) are its own. A
    relation that is not in the Biolink Model is `biolink:related_to`.
    """
    first, *parts = name.split(";")
    name = first if all("=" in part for part in parts) else name
    plain = re.sub(r"[\s_]+", " ", name.strip().removeprefix(PREFIX)).lower()
    if (known := plain.replace(" ", "_")) in terms().predicates:
        given = (part.partition("=")[::2] for part in parts)
        return PREFIX + known, tuple((PREFIX + key, value) for key, value in given)
    verb, _, rest = plain.partition(" ")
    aspect = rest.removesuffix(" of")
    if verb in DIRECTIONS and aspect in ASPECTS:
        return AFFECTS, (
            ("biolink:qualified_predicate", "biolink:causes"),
            ("biolink:object_aspect_qualifier", aspect),
            ("biolink:object_direction_qualifier", DIRECTIONS[verb]),
        )
    if verb in REGULATIONS and rest == "regulates":
        return REGULATES, (("biolink:object_direction_qualifier", REGULATIONS[verb]),)
    return RELATED_TO, ()


def is_denied(name: str) -> bool:
    """Return whether the name of a relation says that its triples are not true."""
    return DENIED in name.split(";")[1:]

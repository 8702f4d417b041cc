"""Categories and predicates of the Biolink Model: which there are, and which one a name means."""

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
"""Kinds as other data sets call them: DrugMechDB, Hetionet."""
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
"""What of a thing can be increased or decreased: values of `object_aspect_qualifier`."""
DIRECTIONS = {"increases": "increased", "decreases": "decreased"}
REGULATIONS = {"positively": "upregulated", "negatively": "downregulated"}
Qualifiers = tuple[tuple[str, str], ...]


class Terms(BaseModel):
    """The content of `terms.json`."""

    version: str
    predicates: frozenset[str]
    categories: dict[str, int]
    """Name to its depth: 2 for what stands directly below `named thing`."""


@functools.cache
def terms() -> Terms:
    """Return the terms of the Biolink Model that are kept in the package."""
    text = resources.files("clew.biolink").joinpath("terms.json").read_text(encoding="utf-8")
    return Terms.model_validate_json(text)


def category_of(kind: str) -> str | None:
    """Return the category that a kind means, such as `biolink:Gene` for `gene`; None if none."""
    words = re.split(r"[\s_]+", kind.strip().removeprefix(PREFIX))
    name = "".join(word[:1].upper() + word[1:] for word in words)
    name = CATEGORY_ALIASES.get(name, name)
    return PREFIX + name if name in terms().categories else None


def most_specific(categories: Iterable[str]) -> str | None:
    """Return the deepest of some categories, the first of equals; unknown ones come last."""
    depth = terms().categories
    ranked = sorted(categories, key=lambda name: -depth.get(name.removeprefix(PREFIX), 0))
    return ranked[0] if ranked else None


def predicate_of(name: str) -> tuple[str, Qualifiers]:
    """Return the predicate that a relation's name means, with its qualifiers.

    `increases activity of` is `biolink:affects` with an aspect and a direction, as Biolink writes
    it. A relation that Biolink does not know is `biolink:related_to`.
    """
    plain = re.sub(r"[\s_]+", " ", name.strip().removeprefix(PREFIX)).lower()
    if (known := plain.replace(" ", "_")) in terms().predicates:
        return PREFIX + known, ()
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

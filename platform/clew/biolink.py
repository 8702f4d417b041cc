"""Categories and predicates of the Biolink Model, identifiers with a prefix, and their pages.

`biolink.json` contains the names of the model's categories, predicates and aspects, without
deprecated ones (https://github.com/biolink/biolink-model, Apache 2.0), and the pages of identifiers
from the Bioregistry (https://bioregistry.io, version 0.15.6, CC0), the first pattern of each
prefix. Nothing is downloaded.
"""

import functools
import re
from collections.abc import Iterable
from importlib import resources
from urllib.parse import quote

from pydantic import BaseModel

PREFIX = "biolink:"
NAMED_THING = "biolink:NamedThing"
RELATED_TO = "biolink:related_to"
AFFECTS = "biolink:affects"
REGULATES = "biolink:regulates"

DIRECTIONS = {"increases": "increased", "decreases": "decreased"}
REGULATIONS = {"positively": "upregulated", "negatively": "downregulated"}
CURIE = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*):(\S+)")
DENIED = "negated=true"
"""What the name of a relation of KGX ends with, after a semicolon, if its triples are denied."""
DENYING = re.compile(
    r"(.*[:/#])?(NEG_|(?i:not)[_ |]).*|(?i:semmeddb:neg_.*|.*(phenotype_negative|_absent))"
)
"""Names of relations that deny something: `NEG_TREATS` (SemMedDB), absent phenotypes (PrimeKG)."""
Qualifiers = tuple[tuple[str, str], ...]


class Terms(BaseModel):
    """The content of `biolink.json`."""

    version: str
    predicates: frozenset[str]
    aspects: frozenset[str]
    """Aspects that can increase or decrease: values of `object_aspect_qualifier`."""
    category_aliases: dict[str, str]
    """Kind names of DrugMechDB and Hetionet to Biolink categories."""
    categories: dict[str, int]
    """Name of a category to its depth; 2 is directly below `named thing`."""
    pages: dict[str, str]
    """Prefix in lower case to the address of an entry, with `{id}` for the local id."""
    prefix_synonyms: dict[str, str]
    """Synonym of a prefix to the prefix, in lower case: those of the Bioregistry, and a few that
    Biolink and DrugMechDB use."""


@functools.cache
def terms() -> Terms:
    """Return the terms of the Biolink Model from the file in the package."""
    text = resources.files("clew").joinpath("biolink.json").read_text(encoding="utf-8")
    return Terms.model_validate_json(text)


def category_of(kind: str) -> str | None:
    """Return the category of a kind, such as `biolink:Gene` for `gene`; None if there is none."""
    words = re.split(r"[\s_]+", kind.strip().removeprefix(PREFIX))
    name = "".join(word[:1].upper() + word[1:] for word in words)
    name = terms().category_aliases.get(name, name)
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
    if verb in DIRECTIONS and aspect in terms().aspects:
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
    predicate, *parts = name.split(";")
    return DENIED in parts or DENYING.fullmatch(predicate) is not None


def split_curie(text: str) -> tuple[str, str] | None:
    """Return the prefix and the local id of a CURIE; None for any other text.

    A kind before `::` is ignored, as in Hetionet's `Anatomy::UBERON:0000002`.
    """
    found = CURIE.fullmatch(text.rpartition("::")[2])
    return (found[1], found[2]) if found and not found[2].startswith("//") else None


def page_of(text: str) -> str | None:
    """Return the address of an identifier's page; None if its database is unknown."""
    parts = split_curie(text)
    if parts is None:
        return None
    prefix = parts[0].lower()
    address = terms().pages.get(terms().prefix_synonyms.get(prefix, prefix))
    # Some data sets repeat the prefix: GO:GO:0001.
    local = parts[1].removeprefix(f"{parts[0]}:")
    if address is None or not local.strip("."):  # `..` would point outside of the address
        return None
    return address.format(id=quote(local, safe=":.-_", errors="replace"))


def as_curie(text: str) -> str:
    """Return an identifier as a CURIE; an identifier that is not one gets the prefix `clew`."""
    parts = split_curie(text)
    return ":".join(parts) if parts else f"clew:{quote(text, safe='.-_')}"

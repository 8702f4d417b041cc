"""Names are mapped to the right category or predicate of the Biolink Model."""

import re

import pytest

from clew.biolink import (
    as_curie,
    category_of,
    is_denied,
    most_specific,
    page_of,
    predicate_of,
    split_curie,
    terms,
)


@pytest.mark.parametrize(
    ("kind", "category"),
    [
        ("Drug", "biolink:Drug"),
        ("biolink:Gene", "biolink:Gene"),
        ("ChemicalSubstance", "biolink:ChemicalEntity"),
        ("Biological Process", "biolink:BiologicalProcess"),
        ("Side Effect", "biolink:PhenotypicFeature"),
        ("spaceship", None),
        ("", None),
    ],
)
def test_kinds(kind: str, category: str | None) -> None:
    assert category_of(kind) == category


@pytest.mark.parametrize(
    ("name", "predicate", "qualifiers"),
    [
        ("treats", "biolink:treats", {}),
        ("biolink:subclass_of", "biolink:subclass_of", {}),
        ("positively correlated with", "biolink:positively_correlated_with", {}),
        (
            "negatively regulates",
            "biolink:regulates",
            {"object_direction_qualifier": "downregulated"},
        ),
        (
            "increases activity of",
            "biolink:affects",
            {
                "qualified_predicate": "biolink:causes",
                "object_aspect_qualifier": "activity",
                "object_direction_qualifier": "increased",
            },
        ),
        ("/people/person/nationality", "biolink:related_to", {}),
        (
            "biolink:affects;object_aspect_qualifier=activity",
            "biolink:affects",
            {"object_aspect_qualifier": "activity"},
        ),
        ("biolink:unheard;a=b", "biolink:related_to", {}),
    ],
)
def test_relations(name: str, predicate: str, qualifiers: dict[str, str]) -> None:
    found, more = predicate_of(name)
    assert found == predicate
    assert {key.removeprefix("biolink:"): value for key, value in more} == qualifiers


def test_the_deepest_category_says_most() -> None:
    names = ["biolink:NamedThing", "biolink:SmallMolecule", "biolink:ChemicalEntity"]
    assert most_specific(names) == "biolink:SmallMolecule"
    assert most_specific(["biolink:Unheard", "biolink:NamedThing"]) == "biolink:NamedThing"
    assert most_specific([]) is None
    assert terms().categories["NamedThing"] < terms().categories["SmallMolecule"]


@pytest.mark.parametrize(
    ("text", "page"),
    [
        ("MESH:D003882", "https://meshb.nlm.nih.gov/record/ui?ui=D003882"),
        ("UniProtKB:P21397", "http://purl.uniprot.org/uniprot/P21397"),
        ("Anatomy::UBERON:0000002", "http://purl.obolibrary.org/obo/UBERON_0000002"),
        ("GO:GO:0006954", "http://purl.obolibrary.org/obo/GO_0006954"),
        ("NCBITaxon:9606", "http://purl.obolibrary.org/obo/NCBITaxon_9606"),
        ("DB:DB00945", "https://go.drugbank.com/drugs/DB00945"),
        ("CHEMBL.COMPOUND:CHEMBL25", "https://www.ebi.ac.uk/chembl/compound/inspect/CHEMBL25"),
        ("REACT:R-HSA-1430728", "https://reactome.org/content/detail/R-HSA-1430728"),
        ("KEGG:hsa:7157", "http://www.kegg.jp/entry/hsa:7157"),
        ("RXCUI:1191", "https://mor.nlm.nih.gov/RxNav/search?searchBy=RXCUI&searchTerm=1191"),
        ("NCBIGene:..", None),
        ("NCBIGene://evil.example/", None),
        ("javascript:alert(1)", None),
        ("https://example.org", None),
        ("virus", None),
        ("MESH:", None),
    ],
)
def test_pages_of_identifiers(text: str, page: str | None) -> None:
    assert page_of(text) == page


HOSTILE = (
    '"><script>alert(1)</script>',
    "javascript:alert(1)",
    "../../login?next=//evil.example",
    "x#@evil.example",
    "%2e%2e/\\evil.example",
    "{id}{0.__class__}",
    "caf\u00e9\ud800\x00\u202e",
)


@pytest.mark.parametrize("local", HOSTILE)
def test_a_local_id_cannot_leave_its_address(local: str) -> None:
    for prefix in {*terms().pages, *terms().prefix_synonyms}:
        page = page_of(f"{prefix}:{local}")
        before, after = terms().pages[terms().prefix_synonyms.get(prefix, prefix)].split("{id}")
        assert page is not None
        assert page.startswith(before)
        assert page.endswith(after)
        inserted = page[len(before) : len(page) - len(after)]
        assert re.fullmatch(r"(?:[A-Za-z0-9:._~-]|%[0-9A-F]{2})+", inserted), page


def test_patterns_are_addresses_of_one_id_each() -> None:
    for prefix, pattern in terms().pages.items():
        assert prefix == prefix.lower()
        assert re.fullmatch(r"https?://[a-z0-9.-]+/[^{}<>\"\s]*\{id\}/?", pattern), pattern
    assert set(terms().prefix_synonyms.values()) <= set(terms().pages)
    assert not set(terms().prefix_synonyms) & set(terms().pages)


def test_every_identifier_becomes_a_curie() -> None:
    assert as_curie("MESH:D1") == "MESH:D1"
    assert as_curie("a virus") == "clew:a%20virus"
    assert split_curie(as_curie("[x](javascript:1)")) is not None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("biolink:treats;negated=true", True),
        ("NEG_TREATS", True),
        ("SEMMEDDB:neg_treats", True),
        ("not_treats", True),
        ("NOT|enables", True),
        ("disease_phenotype_negative", True),
        ("anatomy_protein_absent", True),
        ("biolink:treats", False),
        ("neg_regulates", False),
        ("negatively regulates", False),
        ("notch_binds", False),
        ("biolink:affects;object_aspect_qualifier=not_absent", False),
    ],
)
def test_a_relation_that_denies_is_known_by_its_name(name: str, expected: bool) -> None:
    assert is_denied(name) == expected

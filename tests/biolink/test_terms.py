"""Which category and which predicate of the Biolink Model a name means."""

import pytest

from clew.biolink.curies import as_curie, page_of, split_curie
from clew.biolink.terms import category_of, most_specific, predicate_of, terms


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
        ("UniProt:P21397", "https://www.uniprot.org/uniprotkb/P21397/entry"),
        (
            "Anatomy::UBERON:0000002",
            "https://www.ebi.ac.uk/ols4/ontologies/uberon/classes?obo_id=UBERON:0000002",
        ),
        ("GO:0006954", "https://amigo.geneontology.org/amigo/term/GO:0006954"),
        ("javascript:alert(1)", None),
        ("https://example.org", None),
        ("virus", None),
        ("MESH:", None),
    ],
)
def test_pages_of_identifiers(text: str, page: str | None) -> None:
    assert page_of(text) == page


def test_a_local_id_cannot_leave_its_address() -> None:
    page = page_of('MESH:"><script>?x=1#/../')
    assert page is not None
    assert page.startswith("https://meshb.nlm.nih.gov/record/ui?ui=%22%3E%3Cscript")


def test_every_identifier_becomes_a_curie() -> None:
    assert as_curie("MESH:D1") == "MESH:D1"
    assert as_curie("a virus") == "clew:a%20virus"
    assert split_curie(as_curie("[x](javascript:1)")) is not None

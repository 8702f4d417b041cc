"""Identifiers with a prefix (CURIEs), and the pages of the databases that they belong to.

Prefixes and addresses follow the Bioregistry (https://bioregistry.io, CC0). Nothing is fetched.
"""

import re
from types import MappingProxyType
from urllib.parse import quote

CURIE = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*):(\S+)")
PAGES = MappingProxyType(
    {
        "chebi": "https://www.ebi.ac.uk/chebi/searchId.do?chebiId=CHEBI:{id}",
        "chembl.compound": "https://www.ebi.ac.uk/chembl/compound_report_card/{id}",
        "cl": "https://www.ebi.ac.uk/ols4/ontologies/cl/classes?obo_id=CL:{id}",
        "db": "https://go.drugbank.com/drugs/{id}",
        "doid": "https://disease-ontology.org/?id=DOID:{id}",
        "drugbank": "https://go.drugbank.com/drugs/{id}",
        "efo": "https://www.ebi.ac.uk/ols4/ontologies/efo/classes?obo_id=EFO:{id}",
        "ensembl": "https://www.ensembl.org/id/{id}",
        "go": "https://amigo.geneontology.org/amigo/term/GO:{id}",
        "hgnc": "https://www.genenames.org/data/gene-symbol-report/#!/hgnc_id/HGNC:{id}",
        "hgnc.family": "https://www.genenames.org/cgi-bin/genefamilies/set/{id}",
        "hp": "https://hpo.jax.org/browse/term/HP:{id}",
        "interpro": "https://www.ebi.ac.uk/interpro/entry/InterPro/{id}",
        "kegg": "https://www.kegg.jp/entry/{id}",
        "mesh": "https://meshb.nlm.nih.gov/record/ui?ui={id}",
        "mondo": "https://monarchinitiative.org/MONDO:{id}",
        "ncbigene": "https://www.ncbi.nlm.nih.gov/gene/{id}",
        "ncbitaxon": "https://www.ncbi.nlm.nih.gov/Taxonomy/Browser/wwwtax.cgi?id={id}",
        "omim": "https://omim.org/entry/{id}",
        "orphanet": "https://www.orpha.net/en/disease/detail/{id}",
        "pfam": "https://www.ebi.ac.uk/interpro/entry/pfam/{id}",
        "pr": "https://proconsortium.org/app/entry/PR:{id}",
        "pubchem.compound": "https://pubchem.ncbi.nlm.nih.gov/compound/{id}",
        "reactome": "https://reactome.org/content/detail/{id}",
        "rxcui": "https://mor.nlm.nih.gov/RxNav/search?searchBy=RXCUI&searchTerm={id}",
        "smpdb": "https://smpdb.ca/view/{id}",
        "tigr": "https://www.ncbi.nlm.nih.gov/genome/annotation_prok/evidence/{id}",
        "uberon": "https://www.ebi.ac.uk/ols4/ontologies/uberon/classes?obo_id=UBERON:{id}",
        "umls": "https://uts.nlm.nih.gov/uts/umls/concept/{id}",
        "unii": "https://precision.fda.gov/uniisearch/srs/unii/{id}",
        "uniprot": "https://www.uniprot.org/uniprotkb/{id}/entry",
        "uniprotkb": "https://www.uniprot.org/uniprotkb/{id}/entry",
    }
)
"""Prefix in lower case to the address of an entry."""


def split_curie(text: str) -> tuple[str, str] | None:
    """Return prefix and local id of a CURIE, None for any other text.

    An id with its kind before it, as Hetionet's `Anatomy::UBERON:0000002`, is what follows `::`.
    """
    found = CURIE.fullmatch(text.rpartition("::")[2])
    return (found[1], found[2]) if found and not found[2].startswith("//") else None


def page_of(text: str) -> str | None:
    """Return the address of an identifier's page; None for one whose database is not known."""
    parts = split_curie(text)
    if parts is None or parts[0].lower() not in PAGES:
        return None
    # Some data repeat the prefix: GO:GO:0001.
    local = parts[1].removeprefix(f"{parts[0]}:")
    return PAGES[parts[0].lower()].format(id=quote(local, safe=":.-_"))


def as_curie(text: str, prefix: str = "clew") -> str:
    """Return an identifier as a CURIE: as it is if it is one, else under a prefix of our own."""
    parts = split_curie(text)
    return ":".join(parts) if parts else f"{prefix}:{quote(text, safe='.-_')}"

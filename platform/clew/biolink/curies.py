"""Identifiers with a prefix (CURIEs), and their pages in the databases that define them.

Prefixes and addresses are from the Bioregistry (https://bioregistry.io, version 0.15.6, CC0). For
each prefix, the address is the first pattern of the Bioregistry. Nothing is downloaded.
"""

import re
from types import MappingProxyType
from urllib.parse import quote

CURIE = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*):(\S+)")
ONTOLOGIES = (
    "APO BFO BTO CHEBI CL CLO DOID ECTO EMAPA ENVO FOODON FYPO GO HP MA MAXO MONDO MP NBO "
    "NCBITaxon NCIT OAE OBI PATO PR PW RO SO UBERON ZFA"
)
"""Prefixes of the OBO Foundry; the addresses of all its terms have the same form."""
PAGES = MappingProxyType(
    {
        "atc": "http://www.whocc.no/atc_ddd_index/?code={id}",
        "cas": "https://commonchemistry.cas.org/detail?cas_rn={id}",
        "chembl.compound": "https://www.ebi.ac.uk/chembl/compound/inspect/{id}",
        "chembl.target": "https://www.ebi.ac.uk/chembl/target/inspect/{id}",
        "clingen.allele": (
            "https://reg.clinicalgenome.org/redmine/projects/registry/genboree_registry/by_caid?"
            "caid={id}"
        ),
        "clinvar.variation": "https://www.ncbi.nlm.nih.gov/clinvar/variation/{id}",
        "dbsnp": "https://www.ncbi.nlm.nih.gov/snp/{id}",
        "doi": "https://doi.org/{id}",
        "drugbank": "https://go.drugbank.com/drugs/{id}",
        "drugcentral": "http://drugcentral.org/drugcard/{id}",
        "ec": "https://www.enzyme-database.org/query.php?ec={id}",
        "efo": "http://www.ebi.ac.uk/efo/EFO_{id}",
        "ensembl": "https://www.ensembl.org/id/{id}",
        "flybase": "https://flybase.org/reports/{id}",
        "fma": "http://purl.org/sig/ont/fma/{id}",
        "gard": "https://rarediseases.info.nih.gov/?gard_id={id}",
        "hgnc": "https://www.genenames.org/data/gene-symbol-report/#!/hgnc_id/{id}",
        "hgnc.genefamily": "https://www.genenames.org/cgi-bin/genefamilies/set/{id}",
        "hmdb": "http://www.hmdb.ca/metabolites/{id}",
        "icd10": "https://icd.who.int/browse10/2019/en#/{id}",
        "icd10cm": "https://www.icd10data.com/search?s={id}",
        "icd11": "https://icd.who.int/browse/latest-release/foundation/en#{id}",
        "inchikey": "https://www.chemspider.com/search?params={id}",
        "interpro": "https://www.ebi.ac.uk/interpro/entry/InterPro/{id}",
        "iuphar.ligand": (
            "http://www.guidetopharmacology.org/GRAC/LigandDisplayForward?ligandId={id}"
        ),
        "kegg": "http://www.kegg.jp/entry/{id}",
        "kegg.compound": "https://www.kegg.jp/entry/{id}",
        "kegg.disease": "http://www.kegg.jp/entry/{id}",
        "kegg.drug": "https://www.kegg.jp/entry/{id}",
        "kegg.orthology": "http://www.kegg.jp/entry/{id}",
        "kegg.pathway": "https://www.kegg.jp/pathway/{id}",
        "lipidmaps": "http://www.lipidmaps.org/data/LMSDRecord.php?LMID={id}",
        "loinc": "https://loinc.org/{id}",
        "meddra": "http://bioportal.bioontology.org/ontologies/MEDDRA?p=classes&conceptid={id}",
        "medgen": "https://www.ncbi.nlm.nih.gov/medgen/{id}",
        "mesh": "https://meshb.nlm.nih.gov/record/ui?ui={id}",
        "metacyc.compound": "https://metacyc.org/compound?orgid=META&id={id}",
        "metacyc.reaction": "https://metacyc.org/META/NEW-IMAGE?type=REACTION&object={id}",
        "mgi": "http://www.informatics.jax.org/accession/MGI:{id}",
        "mirbase": "http://www.mirbase.org/cgi-bin/mirna_entry.pl?acc={id}",
        "ncbigene": "https://www.ncbi.nlm.nih.gov/gene/{id}",
        "ncbiprotein": "https://www.ncbi.nlm.nih.gov/protein/{id}",
        "ndfrt": (
            "https://ncit.nci.nih.gov/ncitbrowser/ConceptReport.jsp?dictionary=NDFRT&code={id}"
        ),
        "omim": "https://omim.org/MIM:{id}",
        "orpha": "http://www.orpha.net/ORDO/Orphanet_{id}",
        "panther.family": "http://www.pantherdb.org/panther/family.do?clsAccession={id}",
        "panther.pathway": "http://www.pantherdb.org/pathway/pathwayDiagram.jsp?catAccession={id}",
        "pfam": "https://www.ebi.ac.uk/interpro/entry/pfam/{id}",
        "pharmgkb": "https://www.clinpgx.org/accession/{id}",
        "pharmgkb.drug": "http://www.pharmgkb.org/drug/{id}",
        "pharmgkb.gene": "http://www.pharmgkb.org/gene/{id}",
        "pubchem.compound": "https://pubchem.ncbi.nlm.nih.gov/compound/{id}",
        "pubchem.substance": "https://pubchem.ncbi.nlm.nih.gov/substance/{id}",
        "pubmed": "https://pubmed.ncbi.nlm.nih.gov/{id}/",
        "reactome": "https://reactome.org/content/detail/{id}",
        "refseq": "https://www.ncbi.nlm.nih.gov/protein/{id}",
        "rgd": "http://rgd.mcw.edu/rgdweb/report/gene/main.html?id={id}",
        "rhea": "https://www.rhea-db.org/rhea/{id}",
        "rnacentral": "https://rnacentral.org/rna/{id}",
        "rxnorm": "https://mor.nlm.nih.gov/RxNav/search?searchBy=RXCUI&searchTerm={id}",
        "sgd": "https://www.yeastgenome.org/locus/{id}",
        "sider.effect": "http://sideeffects.embl.de/se/{id}",
        "smpdb": "https://smpdb.ca/view/{id}",
        "snomedct": "http://purl.bioontology.org/ontology/SNOMEDCT/{id}",
        "tigrfam": "https://www.ncbi.nlm.nih.gov/cdd?term={id}",
        "ttd.drug": "https://db.idrblab.net/ttd/data/drug/details/{id}",
        "ttd.target": "https://db.idrblab.net/ttd/data/target/details/{id}",
        "umls": "https://uts.nlm.nih.gov/uts/umls/concept/{id}",
        "unii": "https://precision.fda.gov/uniisearch/srs/unii/{id}",
        "uniprot": "http://purl.uniprot.org/uniprot/{id}",
        "vandf": "http://purl.bioontology.org/ontology/VANDF/{id}",
        "wikipathways": "http://www.wikipathways.org/instance/{id}",
        "wormbase": "https://www.wormbase.org/get?name={id}",
        "zfin": "http://zfin.org/{id}",
    }
    | {name.lower(): f"http://purl.obolibrary.org/obo/{name}_{{id}}" for name in ONTOLOGIES.split()}
)
"""Prefix in lower case to the address of an entry, with `{id}` for the local id."""
SYNONYMS = MappingProxyType(
    {
        "caid": "clingen.allele",
        "clinvar": "clinvar.variation",
        "db": "drugbank",  # used by DrugMechDB
        "entrez": "ncbigene",
        "fb": "flybase",
        "geneid": "ncbigene",
        "gtopdb": "iuphar.ligand",  # used by Biolink
        "hgnc.family": "hgnc.genefamily",
        "hpo": "hp",
        "mim": "omim",
        "orphanet": "orpha",
        "pmid": "pubmed",
        "react": "reactome",
        "rxcui": "rxnorm",
        "snomed": "snomedct",
        "swissprot": "uniprot",
        "tigr": "tigrfam",  # used by DrugMechDB
        "uniprotkb": "uniprot",
        "wb": "wormbase",
    }
)
"""Synonym of a prefix, in lower case, to the prefix; from the Bioregistry if not commented."""


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
    address = PAGES.get(SYNONYMS.get(prefix, prefix))
    # Some data sets repeat the prefix: GO:GO:0001.
    local = parts[1].removeprefix(f"{parts[0]}:")
    if address is None or not local.strip("."):  # `..` would point outside of the address
        return None
    return address.format(id=quote(local, safe=":.-_", errors="replace"))


def as_curie(text: str, prefix: str = "clew") -> str:
    """Return an identifier as a CURIE; an identifier that is not one gets the given prefix."""
    parts = split_curie(text)
    return ":".join(parts) if parts else f"{prefix}:{quote(text, safe='.-_')}"

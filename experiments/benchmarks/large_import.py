"""Measures import, training and a list of candidates on a graph with PrimeKG's numbers.

    python -m experiments.benchmarks.large_import [rounds]

The graph is generated as PrimeKG's twelve columns: 129,375 entities of ten kinds, 30 relations and
8,100,498 edges, with the relations' sizes and kinds as in Chandak et al. (2023, Scientific Data,
doi 10.1038/s41597-023-01960-3). Ends of edges are drawn with weights 1 / rank^0.7, so degrees are
uneven. Each command is a process of its own, measured whole:

    data      clew data: import, report of plausibility, leakage, split
    epoch     clew train: one epoch of ComplEx, 100 dimensions, 4,096 drawn entities, and validation
    list      clew predict: the best 1,000 of all pairs of a drug and a disease
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

from clew.runs.hardware import GIB
from experiments.benchmarks.harness import ROOT, print_table, write_results

NAME = "large_import"
KINDS = {
    "biological_process": 28_642, "gene/protein": 27_671, "disease": 17_080,
    "effect/phenotype": 15_311, "anatomy": 14_035, "molecular_function": 11_169, "drug": 7_957,
    "cellular_component": 4_176, "pathway": 2_516, "exposure": 818,
}  # fmt: skip
RELATIONS = (
    ("anatomy_protein_present", "gene/protein", "anatomy", 3_036_406),
    ("drug_drug", "drug", "drug", 2_672_628),
    ("protein_protein", "gene/protein", "gene/protein", 642_150),
    ("disease_phenotype_positive", "disease", "effect/phenotype", 300_634),
    ("bioprocess_protein", "gene/protein", "biological_process", 289_610),
    ("cellcomp_protein", "gene/protein", "cellular_component", 166_804),
    ("disease_protein", "gene/protein", "disease", 160_822),
    ("molfunc_protein", "gene/protein", "molecular_function", 139_060),
    ("drug_effect", "drug", "effect/phenotype", 129_568),
    ("bioprocess_bioprocess", "biological_process", "biological_process", 105_772),
    ("pathway_protein", "gene/protein", "pathway", 85_292),
    ("disease_disease", "disease", "disease", 64_388),
    ("contraindication", "drug", "disease", 61_350),
    ("drug_protein", "drug", "gene/protein", 51_306),
    ("anatomy_protein_absent", "gene/protein", "anatomy", 39_774),
    ("phenotype_phenotype", "effect/phenotype", "effect/phenotype", 37_472),
    ("anatomy_anatomy", "anatomy", "anatomy", 28_064),
    ("molfunc_molfunc", "molecular_function", "molecular_function", 27_148),
    ("indication", "drug", "disease", 18_776),
    ("cellcomp_cellcomp", "cellular_component", "cellular_component", 9_690),
    ("phenotype_protein", "gene/protein", "effect/phenotype", 6_660),
    ("off-label use", "drug", "disease", 5_136),
    ("pathway_pathway", "pathway", "pathway", 5_070),
    ("exposure_disease", "exposure", "disease", 4_608),
    ("exposure_exposure", "exposure", "exposure", 4_140),
    ("exposure_bioprocess", "exposure", "biological_process", 3_250),
    ("exposure_protein", "exposure", "gene/protein", 2_424),
    ("disease_phenotype_negative", "disease", "effect/phenotype", 2_386),
    ("exposure_molfunc", "exposure", "molecular_function", 90),
    ("exposure_cellcomp", "exposure", "cellular_component", 20),
)
SKEW = 0.7
SETTINGS = (
    "model.kind=complex", "model.embedding_dim=100", "batch_size=4096", "epochs=1",
    "loss.negatives=4096", "optimizer.kind=adagrad", "optimizer.row_wise=true",
    "evaluation.test_after_training=false",
)  # fmt: skip


def edges_of(
    head_kind: str, tail_kind: str, count: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return distinct pairs (head, tail) of two kinds, as numbers within their kinds."""
    num_tails, pairs = KINDS[tail_kind], np.empty(0, np.int64)
    weights = [np.arange(1, KINDS[kind] + 1) ** -SKEW for kind in (head_kind, tail_kind)]
    while len(pairs) < count:
        drawn = [
            generator.choice(len(w), count + 1000, p=w / w.sum()).astype(np.int64) for w in weights
        ]
        pairs = np.unique(np.concatenate([pairs, drawn[0] * num_tails + drawn[1]]))
    chosen = generator.permutation(pairs)[:count]
    return chosen // num_tails, chosen % num_tails


def write_graph(path: Path) -> int:
    """Write the graph as PrimeKG's `kg.csv`, and return its number of edges."""
    generator, tables = np.random.default_rng(0), []
    for relation, head, tail, count in RELATIONS:
        columns: dict[str, object] = {"relation": [relation] * count}
        columns["display_relation"] = columns["relation"]
        ends = edges_of(head, tail, count, generator)
        for end, kind, number in zip("xy", (head, tail), ends, strict=True):
            before = sum(list(KINDS.values())[: list(KINDS).index(kind)])
            index = pa.array(before + number).cast(pa.string())
            columns[f"{end}_index"] = columns[f"{end}_id"] = index
            columns[f"{end}_type"] = [kind] * count
            columns[f"{end}_name"] = pa.compute.binary_join_element_wise(kind, index, " ")
            columns[f"{end}_source"] = ["NCBI"] * count
        tables.append(pa.table(columns))
    whole = pa.concat_tables(tables)
    csv.write_csv(whole, path)
    return len(whole)


def run(words: Sequence[str], store: Path) -> dict[str, float]:
    """Run a command of Clew as a process; return its seconds, processor seconds and peak GiB."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "platform"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{store}",
    }
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "clew", *words], cwd=store.parent, env=environment
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        raise SystemExit(f"clew {' '.join(words)} ended with status {status}")
    return {
        "seconds": seconds,
        "processor_seconds": usage.ru_utime + usage.ru_stime,
        "peak_gib": usage.ru_maxrss * 1024 / GIB,
    }


def main(rounds: int) -> None:
    """Measure all commands, and print and write the results."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        edges = write_graph(folder / "kg.csv")
        for turn in range(rounds):
            graph = folder / f"graph-{turn}"
            read = ("data", "kg.csv", "--output-dir", str(graph), "--valid-fraction", "0.0005")
            asked = ("--relation", "indication", "--head-kind", "drug", "--tail-kind", "disease")
            commands = {
                "data": (*read, "--test-fraction", "0.0005"),
                "epoch": ("train", f"data.path={graph}", *SETTINGS),
                "list": ("predict", "newest", *asked, "--top-k", "1000", "--output",
                         f"list-{turn}.tsv"),
            }  # fmt: skip
            for command, words in commands.items():
                rows.append({"command": command, **run(words, folder / "mlflow.db")})
                print_table(rows[-1:])
    figures = {
        f"{command}, {key}": [float(str(r[key])) for r in rows if r["command"] == command]
        for command in ("data", "epoch", "list")
        for key in ("seconds", "processor_seconds", "peak_gib")
    }
    write_results(NAME, {"edges": edges, "rounds": rows}, figures=figures)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)

"""Measures the time and memory of loading ten million triples of names.

    python -m experiments.benchmarks.load_triples [number of triples] [number of entities]

Names look like the identifiers of a biomedical graph and have a similarly uneven distribution. Each
alternative runs in a new process. `extra_gib` is the peak above the memory before loading, minus
the size of the returned triples and names. pandas and PyKEEN load a tenth of the triples.
"""

import gzip
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from clew.runs.hardware import GIB, process_peak_gib, reset_process_peak
from experiments.benchmarks.harness import (
    print_table,
    report_child,
    resident_gib,
    run_child,
    write_results,
)

NAME = "load_triples"
NUM_RELATIONS = 500
SHARD_TRIPLES = 500_000
REPEATS = 3


def generate(folder: Path, num_triples: int, num_entities: int) -> None:
    """Write the same triples as names, compressed names, and ids with dictionaries."""
    generator = np.random.default_rng(0)
    kinds = ["CHEBI", "NCBIGene", "MONDO", "UniProtKB", "GO"]
    entities = [f"{kinds[i % 5]}:{i * 7_919:07d}" for i in range(num_entities)]
    relations = [f"biolink:relation_{i}" for i in range(NUM_RELATIONS)]
    for name, names in (("entities", entities), ("relations", relations)):
        lines = "".join(f"{text}\t{i}\n" for i, text in enumerate(names))
        (folder / f"{name}.txt").write_text(lines)
    with (folder / "names.txt").open("w") as named, (folder / "ids.txt").open("w") as numbered:
        for start in range(0, num_triples, SHARD_TRIPLES):
            count = min(SHARD_TRIPLES, num_triples - start)
            heads, tails = (num_entities * generator.random((2, count)) ** 2).astype(int).tolist()
            kinds_of = generator.integers(0, NUM_RELATIONS, count).tolist()
            rows = list(zip(heads, kinds_of, tails, strict=True))
            named.writelines(f"{entities[h]}\t{relations[r]}\t{entities[t]}\n" for h, r, t in rows)
            numbered.writelines(f"{h}\t{r}\t{t}\n" for h, r, t in rows)
    tenth = num_triples // 10
    with (folder / "names.txt").open() as named, (folder / "tenth.txt").open("w") as few:
        few.writelines(line for _, line in zip(range(tenth), named, strict=False))
    _compress(folder / "names.txt", gzip.open)
    _compress(folder / "names.txt", zstandard.open)


def _compress(path: Path, opened: Callable[..., Any]) -> None:
    suffix, options = (".gz", {"compresslevel": 6}) if opened is gzip.open else (".zst", {})
    target_path = path.with_name(path.name + suffix)
    with path.open("rb") as source, opened(target_path, "wb", **options) as target:
        shutil.copyfileobj(source, target, 2**20)


def load_with_clew(path: Path) -> float:
    """Load a graph, and return the size of its arrays in GiB."""
    from clew.link_prediction.triple_files import GraphFiles, read_graph

    by_id = path.name.startswith("ids")
    files = GraphFiles(
        path,
        entity_to_id=path.with_name("entities.txt") if by_id else None,
        relation_to_id=path.with_name("relations.txt") if by_id else None,
    )
    graph = read_graph("benchmark", files)
    names = graph.entities.name_array.nbytes + graph.relations.name_array.nbytes
    return float((graph.train.nbytes + names) / GIB)


def load_with_pandas(path: Path) -> float:
    """Load and number the names with pandas, as in a notebook."""
    import pandas as pd

    table = pd.read_csv(path, sep="\t", header=None, dtype=str, quoting=3, keep_default_na=False)
    codes, names = pd.factorize(pd.concat([table[0], table[2]]), sort=True)
    relation, _ = pd.factorize(table[1], sort=True)
    heads, tails = np.split(codes.astype(np.int32), 2)
    triples = np.stack([heads, relation.astype(np.int32), tails], axis=1)
    return (triples.nbytes + sum(map(len, names))) / GIB


def load_with_pykeen(path: Path) -> float:
    """Load with PyKEEN's own reader."""
    from pykeen.triples import TriplesFactory

    factory = TriplesFactory.from_path(path)
    return float(factory.mapped_triples.nbytes / GIB)


LOADERS: dict[str, Callable[[Path], float]] = {
    "clew": load_with_clew,
    "pandas": load_with_pandas,
    "pykeen": load_with_pykeen,
}
CASES = [
    ("clew", "names.txt"),
    ("clew", "names.txt.gz"),
    ("clew", "names.txt.zst"),
    ("clew", "ids.txt"),
    ("clew", "tenth.txt"),
    ("pandas", "tenth.txt"),
    ("pykeen", "tenth.txt"),
]


def child(loader: str, path: Path, warm_up: Path) -> None:
    """Load once, and report seconds and memory; loading a tiny file first does the imports."""
    load = LOADERS[loader]
    load(warm_up)
    before_gib = resident_gib()
    reset_process_peak()
    start = time.perf_counter()
    arrays_gib = load(path)
    seconds = time.perf_counter() - start
    peak_gib = process_peak_gib() - before_gib
    report_child({"seconds": seconds, "arrays_gib": arrays_gib, "extra_gib": peak_gib - arrays_gib})


def main(num_triples: int, num_entities: int) -> None:
    """Measure all cases in turn in each round, and print and write the medians."""
    with tempfile.TemporaryDirectory(prefix="clew-benchmark-") as folder:
        generate(Path(folder), num_triples, num_entities)
        warm_up = Path(folder) / "warm_up.txt"
        warm_up.write_text("a\tr\tb\n")
        measured: dict[tuple[str, str], list[dict]] = {case: [] for case in CASES}
        for _ in range(REPEATS):
            for loader, name in CASES:
                path = Path(folder) / name
                run = run_child(NAME, "child", loader, str(path), str(warm_up))
                measured[loader, name].append(run)
        rows = [_row(folder, case, runs, num_triples) for case, runs in measured.items()]
    print_table(rows)
    figures = {
        f"{loader}, {name}, {key}": [run[key] for run in runs]
        for (loader, name), runs in measured.items()
        for key in ("seconds", "extra_gib")
    }
    write_results(
        NAME,
        {"num_triples": num_triples, "num_entities": num_entities, "cases": rows},
        figures=figures,
        packages=["pyarrow", "numpy", "pandas", "pykeen"],
    )


def _row(folder: str, case: tuple[str, str], runs: list[dict], num_triples: int) -> dict:
    loader, name = case
    triples = num_triples // 10 if name == "tenth.txt" else num_triples
    seconds = float(np.median([run["seconds"] for run in runs]))
    return {
        "loader": loader,
        "file": name,
        "triples": triples,
        "file_mib": round((Path(folder) / name).stat().st_size / 2**20),
        "seconds": seconds,
        "triples_per_second": triples / seconds,
        "arrays_gib": float(np.median([run["arrays_gib"] for run in runs])),
        "extra_gib": float(np.median([run["extra_gib"] for run in runs])),
        "runs": len(runs),
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
    else:
        numbers = [int(text) for text in sys.argv[1:]] + [10_000_000, 1_000_000][
            len(sys.argv) - 1 :
        ]
        main(*numbers)

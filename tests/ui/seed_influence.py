"""Writes explanations of any size, with biomedical names, in the form of the influence engine.

The benchmark of the dashboard needs explanations with a hundred thousand facts; other tests use
explanations that commands recorded.
"""

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from clew import names
from clew.runs.influence_forms import (
    CHECKPOINT_PREFIX,
    COSINE_COLUMN,
    PART_PREFIX,
    RANK_COLUMN,
    SCORE_COLUMN,
    TERM_COLUMNS,
    TEST_INDEX_COLUMN,
    TRAIN_INDEX_COLUMN,
)
from clew.runs.influence_report import (
    CONVE_PARTS,
    CheckpointWeight,
    ExplainedTriple,
    InfluenceEntry,
    InfluenceReport,
    ReportModel,
    Term,
    TripleRecord,
    write_influence_json,
)
from tests.recorded import Recorded

ENTITIES = [
    ("MESH:D008687", "Metformin"),
    ("MESH:D003924", "Type 2 diabetes mellitus"),
    ("UniProt:P54646", "AMP-activated protein kinase α2"),
    ("UniProt:P06213", "Insulin receptor"),
    ("GO:0006094", "gluconeogenesis"),
    ("MESH:D006943", "Hyperglycemia"),
    ("MESH:D005947", "Glucose"),
    ("MESH:D007333", "Insulin resistance"),
    ("MESH:D001241", "Aspirin"),
    ("UniProt:P23219", "Prostaglandin G/H synthase 1"),
    ("UniProt:P35354", "Prostaglandin G/H synthase 2"),
    ("MESH:D015232", "Dinoprostone"),
    ("GO:0006954", "inflammatory response"),
    ("MESH:D010146", "Pain"),
    ("MESH:D005334", "Fever"),
    ("MESH:D019821", "Simvastatin"),
    ("UniProt:P04035", "HMG-CoA reductase"),
    ("MESH:D002784", "Cholesterol"),
    ("MESH:D006937", "Hypercholesterolemia"),
    ("MESH:D003324", "Coronary artery disease"),
    ("MESH:D014859", "Warfarin"),
    ("UniProt:Q9BQB6", "Vitamin K epoxide reductase"),
    ("MESH:D013927", "Thrombosis"),
    ("MESH:D010710", "Pioglitazone"),
    ("UniProt:P37231", "PPAR-γ"),
    ("MESH:D005905", "Glyburide"),
    ("UniProt:Q09428", "Sulfonylurea receptor 1"),
    ("MESH:D007328", "Insulin"),
    ("MESH:D009765", "Obesity"),
    ("MESH:D006973", "Hypertension"),
    ("MESH:D017706", "Lisinopril"),
    ("UniProt:P12821", "Angiotensin-converting enzyme"),
    ("MESH:D000804", "Angiotensin II"),
    ("MESH:D006333", "Heart failure"),
]
RELATIONS = [
    "treats",
    "decreases activity of",
    "increases activity of",
    "positively correlated with",
    "negatively correlated with",
    "decreases abundance of",
    "subclass of",
    "manifestation of",
]
QUERIES = [(0, 0, 1), (8, 0, 13), (15, 0, 18), (20, 0, 22), (23, 0, 1), (30, 0, 29)]
CHECKPOINTS = tuple(CheckpointWeight(e, e * 250, 0.003 * 0.95**e) for e in (5, 10, 15, 20))


@dataclass(frozen=True)
class Pair:
    """One training fact of one explanation, with all columns of the Parquet file."""

    train: tuple[int, int, int]
    parts: tuple[float, ...]
    cosine: float

    @property
    def score(self) -> float:
        """The influence."""
        return sum(self.parts)


def _entity(number: int) -> Term:
    if number < len(ENTITIES):
        return Term(*ENTITIES[number])
    return Term(f"MESH:C{number:06}", f"Compound {number}")


def triple_record(triple: tuple[int, int, int]) -> TripleRecord:
    """Return a triple of numbers with names."""
    relation = RELATIONS[triple[1]]
    return TripleRecord(_entity(triple[0]), Term(relation, relation), _entity(triple[2]))


def pairs_of(query: tuple[int, int, int], num_pairs: int) -> list[Pair]:
    """Draw training facts around a query, strongest first."""
    draw = random.Random(str(query))
    num_entities = max(len(ENTITIES), num_pairs // 4)
    pairs = {}
    while len(pairs) < num_pairs:
        head, tail = draw.randrange(num_entities), draw.randrange(num_entities)
        relation = draw.randrange(len(RELATIONS))
        place = draw.random()
        if place < 0.35:
            head = query[0]
        elif place < 0.7:
            tail = query[2]
        if draw.random() < 0.2:
            relation = query[1]
        if head == tail or (head, relation, tail) in pairs:
            continue
        near = 1.0 if {head, tail} & {query[0], query[2]} else 0.25
        strength = near * draw.gauss(0.12, 1.0) ** 3
        weights = [draw.gauss(w, 0.15) for w in (0.45, 0.05, 0.2, 0.15, 0.1, 0.05)]
        parts = tuple(strength * weight / sum(weights) for weight in weights)
        cosine = max(-1.0, min(1.0, strength / (3.0 + 2 * draw.random())))
        pairs[head, relation, tail] = Pair((head, relation, tail), parts, cosine)
    return sorted(pairs.values(), key=lambda pair: -pair.score)


def _by_checkpoint(score: float) -> tuple[float, ...]:
    shares = (0.46, 0.27, 0.17, 0.10)
    return tuple(score * share for share in shares)


def _entries(pairs: list[Pair], top_k: int) -> tuple[InfluenceEntry, ...]:
    return tuple(
        InfluenceEntry(
            rank=rank,
            train=triple_record(pair.train),
            influence=pair.score,
            by_checkpoint=_by_checkpoint(pair.score),
            by_part=dict(zip(CONVE_PARTS, pair.parts, strict=True)),
            cosine=pair.cosine,
            train_index=rank * 7,
        )
        for rank, pair in enumerate(pairs[:top_k], start=1)
    )


def queries_of(num_tests: int) -> list[tuple[int, int, int]]:
    """Return test triples."""
    found = QUERIES[:num_tests]
    more = ((n % len(ENTITIES), n % 7, len(ENTITIES) + n) for n in range(num_tests))
    return found + [next(more) for _ in range(num_tests - len(found))]


def write_report(
    folder: Path, *, model_run: str, num_tests: int, num_pairs: int, top_k: int
) -> None:
    """Write `influence.json` and `influence.parquet`."""
    explained = [(query, pairs_of(query, num_pairs)) for query in queries_of(num_tests)]
    tests = tuple(_test(query, pairs, top_k) for query, pairs in explained)
    report = InfluenceReport(
        model=ReportModel(model_run, names.TASK_LINK_PREDICTION, CHECKPOINTS),
        settings={"top_k": top_k, "use_mixed_precision": False, "use_last_layers_only": False},
        train_size=num_pairs,
        seconds=1.7 * num_tests,
        device="NVIDIA H200",
        tests=tests,
    )
    write_influence_json(report, folder / names.INFLUENCE_JSON)
    _write_parquet(explained, folder / names.INFLUENCE_PARQUET)


def _test(query: tuple[int, int, int], pairs: list[Pair], top_k: int) -> ExplainedTriple:
    draw = random.Random(f"test {query} {len(pairs)}")
    falling = [pair for pair in pairs if pair.score > 0]
    rising = [pair for pair in reversed(pairs) if pair.score < 0]
    return ExplainedTriple(
        test=triple_record(query),
        score=draw.uniform(-1, 6),
        rank=float(draw.choice([1, 1, 1, 2, 2, 3, 7, 12.5])),
        self_influence=draw.uniform(0.5, 9),
        candidates=len(pairs),
        truncated=len(falling) > top_k or len(rising) > top_k,
        proponents=_entries(falling, top_k),
        opponents=_entries(rising, top_k),
    )


def _rows(explained: list[tuple[tuple[int, int, int], list[Pair]]]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for index, (query, pairs) in enumerate(explained):
        test = triple_record(query)
        for rank, pair in enumerate(pairs, start=1):
            train = triple_record(pair.train)
            texts = [t for r in (test, train) for t in (r.head, r.relation, r.tail)]
            values = [value for term in texts for value in (term.id, term.label)]
            row: dict[str, object] = dict(zip(TERM_COLUMNS, values, strict=True))
            row |= {
                TEST_INDEX_COLUMN: index,
                TRAIN_INDEX_COLUMN: rank * 7,
                RANK_COLUMN: rank,
                SCORE_COLUMN: pair.score,
                COSINE_COLUMN: pair.cosine,
            }
            parts = zip(CONVE_PARTS, pair.parts, strict=True)
            row |= {PART_PREFIX + part: value for part, value in parts}
            steps = zip(CHECKPOINTS, _by_checkpoint(pair.score), strict=True)
            row |= {f"{CHECKPOINT_PREFIX}{c.step}": value for c, value in steps}
            rows.append(row)
    return rows


def _write_parquet(explained: list[tuple[tuple[int, int, int], list[Pair]]], path: Path) -> None:
    table = pa.Table.from_pylist(_rows(explained))
    for column in TERM_COLUMNS:
        place = table.schema.get_field_index(column)
        table = table.set_column(place, column, table[column].dictionary_encode())
    pq.write_table(table, path)


def trace_run(store: Recorded, **sizes: int) -> str:
    """Add a trace run with such a report as the newest run of the store."""
    model = store.runs["fp32 0"]
    experiment = store.client.get_run(model).info.experiment_id
    tags = {
        names.TAG_KIND: names.KIND_TRACE,
        names.TAG_TASK: names.TASK_LINK_PREDICTION,
        names.TAG_DATASET: "drugmechdb",
        names.TAG_SOURCE_RUN: model,
    }
    run = store.client.create_run(experiment, run_name="tracin fp32", tags=tags)
    with tempfile.TemporaryDirectory() as folder:
        write_report(Path(folder), model_run=model, **sizes)
        store.client.log_artifacts(run.info.run_id, folder, names.ARTIFACT_INFLUENCE)
    store.client.set_terminated(run.info.run_id)
    return str(run.info.run_id)

"""The runs of the shared-table tests: a small graph, its models, and questions to them."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.workflows.shared_table_runs import CALIBRATED, Command

ENTITIES, RELATIONS, DIM = 23, 3, 6
MODELS: dict[str, dict[str, Any]] = {
    "distmult": {"model.kind": "distmult", "model.embedding_dim": DIM, "model.entity_bias": True},
    "conve": {
        "model.kind": "conve",
        "model.embedding_dim": 12,
        "model.embedding_height": 3,
        "model.output_channels": 3,
        "loss.function": "softmax_cross_entropy",
    },
    "transe": {
        "model.kind": "transe",
        "model.embedding_dim": DIM,
        "loss.kind": "kvs_all",
        "loss.function": "softmax_cross_entropy",
    },
    "cp": {"model.kind": "cp", "model.embedding_dim": DIM, "loss.regularizer": "n3"},
}
TRAINED_BY = {"distmult": (1, 4), "conve": (1, 4), "transe": (4,), "cp": (4,)}
COUNTS = (1, 2, 4)
OF_FOUR = {"distmult"}
"""Models that four processes answer questions about; two processes use all models."""
EVERY_FORM = {("distmult", 4), ("conve", 1)}
"""Models, with their number of training processes, for which every form is compared."""
FORMS = {
    "raw": {"influence.score": "raw"},
    "raw, filtered, both, all scores": {
        "influence.score": "raw",
        "influence.test_loss": "filtered",
        "influence.direction": "both",
        "influence.top_k": 0,
        "influence.batch_size": 50,
    },
    "cosine": {"influence.score": "cosine"},
    "deflated": {"influence.score": "deflated"},
    "auto": {},
}
ASKED = {
    "unknown ones": {"top_k": 50, "filter_known": True},
    "answer sets": {"top_k": 8, "level": 0.8},
}
NUM_QUERIES, NUM_TESTS = 5, 4


def forms(model: str, by: int) -> list[str]:
    """Return the forms of the score to compare for a model."""
    if (model, by) in EVERY_FORM:
        return list(FORMS)
    return ["raw", "auto"] if model in {"distmult", "conve"} else ["raw"]


def pairs(count: int) -> list[tuple[str, int]]:
    """Return the models for `count` processes, each with its number of training processes."""
    return [
        (model, by)
        for model, trained_by in TRAINED_BY.items()
        if count < 4 or model in OF_FOUR
        for by in trained_by
    ]


def trained(root: Path, model: str, processes: int) -> str:
    return str(root / f"{model}-{processes}")


def trainings(root: Path, data: dict[str, str], by: int) -> Iterator[Command]:
    """Yield the trainings in `by` processes."""
    small = {
        "data": data,
        "training.num_epochs": 2,
        "training.checkpoint_frequency": 1,
        "training.device": "cpu",
        "optimizer.learning_rate": 0.05,
        "tracking.log_mfu": False,
    }
    for model, counts in TRAINED_BY.items():
        if by in counts:
            folder = trained(root, model, by)
            yield Command("train", folder, f"{folder}.training", MODELS[model] | small)


def asked(root: Path, count: int) -> list[Command]:
    """Return the questions to all models in `count` processes."""
    queries, tests = str(root / "queries.tsv"), str(root / "tests.tsv")
    found = []
    for model, by in pairs(count):
        place, folder = root / f"asked-{count}" / f"{model}-{by}", trained(root, model, by)
        for name, options in ASKED.items():
            given = {"queries": queries} | options
            found.append(Command("predict", folder, str(place / name), given))
        for name in forms(model, by):
            given = {"tests": tests} | FORMS[name]
            found.append(Command("tracin", folder, str(place / f"trace {name}"), given))
    place = root / f"asked-{count}"
    given = {"queries": queries, "top_k": 4}
    calibrated = str(root / "distmult-1" / CALIBRATED)
    found.append(Command("predict", calibrated, str(place / "calibrated"), given))
    given = {"tests": tests, "influence.n_hops": 1, "influence.score": "cosine"}
    given["influence.tests_per_group"] = 3
    found += [Command("batch", trained(root, "distmult", 4), str(place / "batch"), given)] * 2
    narrow = {"tests": str(root / "one.tsv"), "influence.n_hops": 1, "influence.batch_size": 1}
    narrow |= {"influence.score": "cosine"}
    given = {"queries": str(root / "one.tsv"), "top_k": 2}
    for by in (1, 4):
        folder, watched = trained(root, "distmult", by), str(place / "watched")
        found.append(Command("predict", folder, f"{watched} predict {by}", given, watched=True))
        found.append(Command("batch", folder, f"{watched} batch {by}", narrow, watched=True))
    return found


def wrong(root: Path) -> list[Command]:
    """Return commands that two processes refuse, or during which one process dies."""
    model = trained(root, "distmult", 4)
    queries, tests = {"queries": str(root / "queries.tsv")}, {"tests": str(root / "tests.tsv")}
    place = root / "wrong"
    other = {"model": trained(root, "distmult", 1)}
    raw = tests | FORMS["raw"]
    alone = {"data": {"train": str(root / "alone.tsv")}, "evaluation.enabled": False}
    return [
        Command("train", str(place / "alone"), str(place / "alone"), alone),
        Command("predict", str(root / "spoilt"), str(place / "shard"), queries),
        Command("predict", model, str(place / "checkpoint"), queries, last=other),
        Command("predict", model, str(place / "request"), queries, last={"top_k": 4}),
        Command("tracin", str(root / "spoilt"), str(place / "traced shard"), raw),
        Command("tracin", model, str(place / "traced checkpoint"), raw, last=other),
        Command("tracin", model, str(place / "settings"), raw, last=FORMS["cosine"]),
        Command("tracin", model, str(place / "tests"), raw, last={"tests": str(root / "one.tsv")}),
        Command("tracin", model, str(place / "form"), raw | {"influence.score": "preconditioned"}),
        Command("tracin", model, str(place / "dies"), raw, last_dies=True),
        Command("batch", model, str(place / "batch dies"), raw, last_dies=True),
    ]


def write_data(root: Path) -> dict[str, str]:
    """Write a small graph, queries and triples to explain; return the paths of its splits."""
    generator = np.random.default_rng(0)
    sizes = (ENTITIES, RELATIONS, ENTITIES)
    drawn = np.stack([generator.integers(0, n, 110) for n in sizes], axis=1)
    chain = [(i, i % RELATIONS, (i + 1) % ENTITIES) for i in range(ENTITIES)]
    triples = list(dict.fromkeys([*chain, *map(tuple, drawn.tolist())]))
    lines = [f"e{h:02d}\tr{r}\te{t:02d}\n" for h, r, t in triples]
    parts = {"train": lines[:80], "valid": lines[80:92], "test": lines[92:104]}
    for split, part in parts.items():
        (root / f"{split}.tsv").write_text("".join(part))
    asked = [line.split("\t") for line in lines[:NUM_QUERIES]]
    queries = [f"{h}\t{r}\t?\n" for h, r, _ in asked] + [f"?\t{r}\t{t}" for _, r, t in asked]
    (root / "queries.tsv").write_text("".join(queries) + lines[2] + lines[95])
    (root / "tests.tsv").write_text("".join(lines[92 : 92 + NUM_TESTS]))
    (root / "one.tsv").write_text(lines[93])
    (root / "alone.tsv").write_text("e\tr\te\ne\ts\te\n")
    return {split: str(root / f"{split}.tsv") for split in parts}


def spoil(root: Path) -> None:
    """Copy a model and remove a file of rows from each of its checkpoints."""
    shutil.copytree(trained(root, "distmult", 4), root / "spoilt")
    for path in (root / "spoilt").glob("**/rows-2-of-4.safetensors"):
        path.unlink()

"""Turns a checked candidate into a version of a registered model, and asks it from there."""

import hashlib
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from clew import __version__, names
from clew.errors import TrackingError
from clew.link_prediction.answers import Query
from clew.link_prediction.model_folder import VOCABULARY_FOLDER, load_predictor, write_model_folder
from clew.link_prediction.triples import HEAD, RELATION, TAIL
from clew.runs.hardware import git_commit
from clew.runs.packaging import ask_servable, save_servable
from clew.runs.registry import Registry, Version
from clew.training.checkpoints import MODEL_FILE
from clew.workflows.model_source import SERVED_FOLDER, ModelSource
from clew.workflows.promotion_gate import Check, Gate

SERVING_CODE = Path(__file__).with_name("serving_model.py")
NUM_EXAMPLES = 8
SCORE_TOLERANCE = 1e-4
"""How far a served score may lie from the checkpoint's own."""

Row = dict[str, str]


def register(
    registry: Registry,
    name: str,
    gate: Gate,
    *,
    promote_run: str | None,
    in_use: Collection[str] = (),
) -> Version:
    """Register the gate's candidate as a pending version, or take up one of the same weights.

    Versions whose numbers are `in_use` keep what their tags say.

    Raises:
        TrackingError: the registry does not answer; nothing is visible then.
    """
    candidate = gate.candidate
    assert candidate.run_id is not None
    tags = _tags(gate, promote_run)
    same = (names.TAG_WEIGHTS, names.TAG_VERSION, names.TAG_PACKAGE_COMMIT)
    for version in registry.versions_of_run(name, candidate.run_id):
        is_same = all(version.tags.get(key) == tags[key] for key in same)
        if is_same and version.number not in in_use:
            registry.tag(version, tags)
            return version
    with tempfile.TemporaryDirectory(prefix="clew-register-") as folder:
        servable = _package(gate, Path(folder))
        return registry.register(name, servable, run_id=candidate.run_id, tags=tags)


def check_served(registry: Registry, version: Version, gate: Gate) -> Check:
    """Load a version from the registry as a server does, and compare it with the checkpoint."""
    rows = _example_rows(gate)
    with tempfile.TemporaryDirectory(prefix="clew-served-") as folder:
        servable = registry.download(version, Path(folder))
        own = load_predictor(servable / SERVED_FOLDER)
        expected = [p.as_dict() for p in own.predict([Query(**row) for row in rows])]
        try:
            answered = ask_servable(servable, rows)
        except TrackingError as error:
            return Check("served", False, str(error), final=True)
    wrong = [row for row, a, b in zip(rows, answered, expected, strict=True) if not _agree(a, b)]
    if wrong:
        detail = f"answers {wrong[0]} otherwise than the checkpoint does"
        return Check("served", False, detail, final=True)
    detail = f"{version.uri} loads without pickle and answers {len(rows)} queries as it should"
    return Check("served", True, detail)


def weights_digest(source: ModelSource) -> str:
    """Return sixteen hex digits over a checkpoint's weights."""
    with (source.checkpoint / MODEL_FILE).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _package(gate: Gate, work: Path) -> Path:
    """Make the folder that is uploaded."""
    (work / "run").mkdir()
    gate.task.write_artifacts(work / "run")
    model_folder = write_model_folder(
        work / "model",
        checkpoint=gate.candidate.checkpoint,
        vocabulary=work / "run" / VOCABULARY_FOLDER,
        known=gate.task.graph.train,
        calibration=gate.calibration,
    )
    return save_servable(
        work / "servable",
        code=SERVING_CODE,
        model_folder=model_folder,
        work=work / "copies",
        example=_example_rows(gate)[0],
    )


def _example_rows(gate: Gate) -> list[Row]:
    """Return queries from the first training triples: for tails and, if it can, for heads."""
    graph = gate.task.graph
    rows: list[Row] = []
    for triple in graph.train[: NUM_EXAMPLES // 2]:
        relation = graph.relations.name(triple[RELATION])
        rows.append({"head": graph.entities.name(triple[HEAD]), "relation": relation})
        if gate.task.inverse_relations:
            rows.append({"tail": graph.entities.name(triple[TAIL]), "relation": relation})
    return rows


def _agree(answered: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Compare two predictions: the same entities in the same order, with the same scores."""
    pairs = list(zip(answered["answers"], expected["answers"], strict=False))
    return len(answered["answers"]) == len(expected["answers"]) and all(
        {k: v for k, v in a.items() if isinstance(v, str)}
        == {k: v for k, v in b.items() if isinstance(v, str)}
        and abs(a["score"] - b["score"]) <= SCORE_TOLERANCE
        for a, b in pairs
    )


def _tags(gate: Gate, promote_run: str | None) -> dict[str, str]:
    """Return what a version says of itself."""
    manifest, candidate = gate.candidate.manifest, gate.candidate
    tags = {
        names.TAG_VALIDATION: names.VALIDATION_PENDING,
        names.TAG_SOURCE_RUN: candidate.run_id or "",
        names.TAG_TASK: gate.task.kind,
        names.TAG_DATASET: gate.task.dataset,
        names.TAG_DATA_FINGERPRINT: manifest.data_fingerprint,
        names.TAG_CONFIG_HASH: manifest.config_hash,
        names.TAG_COMMIT: manifest.commit,
        names.TAG_CHECKPOINT_STEP: str(manifest.step),
        names.TAG_WEIGHTS: weights_digest(candidate),
        names.TAG_VERSION: __version__,
        names.TAG_PACKAGE_COMMIT: git_commit() or "unknown",
    }
    if promote_run is not None:
        tags[names.TAG_PROMOTE_RUN] = promote_run
    if gate.calibration is not None:
        tags[names.TAG_TEMPERATURE] = f"{gate.calibration.temperature:.6g}"
    metrics = {f"{names.TAG_METRIC_PREFIX}{k}": f"{v:.8g}" for k, v in gate.metrics.items()}
    return tags | metrics

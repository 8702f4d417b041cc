"""Link prediction as promotion and serving see it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from clew.link_prediction.answers import Query
from clew.link_prediction.calibration import Calibration
from clew.link_prediction.model_folder import (
    ANSWER_SETS_FILE,
    VOCABULARY_FOLDER,
    index_known,
    load_predictor,
    write_model_folder,
)
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.prediction import Predictor
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triples import HEAD, RELATION, TAIL

NUM_EXAMPLES = 8
SCORE_TOLERANCE = 1e-4
"""How far a served score may lie from the checkpoint's own."""


class ServedTriples:
    """Link prediction: requests are queries by name, answers are ranked entities."""

    examples = "triples"
    uncalibrated = "no validation triples, so no probabilities"
    serving_code = Path(__file__).with_name("serving_triples.py")

    def __init__(self, task: LinkPrediction) -> None:
        self.task = task
        self.graph = task.graph

    def num_examples(self, split: str) -> int:
        """Return the number of triples of a split, `train`, `valid` or `test`."""
        return len(
            {"train": self.graph.train, "valid": self.graph.valid}.get(split, self.graph.test)
        )

    def calibrate(self, model: nn.Module) -> Calibration | None:
        """Fit the temperature of answers to the validation triples, on the CPU."""
        assert isinstance(model, GraphModel)
        known = index_known(self.graph.train, self.graph.num_relations)
        predictor = Predictor(model, self.graph.entities, self.graph.relations, known=known)
        return predictor.calibrate(self.graph.valid)

    def write_folder(
        self, folder: Path, *, checkpoint: Path, calibration: Calibration | None, work: Path
    ) -> Path:
        """Gather checkpoint, names, known triples, calibration, and what answer sets need."""
        self.task.write_artifacts(work)
        written = write_model_folder(
            folder,
            checkpoint=checkpoint,
            vocabulary=work / VOCABULARY_FOLDER,
            known=self.graph.train,
            calibration=calibration,
        )
        if len(self.graph.valid):
            measured = load_predictor(written).measure_answer_sets(
                self.graph.valid, self.graph.test
            )
            measured.write(written / ANSWER_SETS_FILE)
        return written

    def example_rows(self) -> list[dict[str, str]]:
        """Return queries from the first training triples: for tails and, if it can, for heads."""
        entities, relations = self.graph.entities, self.graph.relations
        rows: list[dict[str, str]] = []
        for triple in self.graph.train[: NUM_EXAMPLES // 2]:
            relation = relations.name(triple[RELATION])
            rows.append({"head": entities.name(triple[HEAD]), "relation": relation})
            if self.task.inverse_relations:
                rows.append({"tail": entities.name(triple[TAIL]), "relation": relation})
        return rows

    def answer(self, folder: Path, rows: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
        """Return the best answers of each query."""
        found = load_predictor(folder).predict([Query(**row) for row in rows])
        return [prediction.as_dict() for prediction in found]

    def agree(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Compare the entities, their order and their scores."""
        pairs = list(zip(one["answers"], other["answers"], strict=False))
        return len(one["answers"]) == len(other["answers"]) and all(
            {k: v for k, v in a.items() if isinstance(v, str)}
            == {k: v for k, v in b.items() if isinstance(v, str)}
            and abs(a["score"] - b["score"]) <= SCORE_TOLERANCE
            for a, b in pairs
        )

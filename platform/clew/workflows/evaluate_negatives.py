"""Evaluation of a graph model against given wrong triples, by other people's rules.

A folder with `valid_negatives.txt` and `test_negatives.txt` (as CoDEx has them) asks for triple
classification; a file `.npz` (arrays of OGB's splits) for a ranking against given candidates.
"""

from pathlib import Path

import numpy as np

from clew import names
from clew.errors import ConfigError, DataError
from clew.link_prediction.classification import ClassificationQuality, Thresholds
from clew.link_prediction.given_negatives import rank_given, read_given_negatives
from clew.link_prediction.models.base import GraphModel
from clew.link_prediction.task import LinkPrediction
from clew.link_prediction.triple_files import read_triples
from clew.link_prediction.triple_scores import score_triples
from clew.link_prediction.triples import RELATION
from clew.workflows.model_source import LoadedModel

NEGATIVES_FILE = "{split}_negatives.txt"
VALIDATION = "valid"


def measure_against(loaded: LoadedModel, negatives: Path, split: str) -> dict[str, float]:
    """Return `classification_accuracy` and `_f1`, or `given_mrr` and `given_hits_at_k`, of a split.

    Raises:
        ConfigError: the model is none of link prediction, or thresholds would be chosen on the
            split that they are judged on.
        DataError: the files cannot be read.
    """
    task, model = loaded.task, loaded.model
    if not (isinstance(task, LinkPrediction) and isinstance(model, GraphModel)):
        raise ConfigError(
            f"--negatives {negatives} given for a {task.kind} model; only link prediction has "
            "triples: leave it out"
        )
    if negatives.is_dir():
        return _classify(task, model, negatives, split)
    graph = task.graph
    given = read_given_negatives(negatives, graph.entities, graph.relations)
    quality = rank_given(model, given, graph.num_relations).quality().metrics()
    return {
        names.metric(split, names.GIVEN.format(name=name)): value for name, value in quality.items()
    }


def _classify(
    task: LinkPrediction, model: GraphModel, folder: Path, split: str
) -> dict[str, float]:
    if split == VALIDATION:
        raise ConfigError(
            "split is valid, but the thresholds of triple classification are chosen on it; "
            "evaluate test"
        )
    scored = {}
    for name in (VALIDATION, split):
        true = task.graph.split("valid" if name == VALIDATION else "test")
        path = folder / NEGATIVES_FILE.format(split=name)
        if not path.is_file():
            raise DataError(f"{folder}: no file {path.name}; expected the false {name} triples")
        triples = np.concatenate(
            [true, read_triples(path, task.graph.entities, task.graph.relations)]
        )
        scores = score_triples(model, triples, task.graph.num_relations)
        scored[name] = scores, np.arange(len(triples)) < len(true), triples[:, RELATION]
    thresholds = Thresholds.fit(*scored[VALIDATION], task.graph.num_relations)
    scores, is_true, relation = scored[split]
    quality = ClassificationQuality.of(thresholds.predict(scores, relation), is_true)
    return {
        names.metric(split, names.CLASSIFICATION.format(name=name)): value
        for name, value in vars(quality).items()
    }

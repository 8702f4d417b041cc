"""Builds the task that a configuration asks for."""

from typing import Any

from clew import names
from clew.config.data import TokenData, TripleData
from clew.config.eigenstate import EigenstateLMModel
from clew.config.image_sequences import ImageSequenceData
from clew.config.schema import RunConfig
from clew.image_sequences.splits import load_sequences
from clew.image_sequences.task import SequenceRegression
from clew.language_modeling.task import LanguageModeling
from clew.language_modeling.tokens import load_tokens
from clew.link_prediction.sources import load_graph
from clew.link_prediction.task import LinkPrediction
from clew.training.task import Task

TASKS = {
    "triples": names.TASK_LINK_PREDICTION,
    "tokens": names.TASK_LANGUAGE_MODELING,
    "image_sequences": names.TASK_SEQUENCE_REGRESSION,
}
"""Kind of data to the task that uses it."""
ASKED_WITH = {
    names.TASK_LINK_PREDICTION: "--relation and --head or --tail, or --input",
    names.TASK_LANGUAGE_MODELING: "--prompt or --prompt-file",
    names.TASK_SEQUENCE_REGRESSION: "--frames and --output",
}
"""Options of `clew predict` for a model of each task."""


def build_task(config: RunConfig) -> Task[Any]:
    """Read the data, and return the task with the configuration's model and loss.

    Raises:
        DataError: The data cannot be read.
    """
    match config.data:
        case TripleData():
            return LinkPrediction(load_graph(config.data), config)
        case TokenData():
            assert isinstance(config.model, EigenstateLMModel)
            tokens = load_tokens(config.data, window=config.model.max_seq_len)
            return LanguageModeling(tokens, config)
        case ImageSequenceData():
            return SequenceRegression(load_sequences(config.data), config)


def data_fingerprint(config: RunConfig) -> str:
    return build_task(config).data_fingerprint

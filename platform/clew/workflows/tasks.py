"""Builds the task that a configuration asks for."""

from typing import Any

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


def build_task(config: RunConfig) -> Task[Any]:
    """Read the data and bind it to model and loss.

    Raises:
        DataError: the data cannot be read.
    """
    match config.data:
        case TripleData():
            return LinkPrediction(load_graph(config.data), config)
        case TokenData():
            return LanguageModeling(load_tokens(config.data, window=_window(config)), config)
        case ImageSequenceData():
            return SequenceRegression(load_sequences(config.data), config)


def _window(config: RunConfig) -> int:
    """Return the tokens in a training window."""
    assert isinstance(config.model, EigenstateLMModel)
    return config.model.max_seq_len

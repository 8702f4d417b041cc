"""Builds the task that a configuration asks for."""

from typing import Any

from clew.config.data import TokenData, TripleData
from clew.config.eigenstate import EigenstateLMModel
from clew.config.image_sequences import ImageSequenceData
from clew.config.schema import RunConfig
from clew.data.image_sequences import load_sequences
from clew.data.sources import load_graph
from clew.data.tokens import load_tokens
from clew.tasks.base import Task
from clew.tasks.language_modeling import LanguageModeling
from clew.tasks.link_prediction import LinkPrediction
from clew.tasks.sequence_regression import SequenceRegression


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

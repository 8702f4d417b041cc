"""Section `model`: the network and its shape, checked before anything is built."""

from typing import Annotated

from pydantic import Field

from clew.config.eigenstate import EigenstateLMModel
from clew.config.graph_models import GraphModelConfig
from clew.config.image_sequences import SequenceRegressionModel

ModelConfig = Annotated[
    GraphModelConfig | EigenstateLMModel | SequenceRegressionModel, Field(discriminator="kind")
]

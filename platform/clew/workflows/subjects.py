"""The subject of each kind of data, and the task that a configuration asks for."""

from typing import Any

from clew.config.data import require_shared
from clew.config.schema import RunConfig
from clew.image_sequences.subject import ImageSequences
from clew.language_modeling.subject import Texts
from clew.link_prediction.subject import Graphs
from clew.subject import Subject
from clew.training.task import Task

SUBJECTS: dict[str, Subject[Any, Any, Any]] = {
    "triples": Graphs(),
    "tokens": Texts(),
    "image_sequences": ImageSequences(),
}
"""Kind of data to its subject."""


def build_task(config: RunConfig) -> Task[Any]:
    """Read the data, and return the task with the configuration's model and loss."""
    require_shared(config.data)
    task: Task[Any] = SUBJECTS[config.data.kind].build_task(config)
    return task


def data_fingerprint(config: RunConfig) -> str:
    return build_task(config).data_fingerprint

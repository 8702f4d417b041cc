"""Serving code of a registered model: MLflow copies this file, and runs it to load the model."""

from pathlib import Path
from typing import Any

from clew.runs.served_model import ServedModel, set_model
from clew.subject import Subject


def _subject_in(folder: Path) -> Subject[Any, Any, Any]:
    from clew.workflows.subjects import subject_in  # imports torch

    return subject_in(folder)


set_model(ServedModel(_subject_in))

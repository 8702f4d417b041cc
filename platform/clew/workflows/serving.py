"""Serving code of a registered model: MLflow copies this file, and runs it to load the model."""

from pathlib import Path
from typing import Any

from clew.runs.served_model import ServedModel, set_model
from clew.subject import Subject


def _subject_in(folder: Path) -> Subject[Any, Any, Any]:
    """Return the subject of the model in a folder; the imports load torch."""
    from clew.config.load import from_mapping
    from clew.training.manifest import read_manifest
    from clew.workflows.subjects import SUBJECTS

    return SUBJECTS[from_mapping(read_manifest(folder).config, source=str(folder)).data.kind]


set_model(ServedModel(_subject_in))

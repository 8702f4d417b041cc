"""Exports a model as a program without Python code, and its named embeddings as Parquet.

The modules of `export_triples`, `export_text` and `export_frames` describe the files for each kind
of model. The file export.json describes the model, the inputs and outputs of the program, and the
difference between its results and the model's.
"""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from clew import __version__, names
from clew.errors import UsageError
from clew.workflows.exporting.frames import export_frames
from clew.workflows.exporting.program import Exported
from clew.workflows.exporting.text import export_text
from clew.workflows.exporting.triples import export_triples
from clew.workflows.model_source import ModelSource, open_model
from clew.workflows.outputs import check_new_folder

SUMMARY_FILE = "export.json"
EXPORTERS = {
    names.TASK_LINK_PREDICTION: export_triples,
    names.TASK_LANGUAGE_MODELING: export_text,
    names.TASK_SEQUENCE_REGRESSION: export_frames,
}


@dataclass(frozen=True)
class ExportResult:
    """The files that were written, and their folder."""

    folder: Path
    model: str
    exported: Exported

    def table(self) -> str:
        """Return the model and the files, one per line."""
        files = {**self.exported.files, self.exported.program_file: self.exported.program.line()}
        lines = [f"{self.folder / name}: {what}" for name, what in files.items()]
        return "\n".join([f"model: {self.model}", *lines])


def export(model: str, output_dir: Path) -> ExportResult:
    """Write a model's program, and its embeddings if they have names, into a new folder.

    Args:
        model: A run id, `models:/name@alias`, or a checkpoint folder.
        output_dir: The new folder; nothing is overwritten.

    Raises:
        UsageError: The model cannot be used or exported, or the folder is not empty.
    """
    check_new_folder("--output-dir", output_dir)
    with open_model(model) as source:
        is_new = not output_dir.exists()
        output_dir.mkdir(parents=True, exist_ok=True)
        try:
            exported = EXPORTERS[source.manifest.task](source, output_dir)
        except UsageError:
            if is_new:
                shutil.rmtree(output_dir)
            raise
        _write_summary(output_dir / SUMMARY_FILE, source, exported)
        return ExportResult(output_dir, source.title, exported)


def _write_summary(path: Path, source: ModelSource, exported: Exported) -> None:
    origin = {
        "model": source.title,
        "task": source.manifest.task,
        "run_id": source.run_id,
        "config_hash": source.manifest.config_hash,
        "data_fingerprint": source.manifest.data_fingerprint,
        "checkpoint_step": source.manifest.step,
        "clew_version": __version__,
        "torch_version": torch.__version__,
        "program": asdict(exported.program),
    }
    content = {**origin, **exported.said}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

"""Copies an explanation's files to the output path; results of something else are kept."""

import shutil
from pathlib import Path
from typing import Any

from clew import names
from clew.errors import ConfigError
from clew.files import replacing
from clew.influence.link_prediction.report import ReportSource
from clew.link_prediction.triples import Triples
from clew.runs.influence_report import InfluenceReport, read_influence_json
from clew.workflows.outputs import check_file, check_folder

REPORT_FILES = (names.INFLUENCE_JSON, names.INFLUENCE_CSV, names.INFLUENCE_PARQUET)
WITHOUT_EFFECT = frozenset(
    {
        "batch_size",
        "enable_memory_cleanup",
        "half_precision_deviation",
        "memory_budget_mib",
        "tests_per_group",
        "tests_per_pass",
        "tile_triples",
        "use_gradient_checkpointing",
    }
)
"""Settings that change time or memory, but not the results."""


def check_place(output: Path | None) -> None:
    """Refuse an output path where no report can be written.

    Raises:
        ConfigError: The path is a folder instead of a file, or the reverse, or it is not writable.
    """
    if output is not None:
        check = check_file if _is_file_name(output) else check_folder
        check("--output", output)


def check_output(output: Path | None, source: ReportSource, tests: Triples) -> None:
    """Refuse to overwrite results of other settings, models or tests, or of unknown ones.

    Raises:
        ConfigError: Such a file is at the output path.
    """
    existing = [path for path in _targets(output) if path.exists()] if output else []
    said = [path for path in existing if path.suffix == ".json"]
    if existing and not said:
        raise ConfigError(
            f"{existing[0]} exists and does not say with which settings it was made; give another "
            "output, or move that file away"
        )
    for path in said:
        report = read_influence_json(path)
        earlier = identity(report)
        for key, value in identity(source).items():
            if earlier.get(key) != value:
                raise ConfigError(
                    f"{path} holds results for other settings ({key}: {earlier.get(key)!r} there, "
                    f"{value!r} now); give another output, or move that file away"
                )
        if [explained.test for explained in report.tests] != [
            source.triple(test) for test in tests
        ]:
            raise ConfigError(
                f"{path} explains other test triples; give another output, or move that file away"
            )


def identity(report: ReportSource | InfluenceReport) -> dict[str, Any]:
    """Return what the scores depend on: the model, its checkpoints, and settings with an effect."""
    model = report.model
    checkpoints = [[checkpoint.step, checkpoint.weight] for checkpoint in model.checkpoints]
    content = {key: value for key, value in report.settings.items() if key not in WITHOUT_EFFECT}
    content |= {"model": model.run_id, "checkpoints": checkpoints}
    return content | ({"runs": list(model.runs)} if model.runs else {})


def copy_files(folder: Path, output: Path) -> None:
    """Copy the three files to a folder, or one of them to a file, each all or nothing."""
    for target in _targets(output):
        found = folder / f"influence{target.suffix}"
        if not found.is_file():
            continue
        with replacing(target) as temporary:
            shutil.copyfile(found, temporary)


def _targets(output: Path) -> list[Path]:
    if _is_file_name(output):
        return [output]
    return [output / name for name in REPORT_FILES]


def _is_file_name(output: Path) -> bool:
    return output.suffix in (".json", ".csv", ".parquet")

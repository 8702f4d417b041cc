"""The run that records an explanation, whatever it is of: of kind `trace`, or another."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from clew import names
from clew.config.services import TrackingConfig
from clew.runs.base import Tracker
from clew.runs.hardware import process_gib, process_peak_gib, reset_process_peak
from clew.runs.mlflow_store import open_tracker
from clew.training.memory import gpu_peaks, reset_gpu_peaks
from clew.workflows.evaluate import dataset_of, tags_of
from clew.workflows.model_source import LoadedModel, ModelSource


@contextmanager
def trace_run(
    source: ModelSource,
    loaded: LoadedModel,
    run_name: str,
    tags: Mapping[str, str] | None = None,
    *,
    kind: str = names.KIND_TRACE,
) -> Iterator[Tracker]:
    """Open a run that is linked to the run it explains; its last metrics are the peaks of memory.

    Process and GPU memory count from here on; what is there already, the models, is in the peaks.
    """
    tracker = open_tracker(
        TrackingConfig(experiment=source.config.tracking.experiment),
        kind=kind,
        run_name=run_name,
        tags=tags_of(source, loaded) | dict(tags or {}),
    )
    reset_gpu_peaks(loaded.device)
    reset_process_peak()
    started_gib = process_gib()
    with tracker:
        tracker.dataset(**dataset_of(source, loaded), context="explanation")
        yield tracker
        peak = process_peak_gib()
        process = {names.PROCESS_PEAK_GIB: peak, names.PROCESS_GROWTH_GIB: peak - started_gib}
        tracker.metrics(process | gpu_peaks(loaded.device), source.manifest.step)

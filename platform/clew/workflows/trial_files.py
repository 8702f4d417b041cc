"""The output files of a search: the best configuration, a table of its trials, and a chart."""

import json
from collections.abc import Sequence
from pathlib import Path

from clew import names
from clew.config.load import to_yaml
from clew.config.schema import RunConfig
from clew.config.search_space import Value
from clew.files import write_whole
from clew.runs.reading.results import TRIAL_COLUMNS
from clew.spreadsheets import csv_text
from clew.workflows.trials import TrialRecord

CHART_FILE = "chart.vl.json"
FILES = (names.BEST_YAML, names.TRIALS_CSV, CHART_FILE)


def shown(settings: dict[str, Value]) -> str:
    """Return settings in one line."""
    return ", ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in settings.items()
    )


def write_best(path: Path, config: RunConfig, best: TrialRecord, num_trials: int) -> None:
    """Write the best configuration as YAML, with its metric and its run in a comment."""
    head = (
        f"# Best of {num_trials} trials by {config.evaluation.metric}: {best.value!r} after epoch "
        f"{best.epoch}, in run {best.run_id} (trial {best.number}).\n"
        "# Chosen by the validation split; no trial was evaluated on the test split.\n"
    )
    write_whole(path, head + to_yaml(config))


def write_trials(path: Path, records: Sequence[TrialRecord]) -> None:
    """Write a table of the trials: one row per trial, one column per setting."""
    keys = list(dict.fromkeys(key for record in records for key in record.settings))
    rows = [
        [*_cells(record), *(record.settings.get(key) for key in keys), record.problem]
        for record in records
    ]
    write_whole(path, csv_text([*TRIAL_COLUMNS, *keys, "problem"], rows))


def _cells(record: TrialRecord) -> list[object]:
    """Return the first cells of a row, in the order of `TRIAL_COLUMNS`."""
    seconds = round(record.seconds, 1)
    return [record.number, record.state, record.value, record.epoch, seconds, record.run_id]


def write_chart(path: Path, records: Sequence[TrialRecord], metric: str, *, maximize: bool) -> None:
    """Write a Vega-Lite chart of each trial's validation metric and the best one so far."""
    write_whole(path, json.dumps(chart(records, metric, maximize=maximize), indent=1) + "\n")


def chart(records: Sequence[TrialRecord], metric: str, *, maximize: bool) -> dict[str, object]:
    """Return the chart; a pruned trial is drawn at its last value."""
    measured = [record for record in records if record.value is not None]
    values = [
        {
            "trial": record.number,
            "state": record.state,
            "value": record.value,
            "epoch": record.epoch,
            "settings": shown(dict(record.settings)),
        }
        for record in measured
    ]
    bests: list[dict[str, object]] = []
    best: float | None = None
    for record in measured:
        if record.state == "complete" and record.value is not None:
            choose = max if maximize else min
            best = record.value if best is None else choose(best, record.value)
            bests.append({"trial": record.number, "best": best})
    trial = {"field": "trial", "type": "quantitative", "title": "trial"}
    height = {"type": "quantitative", "title": metric, "scale": {"zero": False}}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "description": f"{metric} of each trial, and the best so far",
        "layer": [
            {
                "data": {"values": bests},
                "mark": {"type": "line", "interpolate": "step-after", "color": "#999999"},
                "encoding": {"x": trial, "y": {"field": "best"} | height},
            },
            {
                "data": {"values": values},
                "mark": {"type": "point", "filled": True, "size": 60},
                "encoding": {
                    "x": trial,
                    "y": {"field": "value"} | height,
                    "color": {
                        "field": "state",
                        "type": "nominal",
                        "title": None,
                        "scale": {
                            "domain": ["complete", "pruned"],
                            "range": ["#1F88CB", "#D55E00"],
                        },
                    },
                    "tooltip": [
                        {"field": name} for name in ("trial", "value", "epoch", "settings")
                    ],
                },
            },
        ],
    }

"""The benchmarks write the figures that README quotes, from the reports of their children."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from experiments.figures import FIGURES

MEASURED = {
    "seconds": 2.0,
    "process_peak_gib": 1.0,
    "extra_gib": 0.5,
    "arrays_gib": 0.1,
    "queries": 64,
    "queries_per_second": 32.0,
    "graph": "FB15k-237",
    "tokens_per_second": 9.0,
    "parameters": 10,
    "resident_before_gib": 0.25,
}


def child(name: str, *arguments: str, **_: object) -> dict[str, Any]:
    """Return values for every key that a benchmark's child can report."""
    if name == "training_speed":
        return MEASURED | {"seconds": [2.0, 2.5]}
    if name == "influence_speed":
        np.save(Path(arguments[5]) / f"{arguments[1]}.npy", np.ones((4, 8)))
    if name == "wide_graph":
        return {key: value for key, value in MEASURED.items() if key != "graph"}
    return dict(MEASURED)


def run_corruption(folder: Path, epochs: int) -> list[dict[str, object]]:
    keys = ("AUC self-influence", "AUC last loss")
    return [
        {"training": kind, "seed": seed, **dict.fromkeys(keys, 0.75)}
        for kind in ("one_vs_all", "kvs_all")
        for seed in (0, 1, 2)
    ]


def prepare(module: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """Replace the slow parts, and return the program's main function."""
    if hasattr(module, "run_child"):
        monkeypatch.setattr(module, "run_child", child)
    match name:
        case "demo_time":
            monkeypatch.setattr(module, "seconds_of_a_demo", lambda: 80.0)
            return lambda: module.main(3)
        case "training_speed" | "ranking_speed":
            return lambda: module.main(3)
        case "wide_graph":
            return lambda: module.main(1000, 3)
        case "load_triples":
            return lambda: module.main(2000, 100)
        case "influence_speed":
            return lambda: module.main(32_000)
        case "influence_quality":
            monkeypatch.setattr(module, "corruption", run_corruption)
            monkeypatch.setattr(module, "train", lambda config: type("Run", (), {"run_id": "x"}))
            monkeypatch.setattr(module, "open_trace_source", _nothing)
            monkeypatch.setattr(module, "recall", lambda source: [{"share": 1.0}])
            return lambda: module.main(4)
        case "serving_speed":
            rates = {"HTTP, 64 a request": 640.0, "HTTP, 1 a request": 10.0}
            rates["predictor alone, 64"] = 900.0
            rows: list[dict[str, object]] = [{"way": w, "queries/s": r} for w, r in rates.items()]
            figures = {f"{way}, queries/s": [rate] * 3 for way, rate in rates.items()}
            monkeypatch.setattr(module, "measure", lambda number, work: (rows, figures))
            return module.main
        case _:
            return module.main


class _nothing:
    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize("name", sorted({figure.benchmark for figure in FIGURES}))
def test_a_benchmark_writes_the_figures_that_readme_quotes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(f"experiments.benchmarks.{name}")
    found: dict[str, Sequence[float]] = {}

    def write(
        benchmark: str,
        results: object,
        *,
        figures: Mapping[str, Sequence[float]],
        packages: Sequence[str] = (),
    ) -> None:
        assert benchmark == name
        found.update(figures)

    monkeypatch.setattr(module, "write_results", write)
    monkeypatch.setattr("sys.argv", [name])
    prepare(module, name, monkeypatch)()
    for figure in FIGURES:
        if figure.benchmark == name:
            for quote in (*figure.measured, *figure.beside):
                assert quote.key in found
                assert len(found[quote.key]) >= 3

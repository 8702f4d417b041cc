"""The page Studies: claims by machine, and the planner's request, job and picture."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from clew import names
from tests.ui.conftest import Filled, Open, no_surprise, shown
from tests.ui.seed import Seeder, empty_store
from ui.components.plan_controls import stacked_bars
from ui.data import jobs as jobs_module
from ui.data import studies as studies_module

CONFIG = "experiments/link_prediction/umls.yaml"
PARTS = ("weights", "gradients", "optimizer", "activations")


def study_run(seeder: Seeder, machine: str, verdicts: dict[str, str], study: str = "speed") -> str:
    """Write a finished run of a study."""
    run_id = seeder.run(
        name=study,
        tags={names.TAG_KIND: names.KIND_COMPARE, names.TAG_STUDY: study},
        params={},
        metrics=[],
    )
    measured = {"value": 1.5, "low": 1.25, "high": None, "rounds": 3}
    claims = [
        {
            "claim": claim,
            "source": "guide",
            "measured": None if verdict.startswith("open") else measured,
            "verdict": verdict,
        }
        for claim, verdict in verdicts.items()
    ]
    content = {"study": study, "machine": machine, "commit": "c", "claims": claims}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study.json"
        path.write_text(json.dumps(content))
        seeder.client.log_artifact(run_id, str(path), "study")
    return run_id


@pytest.fixture
def measured(tmp_path: Path) -> Seeder:
    seeder = Seeder(empty_store(tmp_path / "studies"))
    study_run(seeder, "old box", {"twice as fast": "does not hold"})
    study_run(seeder, "old box", {"twice as fast": "holds", "<b>half</b>": "does not hold"})
    study_run(seeder, "new box", {"twice as fast": "open: needs a GPU"})
    study_run(seeder, "new box", {"equal": "cannot be told from 3 rounds"}, study="equality")
    seeder.run(
        name="demo", tags={names.TAG_KIND: names.KIND_COMPARE}, params={}, metrics=[]
    )  # a comparison without a report
    return seeder


def test_claims_stand_beside_measurements_by_machine(page: Open, measured: Seeder) -> None:
    app = page("studies", measured.uri)
    numbers = {metric.label: metric.value for metric in app.metric}
    assert numbers == {
        "✓ Hold": "1",
        "✗ Do not hold": "1",
        "? Cannot be told yet": "1",
        "○ Open: not measurable here": "1",
    }
    table = app.dataframe[0].value
    assert list(table["machine"]) == ["new box", "new box", "old box", "old box"], "the latest"
    assert list(table["low"])[2:] == [1.25, 1.25]
    assert table["measured"].isna().sum() == 1, "an open claim has no measurement"
    assert "<b>half</b>" in set(table["claim"])
    only = page("studies", measured.uri, machine="old box")
    assert set(only.dataframe[0].value["machine"]) == {"old box"}


def test_a_store_without_studies_says_what_to_do(page: Open, many: Filled) -> None:
    assert "clew compare --study" in shown(page("studies", many.uri))


def test_a_damaged_report_hides_no_other(page: Open, measured: Seeder, tmp_path: Path) -> None:
    damaged = study_run(measured, "third box", {"x": "holds"})
    for path in (tmp_path / "studies").rglob(f"{damaged}/**/study.json"):
        path.write_text("{not json")
    assert set(page("studies", measured.uri).dataframe[0].value["machine"]) == {
        "new box",
        "old box",
    }


def test_every_configuration_can_be_chosen() -> None:
    paths = studies_module.configurations()
    assert CONFIG in paths
    assert not any("studies/" in path for path in paths)
    for path in paths:
        assert studies_module.configuration(path).model.kind


class _FakeJob:
    job_id, title, state, exit_code, seconds = "j1", "Plan", "done", 0, 1.0

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content

    def result(self) -> dict[str, Any]:
        return self.content

    def log(self) -> str:
        return ""

    def events(self) -> list[dict[str, Any]]:
        return []


def planned(limit: float = 2.0) -> dict[str, Any]:
    variants = [
        {"name": name, "settings": {}, "total_gib": 4 * gib, "parts_gib": dict.fromkeys(PARTS, gib)}
        for name, gib in (("as configured", 0.75), ("with mixed precision", 0.375))
    ]
    sizes = {"batch_size": 8, "gradient_accumulation": 1}
    found = {"largest_batch_size": 4, "searched_batch_size": 256}
    return {"device": "cpu", "limit_gib": limit, "variants": variants} | sizes | found


def test_sliders_start_the_planner_and_its_budget_is_drawn(
    page: Open, single: Seeder, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    job = _FakeJob(planned())

    class Server:
        def start(self, arguments: list[str], *, title: str) -> _FakeJob:
            started.append(arguments)
            return job

        def find(self, job_id: str) -> _FakeJob | None:
            return job if job_id == "j1" else None

    monkeypatch.setattr(jobs_module, "jobs", Server)
    monkeypatch.setattr("ui.components.job_view.jobs", Server)
    app = page("studies", single.uri, view="Memory", config=CONFIG)
    app.select_slider(key="batch").set_value(1024)
    app.select_slider(key="embedding_dim").set_value(400)
    app.toggle(key="use_mixed_precision").set_value(True)
    app.number_input(key="gib").set_value(2.0)
    app.button[0].click().run()
    no_surprise(app)
    (arguments,) = started
    assert arguments[:4] == ["plan", f"--config={CONFIG}", "--memory-gib=2.0", "--json"]
    assert {
        "training.batch_size=1024",
        "model.embedding_dim=400",
        "model.embedding_height=null",
        "optimizations.use_mixed_precision=true",
    } <= set(arguments)
    assert not any(argument.startswith("model.output_channels") for argument in arguments)
    numbers = {metric.label: metric.value for metric in app.metric}
    assert numbers == {"Predicted peak": "3.00 GiB", "There is": "2.00 GiB", "Largest batch": "4"}
    assert "It does not fit" in shown(app)
    assert len(app.get("vega_lite_chart")) == 1


def test_bars_are_stacked_by_part_beside_the_memory_there_is() -> None:
    spec = stacked_bars(planned()).to_dict()
    bars, rule = spec["layer"]
    assert bars["encoding"]["color"]["scale"]["domain"] == list(PARTS)
    assert bars["encoding"]["x"]["aggregate"] == "sum"
    data = next(rows for rows in spec["datasets"].values() if "part" in rows[0])
    assert sum(row["gib"] for row in data if row["variant"] == "as configured") == 3.0
    assert rule["mark"]["type"] == "rule"


def test_the_request_is_one_that_the_planner_takes(single: Seeder) -> None:
    """The assignments of moved sliders, on a real command line."""
    from clew.config.load import load, parse_assignments

    moved = ["model.embedding_height=null", "model.embedding_width=null", "model.embedding_dim=400"]
    root = Path(__file__).parents[2]
    config = load(root / "experiments/link_prediction/fb15k237.yaml", parse_assignments(moved))
    assert config.model.embedding_dim == 400
    moved = ["model.num_gates=null", "model.d_model=256"]
    config = load(root / "experiments/language_modeling/nano.yaml", parse_assignments(moved))
    assert config.model.d_model == 256

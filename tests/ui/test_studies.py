"""The page Studies: claims by machine, and the planner's request, job and chart."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from clew.config.kinds import TASK_KINDS
from clew.errors import ConfigError
from clew.ui.components.plan_controls import shown_fields, stacked_bars
from clew.ui.data import jobs as jobs_module
from clew.ui.data import studies as studies_module
from tests.recorded import Recorded
from tests.ui.conftest import Open, no_surprise, shown
from tests.ui.seed_many import copy_run

CONFIG = "experiments/link_prediction/umls.yaml"
PARTS = ("weights", "gradients", "optimizer", "activations")


STUDY = "study/study.json"


def on_another_machine(store: Recorded, minutes_earlier: int, **changed: object) -> Path:
    """Copy the study as if another machine had recorded it earlier, and return its report.

    Tests run on one machine.
    """
    run_id, report = f"{minutes_earlier:032x}", store.files("study", STUDY)
    with store.database() as base:
        copy_run(base, store.runs["study"], run_id, age_ms=60_000 * minutes_earlier)
    copy = report.parents[3] / run_id / "artifacts" / STUDY
    shutil.copytree(report.parent, copy.parent)
    copy.write_text(json.dumps(json.loads(report.read_text()) | changed))
    return copy


def claims_of(store: Recorded) -> list[dict[str, Any]]:
    """Return the recorded study's result for each claim."""
    found: list[dict[str, Any]] = json.loads(store.files("study", STUDY).read_text())["claims"]
    return found


@pytest.fixture
def measured(recorded: Recorded, tmp_path: Path) -> Recorded:
    """Return a store with a study of one round, and one of another machine with enough rounds."""
    store = recorded.copy(tmp_path / "studies")
    first, second, third = claims_of(store)
    told = {"measured": {"value": 1.5, "low": 1.25, "high": None, "rounds": 3}}
    claims = [first | told | {"verdict": "holds"}, second | told | {"verdict": "does not hold"}]
    on_another_machine(store, 1, machine="old box", claims=[*claims, third])
    on_another_machine(store, 2, machine="old box", claims=[first | {"verdict": "holds"}])
    return store


def test_claims_stand_beside_measurements_by_machine(page: Open, measured: Recorded) -> None:
    app = page("studies", measured.uri)
    one_round = [claim["verdict"].split()[0] for claim in claims_of(measured)]
    assert one_round[:2] == ["cannot", "cannot"]
    both = Counter([*one_round, "holds", "does", one_round[2]])
    numbers = {metric.label: metric.value for metric in app.metric}
    assert numbers == {
        "✓ Hold": str(both["holds"]),
        "✗ Do not hold": str(both["does"]),
        "? Cannot be told yet": str(both["cannot"]),
        "○ Open: not measurable here": str(both["open:"]),
    }
    table = app.dataframe[0].value
    order = list(app.dataframe[0].proto.column_order)
    assert order[:3] == ["study", "claim", "verdict"], "a tablet shows no more without scrolling"
    assert list(table["machine"])[3:] == ["old box"] * 3, "the latest of each"
    assert list(table["low"])[3:5] == [1.25, 1.25]
    assert all(re.fullmatch(r"at (least|most) [\de.+-]+", bounds) for bounds in table["bounds"])
    assert "<b>a million</b> times as fast" in set(table["claim"])
    assert set(table["about"]) == {"ratio"}
    assert "about" in order
    only = page("studies", measured.uri, machine="old box")
    assert set(only.dataframe[0].value["machine"]) == {"old box"}


def test_a_store_without_studies_shows_those_that_ship_and_says_what_to_do(
    page: Open, single: Recorded
) -> None:
    app = page("studies", single.uri)
    assert "clew compare --study" in shown(app)
    files = (Path(__file__).parents[2] / "experiments/studies/results").glob("*.json")
    shipped = [json.loads(file.read_text()) for file in files]
    table = app.dataframe[0].value
    assert Counter(table["claim"]) == Counter(c["claim"] for s in shipped for c in s["claims"])
    assert set(table["machine"]) == {study["machine"] for study in shipped}


def test_a_damaged_report_hides_no_other(page: Open, measured: Recorded) -> None:
    on_another_machine(measured, 3, machine="third box").write_text("{not json")
    found = set(page("studies", measured.uri).dataframe[0].value["machine"])
    assert len(found) == 2
    assert "old box" in found


def test_every_configuration_can_be_chosen() -> None:
    paths = studies_module.configurations()
    assert CONFIG in paths
    assert not any("studies/" in path for path in paths)
    for path in paths:
        assert studies_module.configuration(path).model.kind


class _FakeJob:
    job_id, title, state, exit_code, seconds = "j1", "Plan", "done", 0, 1.0
    action, person, cancelled_by = "plan", "", ""

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


def test_settings_start_the_planner_and_its_budget_is_drawn(
    page: Open, single: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    job = _FakeJob(planned())

    class Server:
        def start(self, arguments: list[str], *, title: str, action: str) -> _FakeJob:
            started.append(arguments)
            return job

        def find(self, job_id: str) -> _FakeJob | None:
            return job if job_id == "j1" else None

    monkeypatch.setattr(jobs_module, "jobs", Server)
    monkeypatch.setattr("clew.ui.components.job_view.find", Server().find)
    app = page("studies", single.uri, view="Memory", config=CONFIG)
    form = f"{CONFIG} conve"
    app.number_input(key=f"{form} training.batch_size").set_value(1024)
    app.number_input(key=f"{form} model.embedding_dim").set_value(400)
    app.toggle(key=f"{form} optimizations.use_mixed_precision").set_value(True)
    app.text_input(key=f"{form} num_entities").set_value("1000")
    app.text_input(key=f"{form} num_relations").set_value("10")
    app.number_input(key="gib").set_value(2.0)
    app.button[0].click().run()
    no_surprise(app)
    (arguments,) = started
    assert arguments[:4] == ["plan", f"--config={CONFIG}", "--memory-gib=2.0", "--json"]
    assert set(arguments[4:]) == {
        "--num-entities=1000",
        "--num-relations=10",
        "training.batch_size=1024",
        "model.embedding_dim=400",
        "optimizations.use_mixed_precision=true",
    }
    numbers = {metric.label: metric.value for metric in app.metric}
    assert numbers == {"Predicted peak": "3.00 GiB", "On device": "2.00 GiB", "Largest batch": "4"}
    assert "It does not fit" in shown(app)
    assert len(app.get("vega_lite_chart")) == 1
    app.selectbox(key="device").set_value("T4")
    app.button[0].click().run()
    assert "--device=T4" in started[1]


def test_bars_are_stacked_by_part_beside_the_memory_there_is() -> None:
    spec = stacked_bars(planned()).to_dict()
    bars, rule = spec["layer"]
    assert bars["encoding"]["color"]["scale"]["domain"] == list(PARTS)
    assert bars["encoding"]["x"]["aggregate"] == "sum"
    data = next(rows for rows in spec["datasets"].values() if "part" in rows[0])
    assert sum(row["gib"] for row in data if row["variant"] == "as configured") == 3.0
    assert rule["mark"]["type"] == "rule"
    assert spec["datasets"][rule["data"]["name"]] == [{"gib": 2.0}]


@pytest.mark.parametrize(("there_is", "end", "drawn"), [(5.0, 5.25, True), (64.0, 3.15, False)])
def test_the_axis_fits_the_bars(there_is: float, end: float, drawn: bool) -> None:
    spec = stacked_bars(planned() | {"limit_gib": there_is}).to_dict()
    bars, rule = spec["layer"]
    assert bars["encoding"]["x"]["scale"]["domain"] == [0, pytest.approx(end)]
    data = rule["data"]
    assert bool(spec["datasets"][data["name"]] if "name" in data else data["values"]) == drawn


@pytest.mark.parametrize("path", studies_module.configurations())
def test_every_model_of_a_configuration_has_a_form(path: str) -> None:
    """The form has graph models, language models and image sequences, from the schema alone."""
    config = studies_module.configuration(path)
    for kind in TASK_KINDS[config.data.kind].models:
        model = studies_module.configuration(path, studies_module.kind_changes(path, kind))
        assert model.model.kind == kind
        fields = shown_fields(model)
        own = [key for key in fields if key.startswith("model.")]
        assert {"training.batch_size", *own} <= fields.keys()
        assert len(own) >= 1
        assert all(field.description for field, _ in fields.values())


def test_another_model_is_planned(
    page: Open, single: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[object, ...]] = []

    def plan(*given: object, **named: object) -> _FakeJob:
        started.append((*given, named))
        return _FakeJob(planned())

    monkeypatch.setattr("clew.ui.views.studies.plan", plan)
    app = page("studies", single.uri, view="Memory", config=CONFIG)
    app.selectbox(key="kind triples").set_value("complex").run()
    app.number_input(key=f"{CONFIG} complex model.embedding_dim").set_value(64)
    app.button[0].click().run()
    no_surprise(app)
    changes = {"model.kind": "complex", "model.embedding_dim": "64"}
    assert started == [(CONFIG, changes, {"device": "", "memory_gib": 16.0, "sizes": {}})]


@pytest.mark.parametrize(
    ("path", "changed", "unset"),
    [
        (
            "link_prediction/fb15k237.yaml",
            "embedding_dim=400",
            ["embedding_height", "embedding_width"],
        ),
        ("link_prediction/fb15k237.yaml", "output_channels=64", []),
        ("language_modeling/nano.yaml", "d_model=256", ["num_gates"]),
    ],
)
def test_what_follows_from_a_setting_is_unset_where_it_does_not_fit(
    path: str, changed: str, unset: list[str]
) -> None:
    key, _, value = changed.partition("=")
    found = studies_module.fitting_changes(f"experiments/{path}", {f"model.{key}": value})
    assert found == {f"model.{key}": value} | {f"model.{other}": "null" for other in unset}


def test_a_change_that_fits_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="given"):
        studies_module.fitting_changes(CONFIG, {"model.embedding_dim": "many"})

"""The names, units and meanings of the forms: one table, which every surface uses."""

from typing import get_args

import pytest

from clew.config.services import InfluenceConfig
from clew.runs.influence_forms import (
    FORMS,
    NATS,
    NO_UNIT,
    UNIT_OF_THE_LOSS,
    UNKNOWN,
    Form,
    form_of,
)
from clew.runs.influence_report import ReportFrame, ReportModel
from clew.runs.window_report import SequenceInfluenceReport, TextInfluenceReport
from clew.ui.components import glossary

CHOICES = set(get_args(InfluenceConfig.model_fields["score"].annotation)) - {"auto"}


def test_each_choice_has_its_words() -> None:
    assert set(FORMS) == CHOICES
    headings = {form.heading for form in FORMS.values()}
    assert len(headings) == len({form.meaning for form in FORMS.values()}) == len(FORMS)
    for key, form in FORMS.items():
        assert key in form.heading
        assert key in form.self_heading
        assert form.unit in form.sentence
        assert form.meaning in form.sentence


@pytest.mark.parametrize("key", sorted(CHOICES))
def test_only_scores_that_no_norm_divides_have_the_unit_of_the_loss(key: str) -> None:
    divided = key in {"cosine", "deflated", "kronecker"}
    assert form_of({"score": key}).unit == (NO_UNIT if divided else NATS)
    assert (NATS in form_of({"score": key}).heading) is not divided


def test_the_form_of_a_report() -> None:
    assert form_of({"top_k": 10}).key == "raw"  # written before there were other forms
    assert form_of({}) is UNKNOWN
    settings, model = {"score": "kronecker"}, ReportModel("", "", ())
    frame = ReportFrame(model=model, settings=settings, train_size=0, seconds=0.0, device="cpu")
    assert frame.form is FORMS["kronecker"]


@pytest.mark.parametrize(
    ("kind", "unit"), [(TextInfluenceReport, NATS), (SequenceInfluenceReport, UNIT_OF_THE_LOSS)]
)
def test_the_unit_of_windows(kind: type, unit: str) -> None:
    assert form_of({"score": "raw"}, loss_unit=kind.loss_unit).unit == unit


@pytest.mark.parametrize(
    ("unit", "shown"), [("", "predicted 0.5, true 2"), ("W", "0.5 W, true 2 W")]
)
def test_frames_can_be_without_a_unit(unit: str, shown: str) -> None:
    said = dict.fromkeys(("run_id", "dataset", "device", "group"), "x")
    said |= dict.fromkeys(("steps", "weights", "proponents", "opponents"), ())
    numbers = dict.fromkeys(("loss", "num_windows", "seconds", "last_frame"), 1)
    target = {"unit": unit, "target": 2.0, "prediction": 0.5, "self_influence": None}
    (line,) = SequenceInfluenceReport(**said, **numbers, **target).headline()
    assert line.endswith(shown)


@pytest.mark.parametrize("form", [*FORMS.values(), UNKNOWN])
def test_a_page_names_each_number(form: Form) -> None:
    words = glossary.score("influence", form)
    assert (words.label, words.unit) == (form.heading, form.unit)
    assert form.meaning[1:] in words.help
    assert glossary.score("cosine", form).label == "Cosine"

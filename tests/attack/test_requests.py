"""Invalid requests to served models: queries by name, prompts, windows of frames."""

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from clew.image_sequences.prediction import WindowPredictor
from clew.language_modeling.model import Sampling
from clew.language_modeling.writer import continuation, load_text_folder
from clew.link_prediction.prediction import Query
from clew.link_prediction.subject import load_predictor
from tests.attack.cases import attempt, fuzz
from tests.attack.damage import damaged_value, texts, values
from tests.attack.material import Material

pytestmark = pytest.mark.slow

NAN = float("nan")


def test_queries(material: Material) -> None:
    predictor = load_predictor(material.model("graph"))
    names = st.one_of(st.sampled_from(["virus", "Virus", "location_of", "causes"]), texts)
    ends = st.one_of(st.none(), names)

    def case(draw: DrawFn) -> None:
        query = Query(draw(names), head=draw(ends), tail=draw(ends))
        top_k = draw(st.sampled_from([1, 10, 0, -1, 2**40]))
        level = draw(st.sampled_from([None, 0.9, 0.0, 1.0, -1.0, NAN]))
        attempt(lambda: predictor.predict([query], top_k=top_k, level=level))

    fuzz(0.008, case)


def test_prompts(material: Material) -> None:
    model = load_text_folder(material.model("text"))
    numbers = st.sampled_from(
        [0.0, 5e-324, 1e-300, 1e-30, 1e-7, 0.5, 1.0, -1.0, 1e308, NAN, float("inf")]
    )

    def case(draw: DrawFn) -> None:
        prompt = draw(texts)
        temperature, top_p = draw(numbers), draw(numbers)

        def write() -> None:
            sampling = Sampling(temperature, top_p=top_p)
            continuation(model, prompt[:300], max_tokens=2, sampling=sampling)

        attempt(write)

    fuzz(0.004, case)


def test_windows_of_frames(material: Material) -> None:
    predictor = WindowPredictor(material.model("frames"))
    images = [[[[280.0] * 13] * 9]] * 3
    scalars = [[45.0, 180.0, 10.0]] * 3

    def case(draw: DrawFn) -> None:
        pixels = draw(st.one_of(st.just(images), damaged_value(images), values))
        beside = draw(st.one_of(st.just(scalars), damaged_value(scalars), values))
        confidence = draw(st.sampled_from([0.9, 0.5, 0.999999, 1e-9]))
        attempt(lambda: predictor.predict(pixels, beside, confidence=confidence))

    fuzz(0.008, case)

"""Model folders as they are served: vocabularies, known triples, calibrations, tokens, records."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from clew.image_sequences.prediction import WindowPredictor
from clew.language_modeling.writer import continuation, load_text_folder
from clew.link_prediction.prediction import Query
from clew.link_prediction.subject import load_predictor
from tests.attack.cases import attempt, fuzz, replaced
from tests.attack.damage import damaged_bytes, damaged_json
from tests.attack.material import Material
from tests.attack.test_reports import damaged_parquet
from tests.edited import with_digest_if_read

pytestmark = pytest.mark.slow


def ask_graph(folder: Path) -> None:
    predictor = load_predictor(folder)
    query = Query("location_of", head="acquired_abnormality")
    predictor.predict([query], level=0.9 if predictor.answer_sets and predictor.known else None)


def ask_text(folder: Path) -> None:
    continuation(load_text_folder(folder), "3 green", max_tokens=2)


ASK: dict[str, Callable[[Path], object]] = {
    "graph": ask_graph,
    "text": ask_text,
    "frames": WindowPredictor,
}


@pytest.mark.parametrize("kind", ASK)
def test_files_of_a_model_folder(kind: str, material: Material, place: Path) -> None:
    folder = Path(shutil.copytree(material.model(kind), place / kind))
    paths = sorted(
        path for path in folder.rglob("*") if path.is_file() and path.name != "model.safetensors"
    )

    def damaged(draw: DrawFn, path: Path) -> bytes:
        content = path.read_bytes()
        if path.suffix == ".parquet":
            return damaged_parquet(draw, content)
        if path.suffix == ".json" and draw(st.integers(0, 3)):
            said = json.loads(content)
            damaged = draw(damaged_json(said))
            return with_digest_if_read(damaged) if path.name == "manifest.json" else damaged
        return draw(damaged_bytes(content))

    def case(draw: DrawFn) -> None:
        path = draw(st.sampled_from(paths))
        with replaced(path, damaged(draw, path)):
            attempt(lambda: ASK[kind](folder))

    fuzz(0.01, case)

"""The box that finds an entity, with a store that commands wrote from a KGX graph."""

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from clew.runs.reading.search import RunQuery, search_runs
from tests.link_prediction.test_kgx import NODES, lines_folder
from tests.recorded import clew
from tests.ui.conftest import TIMEOUT_SECONDS, no_surprise

EDGES = [
    {"subject": drug, "predicate": "biolink:treats", "object": disease}
    for drug in ("CHEBI:1", "HP:1")
    for disease in ("MONDO:1", "CHEBI:1", "HP:1")
]
SHARES = ("--valid-fraction=0", "--test-fraction=0")


@pytest.fixture
def trained(
    empty: str, use: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Return a run on a converted graph, and use its store."""
    use(empty)
    monkeypatch.chdir(tmp_path)
    clew("data", f"--kgx={lines_folder(tmp_path / 'kgx', NODES, EDGES)}", "--output-dir=g", *SHARES)
    clew(
        *("train", "--train=g/train.txt", "--num-epochs=1", "evaluation.enabled=false"),
        *("model.kind=distmult", "model.embedding_dim=4"),
        *("data.node_name_dict=g/entity_names.tsv", "data.edge_map=g/edge_map.json"),
    )
    return search_runs(RunQuery()).runs[0].run_id


def box(run_id: str) -> None:
    import streamlit as st

    from clew.ui.components.runs import vocabulary
    from clew.ui.views.ask import entity_box

    known = vocabulary(run_id)
    st.code(entity_box("Head", "box", known, start="", placeholder="") or "nothing")


def test_an_entity_of_kgx_is_found_by_a_synonym(trained: str) -> None:
    app = AppTest.from_function(box, args=(trained,), default_timeout=TIMEOUT_SECONDS)
    app = no_surprise(app.run())
    assert app.selectbox(key="box").options == [
        "Disease: pain and more  (MONDO:1)",
        "SmallMolecule: aspirin  (CHEBI:1)",
        "SmallMolecule: acetylsalicylic acid = aspirin  (CHEBI:1)",
        "SmallMolecule: ASA = aspirin  (CHEBI:1)",
        "HP:1",
    ], "kind by kind, those without one last"
    assert app.code[0].value == "nothing"
    app.selectbox(key="box").select_index(3)
    assert no_surprise(app.run()).code[0].value == "CHEBI:1"

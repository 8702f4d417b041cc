"""Any address of the dashboard shows a page, never a stack trace."""

from collections.abc import Iterator

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from streamlit.testing.v1 import AppTest

from clew.ui.components.jobs import Jobs
from tests.attack.cases import attempt, fuzz
from tests.attack.damage import scalars, texts
from tests.attack.material import Material
from tests.ui.conftest import TIMEOUT_SECONDS, no_surprise
from tests.workflows.trained import use_store

pytestmark = pytest.mark.slow

PAGES = ("overview", "compare", "influence", "reviews", "models", "studies", "ask", "run")
WORDS = """
    answer candidate change columns config cosine curve data decide edges equal experiment fact
    factfind find for frames group h id ignore job kind log machine metric model more
    order other over path pick picture plan prompt quality queue r ref rel rows run runs search
    seeds set shares siblings side smooth state step t temperature test testorder testrel
    tokens top top_p variant view why
"""
KEYS = WORDS.split()
KNOWN = (
    "virus", "location_of", "valid/mrr", "train/loss", "tail", "all", "best", "graph", "text",
    "1", "0", "7", "true", "umls", "Review", "Graph", "data.name=umls", "[1", "model.kind=conve",
    "mrr>.1", "lr=1e400", "data:x'", "params.`=1", "metrics.a`b>1", 'state:"',
)  # fmt: skip


@pytest.fixture(scope="module")
def in_use(material: Material) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        use_store(patch, f"sqlite:///{material.folder / 'mlflow.db'}")
        patch.setattr(Jobs, "warm_up", lambda self: None)  # it would start a process
        yield


def open_page(name: str, parameters: dict[str, str]) -> None:
    app = AppTest.from_string(
        f"from clew.ui.views import {name}\n{name}.render()", default_timeout=TIMEOUT_SECONDS
    )
    for key, value in parameters.items():
        app.query_params[key] = value
    no_surprise(app.run())


def test_addresses(material: Material, in_use: None) -> None:
    runs = (material.graph_run, material.text_run, material.frames_run)
    several = st.lists(st.sampled_from([*runs, "0" * 32]), max_size=3).map(",".join)
    value = st.one_of(st.sampled_from([*runs, *KNOWN]), several, texts, scalars.map(str))
    parameters = st.dictionaries(st.sampled_from(KEYS), value, max_size=5)

    def case(draw: DrawFn) -> None:
        # A browser sends UTF-8.
        sent = {k: v.encode("utf-8", "replace").decode() for k, v in draw(parameters).items()}
        name = draw(st.sampled_from(PAGES))
        if name in {"run", "influence", "compare"} and draw(st.booleans()):
            sent |= {"id": runs[0], "run": material.trace_run, "runs": ",".join(runs)}
        attempt(lambda: open_page(name, sent))

    fuzz(0.0015, case)

"""An entity's place in the whole training graph: its degree, and neighbours that are drawn."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from clew import names
from clew.errors import ConfigError, DataError
from clew.ui import access
from clew.ui.components import graph
from clew.ui.components.graph import training_graph
from tests.recorded import UMLS, Recorded
from tests.ui.conftest import Open, shown

HUB = "steroid"


def training_facts() -> list[list[str]]:
    return [line.split("\t") for line in (UMLS / "train.txt").read_text().splitlines()]


@pytest.fixture
def own(recorded: Recorded, tmp_path: Path, use: Callable[[str], None]) -> Recorded:
    own = recorded.copy(tmp_path / "own")
    use(own.uri)
    training_graph.clear()
    return own


def test_degree_and_neighbours_are_those_of_the_file(own: Recorded) -> None:
    whole, facts = training_graph(own.runs["fp32 1"]), training_facts()
    degrees = Counter(end for head, _, tail in facts for end in (head, tail))
    assert whole.degree(HUB) == degrees[HUB]
    beside = {end for head, _, tail in facts if HUB in (head, tail) for end in (head, tail)}
    around = whole.around(HUB)
    assert set(around) == beside - {HUB}
    assert [degrees[name] for name in around] == sorted(degrees[name] for name in around)
    drawn = whole.joining(HUB, around[:3])
    rows = drawn[["head_id", "relation_id", "tail_id"]].to_numpy().tolist()
    assert all(row in facts for row in rows)
    assert [{row[0], row[2]} - {HUB} for row in rows] == [{name} for name in around[:3]]


def test_an_entity_is_drawn_with_a_few_of_its_neighbours(page: Open, own: Recorded) -> None:
    address = {"run": own.runs["trace"], "view": "Paths", "entity": HUB}
    whole = training_graph(own.runs["fp32 1"])
    app = page("influence", own.uri, **address)
    assert f"of {whole.degree(HUB):,} in the whole training graph" in shown(app)
    (button,) = (each for each in app.button if each.label == "Show its neighbours")
    app = button.click().run()
    assert app.query_params[graph.UNFOLDED] in (HUB, [HUB])
    assert f"Of its {len(whole.around(HUB)):,} neighbours" in shown(app)


def test_where_people_sign_in_other_files_are_not_read(
    own: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = own.files("fp32 1", names.ARTIFACT_CONFIG_YAML)
    config = yaml.safe_load(path.read_text())
    (tmp_path / "train.txt").write_text("hunter2\n")
    config["data"] = {"kind": "triples", "train": str(tmp_path / "train.txt")}
    path.write_text(yaml.safe_dump(config))
    monkeypatch.setattr(access, "is_configured", lambda: True)
    with pytest.raises(ConfigError) as refused:
        training_graph(own.runs["fp32 1"])
    assert "hunter2" not in str(refused.value)


def test_data_that_have_changed_are_not_guessed(page: Open, own: Recorded, tmp_path: Path) -> None:
    path = own.files("fp32 1", names.ARTIFACT_CONFIG_YAML)
    config = yaml.safe_load(path.read_text())
    (tmp_path / "train.txt").write_text("a\tr\tb\nb\tr\ta\n")
    config["data"] = {"kind": "triples", "train": str(tmp_path / "train.txt")}
    path.write_text(yaml.safe_dump(config))
    with pytest.raises(DataError, match="trained on data"):
        training_graph(own.runs["fp32 1"])
    (tmp_path / "train.txt").unlink()
    app = page("influence", own.uri, run=own.runs["trace"], view="Paths", entity=HUB, near=HUB)
    text = shown(app)
    assert "are not known here" in text
    assert "train.txt" in text
    assert "in the whole training graph." not in text

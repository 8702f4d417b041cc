"""The graph of an explanation: the test triple and its strongest training facts.

It is drawn like the picture of a report, for a wide and for a narrow place. `assets/graph.js` shows
the fitting one and tells what was clicked: a line selects its fact, an entity shows its own. A
double click on an entity, or the key e, draws its neighbours in the training graph too.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st
from markupsafe import Markup, escape
from streamlit.column_config import NumberColumn, TextColumn
from streamlit.delta_generator import DeltaGenerator

from clew import names
from clew.biolink import page_of
from clew.config.data import TripleData, require_shared
from clew.config.load import from_mapping
from clew.errors import ClewError, DataError, spaced
from clew.files import expanded
from clew.influence.link_prediction.paths import Neighbourhood
from clew.link_prediction.sources import load_graph
from clew.link_prediction.triples import HEAD, RELATION, TAIL, KnowledgeGraph
from clew.runs.influence_forms import DISPUTED_COLUMN, TRAIN_INDEX_COLUMN, Form
from clew.runs.reading import picture
from clew.runs.reading.explanation import SharedExplanation
from clew.runs.reading.facts import FactPath
from clew.runs.reading.picture_layout import node_labels
from clew.runs.reading.runs import find_run, read_config, started_in
from clew.runs.verification import marked_in
from clew.ui import access
from clew.ui.components import basics, jobs, tables

HEIGHT = 420
MAX_EDGES = 60
WIDTHS = (640, 340)
LETTERS = 0.55
"""How wide a letter of the pages' font is, in font sizes."""
NUM_STRONGEST = 3
NUM_NEIGHBOURS, MOST_UNFOLDED = 8, 4
"""How many neighbours are drawn with an entity, and with how many entities at once."""
UNFOLDED = "near"
"""In the address: the entities that are drawn with their neighbours, with tabs between them."""
DRAWN = ["head_id", "head", "relation", "tail_id", "tail", "place", "influence"]
DRAWN += [TRAIN_INDEX_COLUMN]
_MARK = '<span><b style="color:{colour}" aria-hidden="true">{mark}</b> {kind}</span>'
_LINK = '<a href="{page}" target="_blank" rel="noreferrer">{text}</a>'
_CARD = (
    '<div class="clew-card clew-small"><b>{name}</b> <span class="clew-muted">{about}</span>'
    "<p>In {number} of the drawn facts{whole}. The strongest:</p>{facts}</div>"
)
_FILES = Path(__file__).parent.parent / "assets"
_HTML, _SCRIPT = ((_FILES / f"graph.{kind}").read_text("utf-8") for kind in ("html", "js"))
_component = st.components.v2.component("clew_graph", html=_HTML, js=_SCRIPT, isolate_styles=False)
NUM_DRAWN = 8
"""How many paths are drawn; a selected path further down is drawn too."""


def config_here(run_id: str) -> dict[str, Any]:
    """Return a run's configuration, with the paths of its data as they are on this machine.

    Raises:
        TrackingError: The run keeps no configuration.
        ConfigError: This version of Clew cannot use the run's configuration.
    """
    config: dict[str, Any] = read_config(run_id)
    folder, data = started_in(run_id), config["data"]
    for name in from_mapping(config).data.paths:
        there = Path(folder) / expanded(data[name]) if data.get(name) and folder else None
        if there is not None and there.exists():
            data[name] = str(there)
    return config


@dataclass(frozen=True)
class TrainingGraph:
    """All training facts of a model, with the index in which paths between entities are found."""

    graph: KnowledgeGraph
    index: Neighbourhood

    def degree(self, entity: str) -> int:
        return int(self.index.degrees[self.graph.entities.id(entity)])

    def around(self, entity: str) -> list[str]:
        """Return the neighbours of an entity, those in the fewest facts first."""
        found = self.index.around(self.graph.entities.id(entity))
        ordered = found[np.argsort(self.index.degrees[found], kind="stable")]
        return [name for name, _ in self.graph.entities.named(ordered)]

    def joining(self, entity: str, others: list[str]) -> pd.DataFrame:
        """Return a fact between an entity and each of the others, as a picture draws it."""
        own, *ends = (self.graph.entities.id(name) for name in (entity, *others))
        places = [int(self.index.between(own, end)[0]) for end in ends]
        rows, columns = self.graph.train[places], {}
        for column, end in (("head", HEAD), ("relation", RELATION), ("tail", TAIL)):
            known = self.graph.relations if end == RELATION else self.graph.entities
            terms = known.named(rows[:, end])
            columns[f"{column}_id"], columns[column] = map(list, zip(*terms, strict=True))
        return pd.DataFrame(columns).assign(place=0, influence=0.0, train_index=places)


@st.cache_resource(max_entries=2, show_spinner="Reading the training graph …")
def training_graph(run_id: str) -> TrainingGraph:
    """Return the graph that a run was trained on.

    Raises:
        ClewError: The run or its data are not here, or the data have changed since the training.
    """
    trained_on = find_run(run_id).tags.get(names.TAG_DATA_FINGERPRINT, "")
    data = from_mapping(config_here(run_id)).data
    assert isinstance(data, TripleData)
    if access.is_configured():
        require_shared(data, jobs.folders_of_data())
    graph = load_graph(data)
    if graph.fingerprint != trained_on:
        now = f"those of its configuration are {graph.fingerprint} now"
        advice = "put the files back as they were"
        raise DataError(f"run {run_id} was trained on data {trained_on}, {now}; {advice}")
    return TrainingGraph(graph, Neighbourhood(graph.train, graph.num_entities))


def show(
    explanation: SharedExplanation,
    facts: pd.DataFrame,
    *,
    column: str,
    selected: Collection[int],
    key: str,
    take: Callable[[int | None], None],
    alt: str,
    panel: DeltaGenerator,
) -> None:
    """Show the picture, a legend for the kinds of entities, and in the panel what was clicked.

    The strongest of the facts come first. `column` sets the width of their lines; `selected` has
    the places of those that stand out. `take` is called with the place of the fact whose line is
    clicked, or None for anything but an entity. The facts that a check of the explanation took away
    are marked.
    """
    test, kinds = explanation.test, explanation.kinds
    facts = facts.head(MAX_EDGES).assign(influence=facts[column])
    facts = facts.filter([*DRAWN, DISPUTED_COLUMN])
    disputed = DISPUTED_COLUMN in facts and bool(facts[DISPUTED_COLUMN].any())
    entity, missing = basics.address("entity"), ""
    whole: TrainingGraph | None = None
    if entity or _unfolded():
        try:
            whole = training_graph(explanation.head.model.run_id)
        except ClewError as error:
            missing = str(error)
    for each in _unfolded():
        if whole is not None and each in (labels := node_labels(test, facts)):
            new = [name for name in whole.around(each) if name not in labels][:NUM_NEIGHBOURS]
            facts = pd.concat([facts, whole.joining(each, new)[DRAWN]]) if new else facts
    labels = node_labels(test, facts)

    def choose() -> None:
        taken = st.session_state[key].taken or {}
        basics.write_address("entity", taken.get("entity"))
        if "entity" not in taken:
            take(int(taken["fact"]) if "fact" in taken else None)
        elif "unfold" in taken:
            _unfold(taken["entity"])

    marked, said = marked_in(explanation.verified, facts.get(TRAIN_INDEX_COLUMN, ()))
    draw = partial(picture.draw, test, facts, kinds, marked=marked)
    drawn = [draw(width=w, height=HEIGHT, letters=LETTERS, selected=selected) for w in WIDTHS]
    lines = [
        (picture.ANSWER, "┅", spaced(test["relation"]) + "?"),
        (picture.FOR, "━", "made it more likely"),
        (picture.AGAINST, "━", "less likely"),
    ]
    lines += [(picture.PLAIN.colour, "━", "a neighbour's fact")] * (not facts["place"].all())
    lines += [(picture.PLAIN.colour, "┈", "runs disagree")] * disputed
    lines += [("inherit", picture.MARK, said)] * bool(said)
    lines += [(look.colour, look.mark, kind) for kind, look in picture.looks(kinds, labels).items()]
    marks = [
        basics.fill(_MARK, colour=colour, mark=mark, kind=kind) for colour, mark, kind in lines
    ]
    data = {"drawn": basics.join(drawn), "legend": basics.join(marks, " ")}
    _component(data=data | {"alt": alt, "height": HEIGHT}, key=key, on_taken_change=choose)
    if entity not in labels:
        return
    with panel:
        _entity(entity, labels[entity], facts, kinds.get(entity, ""), whole)
        if whole is None:
            basics.note(f"Its facts in the whole training graph are not known here: {missing}.")
        else:
            _neighbours(entity, labels, whole, key=f"{key}-near")


def _unfolded() -> list[str]:
    return [name for name in basics.address(UNFOLDED).split("\t") if name]


def _unfold(entity: str) -> None:
    """Draw an entity's neighbours too, or no longer."""
    others = [name for name in _unfolded() if name != entity]
    added = [] if len(others) < len(_unfolded()) else [entity]
    basics.write_address(UNFOLDED, "\t".join([*others, *added][-MOST_UNFOLDED:]))


def _neighbours(entity: str, labels: Mapping[str, str], whole: TrainingGraph, *, key: str) -> None:
    """Say how many of an entity's neighbours are drawn, and offer to draw others."""
    around = whole.around(entity)
    drawn = sum(name in labels for name in around)
    label = "Hide its neighbours" if entity in _unfolded() else "Show its neighbours"
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(label, key=key, on_click=_unfold, args=(entity,), help="Or double-click it.")
        number = f"Of its {len(around):,} neighbours {drawn:,} are drawn"
        basics.note(f"{number}; those in the fewest facts come first.")


def identified(key: str, name: str, kind: str) -> Markup:
    """Return an entity's identifier, a link if its database is known, and its kind."""
    page = page_of(key)
    shown = basics.fill(_LINK, page=page, text=key) if page else escape(key)
    parts = [shown] if page or key != name else []
    return basics.join([*parts, escape(kind)] if kind else parts, ", ")


def _entity(
    key: str, name: str, facts: pd.DataFrame, kind: str, whole: TrainingGraph | None
) -> None:
    """Show an entity's kind and identifier, and its strongest facts among those drawn."""
    own = facts[(facts["head_id"].astype(str) == key) | (facts["tail_id"].astype(str) == key)]
    strongest = own.head(NUM_STRONGEST).iterrows()
    lines = [basics.fact("<p>{sign} {triple}</p>", fact) for _, fact in strongest]
    about = identified(key, name, kind)
    more = "" if whole is None else f", of {whole.degree(key):,} in the whole training graph"
    said = {"name": spaced(name), "about": about, "number": len(own), "whole": more}
    basics.show(_CARD, facts=basics.join(lines), **said)


def show_paths(explanation: SharedExplanation, *, key: str) -> None:
    """Show paths as a picture next to their sentences; a click on either selects one."""
    found = explanation.paths
    paths = found.found
    if not paths:
        basics.note(found.searched)
        return
    place = basics.address_number("path") or 0
    place = place if place < len(paths) else 0
    drawn = [*paths[:NUM_DRAWN], *([paths[place]] if place >= NUM_DRAWN else [])]

    def take(fact: int | None) -> None:
        if fact is not None:
            through = (number for number, path in enumerate(paths) if fact in path.ranks)
            basics.write_address("path", next(through))

    left, right = basics.columns([1.3, 1], key="paths")
    panel = right.container()
    with left:
        show(
            explanation,
            found.facts_of(drawn, told=True),
            column="influence",
            selected=paths[place].ranks,
            key=f"{key}-paths",
            take=take,
            alt="Graph of the paths of training facts between the two ends of the test triple",
            panel=panel,
        )
    with right:
        _path_table(paths, place, explanation.head.form, key=f"{key}-sentences-{place}")
        basics.note(found.searched.removesuffix(":") + ".")


def _path_table(paths: Sequence[FactPath], place: int, form: Form, *, key: str) -> None:
    total = f"{form.heading} of its facts together."
    about = "Its facts, starting at the head, each as in the data."
    influence = NumberColumn(format="%+.4g", width=80, help=total)
    sentences = [path.sentence + f" (influence{path.of})" * bool(path.of) for path in paths]
    tables.tick_one(
        {
            "Influence": ([path.influence for path in paths], influence),
            "Path": (sentences, TextColumn(width="large", help=about)),
        },
        range(len(paths)),
        key=key,
        chosen=place,
        take=lambda ticked: basics.write_address("path", ticked or 0),
        alt="Paths between the two ends, the most specific first",
        most=HEIGHT - 90,
    )
    steps = (basics.markdown(step) for step in paths[place].steps)
    st.markdown("\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1)))

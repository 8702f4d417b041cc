"""The training graph of an explained model: how many facts an entity has, and its neighbours."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from clew import names
from clew.config.data import TripleData, require_shared
from clew.config.load import from_mapping
from clew.errors import DataError
from clew.files import expanded
from clew.influence.link_prediction.paths import Neighbourhood
from clew.link_prediction.sources import load_graph
from clew.link_prediction.triples import HEAD, RELATION, TAIL, KnowledgeGraph
from clew.runs.reading.runs import find_run, read_config, started_in
from clew.ui import access
from clew.ui.components import jobs


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
        raise DataError(
            f"run {run_id} was trained on data {trained_on}, those of its configuration are "
            f"{graph.fingerprint} now; put the files back as they were"
        )
    return TrainingGraph(graph, Neighbourhood(graph.train, graph.num_entities))

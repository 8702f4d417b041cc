"""What a batch explanation is asked for: which test triples, with whose labels, where to."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clew.errors import ConfigError
from clew.influence.link_prediction.report import ReportSource
from clew.link_prediction.labels import read_edge_map, read_labels
from clew.link_prediction.triples import KnowledgeGraph
from clew.workflows.explaining.given_triples import GivenTriple
from clew.workflows.explaining.trace_output import identity
from clew.workflows.explaining.trace_source import GivenFiles

DEFAULT_FOLDER = Path("runs/batch_tracin")


@dataclass(frozen=True)
class BatchRequest:
    """What to explain, and where results go."""

    model: str
    test_triples: str
    output_dir: Path | None = None
    """None: a folder of its own for each model, file of test triples, and settings."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    files: GivenFiles | None = None
    start_index: int = 0
    max_triples: int | None = None
    edge_map: str = ""
    node_name_dict: str = ""

    def chosen(self, tests: list[GivenTriple]) -> list[GivenTriple]:
        """Return the test triples from `start_index` on, at most `max_triples`.

        Raises:
            ConfigError: there are none.
        """
        if self.start_index < 0 or (self.max_triples is not None and self.max_triples < 1):
            raise ConfigError(
                f"start_index is {self.start_index} and max_triples {self.max_triples}; expected "
                "start_index 0 or more and max_triples 1 or more"
            )
        if self.start_index >= len(tests):
            raise ConfigError(
                f"start_index is {self.start_index}, but {self.test_triples} has {len(tests)} lines"
            )
        stop = None if self.max_triples is None else self.start_index + self.max_triples
        return tests[self.start_index : stop]

    def folder(self, identity: Mapping[str, Any]) -> Path:
        """Return where results go; `identity` is what they depend on."""
        if self.output_dir is not None:
            return self.output_dir
        content = json.dumps([identity, str(Path(self.test_triples).resolve())], sort_keys=True)
        return DEFAULT_FOLDER / hashlib.sha256(content.encode()).hexdigest()[:12]

    def labelled(self, graph: KnowledgeGraph) -> KnowledgeGraph:
        """Return a graph with the labels of other files, where they are given."""
        changed: dict[str, Any] = {}
        if self.node_name_dict:
            changed["entities"] = read_labels(Path(self.node_name_dict), graph.entities)
        if self.edge_map:
            path = Path(self.edge_map)
            read = read_edge_map if path.suffix == ".json" else read_labels
            changed["relations"] = read(path, graph.relations)
        return replace(graph, **changed)

    def identity(self, report: ReportSource) -> dict[str, Any]:
        """Return what results depend on: what scores do, and what the files of labels hold."""
        files = {"edge_map": self.edge_map, "node_name_dict": self.node_name_dict}
        return identity(report) | {
            f"{name}_sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
            for name, path in files.items()
            if path
        }

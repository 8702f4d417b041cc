"""The request and the work of a batch explanation; each result is written as soon as it is ready.

If processes share the entity table, all of them explain every group, and the main process writes.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clew.errors import ClewError, ConfigError, Interrupted, NonFiniteLossError, described
from clew.files import cache_folder
from clew.influence.link_prediction.proximity import Filtering, Neighbourhood
from clew.influence.link_prediction.report import ReportSource
from clew.link_prediction.dictionaries import read_edge_map, read_labels
from clew.link_prediction.triples import KnowledgeGraph, Triples
from clew.workflows.explaining.batch_results import Outcome, OutputFolder
from clew.workflows.explaining.given_triples import GivenTriple
from clew.workflows.explaining.trace_output import identity
from clew.workflows.explaining.trace_source import GivenFiles, TraceSource
from clew.workflows.explaining.tracin import Progress, explain
from clew.workflows.shared_table import digest

logger = logging.getLogger(__name__)

DEFAULT_FOLDER = Path("runs/batch_tracin")
Waiting = list[tuple[GivenTriple, np.ndarray]]
"""Test triples to explain, with their candidates."""


@dataclass(frozen=True)
class BatchRequest:
    """What to explain, and where the results go."""

    model: str
    test_triples: str
    output_dir: Path | None = None
    """None: a separate folder for each model, file of test triples, and settings."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    files: GivenFiles | None = None
    start_index: int = 0
    max_triples: int | None = None
    edge_map: str = ""
    node_name_dict: str = ""

    def chosen(self, tests: list[GivenTriple]) -> list[GivenTriple]:
        """Return at most `max_triples` test triples, starting at `start_index`.

        Raises:
            ConfigError: One of the two is out of range.
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
        if self.output_dir is not None:
            return self.output_dir
        return DEFAULT_FOLDER / digest([identity, str(Path(self.test_triples).resolve())])[:12]

    def labelled(self, graph: KnowledgeGraph) -> KnowledgeGraph:
        """Return the graph with labels from `node_name_dict` and `edge_map`, if they are given."""
        changed: dict[str, Any] = {}
        if self.node_name_dict:
            changed["entities"] = read_labels(Path(self.node_name_dict), graph.entities)
        if self.edge_map:
            path = Path(self.edge_map)
            read = read_edge_map if path.suffix == ".json" else read_labels
            changed["relations"] = read(path, graph.relations)
        return replace(graph, **changed)

    def identity(self, report: ReportSource) -> dict[str, Any]:
        """Return what the results depend on: `identity` of the report, and the files of labels."""
        files = {"edge_map": self.edge_map, "node_name_dict": self.node_name_dict}
        return identity(report) | {
            f"{name}_sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
            for name, path in files.items()
            if path
        }


class BatchTrace:
    """Explains test triples in groups."""

    def __init__(
        self,
        source: TraceSource,
        report: ReportSource,
        output: OutputFolder,
    ) -> None:
        self.source, self.report, self.output = source, report, output
        self._neighbourhood = Neighbourhood.cached(report.graph, cache_folder("neighbourhoods"))
        self._filtering = Filtering.from_config(source.model.config.influence)
        self.seconds = 0.0

    @property
    def group_size(self) -> int:
        return self.source.model.config.influence.tests_per_group

    def run(self, tests: Sequence[GivenTriple], progress: Progress) -> list[Outcome]:
        outcomes, waiting = self._look_together(tests)
        progress(len(outcomes), len(tests))
        for start in range(0, len(waiting), self.group_size):
            for outcome in self._group(waiting[start : start + self.group_size]):
                outcomes[outcome.index] = outcome
            progress(len(outcomes), len(tests))
        return [outcomes[index] for index in sorted(outcomes)]

    def _look_together(self, tests: Sequence[GivenTriple]) -> tuple[dict[int, Outcome], Waiting]:
        world = self.source.world
        known, waiting = self.look(tests if world.is_main else [])
        indices = json.dumps([test.index for test, _ in waiting])
        chosen = set(json.loads(world.broadcast_text(indices, torch.device("cpu"))))
        if not world.is_main:
            waiting = [(t, self._candidates(t.ids)) for t in tests if t.ids and t.index in chosen]
        return known, waiting

    def look(self, tests: Sequence[GivenTriple]) -> tuple[dict[int, Outcome], Waiting]:
        """Return the outcomes that are already known, by index, and the triples to explain."""
        known: dict[int, Outcome] = {}
        waiting: Waiting = []
        for test in tests:
            outcome, candidates = self._look(test)
            if outcome is not None:
                known[test.index] = outcome
            else:
                waiting.append((test, candidates))
        return known, waiting

    def _look(self, test: GivenTriple) -> tuple[Outcome | None, np.ndarray]:
        nothing = np.empty(0, np.int64)
        if test.ids is None:
            return unusable(test), nothing
        folder = self.output.finished(test.index, test.text)
        if folder is not None:
            return self.output.kept(test.index, test.text, folder), nothing
        candidates = self._candidates(test.ids)
        if not len(candidates):
            f = self._filtering
            message = (
                f"no candidates within n_hops={f.n_hops} (min_degree={f.min_degree}, "
                f"strict_path_filtering={str(f.strict_paths).lower()}); widen the filter"
            )
            return Outcome(test.index, test.text, "failed", message), candidates
        return None, candidates

    def _candidates(self, ids: tuple[int, int, int]) -> np.ndarray:
        return self._neighbourhood.candidates(ids[0], ids[2], self._filtering)

    def _group(self, group: Sequence[tuple[GivenTriple, np.ndarray]]) -> list[Outcome]:
        """Explain a group together; if that fails, explain its triples one by one.

        With several processes, only a failure that occurs in all of them alike can be retried:
        scores that are not finite.
        """
        try:
            return self._explain(group)
        except (Interrupted, KeyboardInterrupt):
            raise
        except (ClewError, RuntimeError, MemoryError) as error:
            if self.source.world.size > 1 and not isinstance(error, NonFiniteLossError):
                raise
            if len(group) > 1:
                return [outcome for item in group for outcome in self._group([item])]
            test = group[0][0]
            logger.warning("line %d (%s): %s", test.index + 1, test.text, error)
            return [Outcome(test.index, test.text, "failed", described(error))]

    def _explain(self, group: Sequence[tuple[GivenTriple, np.ndarray]]) -> list[Outcome]:
        mask = np.zeros((len(group), len(self.source.task.graph.train)), bool)
        for row, (_, candidates) in enumerate(group):
            mask[row, candidates] = True
        findings = explain(self.source, ids_of([test for test, _ in group]), candidates=mask)
        outcomes = []
        for row, (test, _) in enumerate(group):
            if self.source.world.is_main:
                self.output.write(test.index, test.text, self.report, findings.only(row))
            numbers = (
                int(findings.candidates[row]),
                float(findings.scores[row]),
                float(findings.ranks[row]),
            )
            outcomes.append(Outcome(test.index, test.text, "done", "", *numbers))
        self.seconds += findings.seconds
        return outcomes


def unusable(test: GivenTriple) -> Outcome:
    """Return the outcome of a line that is not a triple of the graph."""
    return Outcome(test.index, test.text, "failed", test.problem)


def ids_of(tests: Sequence[GivenTriple]) -> Triples:
    return np.array([t.ids for t in tests if t.ids is not None], np.int32).reshape(-1, 3)

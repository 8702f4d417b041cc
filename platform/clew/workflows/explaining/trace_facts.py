"""Computes what a report says of test triples: of some training triples, or of all of them.

A first answer is of the training triples that share an entity with a test triple. Their scores are
those of the whole report, which may hold stronger triples; they are few, so it takes little.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from clew.influence.link_prediction.report import Findings, ReportSource, build_report
from clew.link_prediction.triples import HEAD, TAIL, Triples
from clew.runs.influence_report import write_influence_json
from clew.workflows.explaining.trace_source import TraceSource
from clew.workflows.explaining.trace_unrolled import explain_unrolled

logger = logging.getLogger(__name__)

LARGEST_SHARE = 0.25
"""Of the training triples that a first answer may be of; more would hold up the whole one."""
Progress = Callable[[int, int], None]


def explain(
    source: TraceSource,
    tests: Triples,
    *,
    candidates: np.ndarray | None = None,
    progress: Progress = lambda done, total: None,
) -> Findings:
    """Compute everything that a report of these test triples says."""
    tracer = source.tracer
    began = time.perf_counter()
    if tracer.settings.score == "unrolled":
        explanations = explain_unrolled(source, tests, progress)
    else:
        explanations = tracer.explain(tests, candidates=candidates, progress=progress)
    scores, ranks = tracer.scores_and_ranks(tests)
    counts = np.full(len(tests), len(source.task.graph.train))
    return Findings(
        tests=tests,
        explanations=explanations,
        scores=scores,
        ranks=ranks,
        candidates=counts if candidates is None else candidates.sum(1),
        seconds=time.perf_counter() - began,
    )


def write_first_answer(
    path: Path, source: TraceSource, described: ReportSource, tests: Triples
) -> None:
    """Write the JSON report of the training triples near the test triples, if there are few.

    Args:
        path: The file; there is none if the log says why.
        source: The model.
        described: What the report says of it.
        tests: Test triples `(test, 3)`.
    """
    train = source.task.graph.train
    near = near_triples(train, tests)
    share = float(near.any(0).mean())
    if source.tracer.settings.score == "unrolled" or not 0 < share <= LARGEST_SHARE:
        logger.info(
            "no first answer: %d of %d training triples share an entity with what is explained",
            near.any(0).sum(),
            len(train),
        )
        return
    findings = explain(source, tests, candidates=near)
    write_influence_json(build_report(described, findings), path)


def near_triples(train: Triples, tests: Triples) -> np.ndarray:
    """Return which training triples share an entity with each test triple, `(test, train)`."""
    ends = train[:, [HEAD, TAIL]]
    return np.stack([np.isin(ends, test[[HEAD, TAIL]]).any(1) for test in tests])

"""Explanations to draw and to share: places and kinds of entities, an HTML page, TRAPI."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pandas as pd

from clew import names
from clew.errors import ClewError
from clew.runs.reading.layout import (
    PLAIN,
    Position,
    looks,
    name_lines,
    node_labels,
    positions,
    short_text,
)
from clew.runs.sharing.explanation import SharedExplanation, triple_of
from clew.runs.sharing.html_report import html_report
from clew.runs.sharing.trapi import can_be_trapi, trapi_json
from clew.ui.data.influence import FactPath, ReportHead
from clew.ui.data.models import vocabulary
from clew.ui.data.reviews import decision_on, decisions_of_all, reviews_of
from clew.ui.data.runs import run_by_id

__all__ = [
    "NO_KINDS",
    "PLAIN",
    "Position",
    "SharedExplanation",
    "can_be_trapi",
    "html_report",
    "looks",
    "name_lines",
    "node_labels",
    "positions",
    "short_text",
    "trapi_json",
]

NO_KINDS: Mapping[str, str] = MappingProxyType({})


def kinds_of(head: ReportHead) -> Mapping[str, str]:
    """Return the kinds of entities, from the run of the explained model; none if it is gone."""
    try:
        return vocabulary(head.run_id).kinds if head.run_id else NO_KINDS
    except ClewError:
        return NO_KINDS


def shared(
    run_id: str,
    head: ReportHead,
    test: pd.Series,
    facts: pd.DataFrame,
    paths: Sequence[FactPath],
) -> SharedExplanation:
    """Return the content of a shared explanation; `run_id` is empty for files from the disk."""
    run = run_by_id(run_id)
    source = run.tags.get(names.TAG_SOURCE_RUN, "") if run else head.run_id
    triple = triple_of(test)
    reviews = reviews_of(run_id).records if run else ()
    return SharedExplanation(
        test,
        facts,
        tuple(paths),
        head,
        run,
        run_by_id(source),
        kinds=kinds_of(head),
        reviews=tuple(review for review in reviews if review.test.triple == triple),
        decision=decision_on(triple, decisions_of_all([run_id]).records) if run else None,
    )

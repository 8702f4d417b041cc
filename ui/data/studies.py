"""Studies for the pages: claims with their measurements."""

import logging
from dataclasses import fields

import pandas as pd
import streamlit as st

from clew import names
from clew.errors import ClewError
from clew.runs.reading.studies import ClaimResult, StudyResult, read_study, shipped_studies
from clew.ui.data.runs import RunQuery, runs_page

logger = logging.getLogger(__name__)

NUM_STUDIES = 100


def studies() -> list[StudyResult]:
    """Return the latest finished run of each study on each machine, the latest first.

    If the store has none, return the results that ship with Clew.
    """
    runs = runs_page(RunQuery(kind=names.KIND_COMPARE), size=NUM_STUDIES).runs
    latest: dict[tuple[str, str], StudyResult] = {}
    for run in runs:
        found = study_of(run.run_id) if run.status == "FINISHED" else None
        if found is not None and found.claims:
            latest.setdefault((found.study, found.machine), found)
    return list(latest.values()) or shipped_studies()


@st.cache_data(ttl=600, max_entries=256, show_spinner="Reading the studies …")
def study_of(run_id: str) -> StudyResult | None:
    """Return a study, or None for a comparison of another kind, which has no report."""
    try:
        return read_study(run_id)
    except ClewError as error:
        logger.info("%s", error)
        return None


def claims_frame(found: list[StudyResult]) -> pd.DataFrame:
    """Return a row for each claim on each machine."""
    claims = [claim for study in found for claim in study.claims]
    return pd.DataFrame(claims, columns=[field.name for field in fields(ClaimResult)])

"""What an explanation says, in sentences."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

TOP = 10
_ANSWERS = {
    "tail": Markup(
        "Asked for <b>{head}</b> {relation} <b>?</b>, the model puts <b>{tail}</b> {place}."
    ),
    "head": Markup(
        "Asked for <b>?</b> {relation} <b>{tail}</b>, the model puts <b>{head}</b> {place}."
    ),
    "both": Markup(
        "Asked for either end of <b>{head}</b> {relation} <b>{tail}</b>, on average the model puts "
        "the right one {place}."
    ),
}
"""By what was asked, `influence.direction`; a rank belongs to one question, or to both."""


def scored(test: pd.Series, facts: pd.DataFrame) -> int:
    """Return how many facts were scored; a report may hold the strongest of them alone."""
    candidates = test["candidates"]
    return max(len(facts), 0 if pd.isna(candidates) else int(candidates))


def place_text(rank: float) -> str:
    """Return a rank in words."""
    if not math.isfinite(rank):
        return "at a rank that this file does not say"
    if rank == 1:
        return "first"
    shown = f"{rank:.0f}" if rank == int(rank) else f"{rank:.1f} (tied)"
    return f"at rank {shown}"


def answer(test: pd.Series, settings: Mapping[str, Any]) -> Markup:
    """Return the question that an explanation is of, and the model's answer, as HTML.

    Args:
        test: A row of the report's tests.
        settings: The report's; the oldest reports name no direction, and rank the tail.
    """
    said = _ANSWERS.get(str(settings.get("direction")), _ANSWERS["tail"])
    ends = {key: test[key] for key in ("head", "relation", "tail")}
    rank = float(test["rank"])
    place = place_text(rank)
    if math.isfinite(rank):  # in a list of all answers, such as that of the page Ask, it is lower
        place += ", other known answers left out"
    return said.format(**ends, place=place)


def summary(facts: pd.DataFrame, scored: int, train_size: int | None = None) -> str:
    """Return in a sentence how many facts helped, and how concentrated their help is.

    Args:
        facts: The facts that the report holds.
        scored: How many facts were scored for it.
        train_size: How many facts the model was trained on, if the report says so.
    """
    values = facts["influence"].to_numpy(float)
    helping, opposing = int((values > 0).sum()), int((values < 0).sum())
    if not len(values):
        return "No training fact was scored."
    of = f"Of {scored:,} training facts"
    if train_size is not None and scored < train_size:
        of += f" that the filter left of {train_size:,}"
    if scored > len(values):
        return (
            f"{of}, the report holds the strongest: {helping:,} that made it more likely (▲) and "
            f"{opposing:,} that made it less likely (▼)."
        )
    text = f"{of}, {helping:,} made it more likely (▲) and {opposing:,} less likely (▼)."
    positive = np.sort(values[values > 0])[::-1]
    if len(positive) > TOP:
        share = positive[:TOP].sum() / positive.sum()
        text += f" The {TOP} strongest carry {share:.0%} of all help."
    return text

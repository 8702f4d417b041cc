"""The paths of facts between a test triple's ends: drawn from left to right, and in sentences.

The place of the selected path in the list is in the address under `path`.
"""

from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st

from clew.runs.influence_forms import Form
from clew.ui.components import address, beside, graph, markup, states, tables
from clew.ui.data.influence import FactPath, facts_of_paths, no_path

NUM_DRAWN = 8
"""How many paths are drawn; a selected path further down is drawn too."""


def show(
    test: pd.Series,
    facts: pd.DataFrame,
    paths: Sequence[FactPath],
    *,
    key: str,
    kinds: Mapping[str, str],
    form: Form,
) -> None:
    """Show paths as a picture next to their sentences; a click on either selects one."""
    if not paths:
        states.note(f"{no_path(test, facts)} Single facts are under Training facts.")
        return
    place = address.number("path") or 0
    place = place if place < len(paths) else 0
    left, right = beside.columns([1.3, 1], key="paths")
    with left:
        _picture(test, facts, paths, place, key=f"{key}-paths-{place}", kinds=kinds)
    with right:
        _table(paths, place, form, key=f"{key}-sentences-{place}")


def _picture(
    test: pd.Series,
    facts: pd.DataFrame,
    paths: Sequence[FactPath],
    place: int,
    *,
    key: str,
    kinds: Mapping[str, str],
) -> None:
    drawn = [*paths[:NUM_DRAWN], *([paths[place]] if place >= NUM_DRAWN else [])]

    def take(fact: int | None) -> None:
        if fact is not None:
            through = (number for number, path in enumerate(paths) if fact in path.ranks)
            address.write("path", next(through))

    graph.show(
        test,
        facts_of_paths(facts, drawn),
        column="influence",
        selected=paths[place].ranks,
        kinds=kinds,
        key=key,
        take=take,
        alt="Graph of the paths of training facts between the two ends of the test triple",
    )


def _table(paths: Sequence[FactPath], place: int, form: Form, *, key: str) -> None:
    tables.tick_one(
        pd.DataFrame(
            {
                "Path": [path.sentence for path in paths],
                "Weakest": [path.weakest for path in paths],
                "Ranks": [", ".join(map(str, path.ranks)) for path in paths],
            }
        ),
        range(len(paths)),
        key=key,
        chosen=place,
        take=lambda ticked: address.write("path", ticked or 0),
        alt="Paths between the two ends, the strongest first",
        column_config={
            "Path": st.column_config.TextColumn(
                width="large", help="Its facts, starting at the head, each as in the data."
            ),
            "Weakest": st.column_config.NumberColumn(
                format="%.4g",
                width=70,
                help=f"{form.heading} of its weakest fact; the paths are in this order.",
            ),
            "Ranks": st.column_config.TextColumn(
                width=80, help="Places of its facts among those that helped."
            ),
        },
        most=graph.HEIGHT - 90,
    )
    steps = (markup.markdown(step) for step in paths[place].steps)
    st.markdown("\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1)))

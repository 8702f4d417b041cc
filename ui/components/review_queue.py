"""A reviewer's share of a run's explanations: how many are done, and the next one."""

import re
from dataclasses import dataclass

import pandas as pd
import streamlit as st

from clew.ui import access
from clew.ui.components import address, links
from clew.ui.components.influence_controls import open_test
from clew.ui.data.reviews import fact_of, latest_of_each, reviews_of

MAX_SHARES = 20
SHARE = re.compile(r"([1-9]\d?)/([1-9]\d?)")


@dataclass(frozen=True)
class Share:
    """One of several equal parts of the explanations of a run."""

    number: int
    """From 1."""
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def places(self, tests: pd.DataFrame) -> list[int]:
        """Return the places of its test triples: every n-th one, so that shares are similar."""
        return [int(place) for place in tests.index[self.number - 1 :: self.of]]


def share_of_address() -> Share | None:
    """Return the share that the address names, None if it names none."""
    found = SHARE.fullmatch(address.text("queue"))
    if found is None:
        return None
    share = Share(int(found[1]), int(found[2]))
    return share if share.number <= share.of <= MAX_SHARES else None


def bar(run_id: str, tests: pd.DataFrame, place: int) -> None:
    """Show how much of the share in the address is reviewed, and a button to the next one."""
    share = share_of_address()
    if share is None:
        return
    places = share.places(tests)
    reviewer = access.person() or str(st.session_state.get("reviewer") or "").strip()
    judged = {
        review.test
        for review in latest_of_each(reviews_of(run_id).records)
        if not reviewer or review.reviewer == reviewer
    }
    facts = {int(str(at)): fact_of(test) for at, test in tests.iterrows()}
    waiting = [at for at in places if facts[at] not in judged]
    done = len(places) - len(waiting)
    with st.container(horizontal=True, vertical_alignment="center"):
        by = "by you" if reviewer else "by anybody"
        st.progress(done / max(len(places), 1), text=f"{done} of {len(places)} reviewed {by}")
        after = [at for at in waiting if at > place] or [at for at in waiting if at != place]
        st.button(
            "Next to review",
            key="queue-next",
            shortcut="N",
            disabled=not after,
            on_click=open_test,
            args=(after[0] if after else place,),
        )


def hand_out(run_id: str, tests: pd.DataFrame) -> None:
    """Show links to equal shares of a run's explanations, one for each reviewer."""
    with st.expander(f"Hand out {len(tests):,} explanations for review"):
        count = int(st.number_input("Shares", 1, MAX_SHARES, 2, key="shares", bind="query-params"))
        for number in range(1, count + 1):
            share = Share(number, count)
            if places := share.places(tests):
                links.to(
                    "influence",
                    f"Share {number} of {count}: {len(places):,} explanations",
                    run=run_id,
                    view="Review",
                    queue=str(share),
                    test=str(places[0]),
                )
        st.caption(
            "Send a link to a reviewer. To measure agreement, send the same link to two or more."
        )

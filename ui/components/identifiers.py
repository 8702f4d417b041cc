"""What entities are: their kinds as colour and symbol, their identifiers with links."""

from collections.abc import Iterable, Mapping

import pandas as pd
from markupsafe import Markup

from clew.biolink.curies import page_of
from clew.ui.components import markup
from clew.ui.data.sharing import looks

_MARK = '<span><b style="color:{colour}" aria-hidden="true">{mark}</b> {kind}</span>'
_LINK = '<a href="{page}" target="_blank" rel="noreferrer">{text}</a>'


def legend(kinds: Mapping[str, str], test: pd.Series, facts: pd.DataFrame) -> None:
    """Say which colour and symbol is which kind; nothing where the data name no kinds."""
    entities: set[str] = {str(test["head_id"]), str(test["tail_id"])}
    entities |= {str(key) for end in ("head_id", "tail_id") for key in facts[end]}
    marks = [
        markup.fill(_MARK, colour=look.colour, mark=look.mark, kind=kind)
        for kind, look in looks(kinds, entities).items()
    ]
    if marks:
        markup.show('<p class="clew-legend clew-small">{marks}</p>', marks=markup.join(marks, " "))


def line(row: pd.Series, kinds: Mapping[str, str]) -> Markup:
    """Return the identifiers of a triple's ends, with their kinds; empty if they say nothing new.

    An identifier of a known database is a link to its page there.
    """
    ends = (
        _identifier(str(row[f"{end}_id"]), str(row[end]), kinds.get(str(row[f"{end}_id"]), ""))
        for end in ("head", "tail")
    )
    return markup.join([end for end in ends if end], " · ")


def _identifier(key: str, name: str, kind: str) -> Markup:
    page = page_of(key)
    shown = markup.fill(_LINK, page=page, text=key) if page else markup.fill("{key}", key=key)
    parts: Iterable[Markup] = [shown] if page or key != name else []
    parts = [*parts, *([markup.fill("{kind}", kind=kind)] if kind else [])]
    return markup.join(list(parts), ", ")

"""Suggestions for a name that is not known."""

import difflib
from collections.abc import Sequence

LONGEST = 200


def valid_names(given: str, names: Sequence[str]) -> str:
    """Return the end of an error message: a similar name, if any, and all valid names."""
    near = difflib.get_close_matches(given[:LONGEST], names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}valid: {', '.join(names)}"

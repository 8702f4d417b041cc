"""What could have been meant by a name that is not known."""

import difflib
from collections.abc import Sequence


def valid_names(given: str, names: Sequence[str]) -> str:
    """Return, for the end of an error message, a near match and all valid names."""
    near = difflib.get_close_matches(given, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}valid: {', '.join(names)}"

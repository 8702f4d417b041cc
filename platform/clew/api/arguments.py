"""Checks of what the functions of the API are given."""

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Annotated, Any, ParamSpec, TypeVar

import numpy as np
import pandas as pd
from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, validate_call

from clew.errors import ConfigError, described, quoted, reason_of

P = ParamSpec("P")
R = TypeVar("R")
Triple = tuple[str, str, str]
TRIPLE_COLUMNS = ["head", "relation", "tail"]


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that checks the types of its arguments before it runs.

    The function raises a one-line ConfigError if an argument does not fit the signature, or a
    request that it makes of them.
    """
    signature = inspect.signature(function)
    validated = validate_call(config=ConfigDict(arbitrary_types_allowed=True))(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            given = signature.bind(*args, **kwargs).arguments
            given |= given.pop("settings", {})
        except TypeError as error:
            raise TypeError(f"{function.__name__}(): {error}") from None
        try:
            return validated(**given)  # type: ignore[call-arg]
        except ValidationError as error:
            if error.title != function.__qualname__:
                raise ConfigError(described(error)) from None
            problem, *others = error.errors()
            name = str(problem["loc"][0])
            expected = reason_of(problem)
            if any(other["loc"][0] == name for other in others):  # fits none of several types
                annotation = inspect.formatannotation(signature.parameters[name].annotation)
                expected = "expected " + re.sub(r"(\w+\.)+", "", annotation)
            elif len(problem["loc"]) > 1:  # an element of the argument
                raise ConfigError(f"{name}: {quoted(problem['input'])} given; {expected}") from None
            raise ConfigError(f"{name} is {quoted(given[name])}; {expected}") from None

    return call


def listed(given: Any) -> Any:
    """Return a column of a table, an array or a generator as a list."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else given


Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
Names = Annotated[Sequence[str], BeforeValidator(listed)]


def named_triples(triples: pd.DataFrame | Iterable[Triple]) -> list[Triple]:
    """Return triples of names as a list; refuse anything else."""
    if isinstance(triples, pd.DataFrame):
        if missing := [name for name in TRIPLE_COLUMNS if name not in triples.columns]:
            raise ConfigError(
                f"triples is a table without the column {missing[0]}; expected "
                f"{', '.join(TRIPLE_COLUMNS)}, one triple in each row"
            )
        triples = triples[TRIPLE_COLUMNS].itertuples(index=False, name=None)
    given = listed(triples)
    if isinstance(given, list):
        given = [tuple(row) if isinstance(row, list | np.ndarray) else row for row in given]
    try:
        found = TypeAdapter(list[Triple]).validate_python(given, strict=True)
    except ValidationError as error:
        place = error.errors()[0]["loc"]
        wrong = f"triples is {quoted(given)}"
        if place:
            wrong = f"triples[{place[0]}] is {quoted(given[place[0]])}"
        raise ConfigError(
            f"{wrong}; expected (head, relation, tail) by name, a tuple for each triple, such as "
            "[('virus', 'causes', 'neoplastic_process')]"
        ) from None
    if not found:
        raise ConfigError("triples is empty; give at least one (head, relation, tail)")
    return found

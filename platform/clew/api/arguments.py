"""Checks what functions of the API are given, before they do anything."""

import inspect
import re
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from pydantic import ConfigDict, ValidationError, validate_call

from clew.errors import ConfigError, quoted, reason_of

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that refuses arguments of wrong types in one line.

    Raises:
        ConfigError: an argument is not what the signature says; nothing was done.
    """
    signature = inspect.signature(function)
    validated = validate_call(config=ConfigDict(arbitrary_types_allowed=True))(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{function.__name__}(): {error}") from None
        try:
            return validated(**given)  # type: ignore[call-arg]
        except ValidationError as error:
            if error.title != function.__name__:  # it comes from within
                raise
            problem, *others = error.errors()
            name = str(problem["loc"][0])
            expected = reason_of(problem)
            if any(other["loc"][0] == name for other in others):  # none of several types
                annotation = inspect.formatannotation(signature.parameters[name].annotation)
                expected = "expected " + re.sub(r"(\w+\.)+", "", annotation)
            elif len(problem["loc"]) > 1:  # something in it
                raise ConfigError(f"{name}: {quoted(problem['input'])} given; {expected}") from None
            raise ConfigError(f"{name} is {quoted(given[name])}; {expected}") from None

    return call

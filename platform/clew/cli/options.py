"""How options are declared and read: spellings, empty values, numbers, truth values."""

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from clew.config.flags import BOOLEAN_FLAGS
from clew.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])


def flag(name: str, **settings: Any) -> Callable[[F], F]:
    """Return an option under its name with dashes and, for older scripts, with underscores.

    An empty value means unset, as MLproject passes it. A boolean may stand alone, for `true`.
    """
    spellings = [f"--{name.replace('_', '-')}"]
    if "_" in name:
        spellings.append(f"--{name}")
    if name in BOOLEAN_FLAGS:
        settings |= {"is_flag": False, "flag_value": "true"}
    return click.option(*spellings, name, default=settings.pop("default", ""), **settings)


def flags_of(keys: Mapping[str, str]) -> Callable[[F], F]:
    """Return an option for each flag that sets a configuration key."""

    def decorate(function: F) -> F:
        for name, key in reversed(list(keys.items())):
            function = flag(name, help=f"Sets {key}.")(function)
        return function

    return decorate


no_cleanup = click.option(
    "--disable-memory-cleanup", is_flag=True, help="Same as --enable-memory-cleanup false."
)


def _split_assignments(text: str) -> list[str]:
    """Split at commas that start another assignment, so that values may hold commas."""
    parts: list[str] = []
    for piece in filter(None, text.split(",")):
        if parts and "=" not in piece:
            parts[-1] += f",{piece}"
        else:
            parts.append(piece)
    return parts


def settings_option(example: str) -> Callable[[F], F]:
    """Return the option `--set`, which may be given several times; its value is a list.

    Args:
        example: An assignment, for the help.
    """

    def split(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> list[str]:
        return [part for text in texts for part in _split_assignments(text)]

    text = f"Further settings, {example}, separated by commas or in options of their own."
    return click.option("--set", "set", multiple=True, callback=split, help=text)


def path_or_none(text: str) -> Path | None:
    """Read an option that holds a path; empty means none."""
    return Path(text) if text else None


def whole_number(name: str, text: str, default: int) -> int:
    """Read an option that holds a whole number; empty means the default."""
    if not text:
        return default
    if not text.removesuffix(".0").isdecimal():
        raise ConfigError(f"--{name} is {text!r}; expected a whole number")
    return int(text.removesuffix(".0"))


def number_or_none(name: str, text: str) -> int | None:
    """Read an option that holds a whole number; empty means none."""
    return whole_number(name, text, 0) if text else None


def truth(name: str, text: str) -> bool:
    """Read an option that holds true or false; empty means false."""
    if text.lower() not in ("", "true", "false", "1", "0", "yes", "no"):
        raise ConfigError(f"--{name} is {text!r}; expected true or false")
    return text.lower() in ("true", "1", "yes")


def positive_number(name: str, text: str) -> float | None:
    """Read an option that holds a number above zero; empty means none."""
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise ConfigError(f"--{name} is {text!r}; expected a number above zero")
    return number


def is_main_process() -> bool:
    """Whether this process speaks for the command: the first that torchrun started, or alone."""
    return os.environ.get("RANK", "0") == "0"

"""Imports packages that are installed with an extra, such as `clew[ui]`, and not with the core."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from clew.errors import UsageError


@contextmanager
def extra(
    name: Literal["ui", "images", "zarr", "language", "gpu", "tensorboard", "trapi"],
) -> Iterator[None]:
    """Wrap imports of packages that an extra installs.

    Raises:
        UsageError: If a package is not installed; the message names the extra that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the package {error.name} is not installed; install it with pip install 'clew[{name}]'"
        ) from None

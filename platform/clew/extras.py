"""Packages that come with an extra of the installation, such as `clew[ui]`, not with the core."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from clew.errors import UsageError


@contextmanager
def extra(
    name: Literal["ui", "images", "zarr", "language", "gpu", "tensorboard"],
) -> Iterator[None]:
    """Import within this what an extra brings.

    Raises:
        UsageError: a package is not installed; the message names the extra that brings it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the package {error.name} is not installed; install it with pip install 'clew[{name}]'"
        ) from None

"""Writes a model as a `torch.export` program, and compares the loaded program with the model.

The program contains no pickled data: its example inputs, which PyTorch would pickle, are left out.
It contains only PyTorch operators, so that it runs without Clew.
"""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor, nn

from clew.errors import described
from clew.layers.doubling_scan import scan_by_doubling, varying_scan_by_doubling

logger = logging.getLogger(__name__)

MAX_DIFFERENCE = 1e-4
"""Allowed difference from the model's result, relative to the largest result if that exceeds 1."""

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class ProgramCheck:
    """The difference between the exported program and the model, or why there is no program."""

    exported: bool
    max_difference: float | None = None
    num_examples: int = 0
    reason: str = ""

    def line(self) -> str:
        """Return one line of text for the table of files."""
        if not self.exported:
            return f"not exported: {self.reason}"
        return (
            f"equals the model within {self.max_difference:.1g} on {self.num_examples:,} examples"
        )


@dataclass(frozen=True)
class Exported:
    """The exported files of a model."""

    files: Mapping[str, str]
    """Name of each file other than the program to a short description."""
    program_file: str
    program: ProgramCheck
    said: Mapping[str, Any]
    """More entries of export.json, as JSON values."""


@torch.no_grad()
def write_program(
    module: nn.Module,
    path: Path,
    examples: Sequence[Inputs],
    *,
    dynamic: Mapping[str, Mapping[int, Any]],
    longest: int | None = None,
) -> ProgramCheck:
    """Write a module as a program, and keep the file if its results equal the module's.

    Args:
        module: Module that takes tensors and returns one tensor or several.
        path: File to write.
        examples: Inputs for the comparison; the program is traced with the first of them.
        dynamic: Name of each input to its axes of variable length (`torch.export.Dim`).
        longest: Number of steps of the longest scan in the module; None: it has no scan.
    """
    num_examples = sum(len(inputs[0]) for inputs in examples)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 raises it in its own code
            program = torch.export.export(module, examples[0], dynamic_shapes=dict(dynamic))
            if longest is not None:
                scans = {
                    torch.ops.clew.diagonal_scan.default: scan_by_doubling(longest),
                    torch.ops.clew.varying_diagonal_scan.default: varying_scan_by_doubling(longest),
                }
                program = program.run_decompositions(scans)
            program.example_inputs = None
            torch.export.save(program, path)
            loaded = torch.export.load(path).module()
        difference, largest = _difference(module, loaded, examples)
    except Exception as error:  # torch raises many types of error for models it cannot export
        path.unlink(missing_ok=True)
        reason = described(error)
        logger.warning("torch.export does not work for this model: %s", reason)
        return ProgramCheck(False, reason=reason)
    allowed = MAX_DIFFERENCE * max(1.0, largest)
    if not difference <= allowed:
        path.unlink()
        reason = f"its results differ by {difference:.2g}, at most {allowed:.1g} is allowed"
        logger.warning("the exported program is not kept: %s", reason)
        return ProgramCheck(False, difference, num_examples, reason)
    return ProgramCheck(True, difference, num_examples)


def _difference(
    module: nn.Module, loaded: nn.Module, examples: Sequence[Inputs]
) -> tuple[float, float]:
    pairs = [
        pair
        for inputs in examples
        for pair in zip(_tensors(loaded(*inputs)), _tensors(module(*inputs)), strict=True)
        if pair[1].numel()
    ]
    differences = torch.stack([(one - other).abs().max().double() for one, other in pairs])
    largest = max(float(other.abs().max()) for _, other in pairs)
    return float(differences.max()), largest


def _tensors(result: Tensor | Sequence[Tensor]) -> Iterator[Tensor]:
    yield from (result,) if isinstance(result, Tensor) else result


def rows_of(table: nn.Embedding) -> pa.FixedSizeListArray:
    """Return an embedding table as a float32 array with one list per row."""
    values = pa.array(table.weight.detach().numpy().ravel())
    return pa.FixedSizeListArray.from_arrays(values, table.embedding_dim)

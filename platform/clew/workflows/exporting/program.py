"""A model as a `torch.export` program on disk, compared with the model once it is loaded.

Nothing in it is pickled: the program's example inputs, which torch would pickle, are left out. It
holds operators of torch alone, so that it runs without Clew.
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
"""How far a result may lie from the model's, as a share of the largest if that is above 1."""

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class ProgramCheck:
    """How the exported program compares with the model, or why there is none."""

    exported: bool
    max_difference: float | None = None
    num_examples: int = 0
    reason: str = ""

    def line(self) -> str:
        """Return it for people."""
        if not self.exported:
            return f"not exported: {self.reason}"
        return (
            f"equals the model within {self.max_difference:.1g} on {self.num_examples:,} examples"
        )


@dataclass(frozen=True)
class Exported:
    """What was written of a model."""

    files: Mapping[str, str]
    """Name of a file beside the program to what it holds, for people."""
    program_file: str
    program: ProgramCheck
    said: Mapping[str, Any]
    """What the summary says beside where the model is from: JSON values."""


@torch.no_grad()
def write_program(
    module: nn.Module,
    path: Path,
    examples: Sequence[Inputs],
    *,
    dynamic: Mapping[str, Mapping[int, Any]],
    longest: int | None = None,
) -> ProgramCheck:
    """Write a module as a program, and keep it if it answers as the module does.

    Args:
        module: Takes tensors, returns one or several.
        path: The file.
        examples: Inputs to compare on; the first are also those that the program is traced with.
        dynamic: Name of an input to its axes of any length (`torch.export.Dim`).
        longest: Steps of the longest scan in the module; None: there is none.
    """
    num_examples = sum(len(inputs[0]) for inputs in examples)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 warns of what it does
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
    except Exception as error:  # whatever torch cannot export, it says in many ways
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
    """Return the largest difference between two modules' results, and the largest result."""
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
    """Return an embedding table with one list for each row, float32."""
    values = pa.array(table.weight.detach().numpy().ravel())
    return pa.FixedSizeListArray.from_arrays(values, table.embedding_dim)

"""Runs commands in processes that share the table of entities, and saves their results.

As a program it takes the groups as JSON: `shared_table_runs.py '[{"processes": 2, ...}, ...]'`.
The processes are children of this one; each group runs its commands one by one.
"""

import json
import os
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from clew.config.load import from_mapping
from clew.errors import ClewError
from clew.influence.link_prediction.tracin import Tracer
from clew.link_prediction.calibration import Calibration
from clew.link_prediction.model_folder import write_model_folder
from clew.link_prediction.sources import load_graph
from clew.training.sharding.exchange import Exchange
from clew.workflows.explaining.batch_tracin import BatchRequest, batch_tracin
from clew.workflows.explaining.tracin import tracin
from clew.workflows.predict import predict, read_queries
from clew.workflows.train import train
from tests.ports import meeting_place_for_forks

ROOT = Path(__file__).resolve().parents[2]
BATCH = {1: 12, 2: 6, 4: 3}
"""Microbatch size per process, by the number of processes; the total is always the same."""
CALIBRATION = Calibration(1.7, 8, 3.0, 2.5, 0.3, 0.1)
CALIBRATED = "calibrated"
"""Folder in the folder of a trained model: a model folder with a temperature."""


@dataclass(frozen=True)
class Command:
    """One command of a group of processes."""

    do: Literal["train", "predict", "tracin", "batch"]
    model: str
    """Folder of the trained model."""
    result: str
    """File or folder for the result."""
    options: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    """Options of the last process that differ from those of the others."""
    last_dies: bool = False
    """Whether the last process dies while it explains."""
    watched: bool = False
    """Whether the sizes of the largest matrices are recorded."""


def run_all(
    groups: list[tuple[int, list[Command]]], environment: Mapping[str, str], dtype: str
) -> None:
    """Run groups of commands one after another, each in its number of processes."""
    plan = [{"processes": n, "commands": [asdict(c) for c in found]} for n, found in groups]
    command = [sys.executable, str(Path(__file__).resolve()), dtype, json.dumps(plan)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def fork(processes: int, commands: list[Command]) -> None:
    """Run commands in processes with torchrun's variables; each command has its own port."""
    with ExitStack() as held:
        places = [held.enter_context(meeting_place_for_forks()) for _ in commands]
        children = [_start(rank, processes, commands, places) for rank in range(processes)]
        failed = [child for child in children if os.waitpid(child, 0)[1]]
    expected = any(command.last_dies for command in commands)
    assert len(failed) == expected, f"{len(failed)} of {processes} processes failed"


def _start(rank: int, processes: int, commands: list[Command], places: list[dict[str, str]]) -> int:
    """Start one of the processes, and return its process id."""
    if child := os.fork():
        return child
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(processes), "LOCAL_RANK": str(rank)}
    try:
        for command, place in zip(commands, places, strict=True):
            os.environ |= place
            carry_out(command, rank, processes)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def carry_out(command: Command, rank: int, processes: int) -> None:
    """Run one command as one of the processes; write its result or error to this rank's file."""
    is_last = rank == processes - 1
    options = command.options | (command.last if is_last else {})
    model = options.pop("model", command.model)
    if is_last and command.last_dies:
        Tracer.explain = lambda *_, **__: os._exit(9)  # type: ignore[assignment, method-assign]
    result = Path(command.result)
    result.parent.mkdir(parents=True, exist_ok=True)
    seen = Seen() if command.watched else None
    try:
        with counted() as received:
            if seen is not None:
                with seen:
                    content = _run(command.do, model, result, options, processes)
            else:
                content = _run(command.do, model, result, options, processes)
    except ClewError as error:
        content = {"error": f"{type(error).__name__}: {error}"}
        received = Counter()
    content |= {"received": dict(received), "largest": seen.largest if seen else {}}
    result.with_name(f"{result.name}.{rank}.json").write_text(json.dumps(content))


def _run(
    do: str, model: str, result: Path, options: dict[str, Any], processes: int
) -> dict[str, Any]:
    if do == "train":
        settings = options | {"training.shard_entities": processes > 1}
        content, own = settings.pop("data"), {"training.batch_size": BATCH[processes]}
        config = from_mapping({"data": content}, own | settings)
        train(config, output_dir=Path(model))
        if processes > 1:
            return {}
        write_model_folder(
            Path(model) / CALIBRATED,
            checkpoint=Path(model) / "best",
            vocabulary=Path(model) / "vocabulary",
            known=load_graph(config.data).train,  # type: ignore[arg-type]
            calibration=CALIBRATION,
        )
        return {}
    if do == "predict":
        queries = read_queries(Path(options.pop("queries")))
        return predict(model, queries, **options).as_dict()
    overrides = {key: value for key, value in options.items() if "." in key}
    if do == "tracin":
        traced = tracin(model, options["tests"], overrides, output=result)
        return {"run_id": traced.run_id, "tests": len(traced.report.tests)}
    done = batch_tracin(BatchRequest(model, options["tests"], result, overrides))
    return {"run_id": done.run_id, "statuses": [outcome.status for outcome in done.outcomes]}


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Yield a counter of received bytes by purpose, which is filled at the end of the block."""
    made, found = list[Exchange](), Counter[str]()
    original = Exchange.__init__

    def kept(self: Exchange, rank: int, size: int) -> None:
        original(self, rank, size)
        made.append(self)

    Exchange.__init__ = kept  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Exchange.__init__ = original  # type: ignore[method-assign]
        for exchange in made:
            found.update(exchange.received_bytes)


class Seen(TorchDispatchMode):
    """Records the largest number of rows of all computed matrices, for each width.

    Views do not count, because rows that are read from a file are parts of a view of it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.largest: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and record the size of its result."""
        found = func(*args, **(kwargs or {}))
        given = {_place(x) for x in args if _is_dense(x)}
        for tensor in found if isinstance(found, tuple | list) else [found]:
            if not _is_dense(tensor) or not tensor.is_floating_point():
                continue
            if tensor.dim() == 2 and _place(tensor) not in given:
                rows, width = tensor.shape
                self.largest[width] = max(rows, self.largest.get(width, 0))
        return found


def _is_dense(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


if __name__ == "__main__":
    import torch._dynamo  # every optimizer imports it: import it once before the forks

    torch.set_num_threads(1)
    torch.set_default_dtype(getattr(torch, sys.argv[1]))
    for group in json.loads(sys.argv[2]):
        fork(group["processes"], [Command(**command) for command in group["commands"]])

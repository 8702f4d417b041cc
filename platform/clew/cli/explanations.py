"""Commands that explain predictions: tracin, batch-tracin, trace-sequence, trace-text."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import click
from pydantic import Field

from clew.cli.options import Configured, JsonFlag, Option, command

ModelToExplain = Annotated[str, Option(also=("model_path",))]


def _progress(unit: str, *, as_json: bool) -> Callable[[int, int], None]:
    """Return a function that shows progress: a bar on a terminal, or one JSON object per line."""
    from tqdm import tqdm

    bar = tqdm(unit=f" {unit}", delay=1.0, disable=True if as_json else None, leave=False)

    def show(done: int, total: int) -> None:
        if as_json:
            click.echo(json.dumps({"done": done, "total": total}))
        bar.total = total
        bar.update(done - bar.n)

    return show


class ExplainOptions(Configured):
    """Options that `clew tracin` and `clew batch-tracin` share."""

    model: ModelToExplain = ""
    """Run id, models:/name@alias, or a folder of checkpoints."""
    train: str = ""
    """File of training triples; checked against those that the model was trained on."""
    entity_to_id: str = ""
    """Dictionary of entities; checked against the model's own."""
    relation_to_id: str = ""
    """Dictionary of relations; checked against the model's own."""
    as_json: JsonFlag = False
    """Print JSON, one object per line."""


class TracinOptions(ExplainOptions):
    """Options of `clew tracin`."""

    test: Annotated[str, Option(also=("test_triples",))] = ""
    """File of triples, or head,relation,tail."""
    output: Path | None = None
    """Folder for three result files, or a single .json, .csv or .parquet file."""


@command(TracinOptions)
def tracin(options: TracinOptions) -> int:
    """Show which training triples raised or lowered a prediction, and by how much."""
    from clew.workflows.trace_source import GivenFiles
    from clew.workflows.tracin import tracin as workflow

    result = workflow(
        options.model,
        options.test,
        options.overrides,
        files=GivenFiles(options.train, options.entity_to_id, options.relation_to_id),
        output=options.output,
        progress=_progress("triples", as_json=options.as_json),
    )
    click.echo(json.dumps(result.as_dict()) if options.as_json else result.table())
    return 0


class BatchTracinOptions(ExplainOptions):
    """Options of `clew batch-tracin`."""

    test_triples: Annotated[str, Option(also=("test",))] = ""
    """File of triples to explain."""
    output_dir: Annotated[Path, Option(also=("output",))] = Path("runs/batch_tracin")
    """Folder for results; if it holds part of the same request, the rest is added."""
    start_index: int = 0
    """First line to explain; lines are counted from 0."""
    max_triples: int | None = None
    """Number of lines to explain (default: all that follow)."""
    edge_map: str = ""
    """JSON file that maps each predicate to a readable label."""
    node_name_dict: str = ""
    """File of entity labels, id<TAB>name."""


@command(BatchTracinOptions)
def batch_tracin(options: BatchTracinOptions) -> int:
    """Explain many predictions by the training triples near them; resumable."""
    from clew.workflows import batch_tracin as workflow
    from clew.workflows.batch_request import BatchRequest
    from clew.workflows.trace_source import GivenFiles

    request = BatchRequest(
        model=options.model,
        test_triples=options.test_triples,
        output_dir=options.output_dir,
        overrides=options.overrides,
        files=GivenFiles(options.train, options.entity_to_id, options.relation_to_id),
        start_index=options.start_index,
        max_triples=options.max_triples,
        edge_map=options.edge_map,
        node_name_dict=options.node_name_dict,
    )
    progress = _progress("tests", as_json=options.as_json)
    result = workflow.batch_tracin(request, progress=progress)
    click.echo(json.dumps(result.as_dict()) if options.as_json else result.table())
    return 0


class TraceWindowsOptions(Configured):
    """Options that `clew trace-sequence` and `clew trace-text` share."""

    num_last_layers: Annotated[int | None, Field(ge=1)] = None
    """Use only this many modules, counted from the end (default: all)."""
    output: Path | None = None
    """Also write the report to this JSON file."""


class TraceSequenceOptions(TraceWindowsOptions):
    """Options of `clew trace-sequence`."""

    model: str
    """Run id or a folder of checkpoints of image sequences."""
    frame: int | None = None
    """Last frame of the test window (default: of the window with the largest error)."""


@command(TraceSequenceOptions)
def trace_sequence(options: TraceSequenceOptions) -> int:
    """Find the training windows that drive a prediction from a sequence of frames."""
    from clew.workflows.trace_sequence import trace_sequence as trace

    result = trace(
        options.model,
        options.frame,
        options.overrides,
        num_last_layers=options.num_last_layers,
        output=options.output,
        progress=_progress("windows", as_json=False),
    )
    click.echo(result.table())
    return 0


class TraceTextOptions(TraceWindowsOptions):
    """Options of `clew trace-text`."""

    model: str
    """Run id or a folder of checkpoints of a language model."""
    prompt: str
    """Text before the continuation."""
    continuation: str = ""
    """Text to explain (default: what the model writes)."""


@command(TraceTextOptions)
def trace_text(options: TraceTextOptions) -> int:
    """Find the training windows that made a language model's continuation likely."""
    from clew.workflows.trace_text import trace_text as trace

    result = trace(
        options.model,
        options.prompt,
        options.continuation,
        options.overrides,
        num_last_layers=options.num_last_layers,
        output=options.output,
        progress=_progress("windows", as_json=False),
    )
    click.echo(result.table())
    return 0

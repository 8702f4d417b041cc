"""Verbs that explain predictions: tracin, batch-tracin, trace-sequence, trace-text."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from clew.cli.options import (
    flag,
    flags_of,
    no_cleanup,
    number_or_none,
    path_or_none,
    settings_option,
    whole_number,
)
from clew.config.flags import FILTER_FLAGS, INFLUENCE_FLAGS, overrides_from_flags
from clew.config.load import parse_assignments


def _explanation_settings(
    flags: Mapping[str, str], keys: Mapping[str, str], *, no_cleanup: bool, further: Sequence[str]
) -> dict[str, Any]:
    overrides: dict[str, Any] = dict(overrides_from_flags(flags, keys))
    if no_cleanup:
        overrides["influence.enable_memory_cleanup"] = "false"
    return overrides | parse_assignments(further)


def _progress(unit: str, *, as_json: bool) -> Callable[[int, int], None]:
    """Return what shows progress: a bar on a terminal, or JSON objects, one a line."""
    from tqdm import tqdm

    bar = tqdm(unit=f" {unit}", delay=1.0, disable=True if as_json else None, leave=False)

    def show(done: int, total: int) -> None:
        if as_json:
            click.echo(json.dumps({"done": done, "total": total}))
        bar.total = total
        bar.update(done - bar.n)

    return show


@click.command()
@flag("model", help="Run id, models:/name@alias, or a folder of checkpoints.")
@flag("test", help="File of triples, or head,relation,tail.")
@flag("train", help="File of training triples; the model's own unless given, and no others.")
@flags_of(INFLUENCE_FLAGS)
@no_cleanup
@flag("output", help="Folder for the three files, or one .json, .csv or .parquet file.")
@settings_option("influence.key=value")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
def tracin(
    *,
    model: str,
    test: str,
    train: str,
    disable_memory_cleanup: bool,
    output: str,
    set: list[str],
    as_json: bool,
    **flags: str,
) -> int:
    """Explain predictions: which training triples raised or lowered them, and how much."""
    from clew.workflows.tracin import tracin as workflow

    result = workflow(
        model,
        test,
        _explanation_settings(
            flags, INFLUENCE_FLAGS, no_cleanup=disable_memory_cleanup, further=set
        ),
        train=train,
        output=path_or_none(output),
        progress=_progress("triples", as_json=as_json),
    )
    click.echo(json.dumps(result.as_dict()) if as_json else result.table())
    return 0


@click.command(name="batch-tracin")
@flag("model", help="Run id, models:/name@alias, or a folder of checkpoints.")
@flag("test_triples", help="File of triples to explain.")
@flag("test", help="Same as --test-triples.")
@flag("train", help="File of training triples; the model's own unless given, and no others.")
@flags_of(INFLUENCE_FLAGS | FILTER_FLAGS)
@no_cleanup
@flag("output_dir", help="Folder for results; one of an earlier run is gone on with.")
@flag("output", help="Same as --output-dir.")
@flag("edge_map", help="JSON file from predicate to the label that people read.")
@flag("node_name_dict", help="Labels of entities, id<TAB>name.")
@flag("start_index", help="First line to explain, from 0.")
@flag("max_triples", help="Lines to explain; all that follow unless given.")
@settings_option("influence.key=value")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
def batch_tracin(
    *,
    model: str,
    test_triples: str,
    test: str,
    train: str,
    disable_memory_cleanup: bool,
    output_dir: str,
    output: str,
    edge_map: str,
    node_name_dict: str,
    start_index: str,
    max_triples: str,
    set: list[str],
    as_json: bool,
    **flags: str,
) -> int:
    """Explain many predictions by the training triples near them; resumable."""
    from clew.workflows import batch_tracin as workflow
    from clew.workflows.batch_request import BatchRequest

    keys = INFLUENCE_FLAGS | FILTER_FLAGS
    request = BatchRequest(
        model=model,
        test_triples=test_triples or test,
        output_dir=Path(output_dir or output or "runs/batch_tracin"),
        overrides=_explanation_settings(
            flags, keys, no_cleanup=disable_memory_cleanup, further=set
        ),
        train=train,
        start_index=whole_number("start-index", start_index, 0),
        max_triples=number_or_none("max-triples", max_triples),
        edge_map=edge_map,
        node_name_dict=node_name_dict,
    )
    result = workflow.batch_tracin(request, progress=_progress("tests", as_json=as_json))
    click.echo(json.dumps(result.as_dict()) if as_json else result.table())
    return 0


@click.command("trace-sequence")
@flag("model", required=True, help="Run id or a folder of checkpoints of image sequences.")
@flag("frame", help="Last frame of the test window; the one with the largest error unless given.")
@flag("top_k", help="Training windows of each sign, 0 for all; as in the run unless given.")
@flag("num_last_layers", help="Count only so many modules from the end; all unless given.")
@flag("output", help="Where else to write the report, as JSON.")
def trace_sequence(*, model: str, frame: str, top_k: str, num_last_layers: str, output: str) -> int:
    """Find the training windows that drive a prediction from a sequence of frames."""
    from clew.workflows.trace_sequence import trace_sequence as trace

    result = trace(
        model,
        number_or_none("frame", frame),
        {"influence.top_k": top_k} if top_k else {},
        num_last_layers=number_or_none("num-last-layers", num_last_layers),
        output=path_or_none(output),
        progress=_progress("windows", as_json=False),
    )
    click.echo(result.table())
    return 0


@click.command("trace-text")
@flag("model", required=True, help="Run id or a folder of checkpoints of a language model.")
@flag("prompt", required=True, help="Text before the continuation.")
@flag("continuation", help="Text to explain; what the model writes unless given.")
@flag("top_k", help="Training windows of each sign, 0 for all; as in the run unless given.")
@flag("num_last_layers", help="Count only so many modules from the end; all unless given.")
@flag("output", help="Where else to write the report, as JSON.")
def trace_text(
    *,
    model: str,
    prompt: str,
    continuation: str,
    top_k: str,
    num_last_layers: str,
    output: str,
) -> int:
    """Find the training windows that made a language model's continuation likely."""
    from clew.workflows.trace_text import trace_text as trace

    result = trace(
        model,
        prompt,
        continuation,
        {"influence.top_k": top_k} if top_k else {},
        num_last_layers=number_or_none("num-last-layers", num_last_layers),
        output=path_or_none(output),
        progress=_progress("windows", as_json=False),
    )
    click.echo(result.table())
    return 0

"""Verbs about trained models: promote, predict, export."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from clew.cli.options import flag, truth, whole_number
from clew.errors import ConfigError


@click.command()
@flag("run_id", help="Run whose best checkpoint is meant.")
@flag("experiment", help="Experiment whose best run is meant, instead of a run id.")
@flag("metric", help="Metric that chooses and compares; valid/mrr unless given.")
@flag("name", help="Registered model; clew-<data set> unless given.")
@flag("alias", help="Alias to compete for; champion unless given.")
@flag("dry_run", is_flag=False, flag_value="true", help="Check, but write nothing.")
@flag("force", help="Reason to overrule checks that are not final; it is recorded.")
@flag("rollback", is_flag=False, flag_value="true", help="Give the alias back to who had it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
def promote(
    *,
    run_id: str,
    experiment: str,
    metric: str,
    name: str,
    alias: str,
    dry_run: str,
    force: str,
    rollback: str,
    as_json: bool,
) -> int:
    """Register the best checkpoint of a run, check it, and make it champion."""
    from clew.workflows import promote as workflow

    def show(check: Any) -> None:
        click.echo(json.dumps(dataclasses.asdict(check)) if as_json else check.line())

    if truth("rollback", rollback):
        _refuse_with_rollback(run_id=run_id, experiment=experiment, metric=metric, force=force)
        result = workflow.rollback(name, alias, dry_run=truth("dry-run", dry_run))
    else:
        request = workflow.PromotionRequest(
            run_id, experiment, metric, name, alias, dry_run=truth("dry-run", dry_run), force=force
        )
        result = workflow.promote(request, show)
    click.echo(json.dumps({"result": result.as_dict()}) if as_json else result.table())
    return 0


def _refuse_with_rollback(**choosing: str) -> None:
    given = next((name for name, value in choosing.items() if value), None)
    if given is not None:
        raise ConfigError(
            f"--rollback and --{given.replace('_', '-')} given; a rollback takes the version that "
            "had the alias before and checks nothing, leave one of them out"
        )


@click.command()
@flag("model", required=True, help="Run id, models:/name@alias, or a checkpoint folder.")
@flag("head", help="Name or label of the head, to ask for tails.")
@flag("relation", help="Name or label of the relation.")
@flag("tail", help="Name or label of the tail, to ask for heads.")
@flag("top_k", help="Answers for each query; 10 unless given.")
@flag("filter_known", is_flag=False, flag_value="true", help="Leave out answers known in training.")
@flag("input", help="File of queries instead: JSON lines, or head<TAB>relation<TAB>tail with ?.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def predict(
    *,
    model: str,
    head: str,
    relation: str,
    tail: str,
    top_k: str,
    filter_known: str,
    input: str,
    as_json: bool,
) -> int:
    """Ask a trained model for the most likely tails or heads."""
    from clew.workflows import predict as workflow

    if input and (head or relation or tail):
        raise ConfigError("--input and a query given; ask one or the other")
    result = workflow.predict(
        model,
        workflow.read_queries(Path(input)) if input else [workflow.asked(head, relation, tail)],
        top_k=whole_number("top-k", top_k, 10),
        filter_known=truth("filter-known", filter_known),
    )
    click.echo(json.dumps(result.as_dict(), indent=1) if as_json else result.table())
    return 0


@click.command()
@flag("model", required=True, help="Run id, models:/name@alias, or a checkpoint folder.")
@flag("output_dir", required=True, help="New folder for the files.")
def export(model: str, output_dir: str) -> int:
    """Write embeddings with their names as Parquet, and the model as a torch.export program."""
    from clew.workflows.export import export as run_export

    click.echo(run_export(model, Path(output_dir)).table())
    return 0

"""Commands for trained models: promote, predict, export."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any, Self

import click
from pydantic import Field, model_validator

from clew.cli.options import JsonFlag, Option, Options, command, dashed


class PromoteOptions(Options):
    """Options of `clew promote`."""

    run_id: str = ""
    """Run whose best checkpoint to promote."""
    experiment: str = ""
    """Experiment whose best run to promote, instead of a run id."""
    metric: str = ""
    """Metric used to choose and to compare (default: valid/mrr)."""
    name: str = ""
    """Name of the registered model (default: clew-<data set>)."""
    alias: str = ""
    """Alias to compete for (default: champion)."""
    dry_run: bool = False
    """Run the checks, but write nothing."""
    force: str = ""
    """Reason for overruling checks that may be overruled; it is recorded."""
    rollback: bool = False
    """Give the alias back to the version that had it before."""
    as_json: JsonFlag = False
    """Print JSON, one object per line."""

    @model_validator(mode="after")
    def _rollback_chooses_nothing(self) -> Self:
        for name in ("run_id", "experiment", "metric", "force") if self.rollback else ():
            if getattr(self, name):
                raise ValueError(
                    f"--rollback and {dashed(name)} are both given; a rollback restores the "
                    "version that had the alias before and checks nothing; leave one of them out"
                )
        return self


@command(PromoteOptions)
def promote(options: PromoteOptions) -> int:
    """Register the best checkpoint of a run, check it, and make it champion."""
    from clew.workflows import promote as workflow

    def show(check: Any) -> None:
        click.echo(json.dumps(dataclasses.asdict(check)) if options.as_json else check.line())

    if options.rollback:
        result = workflow.rollback(options.name, options.alias, dry_run=options.dry_run)
    else:
        chosen = options.model_dump(exclude={"rollback", "as_json"})
        result = workflow.promote(workflow.PromotionRequest(**chosen), show)
    click.echo(json.dumps({"result": result.as_dict()}) if options.as_json else result.table())
    return 0


class PredictOptions(Options):
    """Options of `clew predict`."""

    model: str
    """Run id, models:/name@alias, or a checkpoint folder."""
    head: str = ""
    """Name or label of the head, to predict tails; with a tail, the triple is placed among both."""
    relation: str = ""
    """Name or label of the relation."""
    tail: str = ""
    """Name or label of the tail, to predict heads."""
    top_k: Annotated[int, Field(ge=1)] = 10
    """Number of answers per query."""
    filter_known: bool = False
    """Leave out answers that are already known from training."""
    conformal: Annotated[float | None, Field(gt=0, lt=1), Option(alone="0.9")] = None
    """Say which answers are in the set that holds a new one with this probability (alone: 0.9)."""
    input: Path | None = None
    """File of queries: JSON Lines, or head<TAB>relation<TAB>tail with ? for an unknown end."""
    as_json: JsonFlag = False
    """Print JSON instead of a table."""

    @model_validator(mode="after")
    def _asks_one_way(self) -> Self:
        if self.input and (self.head or self.relation or self.tail):
            raise ValueError("--input and a query are both given; give one of them")
        return self


@command(PredictOptions)
def predict(options: PredictOptions) -> int:
    """Ask a trained model for the most likely tails or heads, or where it puts a triple."""
    from clew.workflows import predict as workflow
    from clew.workflows.queries import asked, read_queries

    if options.input:
        queries = read_queries(options.input)
    else:
        queries = [asked(options.head, options.relation, options.tail)]
    result = workflow.predict(
        options.model,
        queries,
        top_k=options.top_k,
        filter_known=options.filter_known,
        level=options.conformal,
    )
    click.echo(json.dumps(result.as_dict(), indent=1) if options.as_json else result.table())
    return 0


class ExportOptions(Options):
    """Options of `clew export`."""

    model: str
    """Run id, models:/name@alias, or a checkpoint folder."""
    output_dir: Path
    """New folder for the files."""


@command(ExportOptions)
def export(options: ExportOptions) -> int:
    """Export embeddings with their names as Parquet, and the model as a torch.export program."""
    from clew.workflows.export import export as run_export

    click.echo(run_export(options.model, options.output_dir).table())
    return 0

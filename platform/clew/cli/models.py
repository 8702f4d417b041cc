"""Commands that hand trained models on: promote, export."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Self

import click
from pydantic import model_validator

from clew.cli.options import JsonFlag, ModelReference, Options, command, dashed


class PromoteOptions(Options):
    """Options of `clew promote`."""

    run_id: ModelReference = ""
    """Run whose best checkpoint to promote; newest for the training run that finished last."""
    experiment: str = ""
    """Experiment whose best run to promote, instead of a run id."""
    metric: str = ""
    """Metric used to choose and to compare (default: that of the task, such as valid/mrr)."""
    name: str = ""
    """Name of the registered model (default: clew-<data set>)."""
    alias: str = ""
    """Alias to compete for (default: champion)."""
    dry_run: bool = False
    """Run the checks, but write nothing."""
    force: str = ""
    """Overrule the checks that may be overruled, for this reason; the reason is recorded."""
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
    """Check a run's best checkpoint and make it champion."""
    from clew.workflows.promoting import promote as workflow

    def show(check: Any) -> None:
        click.echo(json.dumps(dataclasses.asdict(check)) if options.as_json else check.line())

    if options.rollback:
        result = workflow.rollback(options.name, options.alias, dry_run=options.dry_run)
    else:
        chosen = options.model_dump(exclude={"rollback", "as_json"})
        result = workflow.promote(workflow.PromotionRequest(**chosen), show)
    click.echo(json.dumps({"result": result.as_dict()}) if options.as_json else result.table())
    return 0


class ExportOptions(Options):
    """Options of `clew export`."""

    model: ModelReference
    """Run id, newest, models:/name@alias, or a checkpoint folder."""
    output_dir: Path
    """New folder for the files."""


@command(ExportOptions)
def export(options: ExportOptions) -> int:
    """Export a model as a torch.export program. A graph model also gives its embeddings."""
    from clew.workflows.exporting.export import export as run_export

    click.echo(run_export(options.model, options.output_dir).table())
    return 0

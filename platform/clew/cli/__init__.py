"""The command line: reads options, calls one workflow, prints its result.

Options are declared as classes (`clew.cli.options`); those that set the configuration come from its
schema. Every command except `runs`, `sync` and `ui` is also an entry point of MLproject, with
underscores in place of dashes in the parameter names; `demo` is the entry point `main`.
"""

import os

import click

from clew import __version__
from clew.cli import explanations, models, project, training
from clew.cli.options import CONTEXT
from clew.errors import UsageError

UNDER_TORCHRUN = ("train",)
"""Commands whose processes share the work; with other commands, each process would do all of it."""


@click.group(context_settings=CONTEXT)
@click.version_option(__version__)
@click.pass_context
def cli(context: click.Context) -> None:
    """Train models with measured optimizations; trace predictions to their training examples."""
    command = context.invoked_subcommand
    alone = "RANK" not in os.environ or os.environ.get("WORLD_SIZE") == "1"
    if not alone and command not in UNDER_TORCHRUN:
        raise UsageError(f"clew {command} works in one process; start it without torchrun")


for verb in (
    training.train,
    training.plan,
    training.tune,
    training.evaluate,
    training.compare,
    models.promote,
    models.predict,
    models.export,
    explanations.tracin,
    explanations.batch_tracin,
    explanations.trace_text,
    explanations.trace_sequence,
    explanations.report,
    explanations.validate_influence,
    explanations.value_facts,
    project.data,
    project.pretokenize,
    project.runs,
    project.sync,
    project.demo,
    project.ui,
):
    cli.add_command(verb)

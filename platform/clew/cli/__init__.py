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
from clew.cli.output import answered, right_command
from clew.errors import UsageError

UNDER_TORCHRUN = ("train",)
"""Commands whose processes share the work; with other commands, each process would do all of it."""


GROUPS = {
    "Train": (
        training.train,
        training.import_,
        training.plan,
        training.tune,
        training.evaluate,
        training.compare,
    ),
    "Use": (models.predict, models.promote, models.export),
    "Explain": (
        explanations.tracin,
        explanations.batch_tracin,
        explanations.trace_text,
        explanations.trace_sequence,
        explanations.verify,
        explanations.report,
        explanations.validate_influence,
        explanations.value_facts,
    ),
    "Data and project": (
        project.data,
        project.pretokenize,
        project.runs,
        project.sync,
        project.demo,
        project.ui,
    ),
}

EPILOG = "clew COMMAND --help shows its options, clew --version the version."


class Program(click.Group):
    """The command line, with its commands in groups."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Answer a word that is no command with the command that was probably meant."""
        name, *words = args  # click removes words from its list
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            if (right := right_command(name, words, VERBS)) is None:
                raise
        raise answered(f"clew has no command {name}", right)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in groups."""
        width = formatter.width - max(map(len, self.commands)) - 4
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(str(v.name), v.get_short_help_str(width)) for v in group])


@click.group(cls=Program, context_settings=CONTEXT, epilog=EPILOG)
@click.version_option(__version__)
@click.pass_context
def cli(context: click.Context) -> None:
    """Train models with measured optimizations; trace predictions to their training examples.

    Example: clew train umls epochs=20
    """
    command = context.invoked_subcommand
    alone = "RANK" not in os.environ or os.environ.get("WORLD_SIZE") == "1"
    if not alone and command not in UNDER_TORCHRUN:
        raise UsageError(f"clew {command} works in one process; start it without torchrun")


VERBS = {str(verb.name): verb for group in GROUPS.values() for verb in group}
for verb in VERBS.values():
    cli.add_command(verb)

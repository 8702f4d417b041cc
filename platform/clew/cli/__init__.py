"""The command line: reads options, calls one workflow, prints its result.

Options are declared as classes (`clew.cli.options`); those that set the configuration come from its
schema. Every command except `runs`, `sync` and `ui` is also an entry point of MLproject, with
underscores in place of dashes in the parameter names; `demo` is the entry point `main`.
"""

import click

from clew import __version__
from clew.cli import explanations, models, predictions, project, training


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def cli() -> None:
    """Train models with measured optimizations; trace predictions to their training examples."""


for verb in (
    training.train,
    training.plan,
    training.tune,
    training.evaluate,
    training.compare,
    models.promote,
    predictions.predict,
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

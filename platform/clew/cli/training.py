"""Verbs that train, plan and measure: train, plan, evaluate, compare."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from clew.cli.options import (
    flag,
    flags_of,
    is_main_process,
    no_cleanup,
    path_or_none,
    positive_number,
    settings_option,
    whole_number,
)
from clew.config.flags import TRAIN_FLAGS, overrides_from_flags
from clew.config.load import load, parse_assignments
from clew.errors import ConfigError

DEFAULT_CONFIG = "experiments/link_prediction/umls.yaml"


@click.command()
@flag("config", help=f"YAML file; {DEFAULT_CONFIG} unless given.")
@flags_of(TRAIN_FLAGS)
@no_cleanup
@flag("resume", help="Run id to go on from, at its newest good checkpoint.")
@click.option("--result-file", default="", hidden=True, help="Also write the result as JSON.")
@click.option("--parent-run", default="", hidden=True, help="Run of which this one is a part.")
@click.option("--tags", default="", hidden=True, help="Further tags of the run, as JSON.")
@flag("output_dir", help="Also copy configuration and best checkpoint to this new folder.")
@settings_option("section.key=value")
@click.argument("assignments", nargs=-1)
def train(
    *,
    config: str,
    disable_memory_cleanup: bool,
    resume: str,
    output_dir: str,
    result_file: str,
    parent_run: str,
    tags: str,
    set: list[str],
    assignments: tuple[str, ...],
    **flags: str,
) -> int:
    """Train a model; ASSIGNMENTS are further settings, section.key=value."""
    from clew.workflows import train as workflow
    from clew.workflows.leave_one_out import leaves_one_out, train_each_group

    overrides = _overrides(flags, disable_memory_cleanup, [*set, *assignments])
    if resume and config and config != DEFAULT_CONFIG:
        raise ConfigError(
            f"--resume {resume} repeats that run's own configuration, but --config {config} is "
            "given too; leave --config out and override with --set"
        )
    if resume:
        result = workflow.resume(resume, overrides, output_dir=path_or_none(output_dir))
    else:
        settings = load(config or DEFAULT_CONFIG, overrides)
        run = train_each_group if leaves_one_out(settings) else workflow.train
        result = run(
            settings,
            output_dir=path_or_none(output_dir),
            parent_run_id=parent_run or None,
            tags=json.loads(tags or "{}"),
        )
    if not is_main_process():
        return 0
    if result_file:
        Path(result_file).write_text(json.dumps(dataclasses.asdict(result)), encoding="utf-8")
    click.echo(result.table())
    return 0


def _overrides(
    flags: Mapping[str, str], no_cleanup: bool, assignments: Sequence[str]
) -> dict[str, Any]:
    """Return what flags and assignments set; assignments win."""
    overrides: dict[str, Any] = dict(overrides_from_flags(flags))
    if no_cleanup:
        overrides["optimizations.enable_memory_cleanup"] = "false"
    return overrides | parse_assignments(assignments)


@click.command()
@flag("config", help=f"YAML file; {DEFAULT_CONFIG} unless given.")
@flags_of(TRAIN_FLAGS)
@no_cleanup
@flag("memory_gib", help="Memory to fit into; what there is now unless given.")
@flag("num_processes", help="Processes of a data-parallel run, each on its device; 1 unless given.")
@settings_option("section.key=value")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.argument("assignments", nargs=-1)
def plan(
    *,
    config: str,
    disable_memory_cleanup: bool,
    memory_gib: str,
    num_processes: str,
    set: list[str],
    as_json: bool,
    assignments: tuple[str, ...],
    **flags: str,
) -> int:
    """Say what training would take in memory, and what would save some, before any training."""
    from clew.workflows.plan import plan as workflow

    overrides = _overrides(flags, disable_memory_cleanup, [*set, *assignments])
    result = workflow(
        load(config or DEFAULT_CONFIG, overrides),
        memory_gib=positive_number("memory-gib", memory_gib),
        world_size=whole_number("num-processes", num_processes, 1),
    )
    click.echo(json.dumps(result.as_dict(), indent=1) if as_json else result.table())
    return 0


@click.command()
@flag("model", required=True, help="Run id, models:/name@alias, or a checkpoint folder.")
@flag("split", default="test", help="valid or test.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def evaluate(model: str, split: str, as_json: bool) -> int:
    """Evaluate a trained model on a split of its own data."""
    from clew.workflows.evaluate import evaluate as run_evaluation

    result = run_evaluation(model, split)
    click.echo(json.dumps(result.metrics, indent=1) if as_json else result.table())
    return 0


@click.command()
@flag("study", required=True, help="YAML file in experiments/studies/.")
@flag("seeds", help="Seeds instead of the study's, separated by commas.")
@flag("size", help="Size of the study: quick for two cores, full for a GPU; quick unless given.")
def compare(study: str, seeds: str, size: str) -> int:
    """Run a study's variants, each in its own process, and hold claims against measurements."""
    from clew.config.study import load_study
    from clew.workflows.compare import compare as run_study

    chosen = (
        [whole_number("seeds", text.strip(), 0) for text in seeds.split(",")] if seeds else None
    )
    for line in run_study(load_study(study, seeds=chosen, size=size or None)):
        click.echo(line)
    return 0

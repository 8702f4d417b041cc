"""The options of a command, declared once as a class from which the command is built.

Each field of such a class is an option of the command line and a parameter of MLproject; its
docstring is the help text. Configuration settings that have their own option
(`clew.cli.options`) are added automatically. `clew.cli.reference` writes MLproject and the
reference page from the same declarations.
"""

import json
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import click
from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo

from clew.config.base import Section
from clew.config.load import parse_assignments
from clew.errors import ConfigError, quoted, reason_of
from clew.names import KIND_TRAIN, NEWEST

if TYPE_CHECKING:
    from clew.workflows.cluster import ClusterRequest
import functools

from clew.config.base import Flag
from clew.config.load import section_classes
from clew.config.schema import RunConfig

logger = logging.getLogger(__name__)
SILENT_SECONDS = 30.0
CONTEXT = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "token_normalize_func": lambda name: name.replace("_", "-"),  # scripts may write underscores
}
"""How click reads every command and shows its help."""
BOOLEANS = ("true", "false", "yes", "no", "on", "off", "1", "0")
ASSIGNMENT = re.compile(r"[a-z_]+\.[a-z_0-9]+=")


@dataclass(frozen=True)
class Option:
    """What the name, type and docstring of a field do not say about its option."""

    name: str = ""
    """Name of the option, if it differs from the field's."""
    also: tuple[str, ...] = ()
    """Other names of the same option, used by older scripts."""
    alone: str = ""
    """Value of the option when it is given without one; `true` for every boolean."""
    terminal_only: bool = False
    """Whether MLproject leaves this parameter out. A boolean then takes no value."""
    hidden: bool = False
    """Whether only Clew's own processes use it."""
    positional: bool = False
    """Whether it is given without its name, any number of times."""
    run_kind: str = ""
    """Kind of run that the value can name; `newest` then means the newest of these runs."""


ModelReference = Annotated[str, Option(run_kind=KIND_TRAIN)]
JsonFlag = Annotated[bool, Option(name="json", terminal_only=True)]
HIDDEN = Option(terminal_only=True, hidden=True)


class Options(Section):
    """The options of a command."""

    def call(self, function: Callable[[Any], int]) -> int:
        """Call a command's function with these options."""
        return function(self)

    @classmethod
    def read(cls, verb: str, given: Mapping[str, Any]) -> Self:
        """Check the values that were typed; an empty value counts as not given.

        Raises:
            ConfigError: If a value is missing or invalid, or if two options contradict each other.
        """
        values: dict[str, Any] = {}
        overrides: dict[str, Any] = {}
        typed: dict[str, str] = {}
        for option in filter(lambda option: given[option.name], declared_options(verb, cls)):
            target, value = option.key or option.field, option.switch or given[option.name]
            if option.run_kind and value == NEWEST:
                from clew.runs.reading.search import run_meant  # MLflow takes seconds

                value = run_meant(NEWEST, option.run_kind)
            content = overrides if option.key else values
            if content.setdefault(target, value) != value:
                raise ConfigError(
                    f"{dashed(typed[target])} and {dashed(option.name)} are both given and "
                    "contradict each other; leave one of them out"
                )
            typed[target] = option.name
        if issubclass(cls, Configured):
            assigned = parse_assignments([*given["set"], *given["assignments"]])
            values["overrides"] = overrides | assigned
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(_describe(error, typed)) from None


class Spoken(Options):
    """Options of a command that reports how it goes."""

    quiet: Annotated[bool, Option(terminal_only=True)] = False
    """Print only warnings and the result."""
    verbose: Annotated[bool, Option(terminal_only=True)] = False
    """Print more about what is done."""

    def call(self, function: Callable[[Any], int]) -> int:
        """Call a command's function with these options; it then prints as much as asked for."""
        if (self.quiet or self.verbose) and is_main_process():
            logging.getLogger("clew").setLevel(logging.WARNING if self.quiet else logging.DEBUG)
        return function(self)


class Configured(Options):
    """Options of a command that needs a configuration, with flags, `--set` and assignments."""

    overrides: dict[str, Any] = Field(default_factory=dict, exclude=True)
    """The settings, `section.key` to value; assignments take precedence over flags."""


class ClusterOptions(Options):
    """Options that `clew compare`, `clew tune` and `clew batch-tracin` share."""

    cluster: str = ""
    """Work on a cluster of Ray: HOST:PORT of its head, auto for the one that runs here, or local to
    start one here (default: in this process)."""
    cpus_per_task: Annotated[float, Field(gt=0)] = 1.0
    """With --cluster: processor cores for each task (a cell, a trial or some test triples)."""
    gpus_per_task: Annotated[float | None, Field(ge=0)] = None
    """With --cluster: GPUs for each task (default: 1 if the cluster has GPUs, else 0)."""
    memory_gib_per_task: Annotated[float | None, Field(gt=0)] = None
    """With --cluster: memory to reserve for each task (default: none)."""

    def cluster_request(self) -> "ClusterRequest | None":
        """Return the requested cluster, or None."""
        from clew.workflows.cluster import ClusterRequest

        if not self.cluster:
            return None
        return ClusterRequest(
            self.cluster, self.cpus_per_task, self.gpus_per_task, self.memory_gib_per_task
        )


@dataclass(frozen=True, kw_only=True)
class DeclaredOption(Option):
    """One option, as click, MLproject and the reference page need it; its name has underscores."""

    help: str
    annotation: Any
    """Type of the value."""
    field: str = ""
    """Field that it sets."""
    key: str = ""
    """Configuration key that it sets, instead of a field."""
    default: Any = None
    required: bool = False
    switch: str = ""
    """Value, if the option never takes one."""


def declared_options(verb: str, options: type[Options]) -> list[DeclaredOption]:
    """Return a command's own options, then those that set the configuration."""
    found = []
    for name, field in options.model_fields.items():
        if not field.exclude:
            found += _of_field(name, field)
    for item in flagged_fields(verb):
        main = DeclaredOption(
            item.name,
            help=f"{first_sentence(item.field)} Sets {item.key}.",
            annotation=item.field.annotation,
            key=item.key,
            alone="true" if item.field.annotation is bool else "",
        )
        found.append(main)
        if item.flag.off:
            same = f"Same as {dashed(item.name)} false."
            off = replace(main, name=item.flag.off, help=same, switch="false", terminal_only=True)
            found.append(off)
    return found


def _of_field(name: str, field: FieldInfo) -> list[DeclaredOption]:
    mark = next((mark for mark in field.metadata if isinstance(mark, Option)), Option())
    is_bool, text = field.annotation is bool, first_sentence(field)
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    if default not in (None, "", False):
        text = f"{text.removesuffix('.')} (default: {default})."
    own = {"name": mark.name or name, "alone": mark.alone or ("true" if is_bool else "")}
    main = DeclaredOption(
        **vars(mark) | own,
        help=text,
        annotation=field.annotation,
        field=name,
        default=default,
        required=field.is_required(),
        switch="true" if is_bool and mark.terminal_only else "",
    )
    same = f"Same as {dashed(main.name)}."
    return [main, *(replace(main, name=other, help=same) for other in mark.also)]


def first_sentence(field: FieldInfo) -> str:
    """Return the first sentence of a field's docstring."""
    text = " ".join((field.description or "").split())
    return text.partition(". ")[0].removesuffix(".") + "."


def dashed(name: str) -> str:
    """Return an option as it is typed on the command line."""
    return f"--{name.replace('_', '-')}"


def _describe(error: ValidationError, typed: Mapping[str, str]) -> str:
    problem = error.errors()[0]
    field = str(problem["loc"][0]) if problem["loc"] else ""
    if not field:
        return reason_of(problem)
    if problem["type"] == "missing":
        return f"{dashed(field)} is missing; it is required"
    return f"{dashed(typed.get(field, field))} is {quoted(problem['input'])}; {reason_of(problem)}"


class Verb(click.Command):
    """A command that is built from a class of options."""

    def __init__(self, options: type[Options], function: Callable[[Any], int]) -> None:
        name = function.__name__
        self.declared = declared_options(name, options)
        self.is_configured = issubclass(options, Configured)
        params: list[click.Parameter] = [_click_option(option) for option in self.declared]
        if self.is_configured:
            params += [_settings_option(), click.Argument(["assignments"], nargs=-1)]
        super().__init__(
            name.replace("_", "-"),
            callback=lambda **given: options.read(name, given).call(function),
            params=params,
            help=function.__doc__,
            context_settings=CONTEXT,
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Stop an option with an optional value from taking what follows as its value."""
        alone = {dashed(o.name): o.alone for o in self.declared if o.alone and not o.switch}
        takes_files = any(option.positional for option in self.declared)
        words = [
            f"{word}={value}"
            if value
            and (ASSIGNMENT.match(following) or (takes_files and following not in BOOLEANS))
            else word
            for word, following in zip(args, [*args[1:], ""], strict=False)
            for value in [alone.get(word.replace("_", "-"))]
        ]
        try:
            return super().parse_args(ctx, words)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # click leaves it out of an option without its value
            raise


O = TypeVar("O", bound=Options)  # noqa: E741


def command(options: type[O]) -> Callable[[Callable[[O], int]], Verb]:
    """Return a decorator that makes a function a command; it receives checked options."""
    return lambda function: Verb(options, function)


def _click_option(option: DeclaredOption) -> click.Parameter:
    if option.positional:
        return click.Argument([option.name], nargs=-1)
    settings: dict[str, Any] = {"default": "", "help": option.help, "hidden": option.hidden}
    if option.switch:
        settings |= {"is_flag": True, "flag_value": "true"}
    elif option.alone:
        settings |= {"is_flag": False, "flag_value": option.alone}
    return click.Option([dashed(option.name), option.name], **settings)


def _settings_option() -> click.Option:
    """Return the option `--set`, which can be given several times; its value is a list."""

    def split(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> list[str]:
        return [part for text in texts for part in _split_assignments(text)]

    text = "More settings, section.key=value; separate them by commas or repeat the option."
    return click.Option(["--set", "set"], multiple=True, callback=split, help=text)


def _split_assignments(text: str) -> list[str]:
    """Split at commas that are followed by another assignment; values can contain commas."""
    parts: list[str] = []
    for piece in filter(None, text.split(",")):
        if parts and "=" not in piece:
            parts[-1] += f",{piece}"
        else:
            parts.append(piece)
    return parts


def is_main_process() -> bool:
    """Whether this process prints for the command: torchrun's first process, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def progress_bar(unit: str, *, as_json: bool) -> Callable[[int, int], None]:
    """Return a function that shows progress.

    It shows a bar on a terminal, a line every `SILENT_SECONDS` in a file, or one JSON object per
    line.
    """
    from tqdm import tqdm

    hidden = True if as_json or logging.getLogger("clew").level > logging.INFO else None
    bar = tqdm(unit=f" {unit}", delay=1.0, disable=hidden, leave=False)
    said = began = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal said
        now = time.monotonic()
        if as_json:
            click.echo(json.dumps({"done": done, "total": total}))
        elif bar.disable and now - said >= SILENT_SECONDS:
            said, left = now, (now - began) * (total - done) / max(done, 1)
            logger.info("%s of %s %s, %.0f s left", f"{done:,}", f"{total:,}", unit, left)
        bar.total = total
        bar.update(done - bar.n)
        if done == total:
            bar.close()

    return show


@dataclass(frozen=True)
class FlaggedField:
    """A field that has its own option."""

    name: str
    """Name of the option, with underscores."""
    key: str
    """Key of the configuration, `section.name`."""
    field: FieldInfo
    flag: Flag


@functools.cache
def flagged_fields(verb: str) -> tuple[FlaggedField, ...]:
    """Return the fields that have an option in a command, in the order of the schema.

    A field that several classes of a section share becomes one option.
    """
    found: dict[str, FlaggedField] = {}
    for section in RunConfig.model_fields:
        for choice in section_classes(section):
            for name, field in choice.model_fields.items():
                for flag in (mark for mark in field.metadata if isinstance(mark, Flag)):
                    if verb in flag.verbs:
                        key = f"{section}.{name}"
                        found.setdefault(name, FlaggedField(name, key, field, flag))
    return tuple(found.values())

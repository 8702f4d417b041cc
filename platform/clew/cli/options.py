"""The options of a command, declared once as a class from which the command is built.

Each field of such a class is an option of the command line and a parameter of MLproject; its
docstring is the help text. Settings of the configuration that are marked with a `Flag` are added.
"""

import functools
import logging
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self, TypeVar

import click
from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo

from clew.cli import output
from clew.config.base import Flag, Section
from clew.config.load import SHORT_KEYS, from_mapping, full_settings, load, parse_assignments
from clew.config.schema import RunConfig, section_classes, task_of
from clew.errors import ConfigError, quoted, reason_of, valid_names
from clew.names import KIND_TRAIN, NEWEST
from clew.processes import typed_command

CONTEXT = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "token_normalize_func": lambda name: name.replace("_", "-"),  # scripts may write underscores
}
"""How click reads every command and shows its help."""
DEFAULT_CONFIG = "experiments/link_prediction/umls.yaml"
ASSIGNMENT = re.compile(r"[a-z_0-9.-]+=")
TRUTH = re.compile(r"true|false|yes|no|on|off|[01tfyn]", re.IGNORECASE)
"""Words that an option takes as its value if the value is true or false."""


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
    first: bool = False
    """Whether the first word of the command is its value, as in `clew train umls`."""
    positional: bool = False
    """Whether it is given without its name, any number of times."""
    run_kind: str = ""
    """Kind of run that the value can name; `newest` then means the newest of these runs."""


ModelReference = Annotated[str, Option(run_kind=KIND_TRAIN, first=True)]
HIDDEN = Option(terminal_only=True, hidden=True)


class Options(Section):
    """The options of a command."""

    beats: ClassVar[bool] = True
    """Whether it has a heartbeat; not if it serves, or if processes that it starts speak."""

    def call(self, function: Callable[[Any], int | None]) -> int:
        """Call a command's function with these options."""
        with output.Heartbeat() if self.beats else nullcontext():
            return function(self) or 0

    @classmethod
    def read(cls, verb: str, given: Mapping[str, Any]) -> Self:
        """Check the values that were typed; an empty value counts as not given.

        Raises:
            ConfigError: If a value is missing or invalid, or if two options contradict each other.
        """
        values: dict[str, Any] = {}
        overrides: dict[str, Any] = {}
        typed: dict[str, str] = {}
        declared = declared_options(verb, cls)
        words, assignments = _sorted_words(verb, declared, given["words"])
        if assignments and not issubclass(cls, Configured):
            name = assignments[0].partition("=")[0]
            known = valid_names(name, [option.name for option in declared if not option.hidden])
            raise ConfigError(f"{quoted(assignments[0])}: no such option; {known}")
        flags = [(option, given.get(option.name)) for option in declared]
        for option, text in (*flags, *words):
            if text == "" and option.name == "resume" and "MLFLOW_RUN_ID" not in os.environ:
                raise ConfigError("--resume is empty; give a run's id, or leave it out")
            if not text:
                continue
            target, value = option.key or option.field, option.switch or text
            if option.run_kind and value == NEWEST:
                from clew.runs.reading.search import run_meant  # MLflow takes seconds

                value = run_meant(NEWEST, option.run_kind)
            content = overrides if option.key else values
            if content.setdefault(target, value) != value:
                both = f"{dashed(typed[target])} and {dashed(option.name)} are both given and"
                if typed[target] == option.name:
                    both = f"{dashed(option.name)} is given twice; its values"
                raise ConfigError(f"{both} contradict each other; leave one of them out")
            typed[target] = option.name
        if issubclass(cls, Configured):
            assigned = full_settings(parse_assignments([*given["set"], *assignments]))
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

    def call(self, function: Callable[[Any], int | None]) -> int:
        """Call a command's function with these options; it then prints as much as asked for."""
        if (self.quiet or self.verbose) and output.is_main_process():
            logging.getLogger("clew").setLevel(logging.WARNING if self.quiet else logging.DEBUG)
        return super().call(function)


class Printed(Options):
    """Options of a command that can print its result as JSON."""

    as_json: Annotated[bool, Option(name="json", terminal_only=True)] = False
    """Print JSON instead of text, one object per line."""


class Configured(Options):
    """Options of a command that needs a configuration, with flags, `--set` and assignments."""

    overrides: dict[str, Any] = Field(default_factory=dict, exclude=True)
    """The settings, `section.key` to value; assignments take precedence over flags."""


class ConfigOptions(Configured):
    """Options of a command that reads a configuration."""

    config: Annotated[str, Option(first=True)] = DEFAULT_CONFIG
    """YAML file, or the name of a configuration that ships with Clew."""

    def configuration(self) -> RunConfig:
        """Return the configuration; settings for another kind of data do not change the default."""
        if options := output.triple_options(self.config):
            typed = [word for word in shlex.split(typed_command.get()) if word != "--config"]
            right = [part for w in typed for part in (options if w == self.config else [w])]
            wrong = f"{quoted(self.config)} is data, not a configuration"
            raise output.answered(wrong, shlex.join(right))
        if self.config == DEFAULT_CONFIG and task_of({}, self.overrides) != "triples":
            return from_mapping({}, self.overrides)
        return load(self.config, self.overrides)


@dataclass(frozen=True, kw_only=True)
class DeclaredOption(Option):
    """One option, as click, MLproject and the reference page need it; its name has underscores."""

    help: str
    """First sentence of the description."""
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

    @property
    def text(self) -> str:
        """The help with the default, or with the key of a setting."""
        if self.key:
            return f"{self.help} Sets {self.key}."
        if self.default in (None, "", (), False) or self.help.startswith("Same as"):
            return self.help
        return f"{self.help.removesuffix('.')} (default: {self.default_text})."

    @property
    def default_text(self) -> str:
        """The default as it is typed; empty if there is none."""
        if isinstance(self.default, tuple):
            return ",".join(map(str, self.default))
        return "" if self.default is None else str(self.default)


def declared_options(verb: str, options: type[Options]) -> list[DeclaredOption]:
    """Return a command's own options, then those that set the configuration."""
    found: list[DeclaredOption] = []
    for name, field in options.model_fields.items():
        if not field.exclude:
            main = _option_of(name, field)
            same = f"Same as {dashed(main.name)}."
            found += [main, *(replace(main, name=other, help=same) for other in main.also)]
    return [*found, *flags(verb)]


@functools.cache
def flags(verb: str) -> tuple[DeclaredOption, ...]:
    """Return the options of a command that set the configuration, in the order of the schema.

    A field that several classes of a section share becomes one option.
    """
    found: dict[str, DeclaredOption] = {}
    for section in RunConfig.model_fields:
        for name, field in (f for c in section_classes(section) for f in c.model_fields.items()):
            flags = (mark for mark in field.metadata if isinstance(mark, Flag))
            flag = next((flag for flag in flags if verb in flag.verbs), None)
            if flag is None or name in found:
                continue
            main = replace(_option_of(name, field), field="", key=f"{section}.{name}")
            found[name] = main
            if off := flag.off:
                same = f"Same as {dashed(name)} false."
                found[off] = replace(main, name=off, help=same, switch="false", terminal_only=True)
    return tuple(found.values())


def _option_of(name: str, field: FieldInfo) -> DeclaredOption:
    mark = next((mark for mark in field.metadata if isinstance(mark, Option)), Option())
    is_bool = field.annotation is bool
    own = {"name": mark.name or name, "alone": mark.alone or ("true" if is_bool else "")}
    text = " ".join((field.description or "").split())
    return DeclaredOption(
        **vars(mark) | own,
        help=text.partition(". ")[0].removesuffix(".") + ".",
        annotation=field.annotation,
        field=name,
        default=None if field.is_required() else field.get_default(call_default_factory=True),
        required=field.is_required(),
        switch="true" if is_bool and mark.terminal_only else "",
    )


def _sorted_words(
    verb: str, declared: list[DeclaredOption], words: Sequence[str]
) -> tuple[list[tuple[DeclaredOption, Any]], list[str]]:
    """Return the options that words set, with their values, and the assignments to settings."""
    by_name = {o.name: o for o in declared if not o.switch}
    by_key = {o.key: o for o in by_name.values() if o.key}
    first = next((option for option in declared if option.first), None)
    options = list[tuple[DeclaredOption, Any]]()
    assignments, bare = list[str](), list[str]()
    for word in words:
        name, equals, value = word.partition("=")
        option = by_name.get(name.replace("-", "_")) or by_key.get(SHORT_KEYS.get(name, ""))
        if equals and option:
            if option.key and not value:
                raise ConfigError(f"{quoted(word)} has no value; give one, or leave it out")
            options.append((option, value))
        else:
            (assignments if equals else bare).append(word)
    many = next((option for option in declared if option.positional), None)
    word = bare[0] if len(bare) == 1 else os.sep
    is_name = not (os.path.lexists(word) or os.sep in word or os.path.splitext(word)[1])
    if bare and first and (many is None or is_name):
        options.append((first, bare.pop(0)))
    elif bare and many:
        options.append((many, tuple(bare)))
        bare = []
    if bare:
        numbers = [option for option in declared if option.annotation is int]
        if bare[0].isdecimal() and len(numbers) == 1 and first is None:
            right = f"clew {verb} {dashed(numbers[0].name)} {bare[0]}"
            raise output.answered(f"{quoted(bare[0])} has no name", right)
        said = f"unexpected word {quoted(bare[0])}; expected name=value"
        raise click.UsageError(said, click.get_current_context(silent=True))
    return options, assignments


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

    def __init__(
        self, options: type[Options], function: Callable[[Any], int | None], example: str = ""
    ) -> None:
        name = function.__name__.rstrip("_")  # `import` is a word of Python
        self.declared = declared_options(name, options)
        self.is_configured = issubclass(options, Configured)
        self.first = next((option for option in self.declared if option.first), None)
        self.example = example or f"clew {name}"
        known = output.values_of(self.first) if self.first else []
        known += [f"{key}=" for key in SHORT_KEYS] if self.is_configured else []
        known += [f"{option.name}=" for option in self.declared if not option.switch]
        words = click.Argument(
            ["words"],
            nargs=-1,
            metavar=(f"[{self.first.name.upper()}] " if self.first else "") + "[NAME=VALUE]...",
            shell_complete=output.completed(known),
        )
        super().__init__(
            name.replace("_", "-"),
            callback=lambda **given: options.read(name, given).call(function),
            params=[
                *(_click_option(option) for option in self.declared if not option.positional),
                *([_settings_option()] if self.is_configured else []),
                output.HELP_ALL,
                words,
            ],
            help=function.__doc__,
            options_metavar="",
            context_settings=CONTEXT,
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Stop an option with an optional value from taking another word as its value."""
        alone = {dashed(o.name): o for o in self.declared if o.alone and not o.switch}
        words = [
            f"{word}={option.alone}" if option and _is_no_value(option, following) else word
            for word, following in zip(args, [*args[1:], ""], strict=False)
            for option in [alone.get(word.replace("_", "-"))]
        ]
        try:
            return super().parse_args(ctx, words)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # click leaves it out of an option without its value
            if not isinstance(error, click.NoSuchOption):
                raise
            if (right := output.right_options(self, args)) is None:
                raise
            wrong = f"clew {self.name} has no option {error.option_name}"
            raise output.answered(wrong, right) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the short help, or all options."""
        if ctx.meta.get(output.HELP_ALL.name):
            super().format_options(ctx, formatter)
        else:
            output.write_short_help(self, formatter)


def _is_no_value(option: DeclaredOption, following: str) -> bool:
    if option.annotation is bool and following:
        return not TRUTH.fullmatch(following)
    return bool(ASSIGNMENT.match(following))


O = TypeVar("O", bound=Options)  # noqa: E741


def command(options: type[O], example: str = "") -> Callable[[Callable[[O], int | None]], Verb]:
    """Return a decorator that makes a function a command; it receives checked options."""
    return lambda function: Verb(options, function, example)


def _click_option(option: DeclaredOption) -> click.Option:
    settings: dict[str, Any] = {"help": option.text, "hidden": option.hidden}
    settings |= {"metavar": output.type_of(option)} if not option.switch else {}
    settings["shell_complete"] = output.completed(output.values_of(option))
    if option.switch:
        settings |= {"is_flag": True, "flag_value": "true"}
    elif option.alone:
        settings |= {"is_flag": False, "flag_value": option.alone}
    return click.Option([dashed(option.name), option.name], **settings)


def _settings_option() -> click.Option:
    """Return the option `--set`; in it, commas that no assignment follows belong to a value."""

    def split(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> list[str]:
        return [part for text in texts for part in re.split(r",(?=[^,]*=)", text) if part]

    text = "More settings, name=value; separate them by commas or repeat the option."
    return click.Option(["--set", "set"], multiple=True, callback=split, help=text)

"""What the command line shows: help in groups, completions, the right command for a wrong guess."""

import shlex
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click
from click.shell_completion import CompletionItem

from clew.config.data import TripleData
from clew.config.files import SUFFIXES, presets
from clew.config.load import SHORT_KEYS, full_key
from clew.errors import ConfigError, UsageError
from clew.names import NEWEST

if TYPE_CHECKING:
    from clew.cli.options import DeclaredOption, Verb

GROUPS = {
    "Input": "config model run_id explanation study dataset space train valid test test_triples"
    " name kgx entity_to_id relation_to_id head relation tail input prompt continuation prompts"
    " frames frame split kind experiment",
    "Settings": "num_epochs batch_size learning_rate embedding_dim seed label_smoothing minutes"
    " trials seeds size top_k score direction filter_known conformal max_tokens temperature"
    " tokenizer chunk_size subsets tests scores metric rollback port address limit",
    "Memory and speed": "device memory_gib num_processes num_entities num_relations"
    " vocabulary_size frame_shape use_mixed_precision use_gradient_checkpointing"
    " enable_memory_cleanup torch_compile gradient_accumulation num_workers use_last_layers_only"
    " num_last_layers max_hours cluster num_proc",
    "Output": "output output_dir pack checkpoint_dir resume format alias dry_run quiet verbose all"
    " json",
}
"""Options that the short help shows, by group, the important ones first; the others are in More."""
MORE = "More"
RIGHT_COMMANDS = {
    "train": "run fit start learn training",
    "train --resume": "resume continue restart",
    "runs": "list ls status history show",
    "tracin": "explain trace why attribute influence",
    "evaluate": "test eval score metrics",
    "predict": "ask query generate infer inference answer complete",
    "plan": "memory estimate profile",
    "tune": "search sweep optimize hpo",
    "compare": "benchmark bench",
    "promote": "register publish deploy",
    "pretokenize": "tokenize prepare preprocess",
    "data": "dataset describe inspect check",
    "ui": "dashboard serve gui web open",
    "--version": "version",
}
"""The right command to words that people try instead."""
RIGHT_OPTIONS = {"batch": "batch_size", "bs": "batch_size", "e": "epochs", "half": "fp16"}
INPUTS = ("data", "dataset", "graph", "preset", "file", "model", "model_path", "run", "run_id")
"""Options that people try for the first word of a command."""


def type_of(option: "DeclaredOption") -> str:
    """Return the type of an option's value in capitals; empty for true or false."""
    kinds = {int: "INTEGER", float: "NUMBER", Path: "PATH", tuple: "LIST", Literal: "CHOICE"}
    parts = [option.annotation, get_origin(option.annotation), *get_args(option.annotation)]
    if bool in parts:
        return ""
    text = "FILE" if option.name in TripleData.paths else "TEXT"
    return next((kinds[part] for part in parts if part in kinds), text)


MOST_IN_SHORT_HELP = 6
"""Options of a group that the short help shows."""
WIDEST = 34
"""Characters of the longest option beside its text."""


def _groups(verb: "Verb", *, all_options: bool) -> Iterator[tuple[str, list["DeclaredOption"]]]:
    known = {option.name: option for option in verb.declared if not option.hidden}
    most = len(known) if all_options else MOST_IN_SHORT_HELP
    for title, names in GROUPS.items():
        found = [known.pop(name) for name in names.split() if name in known][:most]
        if found:
            yield title, found
    if all_options and known:
        yield MORE, list(known.values())


def _row(option: "DeclaredOption", *, all_options: bool) -> tuple[str, str, str]:
    default = "" if option.default in (None, "") or option.switch else str(option.default)
    default = default.lower() if isinstance(option.default, bool) else default
    shown = f" [{default.rpartition('/')[2].removesuffix('.yaml')}]" if default else ""
    choices = get_args(option.annotation) if get_origin(option.annotation) is Literal else ()
    text = option.help.removesuffix(".") + (f": {', '.join(map(str, choices))}" if choices else "")
    if all_options and option.key:
        text += f". Sets {option.key}"
    left = f"--{option.name.replace('_', '-')} {type_of(option)}".rstrip()
    return left, text, shown


def write_options(verb: "Verb", formatter: click.HelpFormatter, *, all_options: bool) -> None:
    """Write the options of a command in groups; without `all_options`, each on one line."""
    num_hidden = sum(not option.hidden for option in verb.declared)
    if verb.example:
        with formatter.section("Example"):
            formatter.write_text(verb.example)
    for title, options in _groups(verb, all_options=all_options):
        num_hidden -= len(options)
        found = [_row(option, all_options=all_options) for option in options]
        left = min(WIDEST, max(len(name) for name, _, _ in found))
        room = 10**9 if all_options else formatter.width - left - 4
        lines = [
            (name, textwrap.shorten(text, room - len(end), placeholder="...") + end)
            for name, text, end in found
        ]
        with formatter.section(title):
            formatter.write_dl(lines, col_max=WIDEST)
    last = [("--help-all", f"Show {num_hidden} more options and each text whole.")]
    if all_options:
        last = [("--set NAME=VALUE", "The same as NAME=VALUE; several are separated by commas.")]
    if verb.is_configured:
        last.insert(0, ("NAME=VALUE", "Any key of the configuration, such as training.seed=1."))
    with formatter.section("Help"):
        formatter.write_dl([("--help", "Show this message."), *last])


def complete(option: "DeclaredOption") -> Callable[..., list[CompletionItem]]:
    """Return the function that completes an option's value for the shell."""
    choices = get_args(option.annotation) if get_origin(option.annotation) is Literal else ()
    words = ["true", "false"] if option.annotation is bool else [str(part) for part in choices]
    return lambda _context, _option, start: _items(words, start)


def complete_words(verb: "Verb") -> Callable[..., list[CompletionItem]]:
    """Return the function that completes the words of a command: its first word and settings."""

    def found(_context: click.Context, _argument: Any, start: str) -> list[CompletionItem]:
        first = next((option for option in verb.declared if option.first), None)
        words = [NEWEST] if first and first.run_kind else []
        words += [*presets()] if first and first.name == "config" else []
        words += [f"{name}=" for name in (*SHORT_KEYS, *(o.name for o in verb.declared if o.key))]
        return _items(words, start)

    return found


def _items(words: list[str], start: str) -> list[CompletionItem]:
    found = [CompletionItem(word) for word in dict.fromkeys(words) if word.startswith(start)]
    return found if found and start else [*found, CompletionItem(start, type="file")]


def right_command(name: str, words: list[str], verbs: "Mapping[str, Verb]") -> str | None:
    """Return the command for a word that is no command, with the words after it."""
    if name == "help":
        return shlex.join(["clew", *words[:1], "--help"])
    right = next((right for right, wrong in RIGHT_COMMANDS.items() if name in wrong.split()), None)
    if right is None:
        return None
    verb = verbs.get(right)
    if not words and verb and any(option.first for option in verb.declared):
        return verb.example
    return shlex.join(["clew", *right.split(), *words])


def right_options(verb: "Verb", error: click.NoSuchOption, words: list[str]) -> str | None:
    """Return the command with the right options in place of those that it does not have."""
    variables = ""
    while (found := _replaced(verb, error.option_name, words)) is not None:
        words, variable = found
        variables += variable
        try:
            click.Command.parse_args(verb, click.Context(verb, info_name=verb.name), [*words])
        except click.NoSuchOption as other:
            error = other
        else:
            return variables + shlex.join(["clew", str(verb.name), *words])
    return None


def _replaced(verb: "Verb", wrong: str, words: list[str]) -> tuple[list[str], str] | None:
    """Return the words without the wrong option, and a variable to set before the command."""
    place = next((i for i, word in enumerate(words) if _name(word) == _name(wrong)), None)
    if place is None:
        return None
    name, (_, equals, value) = _name(wrong), words[place].partition("=")
    before, after = words[:place], words[place + 1 :]
    if not equals and after and not after[0].startswith("-") and "=" not in after[0]:
        value, *after = after
    if name in ("gpu", "gpus"):
        return [*before, *after], f"CUDA_VISIBLE_DEVICES={value or 0} "
    if name in ("cpu", "cuda") and verb.is_configured:
        return [*before, *filter(None, [value]), f"device={name}", *after], ""
    if name in INPUTS and value and any(option.first for option in verb.declared):
        return [*(triple_options(value) or [value]), *before, *after], ""
    if (right := _setting(verb, RIGHT_OPTIONS.get(name, name), value)) is None:
        return None
    return [*before, *right, *after], ""


def _name(option: str) -> str:
    return option.partition("=")[0].lstrip("-").replace("-", "_")


def _setting(verb: "Verb", name: str, value: str) -> list[str] | None:
    """Return the words that set what an unknown option would, if it has the name of a setting."""
    try:
        key = full_key(name)
    except ConfigError:
        return None
    field = key.partition(".")[2]
    own = next((option for option in verb.declared if option.name == field), None)
    if own and own.annotation is bool:
        return [f"--{field.replace('_', '-')}", *filter(None, [value])]
    short = name if own is None or own.key == key else field
    return [f"{short}={value}"] if value and (own or verb.is_configured) else None


def triple_options(given: str) -> list[str]:
    """Return the options for a folder or file of triples and the other splits beside it."""
    path = Path(given)
    if path.is_dir():
        path = next(iter(sorted(path.glob("train.*"))), path)
    if not path.is_file() or path.suffix in SUFFIXES:
        return []
    beside = {s: path.with_name(path.name.replace("train", s, 1)) for s in ("valid", "test")}
    found = {"train": path} | {s: p for s, p in beside.items() if p != path and p.is_file()}
    return [word for split, file in found.items() for word in (f"--{split}", str(file))]


def answered(wrong: str, right: str) -> UsageError:
    """Return the error for a wrong guess; it says what to type instead."""
    return UsageError(f"{wrong}; type: {right}")

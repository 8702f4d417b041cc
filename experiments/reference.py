"""Writes the files that are generated from declarations: `MLproject` and the reference pages.

    python -m experiments.reference

Options are declared next to their command, settings in the schema of the configuration, and MLflow
keys in `clew.names`. Change them there, then run this program.
"""

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from clew import names
from clew.cli import GROUPS, cli
from clew.cli.options import DeclaredOption, Verb, dashed
from clew.config.schema import section_classes
from clew.runs.store import project_root

PROGRAM = "python -m experiments.reference"
MLPROJECT = "MLproject"
KEYS_PAGE = "docs/reference/mlflow_keys.md"
LEFT_OUT = (
    "EXPERIMENT",
    "DATA_VARIABLE",
    "NOT_OF_THE_AVERAGE",
    "LIST_DATA_SET_PREFIX",
    "LIST_FINGERPRINT_PREFIX",
)
"""Constants that are not keys."""
TERMINAL_VERBS = ("runs", "sync", "ui")
"""Commands that are not entry points: MLflow would open a run for each of them."""
EMPTY = '""'
SET = DeclaredOption("set", help="More settings, name=value, separated by commas.", annotation=str)

MLPROJECT_HEAD = f"""\
# Entry points of `mlflow run`: the commands of the `clew` command line with the same options.
# Written by `{PROGRAM}`; to change options, change their declarations.
#
# An empty value means "as in the configuration"; booleans are "true" or "false", in quotes. MLflow
# quotes each value for the shell, so the commands must not. It does not check numbers: clew does.
# A parameter without a default must be given.
name: clew

python_env: python_env.yaml

entry_points:
"""
PAGE_HEAD = """\
# Options and settings

Look up a command or a section of the configuration.

Every option is also a parameter of `mlflow run . -e COMMAND -P name=value`, with underscores in
place of dashes, except those marked with `*`; `demo` is the entry point `main`, and `runs`, `sync`
and `ui` have none. The command line accepts both spellings, `--batch-size` and `--batch_size`. A
value in brackets may be left out. An empty value counts as not given, an empty `--resume=` only
under `mlflow run`.
"""


SETTINGS_HEAD = """\
## Configuration

The keys of a YAML file, which `section.key=value` also sets. A section with a `kind` has only the
keys of that kind.
"""
SETTINGS_PAGES = {
    "data": ("data",),
    "model": ("model",),
    "loss": ("loss",),
    "training": ("optimizer", "schedule", "training", "optimizations", "evaluation", "tracking"),
    "influence": ("influence",),
}
KEYS_HEAD = f"""\
# MLflow keys

Written by `{PROGRAM}` from `platform/clew/names.py`. These are all
keys that Clew writes to a tracking store; `{{k}}` is a number, `{{name}}` a name. Quality
metrics start with the split, such as `test/mrr`. Rank metrics of one side end with the
side, such as `test/mrr_head`.
"""


def mlproject() -> str:
    """Return the text of `MLproject`."""
    entries = [entry_point(verb) for verb in verbs() if verb.name not in TERMINAL_VERBS]
    return MLPROJECT_HEAD + "\n".join(entries)


def entry_point(verb: Verb) -> str:
    """Return one entry point of `MLproject`."""
    name = "main" if verb.name == "demo" else str(verb.name).replace("-", "_")
    options = parameters(verb)
    words = [f"clew {verb.name}", *(f"{dashed(o.name)}={{{o.name}}}" for o in options)]
    lines = [f"  {name}:"]
    if options:
        lines += ["    parameters:", *(f"      {o.name}: {_parameter(o)}" for o in options)]
    command = " ".join(words)
    if len(command) > 80:
        folded = textwrap.wrap(command, 94, break_long_words=False, break_on_hyphens=False)
        lines += ["    command: >-", *(f"      {line}" for line in folded)]
    else:
        lines.append(f"    command: {command}")
    return "\n".join(lines) + "\n"


def parameters(verb: Verb) -> list[DeclaredOption]:
    """Return the options of a command that are parameters of its entry point."""
    return [o for o in verb.declared if not o.terminal_only] + [SET] * verb.is_configured


def _parameter(option: DeclaredOption) -> str:
    kind = "float" if is_number(option.annotation) else "string"
    if option.required:
        return kind
    default = option.default if isinstance(option.default, str) and not option.key else ""
    return f"{{type: {kind}, default: {default or EMPTY}}}"


def option_pages() -> dict[str, str]:
    """Return the pages of options and settings and their index, path to text."""
    pages, index = {}, [PAGE_HEAD]
    for title, group in GROUPS.items():
        path = f"options_{title.partition(' ')[0].lower()}.md"
        pages[path] = "\n".join([f"# Options: {title}\n", *map(_verb_section, group)])
        rows = [
            (f"[`clew {v.name}`]({path}#clew-{v.name})", v.get_short_help_str(90)) for v in group
        ]
        index += [f"## {title}", "", *_table(("command", "what it does"), rows), ""]
    index.append(SETTINGS_HEAD)
    rows = []
    for title, sections in SETTINGS_PAGES.items():
        path = f"settings_{title}.md"
        pages[path] = "\n".join([f"# Settings: {title}\n", *_settings_of(sections)])
        named = ", ".join(f"`{section}`" for section in sections)
        rows.append((f"[{title}]({path})", named))
    index += [*_table(("page", "sections"), rows), ""]
    pages["options.md"] = "\n".join(index)
    return {f"docs/reference/{name}": text for name, text in pages.items()}


def _settings_of(sections: Iterable[str]) -> Iterator[str]:
    """Yield each class of settings; a key that an earlier kind has too is only named."""
    for section in sections:
        said: dict[tuple[str, ...], str] = {}
        for choice in section_classes(section):
            yield _class_section(section, choice, said)


def _verb_section(verb: Verb) -> str:
    rows = [
        (
            f"`{dashed(o.name)}`" + ("*" if o.terminal_only and verb.name not in TERMINAL_VERBS
                                     else ""),
            _value(o),
            o.text,
        )
        for o in [*verb.declared, *[SET] * verb.is_configured]
        if not o.hidden
    ]  # fmt: skip
    table = _table(("option", "value", "meaning"), rows) if rows else ["It has no options."]
    return "\n".join([f"## `clew {verb.name}`", "", str(verb.help), "", *table, ""])


def _value(option: DeclaredOption) -> str:
    if option.switch:
        return ""
    words = type_in_words(option.annotation)
    return f"[{words}]" if option.alone else words


def _class_section(section: str, choice: type[BaseModel], said: dict[tuple[str, ...], str]) -> str:
    kind = str(choice.model_fields["kind"].default) if "kind" in choice.model_fields else ""
    title = f"## `{section}`" + (f", `kind: {kind}`" if kind else "")
    rows = [
        (f"`{section}.{name}`", type_in_words(field.annotation), _default(field), _text(field))
        for name, field in choice.model_fields.items()
        if name != "kind"
    ]
    new = [row for row in rows if said.setdefault(row, kind) == kind]
    lines = [*_table(("key", "value", "default", "meaning"), new), ""] if new else []
    for other in dict.fromkeys(said[row] for row in rows if row not in new):
        named = ", ".join(row[0] for row in rows if said[row] == other)
        lines += [f"As for `kind: {other}`: {named}.", ""]
    lines = lines or ["It has no keys.", ""]
    return "\n".join([title, "", " ".join(str(choice.__doc__).split()), "", *lines])


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "unset"
    value = list(value) if isinstance(value, tuple) else value
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _text(field: FieldInfo) -> str:
    return " ".join((field.description or "").split())


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def is_number(annotation: Any) -> bool:
    """Whether values of a type are numbers; true and false are not."""
    if get_origin(annotation) in (Literal, tuple):
        return False
    return annotation in (int, float) or any(is_number(part) for part in get_args(annotation))


def type_in_words(annotation: Any) -> str:
    """Return a readable description of a type."""
    known = {bool: "true or false", int: "whole number", float: "number", str: "text", Path: "path"}
    if annotation in known:
        return known[annotation]
    parts = [part for part in get_args(annotation) if part not in (type(None), Ellipsis)]
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if get_origin(annotation) is tuple:
        return f"list ({type_in_words(parts[0])})"
    return type_in_words(parts[0]) if parts else "text"


def verbs() -> Iterator[Verb]:
    """Yield the commands in the order in which they were added."""
    yield from (verb for verb in cli.commands.values() if isinstance(verb, Verb))


HEADING = re.compile(r"^# ([A-Z].*?):?$", re.MULTILINE)
CONSTANT = re.compile(r'^([A-Z_0-9]+) = "([^"]*)"\n(?:"""([^"]*)""")?', re.MULTILINE)


def keys_page() -> str:
    """Return the page of MLflow keys, from the constants of `clew.names`."""
    lines = [KEYS_HEAD]
    _, *parts = HEADING.split(inspect.getsource(names))
    for title, source in zip(parts[::2], parts[1::2], strict=True):
        keys = [found.groups() for found in CONSTANT.finditer(source) if found[1] not in LEFT_OUT]
        rows = [
            f"- `{key}{'{name}' * name.endswith('_PREFIX')}`"
            + (f": {' '.join(text.split())}" if text else "")
            for name, key, text in keys
        ]
        lines += [f"## {title}", "", *rows, ""] if rows else []
    return "\n".join(lines)


def written_files() -> dict[str, str]:
    """Return the files that this program writes, path to text."""
    return {
        MLPROJECT: mlproject(),
        **option_pages(),
        KEYS_PAGE: keys_page(),
    }


def main() -> None:
    """Write all files and print their names."""
    for name, content in written_files().items():
        path = project_root() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()

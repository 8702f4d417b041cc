"""What the command line shows: results, progress, help, and the right command for a wrong guess."""

import json
import logging
import os
import shlex
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args, get_origin

import click
from click.shell_completion import CompletionItem
from pydantic_core import to_jsonable_python

from clew.config.data import TripleData
from clew.config.files import SUFFIXES, presets
from clew.config.load import full_key
from clew.errors import ConfigError, UsageError, harmless
from clew.names import NEWEST

if TYPE_CHECKING:
    from clew.cli.options import DeclaredOption, Verb

logger = logging.getLogger(__name__)
SILENT_SECONDS, BEAT_SECONDS = 25.0, 1.0


class Heartbeat(logging.Handler):
    """Ends a command's silences: after `SILENT_SECONDS` without a line, it logs one."""

    def __init__(self) -> None:
        super().__init__()
        self.doing = "at work"
        self._began = self._said = time.monotonic()
        self._ended = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        """Count the silence from this line."""
        self.heard()

    def heard(self) -> None:
        """Count the silence from now, because something else was shown."""
        self._said = time.monotonic()

    def __enter__(self) -> Self:
        logging.getLogger("clew").addHandler(self)
        threading.Thread(target=self._watch, name="clew-heartbeat", daemon=True).start()
        BEATING.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        BEATING.remove(self)
        self._ended.set()
        logging.getLogger("clew").removeHandler(self)

    def _watch(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            now = time.monotonic()
            if now - self._said >= SILENT_SECONDS:
                self.heard()
                logger.info("%s, %.0f s after the start", self.doing, now - self._began)


BEATING: list[Heartbeat] = []
"""The heartbeats of the commands that run, the innermost last."""


def is_main_process() -> bool:
    """Whether this process prints for the command: torchrun's first process, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def tell(text: str = "", *, grey: bool = False, nl: bool = True) -> None:
    """Print a result; a name in it, from data or from a store, cannot control the terminal."""
    shown = harmless(text)
    click.echo(click.style(shown, fg="bright_black") if grey else shown, nl=nl)


def in_json(content: object) -> str:
    """Return a result as one line of JSON, in which a number that is not finite is null."""
    return json.dumps(to_jsonable_python(content, inf_nan_mode="null"))


def progress_bar(unit: str, *, as_json: bool) -> Callable[[int, int], None]:
    """Return a function that shows progress.

    It shows a bar on a terminal, or one JSON object per line; in a file, the heartbeat's lines say
    how far the command is.
    """
    from tqdm import tqdm

    hidden = True if as_json or logging.getLogger("clew").level > logging.INFO else None
    bar = tqdm(unit=f" {unit}", delay=1.0, disable=hidden, leave=False)
    began: tuple[float, int] | None = None  # at the first call: what came before takes no part

    def show(done: int, total: int) -> None:
        nonlocal began
        now = time.monotonic()
        began = began or (now, done)
        seconds, gained = now - began[0], done - began[1]
        if as_json:
            tell(in_json({"done": done, "total": total}))
        left = f", {seconds * (total - done) / gained:.0f} s left" if gained else ""
        for beat in BEATING[-1:]:
            if as_json or not bar.disable:
                beat.heard()
            beat.doing = f"{done:,} of {total:,} {unit}{left}"
            beat.doing = "at work" if done == total else beat.doing
        bar.total = total
        bar.update(done - bar.n)
        if done == total:
            bar.close()

    return show


GROUPS = {
    "Input": "config model run_id explanation study dataset space train valid test test_triples"
    " name kgx entity_to_id relation_to_id head relation tail input prompt continuation prompts"
    " frames frame split kind experiment",
    "Settings": "num_epochs early_stopping_patience batch_size learning_rate embedding_dim seed"
    " label_smoothing minutes trials seeds size top_k score direction filter_known conformal"
    " max_tokens temperature tokenizer chunk_size subsets tests scores metric rollback port address"
    " host limit",
    "Memory and speed": "device memory_gib num_processes num_entities num_relations"
    " vocabulary_size frame_shape use_mixed_precision use_gradient_checkpointing"
    " enable_memory_cleanup torch_compile gradient_accumulation num_workers use_last_layers_only"
    " num_last_layers max_hours cluster num_proc",
    "Output": "output output_dir pack resume format alias dry_run all json",
}
"""Options that the short help shows, the important ones first."""
MOST_OF_A_GROUP, WIDEST = 6, 34
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
RIGHT_OPTIONS = {
    "--use-mixed-precision": "fp16 amp half bf16 mixed_precision",
    "--use-gradient-checkpointing": "checkpointing gradient_checkpointing",
    "--torch-compile": "compile",
    "device=cpu": "cpu no_cuda",
    "device=cuda": "cuda",
    "batch_size=": "bs batch",
    "epochs=": "e n_epochs",
    "patience=": "early_stopping stop_after",
    "num_workers=": "workers",
    "": "data dataset graph preset file model model_path run run_id",
}
"""What to type to options that people try instead; nothing: the first word of the command."""


def type_of(option: "DeclaredOption") -> str:
    """Return the type of an option's value in capitals."""
    kinds = {bool: "BOOLEAN", int: "INTEGER", float: "NUMBER", Path: "PATH", tuple: "LIST"}
    parts = [option.annotation, get_origin(option.annotation), *get_args(option.annotation)]
    text = "FILE" if option.name in TripleData.paths else "CHOICE" if Literal in parts else "TEXT"
    return next((kinds[part] for part in parts if part in kinds), text)


def _show_all(context: click.Context, option: click.Parameter, is_given: bool) -> None:
    if is_given:
        context.meta[str(option.name)] = True
        tell(context.get_help())
        context.exit()


HELP_ALL = click.Option(
    ["--help-all"],
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_all,
    help="Show all options and exit.",
)


def write_short_help(verb: "Verb", formatter: click.HelpFormatter) -> None:
    """Write the options that matter most in groups, each on one line."""
    known = {o.name: o for o in verb.declared if not o.hidden | o.positional}
    with formatter.section("Example"):
        formatter.write_text(verb.example)
    for title, names in GROUPS.items():
        found = [known.pop(name) for name in names.split() if name in known][:MOST_OF_A_GROUP]
        lefts = [f"--{o.name.replace('_', '-')} {type_of(o)}" for o in found]
        lefts = [left.removesuffix(" BOOLEAN") for left in lefts]
        room = formatter.width - min(WIDEST, max(map(len, lefts), default=0)) - 4
        lines = []
        for left, option in zip(lefts, found, strict=True):
            default = "" if option.switch or option.key else option.default_text
            end = f" [{default.removeprefix('experiments/link_prediction/').lower()}]"
            end = end if default else ""
            text = textwrap.shorten(option.help.removesuffix("."), room - len(end), placeholder="…")
            lines.append((left, text + end))
        if lines:
            with formatter.section(title):
                formatter.write_dl(lines, col_max=WIDEST)
    more = [("--help-all", f"Show {len(known)} more options, and all texts whole.")]
    if verb.is_configured:
        more.insert(0, ("NAME=VALUE", "Any key of the configuration, such as training.seed=1."))
    with formatter.section("More"):
        formatter.write_dl([("--help", "Show this message."), *more])


def completed(words: list[str]) -> Callable[..., list[CompletionItem]]:
    """Return a function that completes a value for the shell: by the words, else by a file."""

    def find(_context: click.Context, _parameter: Any, start: str) -> list[CompletionItem]:
        found = [CompletionItem(word) for word in words if word.startswith(start)]
        return found if found and start else [*found, CompletionItem(start, type="file")]

    return find


def values_of(option: "DeclaredOption") -> list[str]:
    """Return the values that the shell completes."""
    if option.name == "config":
        return [*presets()]
    choices = get_args(option.annotation) if type_of(option) == "CHOICE" else ()
    return [NEWEST] if option.run_kind else [str(choice) for choice in choices]


def right_command(name: str, words: list[str], verbs: "dict[str, Verb]") -> str | None:
    """Return the command for a word that is no command, with the words after it."""
    if name == "help":
        return shlex.join(["clew", *words[:1], "--help"])
    right = next((right for right, wrong in RIGHT_COMMANDS.items() if name in wrong.split()), None)
    if right is None:
        return None
    if not words and right in verbs and verbs[right].first:
        return verbs[right].example
    return shlex.join(["clew", *right.split(), *words])


def right_options(verb: "Verb", words: list[str]) -> str | None:
    """Return the command with the right options in place of those that it does not have."""
    known = {option for param in verb.params for option in param.opts} | {"--help", "-h"}
    first, others, environment, left = list[str](), list[str](), "", list(words)
    while left:
        word = left.pop(0)
        typed, equals, value = word.partition("=")
        if not typed.startswith("-") or typed.replace("_", "-") in known:
            is_config = verb.first is not None and verb.first.name == "config"
            others += (is_config and triple_options(word)) or [word]
            continue
        name = typed.lstrip("-").replace("-", "_")
        right = next((r for r, wrong in RIGHT_OPTIONS.items() if name in wrong.split()), None)
        takes_value = right is None or right == "" or right.endswith("=")
        if takes_value and not equals and left and not left[0].startswith("-"):
            value = left.pop(0)
        if name in ("gpu", "gpus"):
            environment = f"CUDA_VISIBLE_DEVICES={value or 0} "
        elif right == "" and value and verb.first:
            first = triple_options(value) or [value]
        elif right and not (takes_value and not value):
            others.append(right + value)
        elif value and verb.is_configured and _is_setting(name):
            others.append(f"{name}={value}")
        else:
            return None
    return environment + shlex.join(["clew", str(verb.name), *first, *others])


def _is_setting(name: str) -> bool:
    try:
        return bool(full_key(name))
    except ConfigError:
        return False


def triple_options(given: str) -> list[str]:
    """Return the options for a folder or file of triples and the other splits beside it."""
    path = Path(given)
    if os.path.isdir(path):  # Path.is_dir raises for text that cannot be a path
        path = next(iter(sorted(path.glob("train.*"))), path)
    if not os.path.isfile(path) or path.suffix in SUFFIXES:
        return []
    beside = {s: path.with_name(path.name.replace("train", s, 1)) for s in ("valid", "test")}
    found = {"train": path} | {s: p for s, p in beside.items() if p != path and p.is_file()}
    return [word for split, file in found.items() for word in (f"--{split}", str(file))]


def answered(wrong: str, right: str) -> UsageError:
    """Return the error for a wrong guess; it says what to type instead."""
    return UsageError(f"{wrong}; type: {right}")

"""`python -m clew`: the command line. Every error becomes one line and an exit code."""

import logging
import os
import re
import shlex
import shutil
import signal
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from clew import processes
from clew.errors import ClewError, UsageError, described, masked, of_the_system, printable

MAX_CHARACTERS = 1_500
"""Longest error message; longer ones, for example with a long file name, are cut."""


def main() -> None:
    """Run the command line and exit with the code that `clew.errors` lists.

    A SIGTERM, or the end of its terminal, stops a command like Ctrl-C does, so that its run is
    closed and does not look alive. `nohup` keeps it going.
    """
    signal.signal(signal.SIGTERM, _end_once)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _end_once)
    processes.end_with_parent()
    processes.end_at_second_signal()
    processes.collect_garbage_rarely()
    try:
        os.getcwd()
    except OSError:  # Intel's MKL would end the process with its own message
        problem = "the current folder does not exist any more; change to one that exists"
        sys.exit(_report(problem, UsageError.exit_code))
    try:
        from clew.runs.hardware import prepare_threads  # `clew.runs` sets the variables of MLflow

        prepare_threads(os.environ)
        _log_to_stderr()
    except KeyboardInterrupt:
        sys.exit(_report("interrupted", 130))
    sys.exit(run(sys.argv[1:]))


def _log_to_stderr() -> None:
    from clew.cli.output import is_main_process

    # Of the processes that torchrun starts, only the main one logs progress; all report errors.
    usual = "INFO" if is_main_process() else "WARNING"
    shown = logging.StreamHandler(sys.stderr)
    shown.setFormatter(_OneLine("clew: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[shown])
    level = os.environ.get("CLEW_LOG_LEVEL") or usual
    if level.upper() not in logging.getLevelNamesMapping():
        expected = "expected DEBUG, INFO, WARNING, ERROR or CRITICAL"
        sys.exit(_report(f"CLEW_LOG_LEVEL is {level!r}; {expected}", UsageError.exit_code))
    logging.getLogger("clew").setLevel(level.upper())
    # MLflow raises each of these errors too; a run's log keeps them with their tracebacks.
    database = logging.getLogger("mlflow.store.db")
    database.addHandler(logging.NullHandler())
    database.propagate = False


class _OneLine(logging.Formatter):
    """Escapes characters that cannot be printed, which a file name can contain; masks secrets."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return printable(masked(super().formatMessage(record)))


def _end_once(_number: int, _frame: FrameType | None) -> None:
    """Stop the command at the first such signal; later ones do not interrupt cleanup.

    When a parent process is killed, Linux sends one SIGTERM for each of the parent's threads (see
    `end_with_parent`).
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # only `end_at_second_signal` counts later ones
    raise KeyboardInterrupt


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; an error becomes one line on standard error."""
    # An option with an empty value counts as not given, because `mlflow run` passes every option.
    given = [word for word in arguments if not re.fullmatch(r"--[\w-]+=", word)]
    processes.typed_command.set(shlex.join(["clew", *given]))
    try:
        with keeping_reason():
            from clew.cli import cli

            try:
                result = cli.main(arguments, prog_name="clew", standalone_mode=False)
            except click.Abort:  # which click makes of a KeyboardInterrupt
                raise KeyboardInterrupt from None
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        if context is not None:
            usage = f"{context.get_usage()}\nTry '{context.command_path} --help' for help.\n"
            click.echo(usage, err=True)
        return _report(error.format_message(), error.exit_code)
    except (ClewError, KeyboardInterrupt, OSError) as error:
        if (code := ended_by(error)) is None:
            raise
        return code
    return result if isinstance(result, int) else 0


def ended_by(error: BaseException) -> int | None:
    """Report an error, and return the exit code; None if it is a bug, which is not reported."""
    found = of_the_system(error) if isinstance(error, OSError) else error
    if isinstance(found, ClewError):
        return _report(str(found), found.exit_code)
    return _report("interrupted", 130) if isinstance(error, KeyboardInterrupt) else None


@contextmanager
def keeping_reason() -> Iterator[None]:
    """Keep with its runs why a command ends, also before a tracker exists for the run.

    Every run that the command opened and that has not ended is ended, and so is the run that
    `mlflow run` opened for this command.
    """
    from clew.runs.base import OPEN, outcome_of  # `clew.runs` sets the variables of MLflow

    # Under torchrun, each process has the variable; the main one records the run.
    run_id = os.environ.get("MLFLOW_RUN_ID") if os.environ.get("RANK", "0") == "0" else None
    before = set(OPEN)
    try:
        yield
    except BaseException as error:
        for tracker in OPEN - before:
            tracker.__exit__(type(error), error, error.__traceback__)
        if run_id:
            try:
                from clew.runs.mlflow_store import end_unused_run

                end_unused_run(run_id, *outcome_of(error))
            except Exception as problem:
                said = f"run {run_id} does not say why it ended: {described(problem)}"
                logging.getLogger("clew").warning(said)
        raise


def _report(message: str, exit_code: int) -> int:
    line = masked(" ".join(message.split()))
    if len(line) > MAX_CHARACTERS:
        line = line[: MAX_CHARACTERS - 1] + "…"
    text = f"clew: error: {printable(line)}"
    if sys.stderr.isatty():  # a program reads one line
        text = textwrap.fill(text, shutil.get_terminal_size().columns, break_on_hyphens=False)
    sys.stderr.write(f"{text}\n")
    return exit_code


if __name__ == "__main__":
    main()

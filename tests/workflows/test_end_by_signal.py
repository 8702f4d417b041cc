"""A command ends when it gets a signal, at any moment."""

import os
import signal
import subprocess
import sys
import time

import pytest

from clew.processes import _watch

HANGING = """
import itertools, signal, sys, time
from clew import __main__ as program, processes

# A shell that starts tests in the background lets them ignore this signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
processes.STOPPED_WITHIN_SECONDS = 0.5

def busy(arguments):
    while arguments == ["in C"]:
        try:
            print("busy", flush=True)
            sum(itertools.repeat(1))  # never ends, and no Python runs meanwhile in any thread
        except KeyboardInterrupt:  # of a signal that came just before
            continue
    try:
        print("busy", flush=True)
        time.sleep(100)
    except KeyboardInterrupt:
        time.sleep(1.0)  # what protects data may take longer than that, after one signal
        print("closed", flush=True)
        return 130

program.run = busy
program.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_command_within_a_call_of_compiled_code(number: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HANGING, "in C"], stdout=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "busy\n"
        while command.poll() is None:  # a loaded machine may take two signals for one
            command.send_signal(number)
            time.sleep(0.5)
    assert command.returncode == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_may_take_its_time_to_stop_after_one_signal(number: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HANGING], stdout=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == "busy\n"
        command.send_signal(number)
        assert command.stdout.read() == "closed\n"
    assert command.returncode == 130


def test_threads_of_a_parent_that_was_killed_send_one_request_together() -> None:
    """One SIGTERM for each of its threads, at the same moment."""
    told, tells = os.pipe()
    os.write(tells, bytes([signal.SIGTERM] * 20))
    os.close(tells)
    _watch(told, os.getpid())  # would kill this process
    assert os.read(told, 1) == b"", "every request is read before the watch ends"

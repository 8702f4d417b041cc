"""A command ends when it gets a signal, at any moment."""

import subprocess
import sys

COMMAND = """
import signal, time, weakref
from clew import __main__ as program

class Thing:
    pass

def busy(arguments):
    thing = Thing()
    watched = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGTERM))
    del thing  # Python swallows what the callback raises
    try:
        time.sleep(100)
    except KeyboardInterrupt:
        return 130
    return 0

program.run = busy
program.main()
"""


def test_a_sigterm_within_a_callback_ends_a_command_too() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMAND], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (130, "")

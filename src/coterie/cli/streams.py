"""Standard streams that are closed, full or gone."""

import os
import sys


def fill_gaps() -> None:
    """Where a standard stream is closed, the next file that is opened takes its number, and whatever is said then is
    written into that file."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # the lowest number that is free
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        # of standard output commands want to know
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def mute_output() -> None:
    """Nobody reads what is still to be said, and Python would complain about it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

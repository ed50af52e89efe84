"""What the tests of commands share."""

import signal
import sys

import pytest

from coterie.cli.main import main


@pytest.fixture(autouse=True)
def interruptible():
    """A shell ignores Ctrl-C on behalf of what it runs in the background; commands would leave that as it is."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def coterie(monkeypatch, capsys):
    """Runs a command in this process: (exit code, standard output, standard error)."""

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["coterie", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stopped:
            code = stopped.code or 0
        told = capsys.readouterr()
        return code, told.out, told.err

    return command

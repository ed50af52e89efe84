"""What the tests of commands share."""

import signal
import sys

import pytest

from coterie.cli.main import main


@pytest.fixture(autouse=True)
def interruptible():
    """Shells and nohup ignore signals on behalf of what they start; commands would leave that as it is."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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

"""Processor time of an engine's processes and the sites', by part: what a busy machine does not change."""

import contextlib
import os

from coterie.relay.processes import marked

_TICKS = os.sysconf("SC_CLK_TCK")
# by what stands in the command of a process
_PARTS = {
    "site serve": "sites",
    "runner_process": "engine: worker at the server",
    "worker_process": "engine: workers at sites",
    "server_train": "engine: server",
    "client_train": "engine: sites",
}


def processor_time(folder, coordinator=None):
    """Seconds so far of what was started for a folder, by part and process, and of the process that coordinates."""
    spent = {}
    for pid in marked(folder):
        try:
            command = _command(pid)
            part = next((part for what, part in _PARTS.items() if what in command), "engine: the rest")
            spent[part, pid] = _seconds(pid)
        except OSError:
            # it has ended
            continue
    if coordinator is not None:
        spent["coordinator", coordinator] = _seconds(coordinator)
    return spent


def is_named(folder, word):
    """Whether this word stands in the command of a process that was started for a folder."""
    for pid in marked(folder):
        with contextlib.suppress(OSError):
            if word in _command(pid):
                return True
    return False


def per_round(before, after, n_rounds):
    """By part, of processes that were there before and are there after."""
    found = {}
    for (part, pid), spent in before.items():
        if (part, pid) in after:
            found[part] = found.get(part, 0.0) + (after[part, pid] - spent) / n_rounds
    return found


def _command(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().replace(b"\0", b" ").decode(errors="replace")


def _seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS

"""Processor time of an engine's processes and the sites', by part: what a busy machine does not change."""

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
    """Seconds so far of what was started for a folder, by part, and of the process that coordinates."""
    spent = {}
    for pid in marked(folder):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read().replace(b"\0", b" ").decode(errors="replace")
            spent_here = _seconds(pid)
        except OSError:
            # it has ended
            continue
        part = next((part for what, part in _PARTS.items() if what in command), "engine: the rest")
        spent[part] = spent.get(part, 0.0) + spent_here
    if coordinator is not None:
        spent["coordinator"] = _seconds(coordinator)
    return spent


def per_round(before, after, n_rounds):
    """Of processes that were there before."""
    return {part: (after[part] - spent) / n_rounds for part, spent in before.items() if part in after}


def _seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS

"""NVIDIA FLARE carries envelopes: a provisioned server and sites with mutual TLS, through its Collab interface.

Sites and coordinator's user connect to the server, and to nobody else. A job of ours names two classes of this package
(`relay.nvflare_job`) and brings no code; kits made here allow these classes and nothing else. FLARE does not let a site
that was killed back into a running job, so a job that has lost one ends, and another is submitted: everything goes on
from the stores of sites and coordinator.
"""

import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError, InputError, MissingExtraError
from coterie.relay.at_site import SOCKET as SITE
from coterie.relay.hub import SOCKET as HUB
from coterie.relay.hub import Hub
from coterie.relay.processes import Processes, free_ports, mark
from coterie.site.sockets import Exchange, UnreachableError

_LOGGER = logging.getLogger("coterie")

# as FLARE knows whoever submits jobs
USER = "coordinator@coterie.local"
# in the coordinator's kit: FLARE's names of the parties, and where the hub listens
KIT = "kit.json"
_PROJECT = "coterie"
_CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
_EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
_CALLS = "nvflare.collab.runtime.cell_dispatcher"
_AT_SERVER, _AT_SITE = "coterie.relay.nvflare_job.AtServer", "coterie.relay.nvflare_job.AtSite"
# whoever has the coordinator's kit may submit our job and look after it; neither code of its own nor shell commands
_PERMISSIONS = {
    "submit_job": "any", "clone_job": "none", "manage_job": "n:submitter", "download_job": "n:submitter",
    "view": "any", "operate": "none", "shell_commands": "none", "byoc": "none",
}  # fmt: skip
POLL_S = 0.5
# within which a submitted job must have reached the hub
START_S = 180.0
# before another one is submitted after one that has not
PAUSE_S = 5.0
# jobs that may end so before the first one reaches it
MOST_FAILURES = 6


def check_installed() -> None:
    if find_spec("nvflare") is None:
        raise MissingExtraError("the engine 'nvflare' needs NVIDIA FLARE: pip install 'coterie[nvflare]'")


@contextlib.contextmanager
def on_this_machine(folder: Path, sockets: dict[str, Path]) -> Iterator[Exchange]:
    """A server and a site for every party on loopback; what has ended is started again."""
    check_installed()
    # what is started works in folders of its own
    folder = folder.resolve()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    kits = folder / "kits"
    processes = Processes(folder)
    try:
        if not kits.exists():
            make_kits(kits, list(sockets), server="localhost", port=free_ports(1)[0], hub=folder / "coordinator.sock")
        names = _read_kit(kits / USER)["parties"]
        start(processes, kits, "localhost", {HUB: str(folder / "coordinator.sock")})
        for party, path in sockets.items():
            start(processes, kits, names[party], {SITE: str(path.resolve())})
        started = ["localhost", *(names[party] for party in sockets)]

        def check() -> None:
            for name in started:
                processes.check_started(name)

        with _carrying(kits / USER, list(sockets), check) as carry:
            yield carry
    finally:
        processes.stop()


@contextlib.contextmanager
def between_machines(kit: Path, parties: Sequence[str]) -> Iterator[Exchange]:
    """`kit` is the coordinator's start-up kit; the server runs on this machine, the sites where they like."""
    check_installed()
    with _carrying(kit, parties, lambda: None) as carry:
        yield carry


def start(processes: Processes, kits: Path, name: str, more: dict[str, str]) -> None:
    """What a kit's own script starts, with this Python; `more` is for its environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    command = ["bash", str(kits / name / "startup" / "sub_start.sh"), "--once"]
    processes.start(name, command, {**os.environ, "PATH": path, **more})


# --- kits -------------------------------------------------------------------------------------------------------------


def make_kits(
    folder: Path,
    parties: Sequence[str],
    *,
    server: str,
    port: int,
    hub: Path,
    group: str | None = None,
    storage: Path | None = None,
) -> dict[str, str]:
    """New start-up kits in `folder`: for the server under its name, for the sites under the names that are returned, by
    party, and for USER. The key of the certificate authority is not kept.

    server: a host name that the sites can reach. hub: where the coordinator listens, on the server's machine. group: of
    the server's user there, where it is another than the coordinator's. storage: where the server keeps jobs, in its
    own kit if left out.
    """
    check_installed()
    names = {party: f"site-{number}" for number, party in enumerate(parties)}
    workspace = folder.with_name(f"{folder.name}-provisioned")
    project = folder.with_name(f"{folder.name}-project.json")
    # of a start that was stopped before its kits were made: FLARE would leave it, and make others beside it
    shutil.rmtree(workspace, ignore_errors=True)
    # JSON is YAML
    project.write_text(json.dumps(_project(server, port, list(names.values())), indent=1))
    done = subprocess.run(
        [sys.executable, "-m", "nvflare.cli", "provision", "-p", str(project), "-w", str(workspace), "--force"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder.parent,
        # as what Processes starts, or it might outlive an interrupt
        env={**os.environ, **mark(folder)},
    )
    made = workspace / _PROJECT / "prod_00"
    if done.returncode != 0 or not made.is_dir():
        told = " ".join((done.stdout + done.stderr).split())[-300:]
        raise CoterieError(f"nvflare: no start-up kits could be made ({told})")
    _restrict(made / server, storage=storage or folder / server)
    for name in names.values():
        _restrict(made / name)
    kit = {"engine": "nvflare", "parties": names, "socket": str(hub), "group": group}
    (made / USER / KIT).write_text(json.dumps(kit, indent=1), encoding="utf-8")
    made.rename(folder)
    shutil.rmtree(workspace)
    project.unlink()
    return names


def _project(server: str, port: int, names: list[str]) -> dict[str, Any]:
    participants = [{"name": server, "type": "server", "org": _PROJECT, "fed_learn_port": port}]
    participants += [{"name": name, "type": "client", "org": _PROJECT} for name in names]
    participants += [{"name": USER, "type": "admin", "org": _PROJECT, "role": "lead"}]
    builders = [("workspace.WorkspaceBuilder", {"template_file": ["master_template.yml"]})]
    builders += [("static_file.StaticFileBuilder", {"config_folder": "config"})]
    builders += [("cert.CertBuilder", {}), ("signature.SignatureBuilder", {})]
    return {
        "api_version": 3,
        "name": _PROJECT,
        "description": "sealed envelopes between a coordinator and sites",
        "participants": participants,
        "builders": [{"path": f"nvflare.lighter.impl.{path}", "args": args} for path, args in builders],
    }


def _restrict(kit: Path, *, storage: Path | None = None) -> None:
    """Allow the one job there is, and send nobody any logs. storage: of a server."""
    local = kit / "local"
    resources = json.loads((local / "resources.json.default").read_text())
    resources["class_list_enforcement_mode"] = "enforce"
    resources["class_allow_list"] = [_EXECUTOR, _AT_SITE] if storage is None else [_CONTROLLER, _AT_SERVER]
    parts = {part["id"]: part for part in resources["components"]}
    for streaming in ("log_receiver", "site_log_streamer"):
        parts.pop(streaming, None)
    if storage is None:
        resources["allow_log_streaming"] = False
    else:
        resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(storage / "snapshots")
        parts["job_manager"]["args"]["uri_root"] = str(storage / "jobs")
        # a site that comes back is waited for seconds, not minutes
        often = {"min_schedule_interval": 1.0, "max_schedule_interval": 4.0, "max_schedule_count": 10**6}
        parts["job_scheduler"]["args"] = {"max_jobs": 4, **often}
    resources["components"] = list(parts.values())
    (local / "resources.json").write_text(json.dumps(resources, indent=1))
    logging_of = json.loads((local / "log_config.json.default").read_text())
    # else every call is told in three places, twice
    logging_of["loggers"][_CALLS] = {"level": "WARNING"}
    (local / "log_config.json").write_text(json.dumps(logging_of, indent=1))
    rules = {"format_version": "1.0", "permissions": {"lead": _PERMISSIONS}}
    (local / "authorization.json").write_text(json.dumps(rules, indent=1))


def _read_kit(kit: Path) -> dict[str, Any]:
    try:
        content = json.loads((kit / KIT).read_text(encoding="utf-8"))
        fits = content.pop("engine") == "nvflare" and content.keys() == {"parties", "socket", "group"}
        fits = fits and (kit / "startup").is_dir()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        fits, content = False, {}
    if not fits:
        raise InputError(f"--kit: {str(kit)!r} is no coordinator's kit for NVIDIA FLARE; `coterie deploy` writes one")
    return content


# --- the job ----------------------------------------------------------------------------------------------------------


def write_job(folder: Path, names: dict[str, str], at_server: str, arguments: dict[str, Any], at_site: str) -> None:
    """What FLARE is asked to run: two classes by name, and nothing about what is computed."""
    config = folder / "app" / "config"
    config.mkdir(mode=0o700, parents=True, exist_ok=True)
    sites = list(names.values())
    meta = {"name": _PROJECT, "resource_spec": {}, "min_clients": len(sites), "mandatory_clients": sites}
    executor = {"path": _EXECUTOR, "args": {"client_obj_id": "_client"}}
    configs = {
        "server": {
            "workflows": [{"id": "controller", "path": _CONTROLLER, "args": {"server_obj_id": "_server"}}],
            "components": [{"id": "_server", "path": at_server, "args": arguments}],
        },
        "client": {
            "executors": [{"tasks": ["*"], "executor": executor}],
            "components": [{"id": "_client", "path": at_site, "args": {}}],
        },
    }
    (folder / "meta.json").write_text(json.dumps({**meta, "deploy_map": {"app": ["server", *sites]}}))
    for name, content in configs.items():
        (config / f"config_fed_{name}.json").write_text(json.dumps({"format_version": 2, **content}))


@contextlib.contextmanager
def _carrying(kit: Path, parties: Sequence[str], check: Callable[[], None]) -> Iterator[Exchange]:
    """check: raises where something that was just started has ended already."""
    content = _read_kit(kit)
    missing = [party for party in parties if party not in content["parties"]]
    if missing:
        raise InputError(f"--kit: the party {missing[0]!r} is not among those of {str(kit / KIT)!r}")
    names = {party: content["parties"][party] for party in parties}
    write_job(kit / "job", names, _AT_SERVER, {"parties": names}, _AT_SITE)
    with Hub.at(Path(content["socket"]), group=content["group"]) as hub:
        jobs = _Jobs(hub, kit, check)
        keeping = threading.Thread(target=jobs.keep, daemon=True)
        try:
            keeping.start()
            yield jobs.exchange
        finally:
            jobs.stop.set()
            if keeping.ident is not None:
                keeping.join()


class RefusedError(UnreachableError):
    """The server is there, and does not do what it is asked."""


class Session:
    """Asks FLARE's server, through a process that lasts until something goes wrong (`relay.nvflare_session`)."""

    def __init__(self, kit: Path) -> None:
        # FLARE takes other paths to begin in a folder of its own
        self.kit = kit.resolve()
        self._process: subprocess.Popen[str] | None = None

    def ask(self, command: str, about: str) -> str:
        """UnreachableError where the server is away or still starting, RefusedError where it does not do it."""
        if self._process is None:
            with open(self.kit / "session.log", "ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "coterie.relay.nvflare_session", USER, str(self.kit)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    # as what Processes starts, or it might outlive an interrupt
                    env={**os.environ, **mark(self.kit)},
                    start_new_session=True,
                )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(command, about, file=self._process.stdin, flush=True)
            told = json.loads(self._process.stdout.readline())
        except (OSError, ValueError):
            told = {"error": "the session has ended"}
        if "error" in told:
            self.close()
            raise (RefusedError if told.get("logged_in") else UnreachableError)(told["error"])
        return told["value"]

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


class _Jobs:
    """Sees to it that there is a job at the hub: submits one, and another when that has ended."""

    def __init__(self, hub: Hub, kit: Path, check: Callable[[], None]) -> None:
        self.hub, self.check = hub, check
        self.stop = threading.Event()
        self._broken: str | None = None
        self._session = Session(kit)
        self._job: str | None = None
        self._submitted, self._not_before, self._reached = 0.0, 0.0, False
        # until a job has reached the hub
        self._failures: int | None = 0

    def exchange(self, party: str, envelope: bytes) -> bytes:
        try:
            return self.hub(party, envelope)
        except UnreachableError:
            if self._broken is not None:
                raise CoterieError(self._broken) from None
            raise

    def keep(self) -> None:
        try:
            while not self.stop.is_set() and self._broken is None:
                self._look()
                self.stop.wait(POLL_S)
        except Exception as error:
            self._broken = f"nvflare: {' '.join(str(error).split())[:300] or type(error).__name__}"
        finally:
            self._end()

    def _look(self) -> None:
        if self.hub.connected:
            self._reached, self._failures = True, None
            return
        if self._failures is not None:
            self.check()
        if time.monotonic() < self._not_before:
            return
        try:
            # a job whose worker has left the hub never comes back to it
            if self._job is None or self._reached or self._has_ended():
                self._submit()
        except RefusedError as error:
            self._job = None
            self._failed(str(error))
        except UnreachableError as error:
            # its server is away, or still starting
            _LOGGER.debug("nvflare: %s", error)

    def _has_ended(self) -> bool:
        assert self._job is not None
        status = f"not begun in {START_S:g} seconds"
        if time.monotonic() - self._submitted <= START_S:
            status = self._session.ask("status", self._job)
            if not status.startswith("FINISHED"):
                return False
        self._failed(status)
        return True

    def _failed(self, why: str) -> None:
        _LOGGER.debug("nvflare: a job carried nothing: %s", why)
        self._not_before = time.monotonic() + PAUSE_S
        # a site that is away makes jobs fail, for as long as the proposal waits; what never worked is another matter
        if self._failures is not None:
            self._failures += 1
            if self._failures >= MOST_FAILURES:
                raise CoterieError(f"{MOST_FAILURES} jobs in a row ended without carrying anything ({why})")

    def _submit(self) -> None:
        self._job = self._session.ask("submit", str(self._session.kit / "job"))
        self._submitted, self._reached = time.monotonic(), False
        _LOGGER.debug("nvflare: submitted the job %s", self._job)

    def _end(self) -> None:
        """A job ends by itself when the hub goes; one that has not begun must not begin."""
        if self._job is not None and not self.hub.connected:
            with contextlib.suppress(UnreachableError):
                self._session.ask("abort", self._job)
        self._session.close()

"""Flower as the carrier: a SuperLink beside the coordinator, a SuperNode at every site.

    coordinator ── hub ── ServerApp ── SuperLink ══ TLS ══ SuperNode ── ClientApp ── the site's socket

SuperNodes connect outwards and log in with a key that the coordinator has registered under their party's name. What
Flower carries are sealed envelopes. It starts a process for every message and a node looks for new ones every three
seconds, so a round takes seconds: plans for it are short.

A folder that holds what the coordinator's end needs is a kit; `coterie deploy` writes one, and one is made for a run on
this machine:

    kit.json              the SuperLink's address, the parties' names, and where the hub listens
    ca.crt                whose certificate the SuperLink must show
    nodes/0.pub ...       the keys that nodes log in with, in the order of the names
    app/pyproject.toml    names the two apps, which are in this package
"""

import contextlib
import dataclasses
import importlib.util
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import tomli_w

from coterie.errors import CoterieError, InputError, MissingExtraError
from coterie.relay.at_site import SOCKET as SITE_SOCKET
from coterie.relay.certificates import Authority, write_node_key
from coterie.relay.hub import Hub
from coterie.relay.processes import LOOPBACK, Processes, end_all, free_ports, mark
from coterie.site.sockets import Exchange

# what the SuperLink is called in Flower's own configuration
CONNECTION = "coterie"
# in the run's configuration, for the ServerApp
COORDINATOR_SOCKET = "coordinator-socket"
# for a SuperLink to come up
READY_S = 120.0
# for a ServerApp to come up, before it is submitted again
CONNECT_S = 90.0
_LOOK_S, _PAUSE_S = 0.1, 2.0
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"}
_APP = {
    "project": {"name": "coterie-relay", "version": "1.0.0", "description": "", "dependencies": []},
    "tool": {
        "flwr": {
            "app": {
                "publisher": "coterie",
                "components": {
                    "serverapp": "coterie.relay.flower_apps:server",
                    "clientapp": "coterie.relay.flower_apps:client",
                },
                "config": {COORDINATOR_SOCKET: ""},
            }
        }
    },
}
LOGGER = logging.getLogger("coterie.relay.flower")


@contextlib.contextmanager
def on_this_machine(folder: Path, sockets: dict[str, Path]) -> Iterator[Exchange]:
    """A SuperLink and a SuperNode for every site, with certificates, on loopback; all of them gone at the end.

    Everything in the folder is made anew: what a run needs to go on is at its coordinator and its sites.
    """
    check_installed()
    end_all(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    port, *ports = free_ports(1 + len(sockets))
    address = f"{LOOPBACK}:{port}"
    authority = Authority("Coterie on this machine")
    authority.write_certificate(folder / "ca.crt")
    authority.write_server(folder / "server.crt", folder / "server.key", ["localhost", LOOPBACK])
    kit = Kit(folder, address, tuple(sockets))
    kit.write([write_node_key(folder / f"node-{number}") for number in range(len(sockets))])
    processes = Processes(folder)
    try:
        command = superlink(folder, LOOPBACK, port, database=folder / "superlink.db")
        processes.start("superlink", command, environment(folder / "home"))
        _wait_for(processes, port)
        kit.write_connection()
        kit.register()
        for number, (path, own) in enumerate(zip(sockets.values(), ports, strict=True)):
            home = folder / f"home-{number}"
            home.mkdir(mode=0o700, exist_ok=True)
            command = supernode(address, folder / "ca.crt", folder / f"node-{number}", own)
            processes.start(f"supernode-{number}", command, {**environment(home), SITE_SOCKET: str(path)})
        with kit.submitted(registered=True) as hub:
            yield hub
    finally:
        processes.stop()


@contextlib.contextmanager
def between_machines(kit: Path, parties: Sequence[str]) -> Iterator[Exchange]:
    """A SuperLink that runs already, with SuperNodes of other machines."""
    check_installed()
    found = Kit.read(kit)
    missing = [name for name in parties if name not in found.parties]
    if missing:
        raise InputError(f"--kit: {str(kit)!r} has no node for {missing[0]!r}; it has {', '.join(found.parties)}")
    found.write_connection()
    with found.submitted(registered=False) as hub:
        yield hub


def check_installed() -> None:
    if importlib.util.find_spec("flwr") is None:
        raise MissingExtraError("engine: 'flower' needs Flower: pip install 'coterie[flower]'")


# --- the commands that start it ---------------------------------------------------------------------------------------


def superlink(folder: Path, host: str, port: int, *, database: Path) -> list[str]:
    """folder: with its certificate and key."""
    return [
        _program("flower-superlink"),
        *("--host", host, "--port", str(port), "--database", str(database)),
        *("--ssl-ca-certfile", str(folder / "ca.crt")),
        *("--ssl-certfile", str(folder / "server.crt"), "--ssl-keyfile", str(folder / "server.key")),
        # apps are in this package; nothing is fetched for them
        *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
    ]


def supernode(address: str, authority: Path, key: Path, port: int) -> list[str]:
    """port: of its own, for the processes that it starts on its machine."""
    return [
        _program("flower-supernode"),
        *("--superlink", address, "--root-certificates", str(authority)),
        *("--auth-supernode-private-key", str(key), "--host", LOOPBACK, "--port", str(port)),
    ]


def _program(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def environment(home: Path) -> dict[str, str]:
    # Flower starts its own programs by name
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": path}


# --- the coordinator's end --------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Kit:
    """The coordinator's end.

    socket: where the hub listens; in the folder when left out. group: of the SuperLink's user, where it is another one.
    """

    folder: Path
    address: str
    parties: tuple[str, ...]
    socket: str | None = None
    group: str | None = None

    def write(self, public_keys: Sequence[Path]) -> None:
        """All but ca.crt; keys in the order of the parties."""
        for name in ("app", "nodes"):
            (self.folder / name).mkdir(exist_ok=True)
        (self.folder / "app" / "pyproject.toml").write_text(tomli_w.dumps(_APP), encoding="utf-8")
        for number, key in enumerate(public_keys):
            (self.folder / "nodes" / f"{number}.pub").write_bytes(key.read_bytes())
        content = {"engine": "flower", **dataclasses.asdict(self)}
        del content["folder"]
        (self.folder / "kit.json").write_text(json.dumps(content, indent=1), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> "Kit":
        try:
            content = json.loads((folder / "kit.json").read_text(encoding="utf-8"))
            names = tuple(content["parties"])
            if content.pop("engine") == "flower" and all(isinstance(name, str) for name in names):
                return cls(folder, **{**content, "parties": names})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        raise InputError(f"--kit: {str(folder)!r} is no coordinator's kit for Flower; `coterie deploy` writes one")

    @contextlib.contextmanager
    def submitted(self, *, registered: bool) -> Iterator[Hub]:
        """A hub, and an app at the SuperLink that carries what it hands out; submitted again whenever it is lost.

        registered: whether the SuperLink knows the nodes already.
        """
        path, ended = Path(self.socket) if self.socket else self.folder.resolve() / "hub.sock", threading.Event()
        with Hub.at(path, group=self.group) as hub:
            keeper = threading.Thread(target=self._keep_submitted, args=(hub, path, ended, registered), daemon=True)
            try:
                keeper.start()
                yield hub
            finally:
                ended.set()
                if keeper.ident is not None:
                    keeper.join()

    def _keep_submitted(self, hub: Hub, path: Path, ended: threading.Event, registered: bool) -> None:
        said = ""
        while not ended.wait(_LOOK_S):
            if hub.connected:
                continue
            try:
                if not registered:
                    self.register()
                registered = True
                self.flwr("run", "app", CONNECTION, "--run-config", f"{COORDINATOR_SOCKET}={json.dumps(str(path))}")
            except CoterieError as error:
                # it is not there now, and the coordinator waits for as long as was agreed
                if str(error) != said and not ended.is_set():
                    said = str(error)
                    LOGGER.warning("coterie: the SuperLink does not take what is sent (%s); trying again", said)
                ended.wait(_PAUSE_S)
                continue
            end = time.monotonic() + CONNECT_S
            while not hub.connected and not ended.is_set() and time.monotonic() < end:
                time.sleep(_LOOK_S)

    def register(self) -> None:
        """Tell the SuperLink which nodes may log in, each under its party's name."""
        for number, party in enumerate(self.parties):
            self.flwr("supernode", "register", f"nodes/{number}.pub", CONNECTION, f"--name={party}")

    def write_connection(self) -> None:
        """Where the SuperLink is, as `flwr` reads it."""
        home = self.folder / "home"
        home.mkdir(mode=0o700, exist_ok=True)
        connection = {"address": self.address, "root-certificates": str(self.folder.resolve() / "ca.crt")}
        content = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
        (home / "config.toml").write_text(tomli_w.dumps(content), encoding="utf-8")

    def flwr(self, *arguments: str) -> None:
        done = subprocess.run(
            [_program("flwr"), *arguments],
            cwd=self.folder,
            # marked as what Processes starts, or it would outlive an interrupt
            env={**environment(self.folder.resolve() / "home"), **mark(self.folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        said = done.stdout + done.stderr
        if done.returncode != 0 and "Public key already in use" not in said:
            raise CoterieError(f"flwr {arguments[0]}: {' '.join(said.split())[-400:] or 'it failed'}")


def _wait_for(processes: Processes, port: int) -> None:
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        processes.check_started("superlink")
        with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
            return
        time.sleep(0.1)
    raise CoterieError(f"the SuperLink did not come up in {READY_S:g} seconds: {processes.last_words('superlink')}")

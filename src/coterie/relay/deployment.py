"""What separate machines need: certificates, keys and start-up kits of an engine, units for systemd, a page for each.

    coordinator/    for whoever runs `coterie coordinate`
    server/         for the machine that sites connect to, which may be the same one
    sites/PARTY/    for each site's machine

At a site two users share one socket and nothing else: `coterie` holds records, keys and ledger and has no network;
`coterie-relay` has the network and nothing that is worth stealing, because an engine runs whatever code its server
hands it. On the server's machine the coordinator's key is as far from the engine.
"""

import importlib
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from coterie.errors import InputError
from coterie.relay.certificates import check_host
from coterie.values import check_plain

# where things are on machines that are set up by these kits
PROGRAMS = "/opt/coterie/bin"
KIT = "/etc/coterie"
SITE = "/var/lib/coterie/site"
SITE_SOCKET = "/run/coterie/site.sock"
HUB_SOCKET = "/run/coterie-hub/hub.sock"
RELAY_HOME = "/var/lib/coterie-relay"
OWNER, RELAY = "coterie", "coterie-relay"
# where the coordinator listens; it must outlive an engine's server that is started again
HUB_FOLDER = "RuntimeDirectory=coterie-hub\nRuntimeDirectoryMode=0770\nRuntimeDirectoryPreserve=yes\n"

_MODULES = {"flower": "coterie.relay.flower_deployment", "nvflare": "coterie.relay.nvflare_deployment"}
_PORTS = {"flower": 9092, "nvflare": 8002}


class Server(NamedTuple):
    """The machine that sites connect to."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, engine: str) -> "Server":
        """HOST or HOST:PORT; of an address of version 6, [HOST]:PORT."""
        wanted = "HOST or HOST:PORT, the machine that all sites can reach, is needed"
        host, separator, port = text.rpartition(":")
        if not separator or text.endswith("]"):
            host, port = text, str(_PORTS[engine])
        if not port.isdecimal() or not 0 < int(port) < 65536 or (":" in host and not host.startswith("[")):
            raise InputError(f"--server: got {text!r}; {wanted}")
        host = host.removeprefix("[").removesuffix("]")
        return cls(check_host("--server", host), int(port))

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def write(folder: Path, engine: str, server: Server, parties: Sequence[str]) -> None:
    """Everything, into an empty folder."""
    _module(engine)(folder, server, parties)
    for name in parties:
        (folder / "sites" / name / "coterie-site.service").write_text(SITE_UNIT, encoding="utf-8")


def check(engine: str, parties: Sequence[str]) -> None:
    """Refuse what cannot be deployed, before anything is written."""
    if engine not in _MODULES:
        raise InputError(f"--engine: got {engine!r}; one of {', '.join(_MODULES)} is needed")
    check_plain("--party", parties)
    for number, name in enumerate(parties):
        if "/" in name or name.startswith(".") or len(name.encode()) > 200:
            raise InputError(f"--party: got {name!r}; a name that a folder can have is needed")
        if name in parties[:number]:
            raise InputError(f"--party: got {name!r} twice; every party has a name of its own")
    if not parties:
        raise InputError("--party: got none; the name of every party is needed")


def _module(engine: str) -> Callable[[Path, Server, Sequence[str]], None]:
    return importlib.import_module(_MODULES[engine]).write


# --- units for systemd ------------------------------------------------------------------------------------------------

# of both kinds of services: nothing but what it needs
SHUT = """\
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
RestrictSUIDSGID=yes
LockPersonality=yes
CapabilityBoundingSet=
UMask=0077
"""

SITE_UNIT = f"""\
[Unit]
Description=Coterie: this site's records, keys, policy and ledger
After=local-fs.target

[Service]
User={OWNER}
# so that it may let the relay connect
SupplementaryGroups={RELAY}
ExecStart={PROGRAMS}/coterie site serve {SITE} --socket {SITE_SOCKET} --group {RELAY}
RuntimeDirectory=coterie
RuntimeDirectoryMode=0755
ReadWritePaths={SITE}
CacheDirectory=coterie
Environment=XDG_CACHE_HOME=/var/cache/coterie
Restart=always
RestartSec=2
# it speaks to the relay on this machine, and to nobody else
PrivateNetwork=yes
RestrictAddressFamilies=AF_UNIX
{SHUT}
[Install]
WantedBy=multi-user.target
"""


def relay_unit(description: str, command: str, environment: dict[str, str], *, more: str = "") -> str:
    """Of a process of the engine, which has the network and nothing else."""
    said = "".join(f"Environment={name}={value}\n" for name, value in environment.items())
    return f"""\
[Unit]
Description={description}
Wants=network-online.target
After=network-online.target

[Service]
User={RELAY}
ExecStart={command}
{said}StateDirectory=coterie-relay
StateDirectoryMode=0700
WorkingDirectory={RELAY_HOME}
# records, keys and ledgers are not its business
InaccessiblePaths=-/var/lib/coterie
Restart=always
RestartSec=5
{more}{SHUT}
[Install]
WantedBy=multi-user.target
"""


def site_steps(name: str, unit: str, server: Server) -> str:
    """What a site's operator does once the files of an engine are in place; `unit` is the engine's."""
    return f"""\
    install -d -m 700 -o {OWNER} {Path(SITE).parent}

The site itself, with records under {Path(SITE).parent} that only `{OWNER}` can read:

    sudo -u {OWNER} /opt/coterie/bin/coterie site init {SITE} --name {shlex.quote(name)} --data RECORDS --schema SCHEMA
    sudo -u {OWNER} /opt/coterie/bin/coterie site identity {SITE}

Send the identity to whoever proposes studies, and compare its fingerprint over another channel. Then

    systemctl daemon-reload
    systemctl enable --now coterie-site {unit}

Nothing happens before a proposal was approved here: `coterie site check`, then `coterie site approve`.

## Firewall

- Outwards: TCP to {server.address}. Nothing comes in: no port is opened, and `coterie-site` has no network at all."""

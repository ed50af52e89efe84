"""What `coterie deploy` writes, started as its units say: two sites, a SuperLink, a study from proposal to result."""

import grp
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="this environment has no Flower; `make test-slow` makes one that has")
sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))

from test_site_commands import SCHEMA, STUDY, write_patients

from coterie.relay.processes import Processes, free_ports

pytestmark = pytest.mark.slow
SIZES = {"north": 90, "south": 75}
GROUP = grp.getgrgid(os.getgid()).gr_name


def coterie(*arguments):
    command = [sys.executable, "-m", "coterie", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def unit(path, places):
    """The command and the environment of a unit, with the places of this test instead of a machine's."""
    text = path.read_text()
    for before, after in places.items():
        assert before in text, before
        text = text.replace(before, str(after))
    lines = [line.partition("=")[::2] for line in text.splitlines()]
    [command] = [value for key, value in lines if key == "ExecStart"]
    environment = dict(value.split("=", 1) for key, value in lines if key == "Environment")
    return shlex.split(command), environment


@pytest.fixture
def deployed(tmp_path):
    """Sites that have approved a study and are served, and all of Flower, by the commands in the kits' units."""
    port, *node_ports = free_ports(1 + len(SIZES))
    named = [word for name in SIZES for word in ("--party", name)]
    told = coterie("deploy", tmp_path / "kits", "--engine", "flower", "--server", f"127.0.0.1:{port}", *named)
    folders = ", ".join(["server", *(f"sites/{name}" for name in sorted(SIZES))])
    assert f"a private key lies in each of {folders}: send" in told
    (tmp_path / "schema.toml").write_text(SCHEMA)
    identities = {}
    for name, size in SIZES.items():
        write_patients(tmp_path / f"{name}.csv", size, seed=size)
        files = ("--data", tmp_path / f"{name}.csv", "--schema", tmp_path / "schema.toml")
        told = coterie("site", "init", tmp_path / name, *files, "--epsilon", 3, "--delta", 1e-5, "--json")
        identities[name] = json.loads(told)["identity"]
    sizes = ", ".join(f"{name} = {size}" for name, size in SIZES.items())
    keys = ", ".join(f'{name} = "{key}"' for name, key in identities.items())
    study = STUDY.format(sizes=sizes, identities=keys).replace("rounds = 3", "rounds = 1")
    (tmp_path / "study.toml").write_text(study.replace("wait_s = 120", "wait_s = 900"))
    coterie("propose", tmp_path / "study.toml", "--out", tmp_path / "study")
    processes = Processes(tmp_path)
    programs = {"/opt/coterie/bin": Path(sys.executable).parent}

    def start(name, path, places):
        command, environment = unit(path, {**programs, **places})
        processes.start(name, command, {**os.environ, **environment})

    try:
        server = tmp_path / "kits" / "server"
        start(
            "link", server / "coterie-superlink.service", {"/etc/coterie": server, "/var/lib/coterie-relay": tmp_path}
        )
        for name, own in zip(SIZES, node_ports, strict=True):
            folder = tmp_path / "kits" / "sites" / name
            coterie("site", "approve", tmp_path / name, tmp_path / "study")
            socket = {"/run/coterie/site.sock": tmp_path / f"{name}.sock"}
            site = {"/var/lib/coterie/site": tmp_path / name, "--group coterie-relay": f"--group {GROUP}"}
            start(f"{name}-site", folder / "coterie-site.service", {**socket, **site})
            relay = {"/etc/coterie": folder, "/var/lib/coterie-relay": tmp_path / f"{name}-relay", "9094": own}
            (tmp_path / f"{name}-relay").mkdir()
            start(f"{name}-node", folder / "coterie-supernode.service", {**socket, **relay})
        kit = tmp_path / "kits" / "coordinator" / "kit.json"
        content = json.loads(kit.read_text())
        kit.write_text(json.dumps({**content, "socket": str(tmp_path / "hub.sock"), "group": GROUP}))
        yield tmp_path
    finally:
        processes.stop()


def test_a_study_runs_through_kits_that_were_deployed(deployed):
    kit = deployed / "kits" / "coordinator"
    told = json.loads(coterie("coordinate", deployed / "study", "--engine", "flower", "--kit", kit, "--json"))
    assert (told["n_parties"], told["rounds"]) == (len(SIZES), 1)
    verified = coterie("certificate", "verify", deployed / "study" / "result")
    assert all(name in verified for name in SIZES)
    for name in SIZES:
        [release] = json.loads(coterie("site", "ledger", deployed / name, "--json"))["releases"]
        assert (release["rounds_released"], release["rounds"]) == (1, 1)
        assert [path for path in (deployed / name / "results").rglob("certificate.json")]

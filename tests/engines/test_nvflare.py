"""Sites on NVIDIA FLARE, with real processes on loopback: a provisioned server, four sites, four site servers."""

import json
import signal
import socket
import ssl
import subprocess
import sys
import time

import numpy as np
import nvflare_kills
import pytest
from interrupted import check_ctrl_c
from made import DATA, NAMES, approved, make_sites, plan_of, propose

from coterie.engines.in_process import run
from coterie.errors import CoterieError
from coterie.keys import PrivateKeys
from coterie.privacy.noise import Seeded
from coterie.relay import nvflare
from coterie.relay.engines import on_this_machine
from coterie.relay.processes import free_ports, marked
from coterie.site.coordinator import Coordinator, PartyError
from coterie.site.envelope import Sealing
from coterie.site.messages import COORDINATOR, pack, unpack
from coterie.site.sockets import UnreachableError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """Sites that serve, and what carries envelopes to them; everything is gone at the end."""
    folder = tmp_path_factory.mktemp("flare")
    sites = make_sites(folder / "sites")
    served = [
        subprocess.Popen(
            [sys.executable, "-m", "coterie", "site", "serve", str(site.store.folder)],
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for site in sites
    ]
    sockets = {site.policy.name: site.store.socket_file for site in sites}
    try:
        with on_this_machine("nvflare", folder / "engine", sockets) as carry:
            yield sites, carry, folder / "engine"
    finally:
        for process in served:
            process.send_signal(signal.SIGTERM)
        for process in served:
            process.wait(30)
    assert marked(folder / "engine") == []


def exchanged(carry, party, envelope):
    """An answer, once the engine is up."""
    end = time.monotonic() + 180
    while True:
        try:
            return carry(party, envelope)
        except UnreachableError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


@pytest.mark.parametrize("kind", ["graph", "pairs", "walk"])
def test_the_transcript_is_that_of_one_process(kind, engine, tmp_path):
    sites, carry, _ = engine
    plan = plan_of(kind, rounds=6)
    proposal, keys = approved(plan, sites, seed=3)
    coordinator = Coordinator(proposal, keys, Sealing(proposal, keys, carry), tmp_path / "run")
    found, expected = coordinator.run(), run(plan, DATA, noise=Seeded(3))
    np.testing.assert_allclose(found.releases, expected.releases, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.models, expected.models, rtol=0, atol=1e-9)
    signed = coordinator.signatures()
    assert [entry["statement"]["party"] for entry in signed["signed"]] == list(NAMES)


def test_what_is_not_sealed_is_refused_and_nothing_is_charged(engine):
    sites, carry, _ = engine
    proposal, keys = approved(plan_of("pairs"), sites)
    plain = pack("open", proposal.digest, COORDINATOR, keys)
    answer = unpack(exchanged(carry, NAMES[0], plain))
    assert (answer.kind, answer.run) == ("refused", "0" * 64)
    assert sites[0].ledger.reservation(proposal.digest) is None
    assert "not sealed to this site's key" in (sites[0].store.folder / "log.jsonl").read_text()


def test_an_unknown_key_is_refused_and_nothing_is_charged(engine, tmp_path):
    sites, carry, _ = engine
    # by somebody whose proposal nobody has approved
    proposal, keys = propose(plan_of("pairs"), sites)
    with pytest.raises(PartyError, match="refused"):
        Coordinator(proposal, keys, Sealing(proposal, keys, carry), tmp_path / "run").run()
    # and a stranger's signature under a run that is approved
    proposal, _ = approved(plan_of("pairs"), sites)
    stranger = PrivateKeys.generate()
    envelope = sites[0].keys.identity.seal(pack("open", proposal.digest, COORDINATOR, stranger), b"coterie request 1")
    assert unpack(exchanged(carry, NAMES[0], envelope)).kind == "refused"
    for site in sites:
        assert site.ledger.reservation(proposal.digest) is None


@pytest.mark.parametrize("size", [2**20, 2**20 + 1, 3 * 2**20])
def test_long_envelopes_are_carried_too(size, engine):
    """By one message, or by a call that cuts them up."""
    _, carry, _ = engine
    assert unpack(exchanged(carry, NAMES[1], bytes(size))).kind == "refused"


@pytest.mark.parametrize("moment", [b"provision", b"nvflare_session"])
def test_ctrl_c_ends_the_demo_and_all_that_it_has_started(moment, tmp_path):
    check_ctrl_c("nvflare", moment, tmp_path)


def greeted(port, authority, certificate=None):
    """Whether the server answers whoever shows this certificate; a sentence where there is no handshake at all."""
    context = ssl.create_default_context(cafile=authority)
    if certificate is not None:
        context.load_cert_chain(certificate / "client.crt", certificate / "client.key")
    try:
        with (
            socket.create_connection(("localhost", port), timeout=30) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            # a refusal comes with the first bytes that are read
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return connection.recv(12).startswith(b"HTTP/1.1 ")
    except ssl.SSLError as error:
        return error.reason


def test_only_certificates_of_these_kits_get_in(engine, tmp_path):
    _, carry, folder = engine
    # the server is up
    exchanged(carry, NAMES[0], b"anything")
    own = folder / "kits" / "site-0" / "startup"
    target = json.loads((own / "fed_client.json").read_text())["servers"][0]["service"]["target"]
    port = int(target.split(":")[1])
    nvflare.make_kits(tmp_path / "other", NAMES, server="localhost", port=port, hub=tmp_path / "hub.sock")
    other = tmp_path / "other" / "site-0" / "startup"
    assert greeted(port, own / "rootCA.pem", own) is True
    # others are cut off without a word
    assert greeted(port, own / "rootCA.pem", other) is False
    assert greeted(port, own / "rootCA.pem") is False
    # nor does a site speak to a server that shows another one
    assert "CERTIFICATE_VERIFY_FAILED" in greeted(port, other / "rootCA.pem", own)


def test_a_job_with_code_of_its_own_is_not_run(engine, tmp_path):
    """Not even where the coordinator's own kit submits it."""
    _, carry, folder = engine
    # all are there
    exchanged(carry, NAMES[0], b"anything")
    names = {name: f"site-{number}" for number, name in enumerate(NAMES)}
    for kind, classes in {"code": ("probe.At", "probe.At"), "classes": ("socket.socket", "socket.socket")}.items():
        job = tmp_path / kind
        nvflare.write_job(job, names, classes[0], {}, classes[1])
        if kind == "code":
            ran = tmp_path / "ran"
            (job / "app" / "custom").mkdir()
            (job / "app" / "custom" / "probe.py").write_text(f"open({str(ran)!r}, 'w')\nclass At: pass\n")
        session = nvflare.Session(folder / "kits" / nvflare.USER)
        number, end = session.ask("submit", str(job)), time.monotonic() + 60
        while not (status := session.ask("status", number)).startswith("FINISHED"):
            assert time.monotonic() < end, status
            time.sleep(0.5)
        session.close()
        assert status != "FINISHED:COMPLETED"
    assert not (tmp_path / "ran").exists()


def test_runs_complete_whoever_is_killed(tmp_path):
    assert nvflare_kills.main(1, tmp_path) == []


def test_a_server_that_does_not_start_is_said_so(tmp_path):
    folder = tmp_path / "engine"
    folder.mkdir()
    hub = folder / "coordinator.sock"
    nvflare.make_kits(folder / "kits", NAMES, server="localhost", port=free_ports(1)[0], hub=hub)
    for script in (folder / "kits").glob("*/startup/sub_start.sh"):
        script.write_text("sleep 600\n")
    (folder / "kits" / "localhost" / "startup" / "sub_start.sh").write_text("echo no such port; exit 3\n")
    sockets = {name: tmp_path / f"{name}.sock" for name in NAMES}
    with (
        pytest.raises(CoterieError, match="nvflare: localhost ended with code 3: no such port"),
        on_this_machine("nvflare", folder, sockets) as carry,
    ):
        exchanged(carry, NAMES[0], b"anything")
    assert marked(folder) == []


def test_kits_for_separate_machines_have_no_more_secrets_than_they_need(tmp_path):
    out = tmp_path / "kits"
    command = [
        sys.executable,
        "-m",
        "coterie",
        "deploy",
        str(out),
        "--engine",
        "nvflare",
        "--server",
        "relay.example.org",
    ]
    # where every file is for its owner alone, those without a key are not named either
    named = ["--party", "north", "--party", "south clinic"]
    done = subprocess.run([*command, *named], capture_output=True, text=True, umask=0o077)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in out.iterdir()} == {"README.md", "server", "coordinator", "sites"}
    private = [path for path in out.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
    assert {str(path.relative_to(out)) for path in private} == {
        "server/flare/startup/server.key",
        "coordinator/startup/client.key",
        "sites/north/flare/startup/client.key",
        "sites/south clinic/flare/startup/client.key",
    }
    assert {path.stat().st_mode & 0o777 for path in private} == {0o600}
    # the coordinator's too
    assert "a private key lies in each of coordinator, server, sites/north, sites/south clinic: send" in done.stdout
    kit = json.loads((out / "coordinator" / nvflare.KIT).read_text())
    assert kit["parties"] == {"north": "site-0", "south clinic": "site-1"}
    # a site runs our class and no other, and takes neither code nor shell commands
    local = out / "sites" / "north" / "flare" / "local"
    resources = json.loads((local / "resources.json").read_text())
    assert resources["class_allow_list"] == [
        "nvflare.collab.runtime.executor.CollabExecutor",
        "coterie.relay.nvflare_job.AtSite",
    ]
    # nor is there a line in its logs for every call
    told = json.loads((local / "log_config.json").read_text())["loggers"]
    assert told["nvflare.collab.runtime.cell_dispatcher"] == {"level": "WARNING"}
    [rights] = json.loads((local / "authorization.json").read_text())["permissions"].values()
    assert rights["byoc"] == rights["shell_commands"] == rights["operate"] == "none"
    other = [*command[:4], f"{out}-2", "--engine", "nvflare", "--server", "192.0.2.7", "--party", "north"]
    refused = subprocess.run(other, capture_output=True, text=True)
    assert (refused.returncode, "needs a host name" in refused.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["kits"]

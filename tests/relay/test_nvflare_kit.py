"""What the coordinator needs for NVIDIA FLARE: one sentence where it is not there or is something else."""

import json
import threading
import time
from pathlib import Path

import pytest

from coterie.errors import CoterieError, InputError, MissingExtraError
from coterie.relay import nvflare
from coterie.relay.engines import between_machines, check_installed, on_this_machine
from coterie.relay.processes import end_all, marked


def test_without_the_extra_nothing_is_started(monkeypatch, tmp_path):
    monkeypatch.setattr(nvflare, "find_spec", lambda name: None)
    wanted = r"the engine 'nvflare' needs NVIDIA FLARE: pip install 'coterie\[nvflare\]'"
    with pytest.raises(MissingExtraError, match=wanted):
        check_installed("nvflare")
    for manager in (
        on_this_machine("nvflare", tmp_path / "engine", {}),
        between_machines("nvflare", tmp_path / "kit", ["north"]),
    ):
        with pytest.raises(MissingExtraError, match=wanted), manager:
            pass
    assert list(tmp_path.iterdir()) == []


GOOD = {"engine": "nvflare", "parties": {"north": "site-0"}, "socket": "hub.sock", "group": None}


@pytest.mark.parametrize(
    "content",
    [None, "", "{", "[]", "{}", json.dumps({**GOOD, "engine": "flower"}), json.dumps({**GOOD, "more": 1})],
)
def test_what_is_no_kit_is_said_so(content, monkeypatch, tmp_path):
    monkeypatch.setattr(nvflare, "find_spec", lambda name: "there")
    (tmp_path / "startup").mkdir()
    if content is not None:
        (tmp_path / nvflare.KIT).write_text(content)
    with pytest.raises(InputError, match="is no coordinator's kit for NVIDIA FLARE; `coterie deploy` writes one"):
        between_machines("nvflare", tmp_path, ["north"]).__enter__()


def test_a_party_that_the_kit_does_not_know_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(nvflare, "find_spec", lambda name: "there")
    (tmp_path / "startup").mkdir()
    (tmp_path / nvflare.KIT).write_text(json.dumps(GOOD))
    with pytest.raises(InputError, match="--kit: the party 'south' is not among those of"):
        between_machines("nvflare", tmp_path, ["north", "south"]).__enter__()
    assert {path.name for path in tmp_path.iterdir()} == {"startup", nvflare.KIT}


def test_a_kit_may_be_named_by_a_relative_path(monkeypatch, tmp_path):
    """FLARE would look for a job in a folder of its own, and find none."""
    monkeypatch.chdir(tmp_path)
    assert nvflare.Session(Path("kits/coordinator")).kit == tmp_path / "kits" / "coordinator"


def test_a_job_names_classes_and_says_nothing_about_what_is_computed(tmp_path):
    nvflare.write_job(tmp_path, {"north": "site-0", "south": "site-1"}, "a.Server", {"x": 1}, "a.Site")
    files = {path.relative_to(tmp_path).as_posix(): json.loads(path.read_text()) for path in tmp_path.rglob("*.json")}
    assert files.keys() == {"meta.json", "app/config/config_fed_server.json", "app/config/config_fed_client.json"}
    assert files["meta.json"]["deploy_map"] == {"app": ["server", "site-0", "site-1"]}
    assert files["meta.json"]["mandatory_clients"] == ["site-0", "site-1"]
    [component] = files["app/config/config_fed_server.json"]["components"]
    assert (component["path"], component["args"]) == ("a.Server", {"x": 1})
    # no folder with code: that would be a job that brings its own
    assert not (tmp_path / "app" / "custom").exists()


@pytest.mark.parametrize("what", ["session", "provisioning"])
def test_what_is_started_beside_the_engine_is_found_and_ended_with_it(what, monkeypatch, tmp_path):
    """Ctrl-C comes while it is at work."""
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o700)
    folder = tmp_path / "engine"
    (folder / "kits" / nvflare.USER).mkdir(parents=True)
    monkeypatch.setattr(nvflare, "find_spec", lambda name: "there")
    monkeypatch.setattr(nvflare.sys, "executable", str(slow))

    def start():
        if what == "session":
            nvflare.Session(folder / "kits" / nvflare.USER).ask("status", "job")
        else:
            nvflare.make_kits(folder / "new", ["north"], server="localhost", port=1, hub=folder / "hub.sock")

    said = []

    def told():
        try:
            start()
        except CoterieError as error:
            said.append(str(error))

    starting = threading.Thread(target=told, daemon=True)
    starting.start()
    end = time.monotonic() + 30
    while not marked(folder):
        assert time.monotonic() < end
        time.sleep(0.02)
    end_all(folder)
    starting.join(30)
    assert len(said) == 1
    assert marked(folder) == []


def test_kits_are_made_anew_where_making_them_was_cut_off(tmp_path):
    """FLARE numbers what it makes, and leaves what is there."""
    pytest.importorskip("nvflare")
    left = tmp_path / "kits-provisioned" / "coterie" / "prod_00" / "site-0"
    left.mkdir(parents=True)
    names = nvflare.make_kits(tmp_path / "kits", ["north"], server="localhost", port=1, hub=tmp_path / "hub.sock")
    assert (tmp_path / "kits" / names["north"] / "startup" / "client.key").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["kits"]

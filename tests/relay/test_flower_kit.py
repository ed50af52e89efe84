"""Flower's end at the coordinator, as far as it can be looked at without Flower."""

import importlib.util
import tomllib

import pytest

from coterie.errors import InputError, MissingExtraError
from coterie.relay import flower
from coterie.relay.certificates import check_host, write_node_key
from coterie.relay.engines import between_machines, on_this_machine

WITHOUT_FLOWER = importlib.util.find_spec("flwr") is None


@pytest.fixture
def kit(tmp_path):
    made = flower.Kit(tmp_path, "127.0.0.1:9092", ("north", "south clinic"), socket="/run/x.sock", group="relay")
    made.write([write_node_key(tmp_path / name) for name in ("one", "two")])
    return made


def test_what_is_written_is_what_is_read(kit):
    assert flower.Kit.read(kit.folder) == kit
    with open(kit.folder / "app" / "pyproject.toml", "rb") as file:
        app = tomllib.load(file)
    components = app["tool"]["flwr"]["app"]["components"]
    assert components == {
        "serverapp": "coterie.relay.flower_apps:server",
        "clientapp": "coterie.relay.flower_apps:client",
    }
    # nothing is installed for it, at the server or at a site
    assert app["project"]["dependencies"] == []


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "null",
        '{"engine": "flower"}',
        '{"engine": "nvflare", "parties": []}',
        '{"engine": "flower", "parties": [1]}',
    ],
)
def test_what_is_no_kit_is_said_so(kit, content):
    (kit.folder / "kit.json").write_text(content)
    with pytest.raises(InputError, match="is no coordinator's kit for Flower; `coterie deploy` writes one"):
        flower.Kit.read(kit.folder)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "a-1.Clinic.example", ".".join(["x" * 63] * 3)])
def test_a_machine_has_a_name_or_an_address(host):
    assert check_host("--server", host) == host


@pytest.mark.parametrize(
    "host",
    ["", ".", "a..b", "a b", "a/b", "a_b.example", "\N{GREEK SMALL LETTER ALPHA}", "x" * 64, ".".join(["x" * 63] * 4)],
)
def test_what_is_no_machine_is_said_so(host):
    with pytest.raises(InputError, match=r"--server: got .*; the name or the address of a machine is needed"):
        check_host("--server", host)


@pytest.mark.skipif(not WITHOUT_FLOWER, reason="Flower is installed here")
def test_without_flower_its_extra_is_named(kit):
    for way in (on_this_machine("flower", kit.folder, {}), between_machines("flower", kit.folder, ["north"])):
        with pytest.raises(MissingExtraError, match=r"pip install 'coterie\[flower\]'"):
            way.__enter__()

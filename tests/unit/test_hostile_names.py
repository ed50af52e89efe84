"""Names and texts that would look like something else in a terminal, on a page or in a table."""

import copy
import dataclasses

import pytest
from test_certificate import DELTA, facts, plan, resigned

from coterie.certificate import Certificate, make_certificate
from coterie.data import CategoryColumn, Label, NumberColumn, Schema
from coterie.errors import InputError
from coterie.values import Facts

UNSEEN = {
    "a terminal's colour": "north\x1b[31m",
    "a line break": "north\nsouth",
    "a carriage return": "north\rsouth",
    "a tab": "north\tsouth",
    "nothing": "no\u200brth",
    "a joiner": "no\u200drth",
    "the other direction": "\u202ehtron",
    "a byte order mark": "\ufeffnorth",
    "a line separator": "north\u2028",
    "a delete": "north\x7f",
    "half a character": "north\ud800",
    "an empty text": "",
}


@pytest.mark.parametrize("name", UNSEEN.values(), ids=UNSEEN.keys())
def test_what_cannot_be_seen_is_refused(name):
    for change in ({"parties": (name, "south")}, {"labels": (name, "yes")}, {"data_derived": (name,)}):
        with pytest.raises(InputError) as refused:
            facts(**change)
        assert str(refused.value).isprintable()


@pytest.mark.parametrize("name", UNSEEN.values(), ids=UNSEEN.keys())
def test_nor_may_a_schema_hold_it(name):
    age, label = NumberColumn("age", 0, 100), Label("ill", ("no", "yes"))
    for make in (
        lambda: NumberColumn(name, 0, 100),
        lambda: CategoryColumn("ward", ("a", name)),
        lambda: Label(name, ("no", "yes")),
        lambda: Label("ill", ("no", name)),
        lambda: Schema((age,), label, party_column=name),
    ):
        with pytest.raises(InputError) as refused:
            make()
        assert str(refused.value).isprintable()


@pytest.mark.parametrize("name", ["Sankt Göran", "北京", "Θεαγένειο", "St.\u00a0Mary", "O'Neil & Sons", "a_b*c"])
def test_names_of_people_and_places_are_not(name):
    assert facts(parties=(name, "other")).parties[0] == name


@pytest.mark.parametrize("name", list(UNSEEN.values())[:-1], ids=list(UNSEEN)[:-1])
def test_texts_of_a_certificate_can_be_seen(name):
    for told in ({"tuning": name}, {"audit": {"note": [name]}}, {"audit": {name: 1}}, {"past": [(name, 1.0, 0.0)]}):
        with pytest.raises(InputError):
            make_certificate(plan(), DELTA, reproducible=False, **told)


def test_a_certificate_with_a_hidden_text_is_refused():
    document = copy.deepcopy(make_certificate(plan(), DELTA, reproducible=False).document)
    document["audit"] = {"verdict": "pass\x1b[2J"}
    with pytest.raises(InputError) as refused:
        Certificate.from_json(resigned(document)).verify()
    assert str(refused.value).isprintable()


def test_nothing_in_a_name_becomes_part_of_the_page():
    names = ("<script>alert(1)</script>", "[free](http://example.org) **ε = 0** `x` | y")
    public: Facts = dataclasses.replace(facts(), parties=names)
    page = make_certificate(plan(public=public), DELTA, reproducible=False).to_markdown()
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert r"\[free\](http://example.org) \*\*ε = 0\*\* \`x\` \| y" in page

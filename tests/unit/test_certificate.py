import copy
import hashlib
import json
import math

import pytest

from coterie.algorithms import ConsensusADMM, NoisyGradientDescent, PenaltyPerturbedADMM
from coterie.certificate import Certificate, make_certificate, shown_loss
from coterie.errors import AuditError, InputError
from coterie.network.channels import Curator, SecureSum
from coterie.plan import Plan
from coterie.privacy.mechanisms import GaussianGradient
from coterie.privacy.objective import PenaltyPerturbation
from coterie.problems import L2, Logistic, Problem
from coterie.values import Facts

DELTA = 1e-5
PROBLEM = Problem(loss=Logistic(), regulariser=L2(1.0), record_weight=1.0)


def facts(**changes):
    usual = {"parties": ("north", "south|west"), "sizes": (30, 50), "n_features": 3, "row_norm": 1.0}
    return Facts(**{**usual, "labels": ("no", "yes"), **changes})


def plan(rounds=4, public=None, **options):
    algorithm = PenaltyPerturbedADMM(
        mechanism=PenaltyPerturbation(penalty=(2.0, 3.0), noise_multiplier=5.0), dual_step=1.0
    )
    return Plan.make(
        algorithm, PROBLEM, "complete", public or facts(), rounds=rounds, adjacency="replace-one", **options
    )


def resigned(document):
    """What somebody does who changes a certificate and knows how digests are made."""
    content = {key: value for key, value in document.items() if key != "digest"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return json.dumps({**content, "digest": hashlib.sha256(text.encode()).hexdigest()})


def test_it_states_what_the_plan_says():
    one = plan()
    certificate = make_certificate(one, DELTA, reproducible=False)
    assert certificate.epsilon == one.epsilon(DELTA)
    assert certificate.delta == DELTA
    assert certificate.party_epsilons == one.party_epsilons(DELTA)
    assert certificate.party_epsilons[0] != certificate.party_epsilons[1]
    (view,) = certificate.views
    assert (view.observer, view.epsilon) == ("everybody", certificate.epsilon)
    assert certificate.void == ()
    assert not certificate.not_private
    assert certificate.verdict == ()
    assert certificate.document["plan_digest"] == one.digest
    assert certificate.plan == one


def test_what_an_audit_found_is_stated_and_a_failure_refused():
    certificate = make_certificate(plan(), DELTA, reproducible=False)
    found = {"verdict": "pass", "failed": []}
    audited = certificate.audited(found)
    audited.verify()
    assert audited.document == {**certificate.document, "audit": found, "digest": audited.document["digest"]}
    with pytest.raises(AuditError, match="replay failed"):
        certificate.audited({"verdict": "fail", "failed": ["replay"]})


def test_it_survives_being_written_and_read():
    certificate = make_certificate(plan(), DELTA, reproducible=False, tuning="none", audit={"lower bound": 0.3})
    again = Certificate.from_json(certificate.to_json())
    assert again == certificate
    notes = again.verify()
    assert any("declarations" in note for note in notes)
    assert not any("other code" in note for note in notes)


def test_a_seeded_run_is_called_not_private():
    certificate = make_certificate(plan(), DELTA, reproducible=True)
    assert certificate.not_private
    assert "NOT PRIVATE" in certificate.to_markdown()
    assert "NOT PRIVATE" in certificate.verdict[0]
    certificate.verify()


def test_facts_read_off_the_data_void_it():
    derived = facts(data_derived=("row_norm", "column_maxima"))
    certificate = make_certificate(plan(public=derived), DELTA, reproducible=False)
    assert certificate.void == ("row_norm read off the data", "column_maxima read off the data")
    sources = {bound["bound"]: bound["source"] for bound in certificate.document["bounds"]}
    assert "VOID" in sources["row_norm"]
    assert "VOID" in sources["column_maxima"]
    assert sources["labels"] == "public constant"
    assert certificate.to_markdown().count("VOID") >= 4
    certificate.verify()


def test_no_noise_is_an_infinite_loss():
    exact = Plan.make(ConsensusADMM.with_penalty(1.0), PROBLEM, "complete", facts(), rounds=2, adjacency="zero-out")
    certificate = make_certificate(exact, DELTA, reproducible=False)
    assert certificate.epsilon == math.inf
    assert certificate.party_epsilons == (math.inf, math.inf)
    assert "NOT PRIVATE" in certificate.verdict[0]
    assert "Infinity" not in certificate.to_json()
    Certificate.from_json(certificate.to_json()).verify()
    assert "ε = ∞" in certificate.to_markdown()


def test_earlier_releases_are_added():
    past = [("first fit", 1.0, 1e-6), ("second fit", 0.5, 0.0)]
    certificate = make_certificate(plan(), DELTA, reproducible=False, past=past)
    assert certificate.total_epsilon == pytest.approx(certificate.epsilon + 1.5)
    assert certificate.total_delta == pytest.approx(1.1e-5)
    page = certificate.to_markdown()
    assert "first fit" in page
    assert "Basic composition" in page
    certificate.verify()
    alone = make_certificate(plan(), DELTA, reproducible=False)
    assert (alone.total_epsilon, alone.total_delta) == (alone.epsilon, DELTA)


def test_a_run_that_stops_early_is_charged_in_full():
    whole = make_certificate(plan(), DELTA, reproducible=False)
    stopped = make_certificate(plan(), DELTA, reproducible=False, rounds_done=1)
    assert stopped.epsilon == whole.epsilon
    assert stopped.document["rounds"] == {**whole.document["rounds"], "done": 1}
    stopped.verify()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "one record of one party (event-level"),
        ({"records_per_person": 3}, "up to 3 records at one party"),
        ({"people_span_parties": True}, "one record at every party"),
    ],
)
def test_the_unit_of_privacy_is_said_in_words(options, words):
    certificate = make_certificate(plan(**options), DELTA, reproducible=False)
    assert words in certificate.document["guarantee"]["unit_of_privacy"]
    assert certificate.epsilon == plan(**options).epsilon(DELTA)
    certificate.verify()


@pytest.mark.parametrize(("channel", "model"), [(Curator(), "central"), (SecureSum(), "secure computation")])
def test_the_trust_model_follows_the_channel(channel, model):
    algorithm = NoisyGradientDescent(
        mechanism=GaussianGradient(noise_multiplier=10.0), regulariser=PROBLEM.regulariser, step=0.01, channel=channel
    )
    one = Plan.make(algorithm, PROBLEM, "unrestricted", facts(), rounds=3, adjacency="zero-out")
    certificate = make_certificate(one, DELTA, reproducible=False)
    assert model in certificate.document["trust_model"]["model"]
    assert certificate.document["accountant"]["used"] == "gaussian"
    assert certificate.views[0].observer == "aggregates"
    certificate.verify()


CHANGES = {
    "a smaller loss": lambda d: d["guarantee"].update(epsilon=0.1),
    "a smaller delta": lambda d: d["guarantee"].update(delta=1e-9),
    "a smaller loss of one party": lambda d: d["views"][0]["party_epsilons"].__setitem__(0, 0.1),
    "a smaller total": lambda d: d["total"].update(epsilon=0.1),
    "another adjacency": lambda d: d["guarantee"].update(adjacency="zero-out"),
    "a larger unit": lambda d: d["guarantee"].update(unit_of_privacy="everything one party holds"),
    "no verdict": lambda d: d.update(verdict=[]),
    "a public bound": lambda d: d["bounds"][0].update(source="public constant"),
    "more noise in the plan": lambda d: d["plan"]["algorithm"]["mechanism"]["noise_multiplier"].update(start=50.0),
    "fewer rounds in the plan": lambda d: d["plan"].update(n_rounds=1),
    "another plan digest": lambda d: d.update(plan_digest="0" * 64),
    "a forgotten section": lambda d: d.pop("not_covered"),
    "an added section": lambda d: d.update(approved=True),
    "a word for a number": lambda d: d["guarantee"].update(epsilon="small"),
    "a broken plan": lambda d: d["plan"].update(n_rounds="many"),
    "no plan": lambda d: d.update(plan=None),
    "no past": lambda d: d.update(past=None),
    "software of another shape": lambda d: d.update(software={}),
    "a number for a version": lambda d: d["software"].update(numpy=2),
    "a list for a table": lambda d: d.update(guarantee=[]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_changed_certificate_is_refused(change):
    certificate = make_certificate(plan(public=facts(data_derived=("row_norm",))), DELTA, reproducible=True)
    document = copy.deepcopy(certificate.document)
    change(document)
    with pytest.raises(InputError, match="digest does not fit"):
        Certificate.from_json(json.dumps(document)).verify()
    # ... and even when the digest is made again
    with pytest.raises(InputError) as refused:
        Certificate.from_json(resigned(document)).verify()
    assert "\n" not in str(refused.value)


def test_other_code_is_mentioned_and_not_refused():
    document = copy.deepcopy(make_certificate(plan(), DELTA, reproducible=False).document)
    document["software"]["package_digest"] = "0" * 64
    assert any("other code" in note for note in Certificate.from_json(resigned(document)).verify())


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"format": "coterie-certificate-1"', "[" * 100_000])
def test_what_is_no_certificate_is_refused(text):
    with pytest.raises(InputError, match="certificate"):
        Certificate.from_json(text)


@pytest.mark.parametrize(
    "options",
    [
        {"rounds_done": 5},
        {"rounds_done": True},
        {"past": [("x", -1.0, 0.0)]},
        {"past": [("x", math.nan, 0.0)]},
        {"past": [("x", 1.0)]},
        {"audit": {"object": object()}},
        {"audit": "passed"},
        {"tuning": 3},
    ],
)
def test_nonsense_is_refused(options):
    with pytest.raises(InputError):
        make_certificate(plan(), DELTA, reproducible=False, **options)


def test_the_page_rounds_up_and_keeps_its_tables():
    assert shown_loss(1.0000001) == "1.00001"
    assert shown_loss(0.1 + 0.2) == "0.3"
    page = make_certificate(plan(), DELTA, reproducible=False).to_markdown()
    assert "south\\|west" in page
    for words in ("unit of privacy", "trust model", "randomness", "Not covered", "Timing", "NIST SP 800-226"):
        assert words in page

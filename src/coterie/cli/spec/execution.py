"""From a spec to a plan, and from the plan to a finished run."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from coterie.certificate import Certificate, Past, make_certificate, price
from coterie.cli.spec.names import ALGORITHMS
from coterie.cli.spec.outcome import Log, Outcome
from coterie.cli.spec.problems import make_problem
from coterie.cli.spec.records import Records, load_records
from coterie.cli.spec.sections import Spec
from coterie.cli.spec.settings import make_algorithm
from coterie.engines.in_process import run
from coterie.errors import InputError
from coterie.facts import Facts
from coterie.network.topology import UNRESTRICTED, make_topology
from coterie.plan import Plan
from coterie.privacy.noise import NoiseSource, Seeded, SystemEntropy
from coterie.spending import Spending, Terms
from coterie.stopping import stoppable
from coterie.transcript import Interrupted, Transcript

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Everything that is known before a run."""

    spec: Spec
    records: Records
    plan: Plan
    log: Log

    def certificate(
        self, rounds_done: int | None = None, *, past: Past = (), audit: dict[str, Any] | None = None
    ) -> Certificate:
        return make_certificate(
            self.plan,
            self.spec.privacy.delta,
            reproducible=self.spec.engine.seed is not None,
            rounds_done=rounds_done,
            past=past,
            tuning=self.spec.privacy.tuning,
            audit=audit,
            engine=self.spec.engine.name,
        )


def prepare(spec: Spec) -> Prepared:
    """Read the records and make the plan; nothing is released yet."""
    log = Log()
    records = load_records(spec)
    facts = records.federation.facts
    log.add(f"read {sum(facts.sizes)} records of {facts.n_parties} parties, {facts.n_features} features")
    plan = make_plan(spec, facts)
    log.add(f"plan {plan.digest}: {plan.n_rounds} rounds")
    return Prepared(spec, records, plan, log)


def make_plan(spec: Spec, facts: Facts) -> Plan:
    """The plan that a spec asks for, given the public facts of its data."""
    try:
        # numbers that leave float64 end as infinite or unknown losses, which plans refuse or state
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return _make_plan(spec, facts)
    except (OverflowError, ZeroDivisionError) as error:
        raise InputError(f"spec: its numbers leave the range of floating point ({error})") from None


def _make_plan(spec: Spec, facts: Facts) -> Plan:
    privacy = spec.privacy
    problem = make_problem(spec.problem, facts)
    graph = _usual_topology(spec) if spec.parties.topology is None else spec.parties.topology
    topology = make_topology(graph, facts.n_parties, seed=spec.parties.topology_seed)
    algorithm, n_rounds = make_algorithm(spec.algorithm, problem, facts, topology, privacy)
    plan = Plan.make(
        algorithm,
        problem,
        topology,
        facts,
        rounds=n_rounds,
        adjacency=privacy.adjacency,  # type: ignore[arg-type]
        unit=privacy.unit,  # type: ignore[arg-type]
        records_per_person=privacy.records_per_person,
        people_span_parties=privacy.people_span_parties,
    )
    if privacy.observer is not None:
        plan.observer(privacy.observer)
    if privacy.epsilon is None:
        return plan
    return plan.calibrate(privacy.epsilon, privacy.delta, observer=privacy.observer)


def _usual_topology(spec: Spec) -> str:
    if spec.algorithm.name is None:
        return "complete" if spec.privacy.trust in (None, "none") else UNRESTRICTED
    return "ring" if ALGORITHMS[spec.algorithm.name].needs_graph else UNRESTRICTED


def execute(
    prepared: Prepared,
    past: Past | None = None,
    *,
    progress: Progress | None = None,
    audit: dict[str, Any] | None = None,
) -> Outcome:
    """Run the plan. Ctrl-C ends it with what was released so far, charged in full.

    past: what `charge` returned, where that was called before. audit: what was found before.
    """
    past = charge(prepared, open_ledger(prepared, new=False)) if past is None else past
    seed = prepared.spec.engine.seed
    noise: NoiseSource = SystemEntropy() if seed is None else Seeded(seed)
    return outcome_of(
        prepared,
        lambda: run(prepared.plan, prepared.records.federation, noise=noise, progress=progress),
        past,
        audit,
    )


def outcome_of(
    prepared: Prepared, carry_out: Callable[[], Transcript], past: Past, audit: dict[str, Any] | None
) -> Outcome:
    """What a run, however it is carried out, comes to."""
    log, started = prepared.log, time.perf_counter()
    log.add("run started")
    try:
        transcript = carry_out()
    except Interrupted as stopped:
        transcript = stopped.transcript
    with stoppable() as stop, stop.shielded():
        log.add(f"{transcript.n_rounds} of {prepared.plan.n_rounds} rounds released")
        return Outcome(
            spec=prepared.spec,
            records=prepared.records,
            transcript=transcript,
            certificate=prepared.certificate(transcript.n_rounds, past=past, audit=audit),
            seconds=time.perf_counter() - started,
            log=log,
        )


def open_ledger(prepared: Prepared, *, new: bool) -> Spending | None:
    """The ledger of the spec, if it names one; only where `new` is asked for is it made."""
    privacy = prepared.spec.privacy
    if privacy.ledger is None:
        if new:
            raise InputError("--new-ledger: the spec names no ledger; privacy.ledger = 'path' is needed")
        return None
    if new:
        return Spending.create(privacy.ledger, limit=privacy.ledger_limit)
    return Spending(path=privacy.ledger, limit=privacy.ledger_limit)


def charge(prepared: Prepared, ledger: Spending | None) -> Past:
    """What the ledger knew of these data before; charged first, so that no failure can hide a spend."""
    spec, plan = prepared.spec, prepared.plan
    if ledger is None:
        return ()
    epsilon, reason = price(plan, spec.privacy.delta, reproducible=spec.engine.seed is not None)
    terms = Terms.of(
        plan.adjacency,
        plan.unit,
        plan.facts.parties,
        plan.facts.sizes,
        records_per_person=plan.records_per_person,
        people_span_parties=plan.people_span_parties,
    )
    what = f"run of plan {plan.digest[:12]}" + (f" ({reason})" if reason else "")
    past = ledger.charge(what, epsilon, spec.privacy.delta, terms=terms)
    assert ledger.path is not None
    prepared.log.add(f"charged to the ledger {ledger.path.name}")
    return past

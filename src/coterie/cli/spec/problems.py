"""The problem of a spec: loss and penalty by name, with what the labels suggest where nothing is said."""

from coterie.cli.spec.names import LOSSES
from coterie.cli.spec.sections import ProblemSection
from coterie.errors import InputError
from coterie.facts import Facts
from coterie.problems import L2, Ball, Box, ElasticNet, Loss, Penalty, Problem

_SHAPES = {"huberised-hinge": "width", "huber": "threshold"}


def make_problem(section: ProblemSection, facts: Facts) -> Problem:
    record_weight = section.record_weight
    if record_weight is None and section.party_weight is None:
        record_weight = 1.0
    return Problem(
        loss=_loss(section, facts),
        penalty=_penalty(section),
        record_weight=record_weight,
        party_weight=section.party_weight,
        class_weight=section.class_weight,
    )


def _loss(section: ProblemSection, facts: Facts) -> Loss:
    name = section.loss or _suggested(facts)
    shape = {key: getattr(section, key) for key in _SHAPES.values() if getattr(section, key) is not None}
    for key in shape:
        if _SHAPES.get(name) != key:
            raise InputError(f"problem.{key}: got {shape[key]}; the loss {name!r} has no {key}")
    if name == "multinomial":
        shape["n_classes"] = len(facts.labels or ())
    return LOSSES[name](**shape)


def _suggested(facts: Facts) -> str:
    if facts.labels is None:
        return "huber"
    return "logistic" if len(facts.labels) == 2 else "multinomial"


def _penalty(section: ProblemSection) -> Penalty:
    box = (section.low, section.high)
    given = {"l1": section.l1 is not None, "low and high": box != (None, None), "radius": section.radius is not None}
    if sum(given.values()) > 1:
        both = " and ".join(name for name, here in given.items() if here)
        raise InputError(f"problem: got {both}; at most one of l1, low with high, and radius can be used")
    if section.l1 is not None:
        return ElasticNet(section.l2, section.l1)
    if section.radius is not None:
        return Ball(section.radius, section.l2)
    if given["low and high"]:
        if section.low is None or section.high is None:
            raise InputError(f"problem: got low = {section.low}, high = {section.high}; both or neither are needed")
        return Box(section.low, section.high, section.l2)
    return L2(section.l2)

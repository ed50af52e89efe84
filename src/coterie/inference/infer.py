"""Coefficients with intervals, from the moments that a plan releases at its model."""

import functools
import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from coterie.data.federation import Federation
from coterie.engines.moments import derivative_stds, derivatives_of, n_moments, release
from coterie.errors import InputError
from coterie.inference.columns import Columns
from coterie.inference.estimate import Equations, Stage
from coterie.inference.result import Inference, Setting
from coterie.plan import Plan
from coterie.privacy.accountants import check_delta
from coterie.privacy.moments import unpacked
from coterie.privacy.noise import NoiseSource, drawn_once
from coterie.problems import Huber, Logistic, Multinomial, Squared
from coterie.transcript import Transcript

# across a row of the largest norm, that the noise of a model for prediction may reach
SCORE = 2.0
_METHODS = {
    Logistic: "Logistic regression",
    Multinomial: "Multinomial logistic regression",
    Huber: "Huber regression",
    Squared: "Least squares, gradients clipped",
}
# runs whose moments this process has released, by all that they released before: a copy or a file is the same run
_RELEASED: set[str] = set()


class Released(NamedTuple):
    """Values that left the parties, all of them noised: stage by stage where, gradient and Hessian; and the second
    moment, if there is one."""

    models: list[np.ndarray]
    gradients: list[np.ndarray]
    hessians: list[np.ndarray]
    second_moment: np.ndarray | None

    def in_order(self) -> Iterator[np.ndarray]:
        """Release by release, gradient and Hessian or the second moment, as those who took part sign them."""
        for gradient, hessian in zip(self.gradients, self.hessians, strict=True):
            yield np.append(gradient, hessian)
        if self.second_moment is not None:
            yield self.second_moment.ravel()

    def to_json(self) -> str:
        def plain(value: Any) -> Any:
            return [plain(one) for one in value] if isinstance(value, list) else np.asarray(value).tolist()

        content = {name: None if value is None else plain(value) for name, value in self._asdict().items()}
        return json.dumps(content, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, plan: Plan) -> "Released":
        """What `to_json` wrote, of a plan's sizes."""
        p = plan.problem.n_coefficients(plan.facts)
        assert plan.moments is not None
        n_stages, robust = len(plan.moments.multipliers), plan.moments.second_moment_multiplier is not None
        shapes = {"models": (n_stages, p), "gradients": (n_stages, p), "hessians": (n_stages, p, p)}
        shapes |= {"second_moment": (p, p)} if robust else {}
        try:
            content = json.loads(text)
            found = {name: np.asarray(content[name], dtype=float) for name in shapes}
            fits = content.keys() == {*cls._fields} and (robust or content["second_moment"] is None)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            found, fits = {}, False
        if not fits or any(found[n].shape != s or not np.isfinite(found[n]).all() for n, s in shapes.items()):
            raise InputError("moments: they do not fit the plan; finite numbers of its sizes are needed")
        # one triangle is released, so the other is the same number for number
        for name in ("hessians", "second_moment"):
            if name in found and not np.array_equal(found[name], np.swapaxes(found[name], -1, -2)):
                raise InputError(f"moments: {name} are not symmetric, which no release of this plan is")
        models, gradients, hessians = (list(found[name]) for name in ("models", "gradients", "hessians"))
        return cls(models, gradients, hessians, found.get("second_moment"))


def infer(
    transcript: Transcript,
    federation: Federation,
    *,
    delta: float,
    columns: Columns | None = None,
    noise: NoiseSource | None = None,
) -> Inference:
    """Release the moments of a run's plan, once, and work out estimates and intervals from them.

    transcript: of a complete run whose plan has moments, as `rules.make_plan(..., inference=...)` makes it; what it
        states as its loss includes them.
    federation: the records of that run.
    delta: at which the loss is shown.
    columns: which numbers are reported; one a feature, as the design has it, when left out.
    noise: where noise comes from; the operating system's entropy where it is left out.
    """
    check_delta(delta)
    source = drawn_once(noise)
    columns = _usual_columns(transcript.plan) if columns is None else columns
    released = release_moments(transcript, federation, columns, source)
    reproducible = transcript.reproducible or source.reproducible
    return conclude(transcript.plan, released, columns, delta=delta, reproducible=reproducible)


def release_moments(transcript: Transcript, federation: Federation, columns: Columns, source: NoiseSource) -> Released:
    """What `infer` releases; `columns` say along what no data can tell coefficients apart."""
    plan = transcript.plan
    if plan.moments is None:
        raise InputError("transcript: its plan has no moments; make the plan with inference to have them priced")
    if federation.facts != plan.facts:
        raise InputError("federation: its public facts differ from those the plan was made for")
    if not transcript.complete or transcript.models.shape != (1, plan.problem.n_coefficients(plan.facts)):
        raise InputError("transcript: one complete run with a model on the columns of the design is needed")
    # a second release would lose as much again, which nothing has paid for; drawn from a seed it is the same one
    if not source.reproducible:
        known = hashlib.sha256(plan.digest.encode() + np.ascontiguousarray(transcript.releases).tobytes()).hexdigest()
        if known in _RELEASED:
            raise InputError("transcript: its moments were released before, and are paid for once; run the plan again")
        _RELEASED.add(known)
    course = Releasing(transcript, columns)
    for number in range(n_moments(plan)):
        at = course.at
        course.hear(at, release(plan, federation, number, at, source))
    return course.released


class Releasing:
    """Where the moments of a complete run are taken, one after the other, and what was released so far."""

    def __init__(self, transcript: Transcript, columns: Columns) -> None:
        """columns: they say along what no data can tell coefficients apart."""
        self.plan, self._start, self._columns = transcript.plan, transcript.models[0], columns
        self.released = Released([], [], [], None)

    @functools.cached_property
    def _work(self) -> "_Work":
        return _Work.of(self.plan, self._columns)

    @property
    def at(self) -> np.ndarray:
        """The model of the next release: that of the rounds, then of all that was released."""
        moments = self.plan.moments
        assert moments is not None
        if not self.released.models:
            return self._start
        if len(self.released.models) == len(moments.multipliers):
            return self._work.basis @ self._work.shrunk(self.released)
        return self._work.basis @ self._work.equations(self.released).next_model(self.plan.facts.row_norm)

    def hear(self, at: np.ndarray, total: np.ndarray) -> None:
        """The noised sum over all parties of what was asked for at this model."""
        moments, number = self.plan.moments, len(self.released.models)
        assert moments is not None
        if number == len(moments.multipliers):
            p = self.plan.problem.n_coefficients(self.plan.facts)
            self.released = self.released._replace(second_moment=unpacked(total, p))
            return
        self.keep(at, *derivatives_of(self.plan, number, total))

    def keep(self, at: np.ndarray, gradient: np.ndarray, hessian: np.ndarray) -> None:
        self.released.models.append(at)
        self.released.gradients.append(gradient)
        self.released.hessians.append(hessian)


class _Work(NamedTuple):
    """Coordinates in which data can tell coefficients apart."""

    plan: Plan
    basis: np.ndarray
    constant: np.ndarray | None

    @classmethod
    def of(cls, plan: Plan, columns: Columns) -> "_Work":
        columns = columns.of_outputs(plan.problem.loss, plan.facts)
        basis = columns.basis()
        basis = np.eye(plan.problem.n_coefficients(plan.facts)) if basis is None else basis
        return cls(plan, basis, None if columns.constant is None else basis.T @ columns.constant)

    def equations(self, released: Released) -> Equations:
        stages = [
            Stage(
                self.basis.T @ model,
                self.basis.T @ gradient,
                self.basis.T @ hessian @ self.basis,
                *derivative_stds(self.plan, k),
            )
            for k, (model, gradient, hessian) in enumerate(
                zip(released.models[: len(released.hessians)], released.gradients, released.hessians, strict=True)
            )
        ]
        second = released.second_moment
        facts = self.plan.facts
        return Equations(
            stages,
            constant=self.constant,
            record_weight=self.plan.problem.largest_record_weight(facts.largest, facts),
            second_moment=None if second is None else self.basis.T @ second @ self.basis,
        )

    def shrunk(self, released: Released) -> np.ndarray:
        """For prediction: the regulariser, and as much more as keeps noise from scores beyond SCORE."""
        facts, equations = self.plan.facts, self.equations(released)
        score = SCORE if facts.label_bound is None else facts.label_bound
        against_noise = equations.gradient_std * facts.row_norm / score
        return equations.solve(ridge=self.plan.problem.regulariser.l2 + against_noise)


def conclude(plan: Plan, released: Released, columns: Columns, *, delta: float, reproducible: bool) -> Inference:
    """Estimates and intervals from what was released, and from that alone."""
    work = _Work.of(plan, columns)
    columns = columns.of_outputs(plan.problem.loss, plan.facts)
    robust = released.second_moment is not None
    return Inference(
        names=columns.names,
        contrasts=columns.contrasts @ work.basis,
        groups={name: tuple(places) for name, places in columns.groups.items()},
        equations=work.equations(released),
        shrunk=work.basis @ work.shrunk(released),
        setting=Setting(
            method=_METHODS[type(plan.problem.loss)],
            odds=isinstance(plan.problem.loss, (Logistic, Multinomial)),
            robust=robust,
            n_records=sum(plan.facts.sizes),
            n_parties=plan.facts.n_parties,
            epsilon=plan.epsilon(delta),
            delta=delta,
            reproducible=reproducible,
            notes=tuple(_notes(plan, robust)),
        ),
    )


def _usual_columns(plan: Plan) -> Columns:
    names = [f"x{i}" for i in range(plan.facts.n_features)]
    return Columns.of_features(names, np.ones(len(names)))


def _notes(plan: Plan, robust: bool) -> Iterator[str]:
    """What is estimated, and what moves it away from the model without bounds."""
    facts, problem = plan.facts, plan.problem
    yield (
        "Estimated are the coefficients that fit the population best, on rows within the bounds: rows longer than "
        f"{facts.row_norm:.6g} count as if clipped to it."
    )
    if facts.label_bound is not None:
        yield f"Labels beyond ±{facts.label_bound:.6g} count as if they were that."
    if problem.regulariser.l2 or not problem.regulariser.smooth:
        yield "The regulariser pulls the fitted model, not these estimates: gradients are those of the loss alone."
    clip = None if plan.moments is None else plan.moments.clip
    if clip is not None:
        yield f"The gradient of a record is clipped to {clip:.6g}: large residuals count less, as in Huber regression."
    if problem.class_weight is not None or problem.party_weight is not None or facts.weight_bound != 1:
        yield "Records are weighted; the population is the weighted one."
    if robust:
        yield "Standard errors are robust: from the second moment of gradients, not from the model's variance."
    else:
        yield "Standard errors are the model's: right where its probabilities are; robust=True does not need that."
    if math.isinf(problem.loss.lipschitz) and clip is None:
        yield "Nothing bounds the influence of a record."

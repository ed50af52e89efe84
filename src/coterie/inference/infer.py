"""Coefficients with intervals, from the moments that a plan releases at its model."""

import math
from collections.abc import Iterator

import numpy as np

from coterie.data.federation import Federation
from coterie.errors import InputError
from coterie.inference.columns import Columns
from coterie.inference.estimate import Equations, Stage
from coterie.inference.releases import noise_std, release
from coterie.inference.result import Inference, Setting
from coterie.plan import Plan
from coterie.privacy.accountants import check_delta
from coterie.privacy.noise import NoiseSource, SystemEntropy
from coterie.problems.losses import Huber, Logistic, Multinomial, Squared
from coterie.transcript import Transcript

SCORE = 2.0  # across a row of the largest norm, that the noise of a model for prediction may reach
_METHODS = {
    Logistic: "Logistic regression",
    Multinomial: "Multinomial logistic regression",
    Huber: "Huber regression",
    Squared: "Least squares, gradients clipped",
}


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
    states as its loss includes them. columns: which numbers are reported; one a feature, as the design has it, when
    left out. delta: at which the loss is shown.
    """
    plan = transcript.plan
    check_delta(delta)
    if plan.moments is None:
        raise InputError("transcript: its plan has no moments; make the plan with inference to have them priced")
    if federation.facts != plan.facts:
        raise InputError("federation: its public facts differ from those the plan was made for")
    p = plan.problem.n_coefficients(plan.facts)
    if not transcript.complete or transcript.models.shape != (1, p):
        raise InputError("transcript: one complete run with a model on the columns of the design is needed")
    if columns is None:
        names = [f"x{i}" for i in range(plan.facts.n_features)]
        columns = Columns.of_features(names, np.ones(len(names)))
    columns = columns.of_outputs(plan.problem.loss, plan.facts)
    source = SystemEntropy() if noise is None else noise
    basis = columns.basis()
    basis = np.eye(p) if basis is None else basis
    constant = None if columns.constant is None else basis.T @ columns.constant
    model, stages = transcript.models[0], []
    for k in range(len(plan.moments.gradient_multipliers)):
        gradient = release(plan, federation, "gradient", k, model, source)
        hessian = release(plan, federation, "curvature", k, model, source)
        stds = noise_std(plan, "gradient", k), noise_std(plan, "curvature", k)
        stages.append(Stage(basis.T @ model, basis.T @ gradient, basis.T @ hessian @ basis, *stds))
        model = basis @ Equations(stages, constant=constant).next_model(plan.facts.row_norm)
    regulariser = plan.problem.regulariser.l2
    score = SCORE if plan.facts.label_bound is None else plan.facts.label_bound
    first = Equations(stages, constant=constant)
    shrunk = first.solve(ridge=regulariser + first.gradient_std * plan.facts.row_norm / score)
    second = None
    if plan.moments.second_moment_multiplier is not None:
        second = release(plan, federation, "second_moment", len(stages), basis @ shrunk, source)
        second = basis.T @ second @ basis
    equations = Equations(
        stages,
        constant=constant,
        record_weight=plan.problem.largest_record_weight(plan.facts.largest, plan.facts),
        second_moment=second,
    )
    return Inference(
        names=columns.names,
        contrasts=columns.contrasts @ basis,
        groups={name: tuple(places) for name, places in columns.groups.items()},
        equations=equations,
        shrunk=basis @ shrunk,
        setting=Setting(
            method=_METHODS[type(plan.problem.loss)],
            odds=isinstance(plan.problem.loss, (Logistic, Multinomial)),
            robust=second is not None,
            n_records=sum(plan.facts.sizes),
            n_parties=plan.facts.n_parties,
            epsilon=plan.epsilon(delta),
            delta=delta,
            reproducible=transcript.reproducible or source.reproducible,
            notes=tuple(_notes(plan, second is not None)),
        ),
    )


def _notes(plan: Plan, robust: bool) -> Iterator[str]:
    """What is estimated, and what moves it away from the model without bounds."""
    facts, problem = plan.facts, plan.problem
    yield (
        "Estimated are the coefficients that fit the population best, on rows within the bounds: rows longer than "
        f"{facts.row_norm:.6g} count as if shortened to it."
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

"""What all estimators share: checks, the design, the plan, the charge, the run, and what is left behind."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from coterie import rules
from coterie.certificate import make_certificate, price
from coterie.data.checks import positive_number, whole_number
from coterie.data.federation import Federation
from coterie.engines.in_process import run
from coterie.errors import InputError
from coterie.estimators import exact
from coterie.estimators.design import make_design, split_intercept
from coterie.estimators.privacy import FitPrivacy, describe
from coterie.network.topology import make_topology
from coterie.plan import Plan
from coterie.privacy.accountants import check_delta, check_epsilon
from coterie.privacy.events import check_adjacency
from coterie.privacy.noise import NoiseSource, Seeded, SystemEntropy
from coterie.problems import Loss, Penalty, Problem
from coterie.spending import Spending, Terms
from coterie.transcript import Transcript


class PrivateLinearModel(BaseEstimator):
    """A linear model fitted among parties under a certified (epsilon, delta).

    Subclasses say what the loss, the penalty and the labels are. See docs/estimators.md for the parameters.
    """

    # set by the subclasses' constructors, which have to spell their arguments out
    epsilon: float
    delta: float
    adjacency: str
    bounds: float
    trust: str
    algorithm: str | None
    topology: Any
    unit: str
    records_per_person: int
    people_span_parties: bool
    fit_intercept: bool
    l2: float | None
    party_weight: float | None
    weight_bound: float
    rounds: int | None
    averaging: str | None
    penalty: float | None
    step: float | None
    hardened: bool
    data_derived: Sequence[str]
    tuning: str | None
    ledger: Spending | None
    random_state: Any
    coefficients_: np.ndarray  # of the design, as the algorithm left them

    _is_regression: ClassVar[bool] = False

    # --- what a subclass says -----------------------------------------------------------------------------------------

    def _encode_labels(self, y: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        """y for the federation, and the federation's arguments about labels."""
        raise NotImplementedError

    def _loss(self) -> Loss:
        raise NotImplementedError

    def _clip(self) -> float | None:
        """Bound on one record's gradient, where the loss itself has none."""
        return None

    def _class_weight(self) -> tuple[float, ...] | None:
        return None

    def _penalty(self, federation: Federation, weight_of_record: Any) -> Penalty:
        raise NotImplementedError

    def _keep(self, coefficients: np.ndarray) -> None:
        """Store coef_ and intercept_ from the coefficients of the design."""
        raise NotImplementedError

    # --- fit ----------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, *, parties: Any = None, sample_weight: Any = None) -> Any:
        """Fit on rows X with labels y; `parties` names the party of each row (one party when it is left out)."""
        self._check_parameters()
        if self.people_span_parties and parties is None:
            raise InputError("parties: got None with people_span_parties; the noise depends on how many there are")
        for name in ("certificate_", "privacy_", "transcript_"):  # of an earlier fit: not to be read beside this one
            self.__dict__.pop(name, None)
        X, y = validate_data(
            self, X, y, dtype=np.float64, ensure_min_samples=2, y_numeric=self._is_regression, multi_output=False
        )
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64)
        y, about_labels = self._encode_labels(y)
        federation = Federation.from_arrays(
            self._design(X),
            y,
            parties=parties,
            row_norm=self.bounds,
            sample_weight=sample_weight,
            weight_bound=self.weight_bound,
            **{**about_labels, "data_derived": (*about_labels.get("data_derived", ()), *self.data_derived)},
        )
        problem = self._problem(federation)
        if math.isinf(self.epsilon):
            self._charge(federation, epsilon=math.inf, reason="exact")
            self._keep(exact.minimiser(problem, federation))
            self.n_iter_ = 1
            self.certificate_ = self.transcript_ = None
            self.privacy_ = self._no_privacy(federation)
            return self
        plan = self._plan(problem, federation)
        noise = self._noise()
        epsilon, reason = price(plan, self.delta, reproducible=noise.reproducible)
        past = self._charge(federation, epsilon=epsilon, reason=reason)
        transcript = run(plan, federation, noise=noise)
        self.transcript_ = transcript
        self._keep(transcript.models[0])
        self.n_iter_ = plan.n_rounds
        self.certificate_ = make_certificate(
            plan, self.delta, reproducible=noise.reproducible, past=past, tuning=self.tuning
        )
        self.privacy_ = describe(plan, self.certificate_, constant_column=self.fit_intercept)
        return self

    def _check_parameters(self) -> None:
        if not (isinstance(self.epsilon, float) and math.isinf(self.epsilon) and self.epsilon > 0):
            check_epsilon(self.epsilon)
        check_delta(self.delta)
        check_adjacency(self.adjacency)
        positive_number("bounds", self.bounds)
        positive_number("weight_bound", self.weight_bound)
        whole_number("records_per_person", self.records_per_person, at_least=1)
        if self.trust not in rules.TRUST:
            raise InputError(f"trust: got {self.trust!r}; one of {', '.join(rules.TRUST)} is needed")
        if self.rounds is not None:
            whole_number("rounds", self.rounds, at_least=1)
        for name in ("l2", "penalty", "step", "party_weight"):
            if getattr(self, name) is not None:
                positive_number(name, getattr(self, name))
        if self.topology is not None and self.trust in rules.CHANNELS:
            raise InputError(
                f"topology: got {self.topology!r} with trust={self.trust!r}, where all hear the sum; leave it out"
            )
        if isinstance(self.data_derived, str) or not all(isinstance(name, str) and name for name in self.data_derived):
            raise InputError(
                f"data_derived: got {self.data_derived!r}; a list of what was read off the data is needed, such as "
                "['scaler']"
            )
        if self.tuning is not None and not (isinstance(self.tuning, str) and self.tuning.strip()):
            raise InputError(f"tuning: got {self.tuning!r}; a text that says what choosing the settings cost is needed")
        if self.ledger is not None and not isinstance(self.ledger, Spending):
            raise InputError(f"ledger: got a {type(self.ledger).__name__}; a coterie.Spending or None is needed")

    def _problem(self, federation: Federation) -> Problem:
        weighting: dict[str, Any] = (
            {"record_weight": 1.0} if self.party_weight is None else {"party_weight": float(self.party_weight)}
        )
        loss = self._loss()

        def weight_of_record(size: int) -> float:
            return 1.0 if self.party_weight is None else self.party_weight / size

        penalty = self._penalty(federation, weight_of_record)
        return Problem(loss=loss, penalty=penalty, class_weight=self._class_weight(), **weighting)

    def _plan(self, problem: Problem, federation: Federation) -> Plan:
        facts = federation.facts
        default = "unrestricted" if self.trust in rules.CHANNELS else "complete"
        topology = make_topology(default if self.topology is None else self.topology, facts.n_parties)
        situation = rules.Situation(
            problem=problem,
            facts=facts,
            topology=topology,
            trust=self.trust,
            epsilon=self.epsilon,
            delta=self.delta,
            adjacency=self.adjacency,
            unit=self.unit,
            records_per_person=self.records_per_person,
            clip=self._clip(),
            hardened=bool(self.hardened),
        )
        settled = rules.Open(
            algorithm=self.algorithm,
            rounds=self.rounds,
            averaging=self.averaging,
            penalty=self.penalty,
            step=self.step,
        )
        algorithm, n_rounds = rules.choose(situation, settled)
        plan = Plan.make(
            algorithm,
            problem,
            topology,
            facts,
            rounds=n_rounds,
            adjacency=self.adjacency,  # type: ignore[arg-type]  # checked
            unit=self.unit,  # type: ignore[arg-type]  # checked by the plan
            records_per_person=self.records_per_person,
            people_span_parties=self.people_span_parties,
        )
        return plan.calibrate(self.epsilon, self.delta)

    def _charge(self, federation: Federation, *, epsilon: float, reason: str) -> Any:
        """What the ledger knew of these data before; charged first, so that no failure can hide a spend."""
        if self.ledger is None:
            return ()
        terms = Terms.of(
            self.adjacency,
            self.unit,
            federation.facts.parties,
            federation.facts.sizes,
            records_per_person=self.records_per_person,
            people_span_parties=bool(self.people_span_parties),
        )
        what = f"{type(self).__name__} at {federation.n_parties} parties" + (f" ({reason})" if reason else "")
        return self.ledger.charge(what, epsilon, self.delta, terms=terms)

    def _noise(self) -> NoiseSource:
        if self.random_state is None:
            return SystemEntropy()
        if isinstance(self.random_state, (int, np.integer)) and not isinstance(self.random_state, bool):
            return Seeded(int(self.random_state))
        return Seeded(int(check_random_state(self.random_state).randint(2**31)))

    def _no_privacy(self, federation: Federation) -> FitPrivacy:
        facts = federation.facts
        return FitPrivacy(
            epsilon=math.inf,
            delta=self.delta,
            adjacency=self.adjacency,
            unit=self.unit,
            party_epsilons=dict.fromkeys(facts.parties, math.inf),
            views={"everybody": math.inf},
            published=None,
            total_epsilon=math.inf,
            total_delta=self.delta,
            reproducible=True,
            public_facts={"parties": list(facts.parties), "sizes": list(facts.sizes), "n_columns": facts.n_features},
            verdict=("NOT PRIVATE: epsilon is infinite, the exact optimum was released",),
        )

    def _check_exact_score(self, public: bool) -> None:
        """Whoever keeps a ledger must not release exact numbers beside it."""
        if self.ledger is not None and not public and not math.isinf(self.epsilon):
            raise InputError(
                "score: an exact score of private records is a release that the ledger knows nothing of; use "
                "coterie.evaluate or scoring=PrivateScorer(...), or say score(X, y, public=True) of public records"
            )

    # --- storage ------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """A plan's grants cannot be copied, by design, so the plan travels as text and issues them again."""
        state: dict[str, Any] = {**super().__getstate__()}  # type: ignore[dict-item]
        transcript = state.get("transcript_")
        if transcript is not None:
            state["transcript_"] = (transcript.plan.to_json(), transcript.releases, transcript.reproducible)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        stored = state.get("transcript_")
        if stored is not None:
            text, releases, reproducible = stored
            state = {**state, "transcript_": Transcript(Plan.from_json(text), releases, reproducible)}
        super().__setstate__(state)

    # --- scores -------------------------------------------------------------------------------------------------------

    def design(self, X: Any) -> np.ndarray:
        """The rows that were fitted: projected, with the constant column, norm at most `bounds`."""
        check_is_fitted(self)
        return self._design(np.asarray(validate_data(self, X, dtype=np.float64, reset=False)))

    def _design(self, X: np.ndarray) -> np.ndarray:
        return make_design(X, float(self.bounds), intercept=self.fit_intercept)

    def _scores(self, X: Any) -> np.ndarray:
        """(n_records, n_outputs): scores of the projected rows, which are all that the model has ever seen."""
        return self.design(X) @ self._coefficients

    @property
    def _coefficients(self) -> np.ndarray:
        """(columns of the design, n_outputs)."""
        return self.coefficients_.reshape(-1, self._loss().n_outputs)

    def _split(self, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """coef (n_outputs, n_features) and intercept (n_outputs,) for projected rows."""
        matrix = coefficients.reshape(-1, self._loss().n_outputs).T
        return split_intercept(matrix, float(self.bounds), intercept=self.fit_intercept)

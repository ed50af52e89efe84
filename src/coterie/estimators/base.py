"""What all estimators share: checks, the design, the plan, the charge, the run, and what is left behind."""

import dataclasses
import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

import coterie.rules as rules
from coterie.certificate import Certificate, cautions, make_certificate, price, shown_loss
from coterie.charts import Bar, Bars, table_html
from coterie.data.federation import Clipping, Federation, make_design, project_rows, row_norms, split_intercept
from coterie.engines.in_process import run
from coterie.errors import InputError, PrivacyWarning
from coterie.estimators import exact
from coterie.estimators.surroundings import (
    encoded_by_schema,
    fitted_preprocessing,
    refuse_exact_scores,
    refuse_stratified_folds,
    standardised,
)
from coterie.inference import Columns, Inference, infer
from coterie.plan import Plan
from coterie.privacy.noise import NoiseSource, Seeded, SystemEntropy
from coterie.problems import L2, Loss, Problem, Regulariser
from coterie.promise import Privacy
from coterie.transcript import Transcript
from coterie.values import Facts, positive_number

# that a table in a notebook lists
MOST_PARTIES = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitPrivacy:
    """What a fitted estimator says about its privacy, for programs; `certificate_` says it for people.

    `epsilon` is the loss of this fit against the strongest observer; `total_epsilon` adds what the ledger knows.

    views: loss by observer. public_facts: what was taken as known to everybody, with `n_columns` of the design and
    where each of the `bounds` came from. verdict: what must be read before any number.
    """

    epsilon: float
    delta: float
    adjacency: str
    unit: str
    party_epsilons: dict[str, float]
    views: dict[str, float]
    total_epsilon: float
    total_delta: float
    reproducible: bool
    public_facts: dict[str, object]
    verdict: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan, certificate: Certificate, *, constant_column: bool) -> "FitPrivacy":
        facts = plan.facts
        public: dict[str, object] = {**certificate.document["public_facts"], "constant_column": constant_column}
        public["n_columns"] = public.pop("n_features")
        public["bounds"] = certificate.document["bounds"]
        return cls(
            epsilon=certificate.epsilon,
            delta=certificate.delta,
            adjacency=plan.adjacency,
            unit=plan.unit,
            party_epsilons=dict(zip(facts.parties, certificate.party_epsilons, strict=True)),
            views={view.observer: view.epsilon for view in certificate.views},
            total_epsilon=certificate.total_epsilon,
            total_delta=certificate.total_delta,
            reproducible=certificate.not_private,
            public_facts=public,
            verdict=certificate.verdict,
        )

    @classmethod
    def nothing(cls, privacy: Privacy, facts: Facts) -> "FitPrivacy":
        """Of the exact optimum."""
        return cls(
            epsilon=math.inf,
            delta=privacy.delta,
            adjacency=privacy.adjacency,
            unit=privacy.unit,
            party_epsilons=dict.fromkeys(facts.parties, math.inf),
            views={"everybody": math.inf},
            total_epsilon=math.inf,
            total_delta=privacy.delta,
            reproducible=True,
            public_facts={"parties": list(facts.parties), "sizes": list(facts.sizes), "n_columns": facts.n_features},
            verdict=("NOT PRIVATE: epsilon is infinite, the exact optimum was released",),
        )

    def _repr_html_(self) -> str:
        losses = [("against " + observer, epsilon) for observer, epsilon in self.views.items()]
        losses += [(f"a record of {party}", epsilon) for party, epsilon in self.party_epsilons.items()]
        shown = losses[: len(self.views) + MOST_PARTIES]
        rows = [(what, shown_loss(epsilon), f"{self.delta:g}") for what, epsilon in shown]
        rows += [(f"{len(losses) - len(shown)} more parties", "", "")] if len(losses) > len(shown) else []
        total = ("with everything in the ledger", shown_loss(self.total_epsilon), f"{self.total_delta:g}")
        rows += [total] if self.total_epsilon != self.epsilon else []
        caption = f"Privacy loss, {self.adjacency}, of one {self.unit}"
        return table_html(("", "ε", "δ"), rows, "; ".join((*self.verdict, caption)))


PRIVATE = "private"


class Fitted:
    """What `fit` leaves behind; at an infinite epsilon certificate and transcript are None."""

    certificate_: Certificate
    privacy_: FitPrivacy
    transcript_: Transcript
    inference_: Inference
    clipping_: Clipping | None
    coef_: np.ndarray
    intercept_: np.ndarray
    n_features_in_: int
    n_iter_: int


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class PrivateLinearModel(BaseEstimator, Fitted):
    """Parameters of all estimators. What is left open (None) follows from public facts by `coterie.rules`.

    What is promised, in one of two ways:

    epsilon, delta, adjacency: the three words that are always needed; everything else as in `Privacy`.
    trust, colluders: beside them, who is trusted with sums, as in `Privacy`.
    privacy: a `Privacy`, which also says what is protected, who is trusted, and which ledger is charged.

    The data:

    bounds: public bound on the 2-norm of a row; longer rows are clipped to it, in `predict` as well.
    weight_bound: `sample_weight` is clipped to [0, weight_bound], and noise is sized for the largest; of a fit without
        weights for 1, if that is less.
    standardise: "private": columns are centred and scaled by noised sums, a priced part of the fit; then clipped to
        `bounds` again. "none": they stay as they are.
    data_derived: what was read off these data before the fit, such as ["scaler"]: the certificate says VOID.

    The objective, a sum of weighted losses and regularisers over the coefficients of the design:

    fit_intercept: whether the design has a constant column.
    l2: adds (l2/2) times the squared norm of the coefficients.
    party_weight: C: a record of a party with B records weighs C/B; every record weighs 1 when left open.

    The optimiser:

    algorithm: one of `coterie.algorithms.ALGORITHMS` by its name.
    topology: who hears whom: a name, edges, or a networkx graph.
    rounds: how often the parties speak.
    settings: a dict of fields of the algorithm or of its mechanism, by name, such as {"averaging": "last"}.
    inference: True, or a share of the budget: release what confidence intervals need as well, inside the stated loss;
        `inference_` then has them, and the model that is used is the corrected one.
    robust: intervals that do not rely on the model's variance (a sandwich), at the price of one more release.
    random_state: a seed makes a fit reproducible, and NOT PRIVATE: whoever knows it can take the noise off.
    """

    epsilon: float | None = None
    delta: float | None = None
    adjacency: str | None = None
    trust: str | None = None
    colluders: int | None = None
    privacy: Privacy | None = None
    bounds: float = 1.0
    weight_bound: float = 1.0
    standardise: str | None = None
    data_derived: Sequence[str] = ()
    fit_intercept: bool = True
    l2: float | None = None
    party_weight: float | None = None
    algorithm: str | None = None
    topology: Any = None
    rounds: int | None = None
    settings: dict[str, Any] | None = None
    inference: bool | float = False
    robust: bool = False
    random_state: Any = None

    _is_regression: ClassVar[bool] = False

    def __init_subclass__(cls, **more: Any) -> None:
        """Every parameter is described once, by the class that has it, and shown by every estimator."""
        super().__init_subclass__(**more)
        if not cls.__name__.startswith("_"):
            described = [base.__doc__ for base in cls.__mro__ if issubclass(base, PrivateLinearModel)]
            cls.__doc__ = "\n\n".join(inspect.cleandoc(text) for text in described if text)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.random_state is None and not self._exact
        return tags

    def plot_coefficients(self, ax: Any = None, *, most: int = 30) -> Any:
        """The largest coefficients, on matplotlib axes; of several classes, the largest of each feature's."""
        check_is_fitted(self)
        slopes = np.atleast_2d(self.coef_)
        names = getattr(self, "feature_names_in_", None)
        named = [f"x{j}" for j in range(slopes.shape[1])] if names is None else [str(name) for name in names]
        chosen = slopes[np.abs(slopes).argmax(axis=0), np.arange(slopes.shape[1])]
        ranked = np.argsort(-np.abs(chosen))[:most]
        bars = tuple(Bar(named[j], float(chosen[j])) for j in ranked)
        return Bars(title="Coefficients", x_label="coefficient", bars=bars).plot(ax)

    # --- what a subclass says -----------------------------------------------------------------------------------------

    def _encode_labels(self, y: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        """y for the federation, and the federation's arguments about labels."""
        raise NotImplementedError

    def _loss(self) -> Loss:
        raise NotImplementedError

    def _settings(self) -> dict[str, Any]:
        """Fields of the algorithm that are settled."""
        return dict(self.settings or {})

    def _class_weight(self) -> tuple[float, ...] | None:
        return None

    def _regulariser(
        self, facts: Facts, open_l2: Callable[[], float], weight_of_record: Callable[[int], float]
    ) -> Regulariser:
        """`open_l2`: what the rules take where nothing is given."""
        return L2(open_l2() if self.l2 is None else float(self.l2))

    def _keep(self, coefficients: np.ndarray) -> None:
        """The coefficients of the design as the algorithm left them, and coef_ and intercept_ for projected rows."""
        self.coefficients_ = coefficients
        self.coef_, self.intercept_ = split_intercept(
            self._coefficients.T, float(self.bounds), intercept=self.fit_intercept
        )

    # --- fit ----------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, *, parties: Any = None, sample_weight: Any = None) -> Self:
        """Fit on rows X with labels y; `parties` names the party of each row (one party when it is left out)."""
        privacy = self._promise()
        self._check_parameters(privacy)
        if privacy.people_span_parties and parties is None:
            raise InputError("parties: got None with people_span_parties; the noise depends on how many there are")
        # of an earlier fit: not to be read beside this one
        for name in ("certificate_", "privacy_", "transcript_", "inference_", "clipping_"):
            self.__dict__.pop(name, None)
        X, y = self._checked(X, y, ensure_min_samples=2, y_numeric=self._is_regression, multi_output=False)
        if sample_weight is not None:
            _refuse_other_than_numbers("sample_weight", sample_weight)
            sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64)
        y, about_labels = self._encode_labels(y)
        about_labels["data_derived"] = (*about_labels.get("data_derived", ()), *self._looked_before(X))
        if privacy.ledger is not None and not privacy.exact:
            refuse_exact_scores()
            refuse_stratified_folds()
        federation = Federation.from_arrays(
            self._design(X),
            y,
            parties=parties,
            row_norm=self.bounds,
            sample_weight=sample_weight,
            # whether there are weights is said by the call, not by the records
            weight_bound=self.weight_bound if sample_weight is not None else min(self.weight_bound, 1.0),
            **about_labels,
        )
        wanted = self._wanted(weighted=sample_weight is not None)
        settled = rules.Settled(
            algorithm=self.algorithm,
            topology=self.topology,
            rounds=self.rounds,
            settings=self._settings(),
            standardise=None if self.standardise is None else self.standardise == PRIVATE,
            intercept=self.fit_intercept,
        )
        problem = self._problem(federation.facts, privacy, settled, wanted)
        if privacy.exact:
            if wanted is not None:
                raise InputError("inference: got it with an infinite epsilon; statsmodels does that without noise")
            self._charge(privacy, federation, epsilon=math.inf, reason="exact")
            self._keep(exact.minimiser(problem, federation))
            self.n_iter_ = 1
            vars(self).update(certificate_=None, transcript_=None)
            self.privacy_ = FitPrivacy.nothing(privacy, federation.facts)
            return self
        plan = rules.make_plan(problem, federation.facts, privacy, settled, wanted)
        noise = self._noise()
        spent, reason = price(plan, privacy.delta, reproducible=noise.reproducible)
        past = self._charge(privacy, federation, epsilon=spent, reason=reason)
        transcript = run(plan, federation, noise=noise)
        self.transcript_ = transcript
        if wanted is None:
            self.clipping_ = transcript.clipping
            self._keep(transcript.models[0])
        else:
            columns = self._columns(X.shape[1])
            self.inference_ = infer(transcript, federation, delta=privacy.delta, columns=columns, noise=noise)
            self._keep(self.inference_.shrunk)
        self.n_iter_ = plan.n_rounds
        self.certificate_ = make_certificate(
            plan,
            privacy.delta,
            reproducible=noise.reproducible,
            past=past,
            tuning=privacy.tuning,
            design="schema" if encoded_by_schema() else "declared",
        )
        self.privacy_ = FitPrivacy.of(plan, self.certificate_, constant_column=self.fit_intercept)
        voids = [sentence for sentence in self.certificate_.verdict if sentence.startswith("VOID")]
        for sentence in (*voids, *cautions(plan, privacy.delta), *self._cut(X, y)):
            warnings.warn(sentence, PrivacyWarning, stacklevel=2)
        return self

    def _looked_before(self, X: np.ndarray) -> tuple[str, ...]:
        """What was read off these records before the fit, as far as it was said or can be seen."""
        found = [*self.data_derived, *fitted_preprocessing()]
        if not found and standardised(X):
            found.append("standardisation")
        return tuple(dict.fromkeys(found))

    def _cut(self, X: np.ndarray, y: np.ndarray) -> Iterator[str]:
        """For whoever holds the records, and kept nowhere: bounds that clip most of them."""
        if np.mean(row_norms(X) > self.bounds * (1 + 1e-9)) > 0.5:
            yield f"most rows are longer than bounds = {self.bounds:g} and were clipped; a Schema scales columns to fit"

    def _wanted(self, *, weighted: bool) -> rules.Wanted | None:
        """Weights are squared in the variance of a sum, which only the robust one knows."""
        if self.inference is False:
            if self.robust:
                raise InputError("robust: got True without inference; it is about intervals")
            return None
        if isinstance(self.inference, (bool, np.bool_)):
            return rules.Wanted(robust=self.robust or weighted)
        share = self.inference
        return rules.Wanted(
            share=float(share) if isinstance(share, (int, float)) else share, robust=self.robust or weighted
        )

    def _columns(self, n_features: int) -> Columns:
        """Coefficients in the units of the columns of X, the intercept last."""
        names = getattr(self, "feature_names_in_", [f"x{i}" for i in range(n_features)])
        one = np.ones(len(names) + self.fit_intercept)
        scales, scale = split_intercept(one, float(self.bounds), intercept=self.fit_intercept)
        value = float(self._design(np.zeros((1, n_features)))[0, -1])
        return Columns.of_features(
            [str(name) for name in names], scales, intercept=(float(scale), value) if self.fit_intercept else None
        )

    def _promise(self) -> Privacy:
        """What is promised, in whichever of the two ways it was said."""
        words = {"epsilon": self.epsilon, "delta": self.delta, "adjacency": self.adjacency}
        missing = ", ".join(name for name, value in words.items() if value is None)
        words |= {name: getattr(self, name) for name in ("trust", "colluders") if getattr(self, name) is not None}
        said = [name for name, value in words.items() if value is not None]
        if self.privacy is None:
            if missing:
                raise InputError(
                    f"{missing}: missing; epsilon, delta and adjacency are needed, or privacy=Privacy(...)"
                )
            return Privacy(**words)
        if said:
            raise InputError(f"privacy: got one beside {', '.join(said)}; say it in one of the two ways")
        if not isinstance(self.privacy, Privacy):
            raise InputError(f"privacy: got a {type(self.privacy).__name__}; a coterie.Privacy is needed")
        if self.privacy.epsilon is None:
            raise InputError("epsilon: got None; an estimator needs the loss that it may cause")
        return self.privacy

    @property
    def _exact(self) -> bool:
        """Without noise a fit is deterministic; asked of estimators that nothing was promised for as well."""
        epsilon = self.epsilon if self.privacy is None else self.privacy.epsilon
        return isinstance(epsilon, float) and math.isinf(epsilon)

    def _check_parameters(self, privacy: Privacy) -> None:
        positive_number("bounds", self.bounds)
        positive_number("weight_bound", self.weight_bound)
        if self.standardise not in (None, PRIVATE, "none"):
            raise InputError(f"standardise: got {self.standardise!r}; {PRIVATE!r}, 'none' or None is needed")
        if self.standardise == PRIVATE and privacy.exact:
            raise InputError(
                "standardise: got 'private' with an infinite epsilon; nothing is noised there, leave it out"
            )
        for name in ("l2", "party_weight"):
            if getattr(self, name) is not None:
                positive_number(name, getattr(self, name))
        if self.settings is not None and not isinstance(self.settings, dict):
            raise InputError(f"settings: got a {type(self.settings).__name__}; a dict from names to values is needed")
        if self.topology is not None and privacy.sums:
            raise InputError(
                f"topology: got {self.topology!r} with trust={privacy.trust!r}, where all hear the sum; leave it out"
            )
        if isinstance(self.data_derived, str) or not all(isinstance(name, str) and name for name in self.data_derived):
            raise InputError(
                f"data_derived: got {self.data_derived!r}; a list of what was read off the data is needed, such as "
                "['scaler']"
            )

    def _problem(self, facts: Facts, privacy: Privacy, settled: rules.Settled, wanted: rules.Wanted | None) -> Problem:
        weighting: dict[str, Any] = (
            {"record_weight": 1.0} if self.party_weight is None else {"party_weight": float(self.party_weight)}
        )
        problem = Problem(loss=self._loss(), regulariser=L2(0.0), class_weight=self._class_weight(), **weighting)

        def open_l2() -> float:
            return rules.regulariser(problem, facts, privacy, settled, wanted)

        chosen = self._regulariser(facts, open_l2, problem.weight_of_one_record)
        return dataclasses.replace(problem, regulariser=chosen)

    def _charge(self, privacy: Privacy, federation: Federation, *, epsilon: float, reason: str) -> Any:
        """What the ledger knew of these data before; charged first, so that no failure can hide a spend."""
        if privacy.ledger is None:
            return ()
        n_parties = federation.n_parties
        where = "1 party" if n_parties == 1 else f"{n_parties} parties"
        what = f"{type(self).__name__} at {where}" + (f" ({reason})" if reason else "")
        terms = privacy.terms(federation.facts.parties, federation.facts.sizes)
        return privacy.ledger.charge(what, epsilon, privacy.delta, terms=terms)

    def _noise(self) -> NoiseSource:
        if self.random_state is None:
            return SystemEntropy()
        if isinstance(self.random_state, (int, np.integer)) and not isinstance(self.random_state, bool):
            return Seeded(int(self.random_state))
        return Seeded(int(check_random_state(self.random_state).randint(2**31)))

    def _check_exact_score(self, public: bool) -> None:
        """Whoever keeps a ledger must not release exact numbers beside it."""
        if self.privacy is not None and self.privacy.ledger is not None and not public and not self._exact:
            raise InputError(
                "score: an exact score of private records is a release that the ledger knows nothing of; use "
                "coterie.evaluate or scoring=PrivateScorer(...), or say score(X, y, public=True) of public records"
            )

    # --- storage ------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """A plan's grants cannot be copied, by design, so the plan travels as text and issues them again."""
        kept: Any = super().__getstate__()
        state: dict[str, Any] = {**kept}
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
        """The rows that were fitted: projected, with the constant column, norm at most `bounds`; where columns were
        standardised, clipped as they were then."""
        check_is_fitted(self)
        rows = np.asarray(self._checked(X, reset=False))
        clipping = getattr(self, "clipping_", None)
        return self._design(rows if clipping is None else clipping(rows, float(self.bounds)))

    def _checked(self, X: Any, *y: Any, **wanted: Any) -> Any:
        """By scikit-learn, which however quotes cells and advises imputers, and these would look at the records."""
        try:
            return validate_data(self, X, *y, dtype=np.float64, **wanted)
        except ValueError:
            _refuse_texts_and_blanks(X)
            for labels in y:
                _refuse_other_than_numbers("y", labels, texts=not wanted.get("y_numeric"))
            raise

    def _design(self, X: np.ndarray) -> np.ndarray:
        return make_design(X, float(self.bounds), intercept=self.fit_intercept)

    def _scores(self, X: Any) -> np.ndarray:
        """(n_records, n_outputs): scores of the projected rows, which are all that the model has ever seen."""
        return self.design(X) @ self._coefficients

    @property
    def _coefficients(self) -> np.ndarray:
        """(columns of the design, n_outputs)."""
        return self.coefficients_.reshape(-1, self._loss().n_outputs)

    def _plain(self, plain: Any, **attributes: Any) -> Pipeline:
        """Projection to the public row norm, then `plain` with the fitted coefficients: a private model has only ever
        seen projected rows, so without the projection long rows would get other predictions. So it is with rows that
        were clipped when columns were standardised."""
        nothing, bound = [[0.0] * self.n_features_in_], {"bound": float(self.bounds)}
        plain.coef_, plain.intercept_ = self.coef_.copy(), self.intercept_.copy()
        plain.n_features_in_, plain.n_iter_ = self.n_features_in_, self.n_iter_
        for name, value in attributes.items():
            setattr(plain, name, value)
        steps: list[tuple[str, Any]] = [("project", project_rows)]
        if getattr(self, "clipping_", None) is not None:
            steps.append(("clip", self.clipping_))
        fitted = [(name, FunctionTransformer(step, kw_args=bound, validate=True).fit(nothing)) for name, step in steps]
        return Pipeline([*fitted, ("model", plain)])


def _refuse_texts_and_blanks(X: Any) -> None:
    """Where that is what is wrong with a table or an array: by column, without a value."""
    _refuse_complex("X", X)
    names = list(X.columns) if hasattr(X, "columns") else range(X.shape[1] if np.ndim(X) == 2 else 0)
    columns = (X[name] if hasattr(X, "columns") else np.asarray(X)[:, name] for name in names)
    for name, column in zip(names, columns, strict=True):
        try:
            n_blanks = int(np.isnan(np.asarray(column, dtype=np.float64)).sum())
            what = f"blanks (NaN), {n_blanks:,} of them"
        except (TypeError, ValueError):
            n_blanks, what = len(column), "texts"
        if n_blanks:
            raise InputError(
                f"X: column {name!r} has {what}; numbers are needed: coterie.SchemaEncoder makes them by public "
                "constants, where a fitted imputer or encoder would void the guarantee"
            )


def _refuse_other_than_numbers(name: str, values: Any, *, texts: bool = False) -> None:
    """Labels or weights, without quoting one as NumPy would; `texts` may be labels."""
    try:
        array = np.asarray(values)
        if array.dtype.kind in "OSUV":
            np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError):
        if not texts:
            raise InputError(f"{name}: got values that are no numbers; numbers are needed") from None
    else:
        _refuse_complex(name, array)


def _refuse_complex(name: str, values: Any) -> None:
    """In the words that scikit-learn's own checks look for."""
    if np.iscomplexobj(values):
        raise InputError(f"{name}: Complex data not supported; real numbers are needed") from None

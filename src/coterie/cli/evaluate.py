"""`coterie evaluate`: how good the model of a run is, on records that are paid for or public."""

import json
import math
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.options import DELIMITER, ENCODING, FILE, JSON, RUN, SHOW_VALUES
from coterie.cli.predict import read_features

if TYPE_CHECKING:
    from coterie.evaluation import Evaluation

EXAMPLES = (
    "Examples: coterie evaluate spec-run test.csv --public; coterie evaluate spec-run held-out.csv --epsilon 0.5 "
    "--delta 1e-6 --adjacency replace-one --ledger patients.ledger"
)


def evaluate(
    run: Annotated[Path, RUN],
    file: Annotated[Path, FILE],
    public: Annotated[
        bool, typer.Option("--public", help="Everybody may know these records: exact numbers, no price.")
    ] = False,
    epsilon: Annotated[float | None, typer.Option(help="The loss of everything that is told here together.")] = None,
    delta: Annotated[float | None, typer.Option(help="Strictly between 0 and 1.")] = None,
    adjacency: Annotated[str | None, typer.Option(help="replace-one or zero-out.")] = None,
    party_column: Annotated[
        str | None, typer.Option(help="The column that names each row's party; one party when left out.")
    ] = None,
    trust: Annotated[
        str, typer.Option(help="none, pairs, curator or secure-sum: who is trusted with counts.")
    ] = "none",
    colluders: Annotated[
        int | None, typer.Option(help="With pairs: parties that may put what they see together.")
    ] = None,
    records_per_person: Annotated[int, typer.Option(help="Records that one person may have at a party.")] = 1,
    ledger: Annotated[Path | None, typer.Option(help="The ledger of these records, which is charged first.")] = None,
    encoding: Annotated[str, ENCODING] = "utf-8",
    delimiter: Annotated[str | None, DELIMITER] = None,
    show_values: Annotated[bool, SHOW_VALUES] = False,
    json_line: Annotated[bool, JSON] = False,
) -> None:
    """Measure a run's model: error, AUC and calibration. The majority class stands beside it.

    Of private records, counts are released under noise for (epsilon, delta), and charged to --ledger before anything is
    computed; with --public the numbers are exact, and are for records that everybody may know.
    """
    from coterie.data.tables import Dialect
    from coterie.errors import InputError
    from coterie.evaluation import exact_result
    from coterie.rundir import FittedModel, ProbableModel
    from coterie.values import values_shown

    said = {"--epsilon": epsilon, "--delta": delta, "--adjacency": adjacency}
    if public and any(value is not None for value in (*said.values(), ledger)):
        raise InputError(
            "--public: got it with --epsilon, --delta, --adjacency or --ledger; public records cost nothing"
        )
    missing = [name for name, value in said.items() if value is None]
    if not public and missing:
        raise InputError(f"{', '.join(missing)}: missing; all three are needed, or --public of public records")
    if sys.stdout is None and not public:
        raise InputError("standard output is closed: what is paid for would be told to nobody")
    with values_shown(show_values):
        model = FittedModel.read(run)
        if model.labels is None and not public:
            raise InputError("RUN: it predicts a number, and only classifiers can be told about privately; or --public")
        label = model.schema.label.name
        extra = [] if party_column is None else [party_column]
        if party_column in (label, *(column.name for column in model.schema.columns)):
            raise InputError(f"--party-column: got {party_column!r}, which is a feature or the label")
        table = read_features(model, file, Dialect.checked("--", delimiter, encoding), label, *extra)
        parties = None if party_column is None else [str(name) for name in table.take(party_column).tolist()]
        y = model.schema.label_positions(table.take(label), place=table.place)
        X = model.encode(table)
    if public and model.labels is None:
        _tell_numbers(exact_result(model, X, y), json_line)
        return

    from coterie.evaluation import evaluate as told_privately
    from coterie.spending import Spending
    from coterie.terminal import stoppable

    calibration = ("calibration",) if isinstance(model, ProbableModel) else ()
    with stoppable(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as stop:
        # from its price to its last word
        stop.patience = math.inf
        found = told_privately(
            model,
            X,
            y,
            epsilon=epsilon,
            delta=delta,
            adjacency=adjacency,
            parties=parties,
            metrics=("accuracy", "class-error", "auc", *calibration),
            trust=trust,
            colluders=colluders,
            records_per_person=records_per_person,
            public=public,
            ledger=None if ledger is None else Spending(path=ledger),
        )
        _tell(_in_json(found, public) if json_line else str(found))
    if stop.asked:
        raise typer.Exit(130)


def _in_json(found: "Evaluation", public: bool) -> str:
    metrics = {name: {"value": _plain(m.value), "noise": _plain(m.standard_error)} for name, m in found.metrics.items()}
    told = {"verdict": list(found.verdict), "metrics": metrics, "majority_error": found.majority_error}
    loss = {"epsilon": found.epsilon, "delta": found.delta, "total_epsilon": found.total_epsilon}
    return json.dumps({**told, "calibration_error": found.calibration_error, "public": public, **loss})


def _tell(text: str) -> None:
    """What was paid for is said, or kept, and said where."""
    from coterie.errors import CoterieError
    from coterie.rundir import saved_elsewhere
    from coterie.terminal import mute_output

    def write(folder: Path) -> None:
        (folder / "evaluation.txt").write_text(text, encoding="utf-8")

    try:
        typer.echo(text)
    except OSError as error:
        mute_output()
        kept = saved_elsewhere("coterie-evaluation", write)
        where = "is lost" if kept is None else f"is in {kept / 'evaluation.txt'}"
        raise CoterieError(
            f"standard output cannot be written ({error.strerror}); what it should have said {where}"
        ) from None


def _tell_numbers(result: dict[str, Any], json_line: bool) -> None:
    if json_line:
        typer.echo(json.dumps({**result, "public": True}))
        return
    typer.echo("NOT PRIVATE: exact metrics of records that were declared public")
    typer.echo(f"root mean square error  {result['rmse']:.4g}  (always the mean: {result['mean_rmse']:.4g})")
    if "r2" in result:
        typer.echo(f"R²                      {result['r2']:.3f}")


def _plain(value: Any) -> Any:
    """Numbers that there are none of are null."""
    if hasattr(value, "tolist"):
        return [_plain(one) for one in value.tolist()]
    return None if isinstance(value, float) and math.isnan(value) else value

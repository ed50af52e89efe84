"""Which of the models of all rounds is the model: the last, or an average, in which the noise of rounds cancels."""

from typing import Any, Literal, get_args

from coterie.errors import InputError

Averaging = Literal["last", "uniform", "linear"]


def check_averaging(averaging: Any) -> None:
    if averaging not in get_args(Averaging):
        raise InputError(f"averaging: got {averaging!r}; one of {', '.join(get_args(Averaging))} is needed")


def running_average(averaging: Averaging, t: Any, average: Any, value: Any) -> Any:
    """Only the last value, or weights 1, 1, 1, ... or 1, 2, 3, ... over rounds t = 0, 1, 2, ..."""
    if averaging == "last":
        return value
    share = 1 / (t + 1) if averaging == "uniform" else 2 / (t + 2)
    return average + share * (value - average)

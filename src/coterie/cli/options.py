"""What several commands have, in the same words: options and arguments, and the new file that --out names."""

from pathlib import Path

import typer

from coterie.errors import InputError

JSON = typer.Option("--json", help="Print one line of JSON and nothing else.")
JSON_LIST = typer.Option("--json", help="Print one list as JSON and nothing else.")
RUN = typer.Argument(metavar="RUN", help="The directory of a run.", show_default=False)
FILE = typer.Argument(help="A .csv, .csv.gz or .parquet file.", show_default=False)
ENCODING = typer.Option(help="How the text of a CSV file is encoded.")
DELIMITER = typer.Option(help="What is between the cells of a CSV file. [default: seen in its first line]")
SHOW_VALUES = typer.Option("--show-values", help="Quote cells of the data where they cannot be read.")


def write_new(path: Path, text: str) -> None:
    """Write a file that must not exist."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"--out: {str(path)!r} exists already; choose another") from None
    except OSError as error:
        raise InputError(f"--out: cannot write {str(path)!r} ({error.strerror})") from None

"""Time and memory of `coterie run` on a large Parquet file: 1,000,000 records x 50 features at 20 parties.

    python benchmarks/big_run.py [--records 1000000] [--features 50] [--parties 20] [--keep FOLDER]

Writes a synthetic file and a spec, runs the command in a process of its own and prints one line of JSON: seconds on the
clock and of the processors, the largest resident memory, and what the run says about itself.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GROUP_ROWS = 100_000

SPEC = """\
[data]
file = "records.parquet"

[schema]
file = "schema.toml"

[parties]
topology = "ring"

[privacy]
epsilon = 1.0
delta = 1e-8
adjacency = "replace-one"
"""


def write_inputs(folder: Path, n_records: int, n_features: int, n_parties: int) -> None:
    names = [f"x{j:02}" for j in range(n_features)]
    rng = np.random.default_rng(0)
    truth = rng.normal(size=n_features)
    writer = None
    for start in range(0, n_records, GROUP_ROWS):
        rows = min(GROUP_ROWS, n_records - start)
        X = rng.normal(size=(rows, n_features))
        positive = X @ truth + 2 * rng.normal(size=rows) > 0
        columns = {name: X[:, j] for j, name in enumerate(names)}
        columns["site"] = np.char.add("site-", rng.integers(n_parties, size=rows).astype(str))
        columns["outcome"] = np.where(positive, "yes", "no")
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(folder / "records.parquet", table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()
    schema = 'party_column = "site"\n\n[label]\nname = "outcome"\nvalues = ["no", "yes"]\n'
    schema += "".join(f'\n[[columns]]\nname = "{name}"\nminimum = -5\nmaximum = 5\n' for name in names)
    (folder / "schema.toml").write_text(schema)
    (folder / "spec.toml").write_text(SPEC)


def measure(folder: Path) -> dict:
    command = [str(Path(sys.executable).with_name("coterie")), "run", str(folder / "spec.toml"), "--json"]
    started = time.perf_counter()
    done = subprocess.run([*command, "--out", str(folder / "run")], capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        # Linux counts in KiB
        "peak_gb": round(used.ru_maxrss * 1024 / 1e9, 2),
        "run": json.loads(done.stdout),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=50)
    parser.add_argument("--parties", type=int, default=20)
    parser.add_argument("--keep", type=Path, help="folder for the inputs and the run, instead of a temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        write_inputs(folder, arguments.records, arguments.features, arguments.parties)
        print(json.dumps(measure(folder)))


if __name__ == "__main__":
    main()

"""The hindsight grid on a machine with a GPU: 216 settings in every cell of every data set.

python benchmarks/planner_grid.py DATA OUT     (DATA as `benchmarks/planner.py` describes it)

One .npz a data set: `grid` (levels of noise, settings, seeds, 3).
"""

import sys
import time
import zlib
from pathlib import Path

import jax
import numpy as np
from planner_sweep import GRID, Data, of_grid, run

# settings can be chosen by one half and measured on the other
SEEDS, OF_SMALL = 20, 60
jax.config.update("jax_default_matmul_precision", "float32")


def main() -> None:
    source, out = map(Path, sys.argv[1:3])
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("*.npz"), key=lambda path: path.stat().st_size):
        if (out / path.name).exists():
            continue
        packed, started = np.load(path), time.perf_counter()
        data = Data(*(packed[name] for name in ("X", "y", "X_test", "y_test")), int(packed["n_classes"]))
        seeds, first = OF_SMALL if len(data.y) < 2000 else SEEDS, zlib.crc32(path.stem.encode())
        grid = [
            run(data, [of_grid(point, data, noise) for point in GRID], noise, seeds, first + level)
            for level, noise in enumerate(packed["noises"])
        ]
        np.savez_compressed(out / path.name, grid=np.array(grid, np.float32), noises=packed["noises"])
        print(path.stem, data.X.shape, f"{time.perf_counter() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()

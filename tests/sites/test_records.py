"""What a site's owner is told about a column that does not fit; nobody else hears of it."""

from pathlib import Path

import numpy as np
import pytest

from coterie.data import NumberColumn
from coterie.data import schema as fitting
from coterie.data.tables import Table
from coterie.site.records import _narrow, _rows

COLUMN = NumberColumn("size", minimum=100.0, maximum=200.0)


def table(*values):
    return Table({"size": np.array(values)}, Path("records.csv"), None)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ((150.0, 151.0, 151.9), True),
        # from the very end of the range
        ((100.0, 101.5), True),
        ((198.5, 200.0), True),
        # a fiftieth of the range is enough
        ((150.0, 152.0), False),
        ((110.0, 190.0), False),
        # one value says nothing
        ((150.0, 150.0), False),
        ((99.0, 100.5), False),
        ((np.nan, np.nan), False),
        ((150.0, np.nan, 151.0), True),
    ],
)
def test_a_column_that_fills_next_to_nothing_of_its_range_is_told(values, told):
    found = list(_narrow(COLUMN, table(*values)))
    assert len(found) == told
    assert not any(misfit.refused for misfit in found)


@pytest.mark.parametrize(("outside", "refused"), [(1, False), (5, False), (6, True), (10, True)])
def test_where_most_of_a_column_is_outside_its_range_it_is_refused(outside, refused):
    rows = np.arange(outside)
    [told] = _rows(
        fitting.Misfit("size", fitting.OUTSIDE, rows, (1.0,) * outside, "100 to 200", False), table(*range(10))
    )
    assert (told.count, told.refused) == (outside, refused)


def test_of_missing_cells_the_share_is_told():
    missing = fitting.Misfit("size", fitting.MISSING, np.array([1, 4]), (np.nan,) * 2, "a number", True)
    [told] = _rows(missing, table(*range(8)))
    assert told.what == "missing (25% of 8)"

"""Reproduced figures can be read: legends beside the curves, numbers as people write them, words for methods."""

import io
import itertools
import re

import numpy as np
import pytest

from coterie.papers.figure import Curve
from coterie.papers.fixed_point.figure_1 import HONEST
from coterie.papers.frontier.methods import METHODS
from coterie.papers.panels import ERROR, SUM_OF_MOVES, finish, grid, plot


def drawn(xscale, ylabel, x, y, yscale="linear", name=SUM_OF_MOVES):
    picture, axes = grid(1, 1)
    plot(axes[0, 0], [Curve("a", name, np.array(x), np.array(y))], {})
    finish(axes[0, 0], "title", "ε", ylabel, xscale=xscale, yscale=yscale)
    picture.savefig(io.BytesIO())
    return axes[0, 0]


def texts(axis):
    low, high = sorted(axis.get_view_interval())
    ticks = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
    return [label.get_text() for at, label in ticks if low <= at <= high]


def test_the_legend_hides_no_curve():
    axes = drawn("linear", "loss", [1, 2, 3], [1, 2, 3])
    assert axes.get_legend().get_window_extent().x0 >= axes.get_window_extent().x1


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_errors_are_in_percent(scale):
    axes = drawn("linear", ERROR, [1, 2, 3], [0.16, 0.2, 0.24], yscale=scale)
    assert texts(axes.yaxis)
    assert all(text.endswith("%") for text in texts(axes.yaxis))


@pytest.mark.parametrize("y", [[0.4, 0.5, 0.52], [0.1, 1.0, 3.0], [1e-2, 10.0, 1e4]])
def test_ticks_of_logarithmic_axes_are_plain_numbers(y):
    shown = texts(drawn("log", "loss", [0.5, 1, 8], y, yscale="log").yaxis)
    assert 3 <= len(shown) <= 8
    assert all(float(text) > 0 for text in shown)


@pytest.mark.parametrize("x", [[0.01, 0.1, 1.0], [0.02, 0.4, 5.0], [0.3, 9.0, 240.0], [1e-3, 1.0, 1e4]])
def test_numbers_along_a_narrow_axis_do_not_touch(x):
    picture, axes = grid(1, 4, size=(3.4, 3.2))
    for panel in axes[0]:
        plot(panel, [Curve("a", "b", np.array(x), np.array([1.0, 2.0, 3.0]))], {})
        finish(panel, "title", "ε", "loss", xscale="log")
    picture.savefig(io.BytesIO())
    low, high = axes[0, 1].get_xlim()
    boxes = [
        tick.label1.get_window_extent() for tick in axes[0, 1].xaxis.get_major_ticks() if low <= tick.get_loc() <= high
    ]
    assert len(boxes) >= 2
    assert all(left.x1 + 2 < right.x0 for left, right in itertools.pairwise(boxes))


def test_methods_have_words():
    labels = [text.get_text() for text in drawn("linear", "loss", [1, 2], [1, 2]).get_legend().get_texts()]
    assert labels == [SUM_OF_MOVES]
    assert [name for name in {*METHODS, *HONEST} if re.search(r"\bM\d", name)] == []

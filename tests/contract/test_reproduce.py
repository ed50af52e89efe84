"""Figures of the papers: files, determinism, resuming, and claims that are all decided."""

import csv
import dataclasses
import json
import math
import shutil
from typing import get_args

import numpy as np
import pytest

from coterie.algorithms import CITATIONS
from coterie.errors import InputError
from coterie.papers import runner
from coterie.papers.figure import MODULES, Accounting, Claim, Curve, Curves, Figure, Part, Scale, chosen, find, printed
from coterie.papers.panels import finish, grid, plot
from coterie.papers.runner import reproduce

FILES = {"figure.png", "curves.csv", "claims.json", "settings.json", "page.md"}
TINY = Scale(runs=2, iterations=2, seed=3, quick=True)
# bytes, as in the documentation
LARGEST_PICTURE = 150_000


class Walks:
    """A figure that needs no training: two random walks. `stop` interrupts its second part once."""

    def __init__(self, *, stop=False):
        self.stop, self.computed = stop, []
        self.figure = Figure(
            name="walks",
            citation="coterie",
            title="Two walks",
            parts={name: self.part(name, i) for i, name in enumerate(("first", "second"))},
            draw=self.draw,
            claims=lambda curves, scale: [
                Claim(
                    text="the sum is the sum",
                    where="here",
                    accounting="none",
                    margin=1 - float(np.abs(curves("sum", "both").y - sum(c.y for c in curves.of("walk"))).max()),
                    margin_means="1 minus the difference",
                    runs=scale.runs,
                )
            ],
            choices=(printed("length", 5), chosen("step", 1, "simple")),
            full=(3, 50),
            quick=(2, 5),
            derived=lambda curves: [
                Curve("sum", "both", curves("walk", "first").x, np.sum([c.y for c in curves.of("walk")], axis=0))
            ],
        )

    def part(self, name, number):
        def compute(scale):
            if self.stop and name == "second":
                self.stop = False
                raise KeyboardInterrupt
            self.computed.append(name)
            steps = np.random.default_rng([scale.seed, number]).normal(size=(scale.runs, scale.iterations))
            y = steps.cumsum(axis=1)
            return [Curve("walk", name, np.arange(scale.iterations), y.mean(axis=0), y.min(axis=0), y.max(axis=0))]

        return Part(compute=compute)

    @staticmethod
    def draw(curves: Curves):
        picture, axes = grid(1, 1)
        plot(axes[0, 0], curves, {})
        finish(axes[0, 0], "walks", "step", "place")
        return picture


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_same_seed_same_files(tmp_path):
    for out in ("one", "two"):
        reproduce([Walks().figure], tmp_path / out, seed=4)
    reproduce([Walks().figure], tmp_path / "three", seed=5)
    one, two, three = (contents(tmp_path / out / "walks") for out in ("one", "two", "three"))
    assert set(one) == FILES
    assert one == two
    assert one["curves.csv"] != three["curves.csv"]


def test_resumes_after_the_last_finished_part(tmp_path):
    walks, undisturbed = Walks(stop=True), Walks()
    with pytest.raises(KeyboardInterrupt):
        reproduce([walks.figure], tmp_path / "out")
    assert not (tmp_path / "out" / "walks").exists()
    ticks = []
    (result,) = reproduce([walks.figure], tmp_path / "out", progress=lambda *tick: ticks.append(tick))
    assert walks.computed == ["first", "second"]
    assert ticks == [(0, 2000), (1000, 2000), (2000, 2000)]
    assert not result.resumed
    reproduce([undisturbed.figure], tmp_path / "other")
    assert contents(tmp_path / "out" / "walks") == contents(tmp_path / "other" / "walks")
    # a finished figure is left as it is
    (again,) = reproduce([walks.figure], tmp_path / "out")
    assert again.resumed
    assert again.claims == result.claims
    assert walks.computed == ["first", "second"]


def test_a_broken_part_is_computed_again(tmp_path):
    walks = Walks(stop=True)
    with pytest.raises(KeyboardInterrupt):
        reproduce([walks.figure], tmp_path)
    (kept,) = (tmp_path / ".parts").iterdir()
    kept.write_bytes(kept.read_bytes()[:50])
    reproduce([walks.figure], tmp_path)
    assert walks.computed == ["first", "first", "second"]


def test_kept_parts_outlive_words_but_not_a_revision(tmp_path):
    walks = Walks(stop=True)
    with pytest.raises(KeyboardInterrupt):
        reproduce([walks.figure], tmp_path)
    reworded = dataclasses.replace(walks.figure, title="Walks", choices=(printed("length", 6),))
    reproduce([reworded], tmp_path)
    assert walks.computed == ["first", "second"]
    with pytest.raises(InputError, match="made with other settings"):
        reproduce([dataclasses.replace(reworded, revision=2)], tmp_path)
    shutil.rmtree(tmp_path / "walks")
    reproduce([dataclasses.replace(reworded, revision=2)], tmp_path)
    assert walks.computed == ["first", "second"] * 2


def test_other_settings_are_not_mixed(tmp_path):
    reproduce([Walks().figure], tmp_path, quick=True)
    with pytest.raises(InputError, match="made with other settings"):
        reproduce([Walks().figure], tmp_path, seed=1, quick=True)
    other = dataclasses.replace(Walks().figure, choices=(printed("length", 6),))
    with pytest.raises(InputError, match="made with other settings"):
        reproduce([other], tmp_path, quick=True)


def test_the_list_names_every_figure(coterie):
    code, out, _ = coterie("reproduce", "--list", "--json")
    assert code == 0
    assert [row["name"] for row in json.loads(out)] == list(MODULES)
    code, out, _ = coterie("reproduce", "--list")
    assert code == 0
    assert all(name in out for name in MODULES)


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_computed(coterie, tmp_path):
    (tmp_path / "file").write_text("")
    code, out, error = coterie("reproduce", "dvp-2", "--quick", "--out", tmp_path / "file" / "out", "--json")
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert "--out: " in error
    assert "cannot be written to" in error


def test_unknown_names_are_refused_with_the_nearest(coterie, tmp_path):
    code, out, err = coterie("reproduce", "pp2", "--out", tmp_path / "out")
    assert (code, out) == (2, "")
    assert "got 'pp2'" in err
    assert "did you mean 'pp-2'?" in err
    assert not (tmp_path / "out").exists()
    for arguments in ((), ("pp-2", "--all"), ("--all", "--list")):
        code, _, err = coterie("reproduce", *arguments)
        assert code == 2
        assert "--list" in err


@pytest.mark.parametrize("name", MODULES)
def test_every_figure_is_fully_described(name):
    (figure,) = find([name])
    assert figure.name == name
    assert figure.citation in CITATIONS
    assert figure.parts
    assert all(choice.printed or choice.reason for choice in figure.choices)
    for quick in (True, False):
        scale = figure.scale(quick=quick, seed=7)
        assert (scale.seed, scale.quick) == (7, quick)


@pytest.fixture(scope="module")
def penalty(tmp_path_factory):
    """A figure of the papers at the smallest scale."""
    out = tmp_path_factory.mktemp("reproduced")
    (figure,) = find(["pp-2"])
    (result,) = reproduce([figure], out, scale=TINY)
    return figure, result


def test_a_paper_figure_leaves_everything(penalty):
    _, result = penalty
    directory = result.directory
    assert {path.name for path in directory.iterdir()} == FILES
    assert (directory / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (directory / "figure.png").stat().st_size <= LARGEST_PICTURE
    with open(directory / "curves.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["panel", "curve", "x", "y", "low", "high"]
    assert {"a", "b", "c published", "d certified pure", "d certified (ε, 1e-6)"} <= {row["panel"] for row in rows}
    assert all(math.isfinite(float(row["y"])) for row in rows)
    settings = json.loads((directory / "settings.json").read_text(encoding="utf-8"))
    assert settings["scale"] == dataclasses.asdict(TINY)
    assert "![" in (directory / "page.md").read_text(encoding="utf-8")


def test_every_claim_is_decided(penalty):
    _, result = penalty
    claims = json.loads((result.directory / "claims.json").read_text(encoding="utf-8"))
    assert claims == list(result.claims)
    assert {claim["accounting"] for claim in claims} == set(get_args(Accounting))
    for claim in claims:
        assert isinstance(claim["holds"], bool)
        assert claim["holds"] == (claim["margin"] > 0)
        assert math.isfinite(claim["margin"])
        assert claim["text"]
        assert claim["where"]
        assert claim["margin_means"]
        assert claim["runs"] == TINY.runs


def test_a_paper_figure_is_deterministic(penalty):
    figure, result = penalty
    with open(result.directory / "curves.csv", encoding="utf-8", newline="") as file:
        written = [row for row in csv.DictReader(file)]
    (again, *_) = figure.parts["a-red"].compute(TINY)
    rows = [row for row in written if (row["panel"], row["curve"]) == (again.panel, again.name)]
    assert [row["y"] for row in rows] == [f"{y:.10g}" for y in again.y]
    (other, *_) = figure.parts["a-red"].compute(dataclasses.replace(TINY, seed=4))
    assert not np.array_equal(other.y, again.y)


def test_certified_losses_agree_with_the_plan(penalty):
    from coterie.papers.bounds import published_bound
    from coterie.papers.measures import DELTA, certified_by_round, published_by_round
    from coterie.papers.penalty.figures_2_to_4 import UNEVEN

    plan = UNEVEN.plan("red", Scale(runs=1, iterations=3))
    pure, approximate = certified_by_round(plan)
    assert pure[-1] == pytest.approx(plan.pure_epsilon(), rel=1e-12)
    assert approximate[-1] == pytest.approx(plan.epsilon(DELTA), rel=1e-12)
    rounds, bounds = published_by_round(plan)
    assert rounds.tolist() == [1, 2, 3]
    assert bounds[-1] == published_bound(plan).total
    assert np.all(np.diff(bounds) > 0)


def test_quick_settings_share_what_is_compiled_and_full_ones_are_as_printed():
    from coterie.papers.penalty.figures_2_to_4 import GROWTHS, LOW

    plans = {colour: LOW.plan(colour, TINY) for colour in GROWTHS}
    shapes = {(plan.issued[1].shape, *(column.shape for column in plan.grant_table())) for plan in plans.values()}
    assert len(shapes) == 1
    printed_penalty = LOW.plan("black", dataclasses.replace(TINY, quick=False)).algorithm.mechanism.penalty
    assert printed_penalty.constant_in_time
    quick_penalty = plans["black"].algorithm.mechanism.penalty
    assert quick_penalty.at(TINY.iterations, 0) == pytest.approx(printed_penalty.at(0, 0), rel=1e-14)


def test_workers_keep_the_parts_they_are_given(tmp_path):
    # a quick look takes no other ρ: nothing to compute
    (figure,) = find(["dvp-2"])
    few = dataclasses.replace(figure, parts={name: figure.parts[name] for name in ("rho-0", "rho-1")})
    with runner._Workers(2, [few], [TINY], tmp_path) as workers:
        for name in few.parts:
            place = runner._place(few, name, TINY, tmp_path)
            workers.wait_for(few.name, name, place)
            assert runner._kept(place) == []
    # parts of one paper: one process
    assert len(set(workers.coming.values())) == 1

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from coterie.algorithms import ALGORITHMS, EdgewiseADMM, RecycledADMM
from coterie.cli.spec import execute, prepare, read_spec
from coterie.cli.spec.execution import model_of
from coterie.data import CategoryColumn, Label, NumberColumn, NumberLabel, Schema
from coterie.data.tables import CHUNK_ROWS, column_names, read_columns
from coterie.errors import InputError
from coterie.network.channels import SecureSum
from coterie.network.topology import Sample, Walk
from coterie.privacy.objective import OutputPerturbation
from coterie.problems import ElasticNet, Huber, Logistic, Multinomial
from coterie.values import Schedule

PRIVACY = '[privacy]\nepsilon = 2.0\ndelta = 1e-5\nadjacency = "replace-one"\n'
SCHEMA = Schema(
    (NumberColumn("age", 0, 100), CategoryColumn("smoker", ("never", "ever"))), Label("outcome", ("no", "yes")), "site"
)


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "age": rng.integers(0, 100, size=60),
            "smoker": rng.choice(["never", "ever"], size=60),
            "site": np.repeat(["b", "a", "c"], 20),
            "outcome": rng.choice(["no", "yes"], size=60),
            "note": ["x"] * 60,
            "weight": rng.uniform(size=60),
        }
    )


@pytest.fixture
def prepared(tmp_path, table):
    """What a spec makes of the table, which lies there as CSV, as Parquet and as one file per party."""
    pq.write_table(table, tmp_path / "all.parquet")
    pyarrow.csv.write_csv(table, tmp_path / "all.csv")
    for party in "abc":
        pq.write_table(table.filter(pa.compute.equal(table["site"], party)), tmp_path / f"{party}.parquet")
    SCHEMA.write(tmp_path / "schema.toml")

    def made(data, rest="", privacy=PRIVACY):
        schema = "" if "dataset" in data else '[schema]\nfile = "schema.toml"\n'
        (tmp_path / "spec.toml").write_text(f"[data]\n{data}\n{schema}{rest}\n{privacy}")
        return prepare(read_spec(tmp_path / "spec.toml"))

    return made


def test_csv_parquet_and_one_file_per_party_give_the_same_records(prepared):
    specs = (
        'file = "all.parquet"',
        'file = "all.csv"',
        'files = { a = "a.parquet", b = "b.parquet", c = "c.parquet" }',
    )
    first, *others = [prepared(data).records.federation for data in specs]
    assert first.facts.parties == ("a", "b", "c")
    assert first.facts.sizes == (20, 20, 20)
    for other in others:
        assert other.facts == first.facts
        for mine, theirs in zip(first.shards, other.shards, strict=True):
            np.testing.assert_array_equal(mine.X, theirs.X)
            np.testing.assert_array_equal(mine.y, theirs.y)


def test_the_promised_loss_is_kept(prepared):
    one = prepared('file = "all.csv"')
    assert 1.99 < one.plan.epsilon(1e-5) <= 2.0
    assert one.certificate().epsilon == one.plan.epsilon(1e-5)
    assert one.plan.topology.unrestricted
    on_a_graph = prepared('file = "all.csv"', '[parties]\ntopology = "complete"\n')
    assert on_a_graph.plan.topology.degrees.tolist() == [2, 2, 2]


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "admm"])
def test_every_algorithm_has_settings_for_what_is_left_open(prepared, name):
    sums = "channel" in {field.name for field in dataclasses.fields(ALGORITHMS[name])}
    settings = f'[algorithm]\nname = "{name}"\nrounds = 4\n'
    privacy = PRIVACY + ('trust = "curator"\n' if sums else "")
    problem = "[problem]\nl2 = 0\n" if name == "memoryless-walk" else ""
    problem += "[parties]\ncount = 1\n" if name == "general-admm" else ""
    assert 1.99 < prepared('dataset = "heart"', problem + settings, privacy).plan.epsilon(1e-5) <= 2.0


@pytest.mark.parametrize(
    ("rest", "privacy", "words"),
    [
        ("", '[privacy]\ndelta = 1e-5\nadjacency = "zero-out"\n', "epsilon is missing"),
        ('[algorithm]\nname = "one-release-average"\n', 'trust = "curator"\n', "trust: got 'curator' for one-release"),
        ('[algorithm]\nname = "sum-noised-admm"\n', "", "trust: got 'none' for sum-noised-admm"),
        ("[algorithm]\nrecycle_weight = 1.0\n", "", "unknown key 'recycle_weight'"),
        ("[algorithm]\nhardened = true\n", 'trust = "curator"\n', "unknown key 'hardened'"),
        ('[algorithm]\nchannel = "curator"\n', 'trust = "curator"\n', "unknown key 'channel'"),
    ],
)
def test_what_does_not_go_with_an_open_algorithm_is_refused(prepared, rest, privacy, words):
    with pytest.raises(InputError, match=words):
        prepared('file = "all.csv"', rest, privacy if "delta" in privacy else PRIVACY + privacy)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('delimiter = ";"', "data.delimiter: a data set of the package is not read from a CSV file"),
        # also what is meant where nothing is said
        ('encoding = "utf-8"', "data.encoding: a data set of the package is not read from a CSV file"),
        ('test = "all.csv"', "data.test: a data set of the package has its own"),
        ('weight_column = "age"', "data.weight_column: a data set of the package has no weights"),
        ("constant_column = true", "data.constant_column: belongs to dataset = 'adult' only"),
    ],
)
def test_what_does_not_go_with_a_data_set_of_the_package_is_refused(prepared, more, words):
    with pytest.raises(InputError, match=f"^{words}"):
        prepared(f'dataset = "heart"\n{more}')


def test_without_noise_nothing_is_promised(prepared):
    exact = prepared('file = "all.csv"', '[algorithm]\nname = "admm"', PRIVACY.replace("epsilon = 2.0\n", ""))
    assert "NOT PRIVATE" in exact.certificate().verdict[0]
    with pytest.raises(
        InputError, match="no noise that could be calibrated to epsilon; an algorithm with noise is needed"
    ):
        prepared('file = "all.csv"', '[algorithm]\nname = "admm"')


def test_settings_reach_the_fields_of_their_name(prepared):
    text = (
        '[algorithm]\nname = "recycled-admm"\nmechanism = "output-perturbation"\nrecycle_weight = 2\nrounds = 3\n'
        'averaging = "linear"\npenalty = { start = [1, 2, 3], ratio = 1.5 }\ndual_step = 0.5\nnoise_rate = 4\n'
    )
    algorithm = prepared('file = "all.csv"', text, PRIVACY.replace("epsilon = 2.0\n", "")).plan.algorithm
    assert algorithm == RecycledADMM(
        mechanism=OutputPerturbation(penalty=Schedule((1, 2, 3), 1.5), noise_rate=4.0),
        dual_step=0.5,
        recycle_weight=2.0,
        averaging="linear",
    )


def test_channels_follow_trust_and_selections_have_names(prepared):
    text = '[algorithm]\nname = "sum-noised-admm"\n{}'
    summed = prepared('file = "all.csv"', text.format("clip = 0.1"), PRIVACY + 'trust = "secure-sum"\n').plan.algorithm
    assert isinstance(summed.channel, SecureSum)
    assert summed.mechanism.clip == 0.1
    some = 'selection = { name = "sample", count = 2, seed = 7 }'
    sampled = prepared('file = "all.csv"', text.format(some), PRIVACY + 'trust = "curator"\n').plan.algorithm
    assert sampled.selection == Sample(count=2, seed=7)
    walk = '[algorithm]\nname = "walk-admm"\nselection = { name = "walk", seed = "secret", most_visits = 9 }'
    assert prepared('file = "all.csv"', walk).plan.algorithm.selection == Walk(seed=None, most_visits=9)


def test_a_model_that_is_not_one_number_per_feature(prepared):
    text = '[parties]\ncount = 1\n[problem]\nintercept = false\n[algorithm]\nname = "general-admm"\nrounds = 2\n'
    text += "A = [[1, 0, 0], [0, 1, 0], [0, 0, 1], {}]"
    outcome = execute(prepared('file = "all.csv"', text.format("[0, 1, -1]")))
    model = model_of(outcome.transcript, outcome.records.schema, outcome.records.feature_names, intercept=False)
    assert model["coefficients"] == outcome.transcript.models[0].tolist()
    assert len(model["coefficients"]) == 4
    with pytest.raises(InputError, match="different lengths"):
        prepared('file = "all.csv"', text.format("[0]"))


def test_a_penalty_per_edge(prepared):
    text = '[parties]\ntopology = [[0, 1], [1, 2]]\n[algorithm]\nname = "edgewise-admm"\nedge_penalty = [30, 50]\n'
    algorithm = prepared('file = "all.csv"', text).plan.algorithm
    assert isinstance(algorithm, EdgewiseADMM)
    assert algorithm.mechanism.penalty.start == (30, 40, 50)


def test_losses_follow_the_labels_and_regularisers_their_numbers(prepared, tmp_path):
    assert prepared('file = "all.csv"').plan.problem.loss == Logistic()
    assert prepared('file = "all.csv"', "[problem]\nl1 = 0.5").plan.problem.regulariser == ElasticNet(0.0, 0.5)
    Schema(SCHEMA.columns, NumberLabel("weight", -3, 2), "site").write(tmp_path / "schema.toml", overwrite=True)
    regression = prepared('file = "all.csv"', "[problem]\nthreshold = 0.5")
    assert regression.plan.problem.loss == Huber(0.5)
    assert regression.plan.facts.label_bound == 3.0
    Schema(SCHEMA.columns[:1], Label("site", ("a", "b", "c"))).write(tmp_path / "schema.toml", overwrite=True)
    three = prepared('file = "all.csv"', "[parties]\ncount = 4")
    assert three.plan.problem.loss == Multinomial(3)
    assert three.plan.facts.sizes == (15, 15, 15, 15)


def test_weights_are_read_and_bounded(prepared, table):
    facts = prepared('file = "all.csv"\nweight_column = "weight"\nweight_bound = 0.5').records.federation
    assert facts.facts.weight_bound == 0.5
    assert facts.pooled[2].max() == 0.5
    assert facts.pooled[2].min() == table["weight"].to_numpy().min()


def test_what_is_read_off_the_data_voids_the_certificate(prepared, tmp_path):
    assert prepared('file = "all.csv"\nrow_norm = "from-data"').certificate().void == ("row_norm read off the data",)
    path = tmp_path / "schema.toml"
    path.write_text('data_derived = ["ranges"]\n' + path.read_text())
    assert prepared('file = "all.csv"').certificate().void == ("ranges read off the data",)
    with pytest.raises(InputError, match="unknown key 'data_derived'"):
        Schema.read(path)
    papers = prepared('dataset = "adult"\npreprocessing = "papers"')
    assert len(papers.certificate().void) == 2


def test_people_and_units_reach_the_plan(prepared):
    more = "records_per_person = 2\npeople_span_parties = true\n"
    assert "user-level" in prepared('file = "all.csv"', "", PRIVACY + more).certificate().to_markdown()


def test_columns_are_read_in_chunks(tmp_path):
    n = CHUNK_ROWS + 7
    text = "\ufeffa,b,c\n" + "".join(f"{i},{i % 3},x\n" for i in range(n))
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    assert column_names(tmp_path / "t.csv") == ["a", "b", "c"]
    columns = read_columns(tmp_path / "t.csv", ["a", "b"], numbers=["a"])
    np.testing.assert_array_equal(columns["a"], np.arange(n))
    assert columns["a"].dtype == np.float64
    assert columns["b"][:4].tolist() == ["0", "1", "2", "0"]


def test_one_bad_cell_is_found_behind_the_first_chunk(tmp_path):
    n = CHUNK_ROWS + 7
    cells = [str(i) for i in range(n)]
    cells[CHUNK_ROWS + 2] = "many"
    (tmp_path / "t.csv").write_text("a\n" + "\n".join(cells) + "\n")
    table = read_columns(tmp_path / "t.csv", ["a"], numbers=["a"])
    with pytest.raises(InputError, match=f"line {CHUNK_ROWS + 4} is no finite number"):
        NumberColumn("a", 0, 1).encode(table["a"], place=table.place)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, 0], pa.int8()),
        pa.array([1, 0], pa.float32()),
        pa.array([True, False]),
        pa.array(["1", "0"]),
        pa.array(["1", "0"], pa.large_string()),
        pa.array(["1", "0"]).dictionary_encode(),
        pa.array(["1", "0"], pa.string()).cast(pa.decimal128(3, 1)),
    ],
    ids=lambda values: str(values.type),
)
def test_parquet_types_that_hold_numbers(tmp_path, values):
    pq.write_table(pa.table({"x": values}), tmp_path / "t.parquet")
    column = read_columns(tmp_path / "t.parquet", ["x"], numbers=["x"])["x"]
    np.testing.assert_array_equal(NumberColumn("x", 0, 1, centre=0, scale=1).encode(column), [[1.0], [0.0]])

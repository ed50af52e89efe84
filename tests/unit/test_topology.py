"""Graphs: names, edge lists and networkx objects give the same connected graph, anything else one clear sentence."""

import re

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import InputError
from coterie.network.topology import GRAPHS, AllPairs, Topology, make_topology
from coterie.values import canonical, decode, digest, encode


@pytest.mark.parametrize("name", GRAPHS)
@given(n=st.integers(1, 40), seed=st.integers(0, 5))
def test_every_name_gives_a_connected_graph_of_every_size(name, n, seed):
    topology = make_topology(name, n, seed=seed)
    assert topology.n_parties == n
    assert nx.is_connected(topology.graph)
    assert topology == make_topology(name, n, seed=seed)
    assert topology.degrees.sum() == 2 * len(topology.edges)


@pytest.mark.parametrize(
    ("name", "degrees"),
    [("ring", [2] * 6), ("complete", [5] * 6), ("star", [5] + [1] * 5), ("path", [1, 2, 2, 2, 2, 1])],
)
def test_names_mean_what_they_say(name, degrees):
    assert make_topology(name, 6).degrees.tolist() == degrees


def test_a_grid_of_twelve_is_three_by_four():
    assert sorted(make_topology("grid", 12).degrees.tolist()) == [2] * 4 + [3] * 6 + [4] * 2


def test_random_graphs_follow_their_public_seed():
    for name in ("random-connected", "watts-strogatz", "erdos-renyi"):
        assert make_topology(name, 20, seed=1) != make_topology(name, 20, seed=2)


@given(st.integers(2, 15), st.integers(0, 1000))
def test_arcs_are_both_directions_of_every_edge_in_order_of_the_hearer(n, seed):
    topology = make_topology("random-connected", n, seed=seed)
    source, to = topology.arcs
    arcs = list(zip(to.tolist(), source.tolist(), strict=True))
    assert arcs == sorted({(i, j) for a, b in topology.edges for i, j in ((a, b), (b, a))})
    assert np.bincount(to, minlength=n).tolist() == topology.degrees.tolist()


def test_one_party_has_no_edges_and_no_arcs():
    topology = make_topology("ring", 1)
    assert topology.edges == ()
    assert topology.degrees.tolist() == [0]
    assert [len(ends) for ends in topology.arcs] == [0, 0]


def test_edges_networkx_and_topology_agree_whatever_the_order():
    edges = [(2, 1), (1, 0), (0, 2), (1, 2)]
    expected = Topology(3, ((0, 1), (0, 2), (1, 2)))
    assert make_topology(edges, 3) == expected
    assert make_topology(np.array(edges), 3) == expected
    assert make_topology(nx.complete_graph(["x", "y", "z"]), 3) == expected
    assert make_topology(expected, 3) is expected


@pytest.mark.parametrize(
    ("graph", "n", "message"),
    [
        (
            "rings",
            4,
            "topology: got 'rings'; one of ring, complete, star, path, grid, random-connected, watts-strogatz, "
            "erdos-renyi, unrestricted is needed (did you mean 'ring'?)",
        ),
        ("zzz", 4, "topology: got 'zzz'; one of ring, complete,"),
        ([(0, 1), (2, 3)], 4, "topology: the graph falls into 2 components ({0, 1}; {2, 3});"),
        ([(0, 1)], 3, "topology: the graph falls into 2 components ({0, 1}; {2});"),
        ([(0, 0), (0, 1)], 2, "edges: got (0, 0); two different parties of 0..1 are needed"),
        ([(0, 5)], 2, "edges: got (0, 5);"),
        ([(-1, 1)], 2, "edges: got (-1, 1);"),
        ([(0, 1, 2)], 3, "topology: got the edge (0, 1, 2);"),
        ([("a", "b")], 2, "topology: got the edge ('a', 'b');"),
        ([7], 2, "topology: got the edge 7;"),
        (nx.path_graph(3), 4, "topology: the graph has 3 nodes for 4 parties"),
        (nx.DiGraph([(0, 1)]), 2, "topology: got a DiGraph;"),
        (nx.MultiGraph([(0, 1)]), 2, "topology: got a MultiGraph;"),
        (Topology(2, ((0, 1),)), 3, "topology: the graph has 2 nodes for 3 parties"),
        (3.5, 3, "topology: got a float;"),
        (None, 3, "topology: got a NoneType;"),
    ],
    ids=lambda value: value.partition(";")[0] if isinstance(value, str) else type(value).__name__,
)
def test_bad_graphs_are_refused(graph, n, message):
    with pytest.raises(InputError, match="^" + re.escape(message)):
        make_topology(graph, n)


def test_edges_between_numbers_that_are_no_integers_are_refused():
    """1.9 must not quietly become party 1."""
    with pytest.raises(InputError, match=r"^topology: got the edge \(0, 1\.9\);"):
        make_topology([(0, 1.9)], 2)


def test_many_components_are_shortened():
    with pytest.raises(InputError, match=r"20 components \(\{0, 1, 2, 3, 4, 5, \.\.\.\}; "):
        Topology(29, tuple((i, i + 1) for i in range(9)))


@pytest.mark.parametrize("n", [0, -1])
def test_no_parties_are_no_topology(n):
    with pytest.raises(InputError, match=rf"^n_parties: got {n};"):
        Topology(n, ())


def test_a_complete_graph_needs_no_list_of_its_edges():
    small, named = make_topology([(0, 1), (2, 0), (1, 2)], 3), make_topology("complete", 3)
    assert small == named
    assert digest(small) == digest(named)
    assert decode(encode(named)) == named
    assert list(named.edges) == [(0, 1), (0, 2), (1, 2)]
    assert np.asarray(named.edges).tolist() == [[0, 1], [0, 2], [1, 2]]
    assert named.everybody_reachable
    assert [ends.tolist() for ends in named.arcs] == [[1, 2, 0, 2, 0, 1], [0, 0, 1, 1, 2, 2]]
    assert named.neighbours == [[1, 2], [0, 2], [0, 1]]
    large = make_topology("complete", 10**5)
    assert len(large.edges) == 10**5 * (10**5 - 1) // 2
    assert large.degrees[0] == 10**5 - 1
    assert len(canonical(large)) < 200
    with pytest.raises(InputError, match="at most 10,000"):
        _ = large.arcs


@pytest.mark.parametrize("edges", [AllPairs(4), AllPairs(1)])
def test_all_pairs_of_other_parties_are_refused(edges):
    with pytest.raises(InputError, match="all pairs"):
        Topology(3, edges)

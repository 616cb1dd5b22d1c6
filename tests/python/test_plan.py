# SPDX-License-Identifier: Apache-2.0
"""Plans are those of zbpp-plan, and say what is true of them."""

import dataclasses
import fractions
import json
import re
import xml.etree.ElementTree

import pytest

import zbpp
from conftest import by_zbpp_plan, needs_zbpp_plan, problem, without_seconds

PLACEMENTS = ["linear", "looped", "v", [0, 1, 2, 3, 3, 2, 1, 0, 0, 1, 2, 3]]
POLICIES = [one.name for one in zbpp.policies()]


@needs_zbpp_plan
@pytest.mark.parametrize(
    "placement, limit", [(one, None) for one in PLACEMENTS] + [("linear", 45)], ids=str
)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_plan_is_that_of_zbpp_plan(placement, policy, limit):
    asked = problem(placement, memory_limit=limit)
    program = by_zbpp_plan(asked, "--policy", policy)
    if program.returncode != 0:
        with pytest.raises(zbpp.Error) as refused:
            zbpp.plan(asked, policy, seconds=0.01, seed=7)
        assert program.stderr == f"zbpp-plan: {refused.value}\n"
        assert refused.value.code == "unsupported problem"
        return
    found = zbpp.plan(asked, policy, seconds=0.01, seed=7)
    assert without_seconds(found.to_json()) == without_seconds(program.stdout)


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
@pytest.mark.parametrize("policy", POLICIES)
def test_what_a_plan_says_is_true(placement, policy):
    asked = problem(placement)
    try:
        found = zbpp.plan(asked, policy, seconds=0.01)
    except zbpp.Error as refused:
        assert refused.code == "unsupported problem"
        return
    assert zbpp.verify(found) == []
    assert zbpp.verify(found.to_json()) == []
    assert zbpp.verify(found, found.problem) == []
    assert 0 < zbpp.lower_bound(found.problem) <= found.lower_bound <= found.cost
    assert found.optimal == (found.cost == found.lower_bound)
    assert found.period <= found.cost
    assert 0 <= found.bubble_rate < 1
    assert len(found.ranks) == len(found.peak_memory) == asked.ranks
    passes = [one for rank in found.ranks for one in rank]
    assert max(rank[-1].end - rank[0].start for rank in found.ranks) == pytest.approx(found.cost)
    assert {one.kind for one in passes} <= {"F", "B", "W", "BW"}
    assert zbpp.Plan.from_json(found.to_json()) == found
    again = zbpp.simulate(found)
    assert (again.ranks, again.cost, again.policy) == (found.ranks, found.cost, found.policy)
    assert zbpp.simulate(zbpp.csv(found), found.problem).ranks == found.ranks


def test_policies_have_names_titles_and_summaries():
    assert "greedy_auto" in POLICIES
    assert len(set(POLICIES)) == len(POLICIES)
    for one in zbpp.policies():
        assert one.summary
        if one.name == "zb_h1":
            assert zbpp.plan(problem(), one.title).policy == one.title == "ZB-H1"


def test_times_are_in_the_unit_of_the_problem():
    whole = zbpp.Stage(10, 9, 8)
    parts = zbpp.Stage(0.01, 0.009, 0.008)
    in_ms = zbpp.plan(zbpp.Problem(4, 8, [whole]), "zb_h1")
    in_s = zbpp.plan(zbpp.Problem(4, 8, [parts], time_unit="s"), "zb_h1")
    assert in_ms.cost == 1000 * in_s.cost == 8 * 27 + 3 * 11
    assert zbpp.lower_bound(in_s.problem) * 1000 == zbpp.lower_bound(in_ms.problem)


COSTS = [
    zbpp.Stage(1, 2, 3, 7, 5, 4, 1.5, 0.25, 0.125, 1, 6, 8, 9, 2),
    zbpp.Stage(3, 2, 1, 7, 5, overlapped=4, overlapped_fused=5),
    zbpp.Stage(2, 2, 1, 7, 5, tied=2, output_gradient=1, gradients=3, optimizer_state=4),
]
EVERYTHING = {
    "placement": [1, 0, 1],
    "transfer": zbpp.Transfer([[0, 0.5], [0.25, 0]], [[0, 0.125], [0.125, 0]]),
    "memory_limit": [100, 200],
    "time_unit": "us",
    "microbatch_factors": [1, 0.5, 0.25],
    "replicas": zbpp.Replicas(2, 0.5, 0.25, True),
}
OF_LAYERS = {
    "layers": COSTS[:1] + 3 * COSTS[1:2] + COSTS[2:],
    "rank_speeds": [1, 0.5],
    "first_layer": [0, 1, 3],
    "recompute": [True, False, False],
}


@pytest.mark.parametrize(
    "asked",
    [
        problem(),
        problem("looped", memory_limit=[100, 200, 300, 400]),
        zbpp.Problem(2, 3, COSTS, **EVERYTHING),
        zbpp.Problem(2, 3, layers=2 * COSTS[1:]),
        zbpp.Problem(2, 3, **OF_LAYERS, **EVERYTHING),
    ],
)
def test_a_problem_reads_back(asked):
    written = zbpp.Problem.from_json(asked.to_json())
    assert written == asked
    assert zbpp.Problem.from_json(written.to_json()) == written
    plans = [zbpp.plan(one, seconds=0.001) for one in (asked, written)]
    assert without_seconds(plans[0].text) == without_seconds(plans[1].text)
    assert plans[0].problem.replicas == asked.replicas


def test_each_type_has_what_the_library_reads():
    good = json.loads(problem().to_json())
    for changed, kind, others in [
        ({**good, "x": 1}, zbpp.Problem, {"layers"}),
        ({"layers": [], "x": 1}, zbpp.Problem, {"stages"}),
        ({**good, "stages": [{"x": 1}]}, zbpp.Stage, set()),
        ({**good, "transfer": {"x": 1}}, zbpp.Transfer, set()),
        ({**good, "replicas": {"x": 1}}, zbpp.Replicas, set()),
    ]:
        with pytest.raises(zbpp.Error) as refused:
            zbpp.Problem.from_json(json.dumps(changed))
        names = set(re.split(", | and ", str(refused.value).partition("expected ")[2]))
        fields = {one.name for one in dataclasses.fields(kind)}
        assert names - {"offload", "reload"} == fields - others


def test_numbers_of_other_libraries_are_numbers():
    class Array:
        def tolist(self):
            return [[0, 0.5], [0.5, 0]]

    half = fractions.Fraction(1, 2)
    asked = zbpp.Problem(2, 4, (zbpp.Stage(half, 1, 1),), transfer=Array())
    plain = zbpp.Problem(2, 4, [zbpp.Stage(0.5, 1, 1)], transfer=0.5)
    assert zbpp.plan(asked, "zb_h1").ranks == zbpp.plan(plain, "zb_h1").ranks


def test_an_order_can_be_timed_with_other_costs():
    first = zbpp.plan(problem(), "zb_h1")
    slower = dataclasses.replace(problem(), transfer=5)
    again = zbpp.simulate(first, slower)
    assert [[one[:3] for one in rank] for rank in again.ranks] == [
        [one[:3] for one in rank] for rank in first.ranks
    ]
    assert again.cost > first.cost
    assert zbpp.verify(again) == []


def test_pictures_are_svg_of_each_plan():
    plans = [zbpp.plan(problem(), name) for name in ("one_f_one_b", "zb_h1")]
    both = xml.etree.ElementTree.fromstring(zbpp.svg(*plans, width=600))
    assert both.tag == "{http://www.w3.org/2000/svg}svg" and both.get("width") == "600"
    words = "".join(both.itertext())
    assert "1F1B" in words and "ZB-H1" in words
    assert zbpp.svg(plans[0]) == plans[0].to_svg()


def test_passes_that_overlap_run_together():
    stage = zbpp.Stage(10, 10, 6, overlapped=14)
    asked = zbpp.Problem(1, 2, [stage])
    found = zbpp.simulate("0F0,(0F1;0I0)OVERLAP_F_B,0W0,0I1,0W1\n", asked)
    assert [one.paired for one in found.ranks[0]] == [False, False, True, False, False, False]
    assert found.cost == 10 + 14 + 6 + 10 + 6
    in_turn = zbpp.Problem(1, 2, [zbpp.Stage(10, 10, 6)])
    plain = zbpp.simulate("0F0,(0F1;0I0)OVERLAP_F_B,0W0,0I1,0W1\n", in_turn)
    assert not any(one.paired for one in plain.ranks[0])
    assert plain.cost == 2 * (10 + 10 + 6)


def test_csv_has_pairs_on_request():
    found = zbpp.plan(problem("v"), "dualpipe_v")
    assert "OVERLAP_F_B" in found.to_csv(overlap=True) == zbpp.csv(found, overlap=True)
    assert "OVERLAP_F_B" not in found.to_csv()
    assert zbpp.simulate(zbpp.csv(found, overlap=True), found.problem).ranks == found.ranks

# SPDX-License-Identifier: Apache-2.0
"""What is fixed of a plan stays, all else is searched, and what the plan says is true."""

import inspect
import re
import threading

import pytest

import zbpp
from conftest import by_zbpp_plan, needs_zbpp_plan, problem, without_seconds
from zbpp import _library

EMBEDDING = zbpp.Layer(1, 0, 2, edge=4, static=50)
BLOCK = zbpp.Layer(
    5, 6, 4, activation=30, weight_gradient_input=20, recompute=5, recompute_input=4, edge=4, static=20
)
HEAD = zbpp.Layer(12, 12.5, 12, activation=40, weight_gradient_input=40, static=50)


def model(placement="linear", blocks=12, **more):
    if placement == "looped":
        more["chunks"] = 2
    layers = [EMBEDDING] + blocks * [BLOCK] + [HEAD]
    return zbpp.Problem(3, 6, layers=layers, placement=placement, transfer=0.5, **more)


def check(found, asked):
    """The stages of a plan are its layers, and all it says is true."""
    assert zbpp.verify(found) == []
    assert zbpp.verify(found, found.problem) == []
    assert zbpp.Plan.from_json(found.to_json()).first_layer == found.first_layer
    first = found.first_layer
    stages = found.problem.stages
    if len(stages) == 1:
        stages = len(first) * stages
    assert len(first) == len(stages) and first[0] == 0
    ends = first[1:] + (len(asked.layers),)
    for stage, begin, end in zip(stages, first, ends):
        assert begin < end
        layers = asked.layers[begin:end]
        assert stage.forward == pytest.approx(sum(one.forward for one in layers))
        assert stage.static == sum(one.static for one in layers)
        assert stage.edge == layers[-1].edge


@pytest.mark.parametrize("placement", ["linear", "v", "looped", [0, 1, 2, 0]], ids=str)
@pytest.mark.parametrize("policy", ["zb_h1", "zb_v", "interleaved", "greedy_auto", "gpipe"])
def test_layers_are_cut_for_a_policy_on_a_placement(placement, policy):
    asked = model(memory_limit=1500)
    chunks = 2 if placement == "looped" else None
    try:
        found = zbpp.find_plan(
            asked, placement=placement, chunks=chunks, policy=policy, most_cuts=20, seconds=0.01
        )
    except zbpp.Error as refused:
        assert refused.code == "unsupported problem"
        return
    check(found, asked)
    assert (found.problem.placement, found.problem.chunks) == (placement, chunks)
    assert policy in [one.name for one in zbpp.policies() if one.title == found.policy]
    recompute = [one.recompute is not None for one in found.problem.stages]
    fixed = zbpp.find_plan(
        asked,
        placement=placement,
        chunks=chunks,
        first_layer=found.first_layer,
        recompute=recompute if len(recompute) == len(found.first_layer) else None,
        policy=policy,
        seconds=0.01,
    )
    assert fixed.problem == found.problem and fixed.first_layer == found.first_layer
    cut = zbpp.Problem(**{**vars(model(placement, memory_limit=1500)), "first_layer": found.first_layer})
    again = zbpp.plan(cut, policy, seconds=0.01)
    check(again, asked)
    assert again.first_layer == found.first_layer and again.policy == found.policy


@needs_zbpp_plan
def test_a_plan_of_layers_is_that_of_zbpp_plan():
    asked = model(memory_limit=900)
    for policy in ("zb_h1", "greedy_auto"):
        found = zbpp.find_plan(asked, placement="linear", policy=policy, seconds=0.01, seed=7)
        program = by_zbpp_plan(asked, "--policy", policy)
        assert without_seconds(found.to_json()) == without_seconds(program.stdout)
    found = zbpp.find_plan(asked, seconds=0.01, seed=7)
    assert without_seconds(found.to_json()) == without_seconds(by_zbpp_plan(asked).stdout)


def test_no_policy_costs_less_than_what_is_searched_for_all():
    asked = model(memory_limit=900)
    found = zbpp.find_plan(asked, seconds=0.05, seed=7)
    check(found, asked)
    assert max(found.peak_memory) <= 900
    for policy in ("zb_h1", "gpipe"):
        try:
            assert found.cost <= zbpp.find_plan(asked, policy=policy, most_cuts=50).cost
        except zbpp.Error as refused:
            assert refused.code == "unsupported problem"
    sparing = zbpp.find_plan(asked, most_memory_for=1, seconds=0.05, seed=7)
    assert max(sparing.peak_memory) < max(found.peak_memory)
    assert sparing.cost <= 2 * found.cost


def test_a_problem_of_stages_may_change_its_placement():
    found = zbpp.find_plan(problem(), seconds=0.05)
    assert zbpp.verify(found) == []
    assert len(found.first_layer) >= 4
    assert found.cost <= zbpp.plan(problem(), seconds=0.05).cost
    stays = zbpp.find_plan(problem(), placement="linear", seconds=0.05)
    assert stays.first_layer is None
    assert stays.problem.stages == problem().stages
    assert stays.ranks == zbpp.plan(problem(), seconds=0.05).ranks


def test_plans_of_several_limits_ascend():
    asked = model()
    plans = zbpp.find_plans(asked, [1500, 100, 600, 1500], seconds=0.02)
    assert [one.problem.memory_limit for one in plans] == [600, 1500]
    for one in plans:
        check(one, asked)
        assert max(one.peak_memory) <= one.problem.memory_limit
    assert plans[0].cost >= plans[1].cost
    alone = zbpp.find_plan(model(memory_limit=600), seconds=0.02)
    assert without_seconds(plans[0].text) == without_seconds(alone.text)
    assert zbpp.find_plans(asked, []) == []
    assert zbpp.find_plans(asked, [10], policy="gpipe", placement="linear", first_layer=[0, 5, 9]) == []


def test_little_memory_makes_stages_recompute():
    asked = model(memory_limit=430)
    found = zbpp.find_plan(asked, placement="linear", policy="zb_h1")
    check(found, asked)
    recompute = [one.recompute is not None for one in found.problem.stages]
    assert any(recompute)
    assert max(found.peak_memory) <= 430
    cut = zbpp.Problem(**{**vars(asked), "first_layer": found.first_layer, "recompute": recompute})
    assert without_seconds(zbpp.plan(cut, "zb_h1").text) == without_seconds(found.text)
    with pytest.raises(zbpp.Error) as refused:
        zbpp.find_plan(model(memory_limit=100), placement="linear", policy="zb_h1")
    assert refused.value.code == "unsupported problem"
    assert "it fits when every limit is higher by" in str(refused.value)


def test_ranks_that_are_slow_get_fewer_layers():
    found = zbpp.find_plan(model(rank_speeds=[1, 0.5, 1]), placement="linear", seconds=0.02)
    assert zbpp.verify(found) == []
    ends = found.first_layer[1:] + (14,)
    layers = [end - begin for begin, end in zip(found.first_layer, ends)]
    assert layers[1] < layers[0]


def test_each_choice_of_the_library_can_be_made():
    with pytest.raises(zbpp.Error) as refused:
        _library.call("find_plan", _library.Text(model().to_json()), _library.Text('{"x": 1}'), None)
    names = set(re.split(", | and ", str(refused.value).partition("expected ")[2]))
    for call, others in ((zbpp.find_plan, set()), (zbpp.find_plans, {"limits"})):
        assert set(inspect.signature(call).parameters) == names | others | {"problem", "stop", "progress"}


def test_progress_and_stop_are_those_of_a_plan():
    # Uneven, and short of memory, so that only the budget or a stop ends the search.
    layers = [
        zbpp.Layer(3 + i * 7 % 5, 4 + i * 3 % 7, 2 + i * 5 % 6, activation=10 + i % 3, weight_gradient_input=5)
        for i in range(14)
    ]
    asked = zbpp.Problem(3, 7, layers=layers, transfer=0.7, memory_limit=120)
    for search in (
        lambda **more: zbpp.find_plan(asked, seconds=1000, **more),
        lambda **more: zbpp.find_plan(asked, policy="greedy_auto", seconds=1000, **more),
        lambda **more: zbpp.find_plans(asked, [120, 121], seconds=1000, **more)[0],
    ):
        stop = threading.Event()
        told = []

        def tell(now):
            told.append(now)
            stop.set()

        check(search(stop=stop, progress=tell), asked)
        assert told[0].cost >= told[0].lower_bound
        assert 0 < told[0].spent < 1

        class Enough(Exception):
            pass

        def refuse(now):
            raise Enough

        with pytest.raises(Enough):
            search(progress=refuse)


def find(**choices):
    return lambda: zbpp.find_plan(model(), **{"seconds": 0, **choices})


@pytest.mark.parametrize(
    "call, code, words",
    [
        (lambda: zbpp.find_plan(3), "bad argument", "problem: found 3; expected a zbpp.Problem"),
        (find(policy="fastest"), "bad argument", "no policy is called 'fastest'"),
        (find(policy="no\nsuch"), "bad argument", "no policy is called 'no such'"),
        (find(policy=3), "bad format", "choices: policy: found 3"),
        (find(policy="gpipe", most_cuts=-1), "bad format", "choices: most_cuts: found -1"),
        (find(seconds=-1), "bad format", "choices: seconds: found -1"),
        (find(seconds="soon"), "bad format", "choices: seconds: found 'soon'"),
        (find(seconds=float("nan")), "bad format", "choices: seconds: found 'nan'"),
        (find(seconds=1e7), "bad argument", "seconds: found 1e+07; expected a number from 0 to 1000000"),
        (find(seed=1.5), "bad format", "choices: seed: found 1.5; expected a whole number"),
        (find(seed=2**64), "bad format", "choices: seed: found 18446744073709551616"),
        (find(seed="1"), "bad format", "choices: seed: found '1'"),
        (find(most_chunks=1), "bad format", "choices: most_chunks: found 1; expected a whole number from 2"),
        (find(most_chunks="8"), "bad format", "choices: most_chunks: found '8'"),
        (find(most_memory_for=2), "bad argument", "most_memory_for is 2"),
        (find(most_memory_for=-1), "bad format", "choices: most_memory_for: found -1"),
        (find(placement="w"), "bad format", "choices: placement: found 'w'"),
        (find(placement=3), "bad format", "choices: placement: found 3"),
        (find(placement=[0, 3]), "bad format", "choices: placement[1]: found 3"),
        (find(placement=[0, 1]), "bad argument", "the placement has 2 ranks and the problem 3"),
        (find(placement="looped"), "bad format", "choices: placement: found 'looped'; expected chunks"),
        (find(chunks=2), "bad format", "choices: chunks: found 2; expected 'placement' beside 'chunks'"),
        (find(first_layer=[0, 1, 2]), "bad format", "expected 'placement' beside 'first_layer'"),
        (find(placement="linear", first_layer=[0, 1]), "bad format", "choices: first_layer: found an array of 2"),
        (find(placement="linear", first_layer=[0, 1, 14]), "bad argument", "stage 2"),
        (find(placement="linear", recompute=[False] * 3), "bad format", "expected 'first_layer' beside"),
        (find(placement="linear", first_layer=[0, 1, 2], recompute=[1, 0, 1]), "bad format", "true or false"),
        (find(placement="linear", policy="zb_v"), "unsupported problem", "needs a v placement"),
        (lambda: zbpp.find_plan(model(blocks=0)), "bad format", "there are 2 layers for 3 stages"),
        (lambda: zbpp.find_plans(model(), [-1]), "bad argument", "limits: found [-1]"),
        (lambda: zbpp.find_plans(model(), [2**63]), "bad argument", "limits: found [9223372036854775808]"),
        (lambda: zbpp.find_plans(model(), 100), "bad argument", "limits: found 100"),
        (lambda: zbpp.find_plans(model(), [0.5]), "bad argument", "limits: found [0.5]"),
        (
            lambda: zbpp.find_plan(zbpp.Problem(1024, 4096, [EMBEDDING]), most_chunks=2**31 - 1),
            "bad argument",
            "expected up to 4096 ranks",
        ),
    ],
)
def test_rubbish_is_refused_in_one_line(call, code, words):
    with pytest.raises(zbpp.Error) as refused:
        call()
    assert refused.value.code == code, refused.value
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)

# SPDX-License-Identifier: Apache-2.0
"""Layers are cut into stages as zbpp-plan does it, and say what is true of them."""

import os
import re
import subprocess
import threading

import pytest

import zbpp

EMBEDDING = zbpp.Layer(1, 0, 2, edge=4, static=50)
BLOCK = zbpp.Layer(
    5, 6, 4, activation=30, weight_gradient_input=20, recompute=5, recompute_input=4, edge=4, static=20
)
HEAD = zbpp.Layer(12, 12.5, 12, activation=40, weight_gradient_input=40, static=50)


def model(placement="linear", blocks=12, **more):
    if placement == "looped":
        more["chunks"] = 2
    layers = [EMBEDDING] + blocks * [BLOCK] + [HEAD]
    return zbpp.LayeredProblem(3, 6, layers, placement, transfer=0.5, **more)


def without_seconds(text):
    return re.sub(r'"plan_seconds": .*', "", text)


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
def test_a_partition_is_that_of_zbpp_plan(placement, policy):
    asked = model(placement, memory_limit=1500)
    answer = None
    if "ZBPP_PLAN" in os.environ:
        answer = subprocess.run(
            [os.environ["ZBPP_PLAN"], "--problem", "-", "--policy", policy, "--json", "-"]
            + ["--seconds", "0.01", "--seed", "7"],
            input=asked.to_json(),
            capture_output=True,
            text=True,
        )
    try:
        found = zbpp.partition(asked, policy, seconds=0.01, seed=7)
    except zbpp.Error as refused:
        assert refused.code == "unsupported problem"
        assert answer is None or answer.stderr == f"zbpp-plan: {refused}\n"
        return
    check(found, asked)
    assert answer is None or without_seconds(found.to_json()) == without_seconds(answer.stdout)


def test_a_plan_of_all_is_that_of_zbpp_plan():
    asked = model(memory_limit=900)
    found = zbpp.auto_plan(asked, seconds=0.05, seed=7)
    check(found, asked)
    assert found.policy == "auto-plan"
    for policy in ("zb_h1", "gpipe"):
        try:
            assert found.cost <= zbpp.partition(asked, policy, schedules=50).cost
        except zbpp.Error:
            pass
    if "ZBPP_PLAN" not in os.environ:
        return
    answer = subprocess.run(
        [os.environ["ZBPP_PLAN"], "--problem", "-", "--policy", "auto_plan", "--json", "-"]
        + ["--seconds", "0.05", "--seed", "7"],
        input=asked.to_json(),
        capture_output=True,
        text=True,
    )
    assert without_seconds(found.to_json()) == without_seconds(answer.stdout)


def test_little_memory_makes_stages_recompute():
    asked = model(memory_limit=430)
    found = zbpp.partition(asked, "zb_h1")
    check(found, asked)
    assert any(one.recompute is not None for one in found.problem.stages)
    assert max(found.peak_memory) <= 430
    with pytest.raises(zbpp.Error) as refused:
        zbpp.partition(model(memory_limit=100), "zb_h1")
    assert refused.value.code == "unsupported problem"
    assert "it fits when every limit is higher by" in str(refused.value)


def test_layers_read_back_to_the_same_value():
    asked = model("v", memory_limit=900)
    again = zbpp.LayeredProblem.from_json(asked.to_json())
    assert again.layers == asked.layers
    assert zbpp.LayeredProblem.from_json(again.to_json()) == again
    assert again.placement == "v" and again.transfer == 0.5 and again.memory_limit == 900
    rates = zbpp.LayeredProblem(3, 6, asked.layers, transfer=zbpp.Transfer(0.5, 0.25))
    assert zbpp.LayeredProblem.from_json(rates.to_json()).transfer.latency[0][1] == 0.5
    assert zbpp.plan(zbpp.Problem(1, 1, [BLOCK])).first_layer is None


def test_progress_and_stop_are_those_of_a_plan():
    # Uneven, and short of memory, so that only the budget or a stop ends the search.
    layers = [
        zbpp.Layer(3 + i * 7 % 5, 4 + i * 3 % 7, 2 + i * 5 % 6, activation=10 + i % 3, weight_gradient_input=5)
        for i in range(14)
    ]
    asked = zbpp.LayeredProblem(3, 7, layers, transfer=0.7, memory_limit=120)
    for search in (
        lambda **more: zbpp.auto_plan(asked, seconds=1000, **more),
        lambda **more: zbpp.partition(asked, "greedy_auto", seconds=1000, **more),
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


@pytest.mark.parametrize(
    "call, code, words",
    [
        (lambda: zbpp.partition(zbpp.Problem(1, 1, [BLOCK]), "gpipe"), "bad argument", "zbpp.LayeredProblem"),
        (lambda: zbpp.plan(model()), "bad argument", "expected a zbpp.Problem"),
        (lambda: zbpp.partition(model(), "fastest"), "bad argument", "no policy is called 'fastest'"),
        (lambda: zbpp.partition(model(), "gpipe", schedules=-1), "bad argument", "schedules: found -1"),
        (lambda: zbpp.partition(model(), "gpipe", seconds=-1), "bad argument", "seconds: found -1"),
        (lambda: zbpp.auto_plan(model(), most_chunks=1), "bad argument", "most_chunks is less than 2"),
        (lambda: zbpp.auto_plan(model(), most_chunks="8"), "bad argument", "most_chunks: found '8'"),
        (lambda: zbpp.auto_plan(model(blocks=0)), "bad format", "there are 2 layers for 3 stages"),
        (lambda: zbpp.partition(model(), "zb_v"), "unsupported problem", "needs a v placement"),
        (lambda: zbpp.LayeredProblem.from_json("{}"), "bad format", "no key 'ranks'"),
        (
            lambda: zbpp.Problem.from_json(model().to_json()),
            "bad format",
            "problem: found the key 'layers'; expected 'stages'",
        ),
    ],
)
def test_rubbish_is_refused_in_one_line(call, code, words):
    with pytest.raises(zbpp.Error) as refused:
        call()
    assert refused.value.code == code, refused.value
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)

# SPDX-License-Identifier: Apache-2.0
"""Wrong orders and wrong claims are found; rubbish is refused in one line."""

import json

import pytest

import zbpp
from conftest import problem


def test_an_order_that_is_changed_runs_or_has_a_fault(rng):
    found = zbpp.plan(problem(), "zb_h1")
    refused = 0
    for _ in range(100):
        rows = [line.split(",") for line in found.to_csv().splitlines()]
        row = rng.choice(rows)
        i, j = rng.sample(range(len(row)), 2)
        row[i], row[j] = row[j], row[i]
        text = "".join(",".join(row) + "\n" for row in rows)
        faults = zbpp.verify(text, found.problem)
        assert faults == zbpp.verify(text), text
        if faults:
            refused += 1
            with pytest.raises(zbpp.Error) as wrong:
                zbpp.simulate(text, found.problem)
            assert wrong.value.code == "refused program", text
        else:
            assert zbpp.verify(zbpp.simulate(text, found.problem)) == [], text
    assert refused > 50


def test_a_fault_has_its_kind_and_place():
    faults = zbpp.verify("0F0,0I0,0W0\n1I0,1F0,1W0\n")
    assert faults[0].kind == "dependence"
    assert (faults[0].rank, faults[0].stage, faults[0].microbatch) == (1, 1, 0)
    assert str(faults[0]) == faults[0].text and "\n" not in str(faults[0])
    missing = zbpp.verify("0F0,0I0,0W0\n1F0,1I0,1F0\n")
    assert {fault.kind for fault in missing} >= {"repeated", "missing"}


def test_memory_limits_of_a_problem_are_checked():
    found = zbpp.plan(problem(), "gpipe")
    tight = problem(memory_limit=79)
    assert zbpp.verify(found, problem(memory_limit=80)) == []
    assert {fault.kind for fault in zbpp.verify(found, tight)} == {"memory"}
    assert {fault.kind for fault in zbpp.verify(found.to_csv(), tight)} == {"memory"}


@pytest.mark.parametrize("key", ["cost", "period", "lower_bound", "bubble_rate"])
def test_a_wrong_claim_is_found(key):
    said = json.loads(zbpp.plan(problem(), "zb_h1").to_json())
    said[key] = said[key] / 2 if key == "bubble_rate" else said[key] + 1
    faults = zbpp.verify(json.dumps(said))
    assert [fault.kind for fault in faults] == ["claim"]
    assert faults[0].text.startswith(key + ": ")
    assert faults[0].rank is None and faults[0].position is None


def same(**changes):
    return zbpp.Problem(**{**vars(problem()), **changes})


STAGE = problem().stages[0]
LOOP = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    "call, code, words",
    [
        (lambda: zbpp.plan(problem(), "no\nsuch"), "bad argument", "no policy is called 'no such'"),
        (lambda: zbpp.plan(problem(), "gpipe\0"), "bad argument", "no policy is called"),
        (lambda: zbpp.plan(problem(), "\udc80"), "bad argument", "no policy is called"),
        (lambda: zbpp.plan(problem(), None), "bad argument", "policy: found None"),
        (lambda: zbpp.plan(None), "bad argument", "problem: found None"),
        (lambda: zbpp.plan(problem(), seconds=-1), "bad argument", "seconds: found -1"),
        (lambda: zbpp.plan(problem(), seconds=float("nan")), "bad argument", "seconds: found nan"),
        (lambda: zbpp.plan(problem(), seconds="soon"), "bad argument", "seconds: found 'soon'"),
        (lambda: zbpp.plan(problem(), seed=-1), "bad argument", "seed: found -1"),
        (lambda: zbpp.plan(problem(), seed=2**64), "bad argument", "seed: found 18446"),
        (lambda: zbpp.plan(problem(), seed=1.5), "bad argument", "seed: found 1.5"),
        (lambda: zbpp.plan(problem(), "zb_v"), "unsupported problem", "v placement"),
        (lambda: zbpp.plan(same(memory_limit=1)), "unsupported problem", "rank "),
        (lambda: zbpp.plan(same(memory_limit=20), "gpipe"), "unsupported problem", "GPipe needs 80"),
        (lambda: zbpp.plan(same(ranks=0)), "bad format", "problem: ranks: found 0"),
        (lambda: zbpp.plan(same(ranks=True)), "bad format", "problem: ranks: found true"),
        (lambda: zbpp.plan(same(ranks=2.5)), "bad format", "problem: ranks: found 2.5"),
        (lambda: zbpp.plan(same(ranks=10**400)), "bad format", "number overflow"),
        (lambda: zbpp.plan(same(ranks=10**5000)), "bad argument", "problem: Exceeds the limit"),
        (lambda: zbpp.plan(same(ranks=5000)), "bad argument", "expected up to 4096 ranks"),
        (lambda: zbpp.plan(same(ranks=None)), "bad format", "found no key 'ranks'"),
        (lambda: zbpp.plan(same(stages=None)), "bad format", "found no key 'stages'"),
        (lambda: zbpp.plan(same(layers=[STAGE])), "bad format", "problem: found the key 'stages'; expected 'layers'"),
        (lambda: zbpp.plan(same(rank_speeds=[1] * 4)), "bad format", "problem: found the key 'rank_speeds'"),
        (lambda: zbpp.plan(same(replicas=zbpp.Replicas(0))), "bad format", "problem: replicas.count: found 0"),
        (lambda: zbpp.plan(same(stages=[])), "bad format", "problem: stages: found an array of 0"),
        (lambda: zbpp.plan(same(stages=STAGE)), "bad format", "problem: stages: found an object"),
        (lambda: zbpp.plan(same(stages=[3])), "bad format", "problem: stages[0]: found 3"),
        (
            lambda: zbpp.plan(same(stages=[zbpp.Stage(float("nan"), 1, 1)])),
            "bad format",
            "problem: stages[0].forward: found 'nan'",
        ),
        (
            lambda: zbpp.plan(same(stages=[zbpp.Stage(1, object(), 1)])),
            "bad format",
            "problem: stages[0].backward_input: found '<object",
        ),
        (lambda: zbpp.plan(same(placement="x\ny")), "bad format", "placement: found 'x y'"),
        (lambda: zbpp.plan(same(placement=[0, 0])), "bad format", "problem: "),
        (lambda: zbpp.plan(same(chunks=3)), "bad format", "problem: chunks: found 3"),
        (lambda: zbpp.plan(same(transfer=[[1], 2])), "bad format", "problem: transfer: found an array"),
        (lambda: zbpp.plan(same(transfer=LOOP)), "bad argument", "found a list in itself"),
        (lambda: zbpp.plan(same(time_unit=[])), "bad format", "problem: time_unit: found an array"),
        (lambda: zbpp.Problem.from_json(""), "bad format", "problem: "),
        (lambda: zbpp.Problem.from_json("{}\0"), "bad format", "problem: "),
        (lambda: zbpp.Problem.from_json("\udc80"), "bad format", "problem: "),
        (lambda: zbpp.Plan.from_json("[]"), "bad format", "plan: "),
        (lambda: zbpp.verify("{"), "bad format", "plan: "),
        (lambda: zbpp.verify("0F0,what"), "bad format", "line 1, cell 2: found 'what'"),
        (lambda: zbpp.verify(None), "bad argument", "plan: found None"),
        (lambda: zbpp.verify("0F0,0B0", problem()), "bad format", "line "),
        (lambda: zbpp.verify("0F0,0B0", 3), "bad argument", "problem: found 3"),
        (lambda: zbpp.simulate("0F0,0B0"), "bad argument", "problem: found None"),
        (lambda: zbpp.simulate(3, problem()), "bad argument", "schedule: found 3"),
        (lambda: zbpp.simulate("0F0,0X0", problem()), "bad format", "line 1, cell 2: found '0X0'"),
        (
            lambda: zbpp.simulate("0F0,0B0\n1B0,1F0", same(ranks=2, microbatches=1)),
            "refused program",
            "the order cannot run: dependence at rank 1",
        ),
        (lambda: zbpp.lower_bound(same(microbatches=0)), "bad format", "problem: microbatches: found 0"),
        (lambda: zbpp.svg(width=1), "bad argument", ""),
        (lambda: zbpp.plan(problem(), "gpipe").to_svg(10**20), "bad argument", "width: found 1000"),
        (lambda: zbpp.plan(problem(), "gpipe").to_svg(-1), "bad argument", ""),
        (lambda: zbpp.plan(problem(), "gpipe").to_svg("wide"), "bad argument", "width: found 'wide'"),
        (lambda: zbpp.svg(3), "bad argument", "plans: found 3"),
    ],
)
def test_rubbish_is_refused_in_one_line(call, code, words):
    with pytest.raises(zbpp.Error) as refused:
        call()
    line = str(refused.value)
    assert refused.value.code == code, line
    assert words in line
    assert line and "\n" not in line and line.isprintable()


def test_texts_are_read_with_a_byte_order_mark():
    found = zbpp.plan(problem(ranks=2, microbatches=2), "zb_h1")
    assert zbpp.verify("\ufeff" + found.to_json()) == []
    assert zbpp.verify("\ufeff\r\n" + found.to_json()) == []
    assert zbpp.verify("\ufeff" + found.to_csv().replace("\n", "\r\n"), found.problem) == []
    assert zbpp.Problem.from_json("\ufeff" + found.problem.to_json()) == found.problem
    assert zbpp.Plan.from_json("\ufeff" + found.to_json()).ranks == found.ranks


def test_texts_with_a_change_are_read_or_refused_in_one_line(rng):
    found = zbpp.plan(problem(ranks=2, microbatches=2), "zb_h1")
    readers = [
        (zbpp.Problem.from_json, found.problem.to_json()),
        (zbpp.Plan.from_json, found.to_json()),
        (zbpp.verify, found.to_json()),
        (zbpp.verify, found.to_csv()),
        (lambda text: zbpp.simulate(text, found.problem), found.to_csv()),
    ]
    refused = 0
    for _ in range(200):
        for read, text in readers:
            at = rng.randrange(len(text))
            by = rng.choice(["", "0", "-", "9" * 30, '"', ",", "\0", "\n", "}", "é", "\ud800", "F"])
            changed = text[:at] + by + text[at + rng.randrange(3) :]
            try:
                read(changed)
            except zbpp.Error as wrong:
                refused += 1
                assert str(wrong) and "\n" not in str(wrong), repr(changed)
                assert wrong.code != "unexpected", repr(changed)
    assert refused > 200

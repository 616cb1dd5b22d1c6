# SPDX-License-Identifier: Apache-2.0
"""Problems that several tests plan, and what zbpp-plan makes of them."""

import os
import random
import re
import subprocess

import pytest

import zbpp


@pytest.fixture
def rng():
    """Random numbers whose seed is printed where a test fails; ZBPP_SEED repeats it."""
    seed = int(os.environ.get("ZBPP_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
    print(f"ZBPP_SEED={seed}")
    return random.Random(seed)


def problem(placement="linear", ranks=4, microbatches=8, **more):
    """A problem with uneven passes."""
    stage = zbpp.Stage(10, 9.000001, 8, activation=10, weight_gradient_input=4)
    if placement == "looped":
        more["chunks"] = 2
    return zbpp.Problem(ranks, microbatches, [stage], placement, transfer=0.5, **more)


def endless():
    """A problem whose search does not meet its lower bound, so that only the budget or a stop ends it."""
    return problem(memory_limit=30)


needs_zbpp_plan = pytest.mark.skipif("ZBPP_PLAN" not in os.environ, reason="zbpp-plan is not built")


def by_zbpp_plan(asked, *options):
    """How zbpp-plan ends that plans a problem, with the plan on standard output."""
    return subprocess.run(
        [os.environ["ZBPP_PLAN"], "--problem", "-", "--json", "-", "--seconds", "0.01", "--seed", "7", *options],
        input=asked.to_json(),
        capture_output=True,
        text=True,
    )


def without_seconds(text):
    return re.sub(r'"plan_seconds": .*', "", text)

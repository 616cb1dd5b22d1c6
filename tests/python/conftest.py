# SPDX-License-Identifier: Apache-2.0
"""Problems that several tests plan."""

import os
import random

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

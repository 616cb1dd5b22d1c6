# SPDX-License-Identifier: Apache-2.0
"""Plans schedules for zero-bubble pipeline parallelism: the planner of zbpp for Python.

A `Problem` says what the stages of a model take, a `LayeredProblem` what its layers take. `plan` searches an order for it, `lower_bound` says
what no order can beat, `simulate` times an order of yours, and `verify` says what is wrong with one.
`docs/python.md` of zbpp has an example.
"""

from zbpp._library import Error, version
from zbpp._model import (
    Fault,
    Layer,
    LayeredProblem,
    Pass,
    Plan,
    Policy,
    Problem,
    Progress,
    Stage,
    Transfer,
)
from zbpp._planner import (
    auto_plan,
    csv,
    lower_bound,
    partition,
    plan,
    policies,
    simulate,
    svg,
    verify,
)

__version__ = version()
__all__ = [
    "Error",
    "Fault",
    "Layer",
    "LayeredProblem",
    "Pass",
    "Plan",
    "Policy",
    "Problem",
    "Progress",
    "Stage",
    "Transfer",
    "auto_plan",
    "csv",
    "lower_bound",
    "partition",
    "plan",
    "policies",
    "simulate",
    "svg",
    "verify",
]

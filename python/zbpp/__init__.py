# SPDX-License-Identifier: Apache-2.0
"""Plans schedules for zero-bubble pipeline parallelism: the planner of zbpp for Python.

A `Problem` says what the stages or layers of a model take. `find_plan` searches placement, cut and order,
`plan` an order alone, `lower_bound` says what no order can beat, `simulate` times an order of yours,
and `verify` says what is wrong with one.
`docs/python.md` of zbpp has an example.
"""

from zbpp._library import Error, version
from zbpp._model import (
    Fault,
    Layer,
    Pass,
    Plan,
    Policy,
    Problem,
    Progress,
    Replicas,
    Stage,
    Transfer,
)
from zbpp._planner import (
    csv,
    find_plan,
    find_plans,
    lower_bound,
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
    "Pass",
    "Plan",
    "Policy",
    "Problem",
    "Progress",
    "Replicas",
    "Stage",
    "Transfer",
    "csv",
    "find_plan",
    "find_plans",
    "lower_bound",
    "plan",
    "policies",
    "simulate",
    "svg",
    "verify",
]

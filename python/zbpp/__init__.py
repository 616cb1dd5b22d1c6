# SPDX-License-Identifier: Apache-2.0
"""Plans schedules for zero-bubble pipeline parallelism: the planner of zbpp for Python.

A `Problem` says what the stages of a model take. `plan` searches an order for it, `lower_bound` says
what no order can beat, `simulate` times an order of yours, and `verify` says what is wrong with one.
`docs/python.md` of zbpp has an example.
"""

from zbpp._library import Error, version
from zbpp._model import Fault, Pass, Plan, Policy, Problem, Progress, Stage, Transfer
from zbpp._planner import csv, lower_bound, plan, policies, simulate, svg, verify

__version__ = version()
__all__ = [
    "Error",
    "Fault",
    "Pass",
    "Plan",
    "Policy",
    "Problem",
    "Progress",
    "Stage",
    "Transfer",
    "csv",
    "lower_bound",
    "plan",
    "policies",
    "simulate",
    "svg",
    "verify",
]

# SPDX-License-Identifier: Apache-2.0
"""The functions of the package."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Union

from zbpp import _model
from zbpp._library import Error, Search, Text, call
from zbpp._model import Fault, LayeredProblem, Plan, Policy, Problem, Progress

_NANOSECONDS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_POLL_SECONDS = 0.05  # how often a search is looked at; often enough for people


def plan(
    problem: Problem,
    policy: str = "greedy_auto",
    *,
    seconds: float = 2.5,
    seed: int = 3,
    stop: threading.Event | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> Plan:
    """Plans a problem with a policy: the name or title of one of `policies()`.

    Every policy that searches takes at most about `seconds` of a machine that places a pass in
    50 ns, in all: over all placements with auto_placement, with proofs, and with what saves memory.
    The budget is counted in passes, so the same problem, budget and seed give the same plan on any
    machine. Setting `stop` ends a search, and the plan is the best so far. `progress` is called some
    times a second by the thread that called `plan`, once a search tells how far it is.

    Other threads run meanwhile. What a signal handler or `progress` raises, such as
    KeyboardInterrupt, ends the search and comes out of this call.

    Raises Error when the problem is wrong, when the policy cannot schedule it, or when the plan does
    not fit the memory limits.
    """
    asked = _text_of(problem)
    return _search("plan", problem, (asked, Text(_string(policy, "policy"))), seconds, seed, stop, progress)


def partition(
    problem: LayeredProblem,
    policy: str,
    *,
    schedules: int = 0,
    seconds: float = 2.5,
    seed: int = 3,
    stop: threading.Event | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> Plan:
    """Cuts layers into stages for a policy, on the placement of the problem.

    It also chooses the stages that recompute, where there are memory limits. The plan has the first
    layer of each stage. The policy is asked for up to `schedules` orders; 0 stands for 1000, or for
    100 of a policy that searches. Such a policy shares half of `seconds` among the cuts, and has
    the other half for the best of them. `stop` and `progress` are as in `plan`.

    Raises Error when the problem is wrong, when the policy does not take it, or when no cut that was
    tried fits the memory limits.
    """
    if not isinstance(schedules, int) or not 0 <= schedules < 2**31:
        raise Error(f"schedules: found {schedules!r:.60}; expected a whole number from 0 to 2^31 - 1")
    arguments = (_text_of(problem, LayeredProblem), Text(_string(policy, "policy")), schedules)
    return _search("partition", problem, arguments, seconds, seed, stop, progress)


def auto_plan(
    problem: LayeredProblem,
    *,
    seconds: float = 10,
    seed: int = 3,
    most_chunks: int = 8,
    stop: threading.Event | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> Plan:
    """Searches placement, layers of each stage, stages that recompute and order at once.

    Looped placements have up to `most_chunks` stages per rank. `problem` of the plan has the
    placement that was chosen, and the plan the first layer of each stage. All else is as in `plan`.

    Raises Error when the problem is wrong, or when nothing that was tried fits the memory limits.
    """
    if not isinstance(most_chunks, int) or not 0 <= most_chunks < 2**31:
        raise Error(f"most_chunks: found {most_chunks!r:.60}; expected a whole number of at least 2")
    arguments = (_text_of(problem, LayeredProblem), most_chunks)
    return _search("auto_plan", problem, arguments, seconds, seed, stop, progress)


def _search(
    name: str,
    problem: Union[Problem, LayeredProblem],
    arguments: tuple,
    seconds: float,
    seed: int,
    stop: threading.Event | None,
    progress: Callable[[Progress], object] | None,
) -> Plan:
    """Calls `zbpp_<name>`, a search, in the background."""
    if not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise Error(f"seed: found {seed!r:.60}; expected a whole number from 0 to 2^64 - 1")
    try:
        budget = float(seconds)
    except (TypeError, ValueError, OverflowError):
        raise Error(f"seconds: found {seconds!r:.60}; expected a number") from None
    search = Search()

    def look() -> None:
        if stop is not None and stop.is_set():
            search.stop()
        if progress is not None:
            cost, bound, spent = search.progress()
            if spent > 0:
                unit = _NANOSECONDS[problem.time_unit]
                progress(Progress(cost / unit, bound / unit, spent))

    return Plan(
        _in_background(
            lambda: call(name, *arguments, budget, seed, search.handle),
            search.stop,
            look if stop is not None or progress is not None else None,
        )
    )


def policies() -> list[Policy]:
    """Returns the policies that `plan` knows."""
    return [Policy(**one) for one in json.loads(call("policies"))]


def simulate(schedule: Union[Plan, str], problem: Problem | None = None) -> Plan:
    """Works out what an order takes: a plan's, or CSV as PyTorch's pipelining runtime has it.

    CSV needs a problem; for a plan it says what the order takes with other costs. Memory limits are
    not applied.

    Raises Error when the order is not one of the problem, or cannot run.
    """
    title = "schedule"
    if isinstance(schedule, Plan):
        problem = schedule.problem if problem is None else problem
        title = schedule.policy
        schedule = schedule.to_csv()
    text = Text(_string(schedule, "schedule"))
    return Plan(call("simulate", text, _text_of(problem), Text(title)))


def lower_bound(problem: Problem) -> float:
    """Returns what no schedule that runs the microbatches of each stage in order can cost less than.

    Raises Error when the problem is wrong.
    """
    return json.loads(call("lower_bound", _text_of(problem)))


def verify(plan: Union[Plan, str], problem: Problem | None = None) -> list[Fault]:
    """Says what is wrong with a plan, or with a schedule or program in CSV; empty when it is right.

    Alone, a plan is checked with all that it says. With a problem, the order is checked: whether it
    may run, and keeps the memory limits of that problem. A plan may also be given as JSON.

    Raises Error when the text is no plan and no CSV, or the order is not one of the problem.
    """
    if isinstance(plan, str) and plan.lstrip("\ufeff \t\r\n").startswith("{"):
        plan = Plan(plan)
    if isinstance(plan, Plan) and problem is None:
        found = call("verify_plan", Text(plan.text))
    else:
        order = plan.to_csv() if isinstance(plan, Plan) else _string(plan, "plan")
        limits = Text() if problem is None else _text_of(problem)
        found = call("verify", Text(order), limits)
    return [
        Fault(**{name: None if value == -1 else value for name, value in one.items()})
        for one in json.loads(found)
    ]


def csv(plan: Plan, overlap: bool = False) -> str:
    """Writes the order of a plan as PyTorch's pipelining runtime reads it; see `Plan.to_csv`."""
    return plan.to_csv(overlap)


def svg(*plans: Plan, width: int = 1200) -> str:
    """Draws the timelines of plans below each other on one scale, `width` pixels wide."""
    return _model.draw(plans, width)


def _string(given: object, name: str) -> str:
    if not isinstance(given, str):
        raise Error(f"{name}: found {given!r:.60}; expected a str")
    return given


def _text_of(problem: object, kind: type = Problem) -> Text:
    if not isinstance(problem, kind):
        raise Error(f"problem: found {problem!r:.60}; expected a zbpp.{kind.__name__}")
    return Text(problem.to_json())


def _in_background(
    work: Callable[[], str],
    stop: Callable[[], None],
    look: Callable[[], None] | None,
) -> str:
    """Runs `work` on a thread, because Python handles signals only between the steps of its own code.

    Calls `look` now and then. What is raised here meanwhile calls `stop`, waits for the thread and
    goes on; what is raised while that waits, or before the thread runs, leaves the thread to itself.
    """
    done = threading.Event()
    answer: list[str] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(work())
        except BaseException as wrong:
            raised.append(wrong)
        finally:
            done.set()

    thread = threading.Thread(target=run, name="zbpp.plan", daemon=True)
    try:
        thread.start()
        while not done.wait(None if look is None else _POLL_SECONDS):
            look()
    except BaseException:
        stop()
        if thread.ident is not None:
            done.wait()
        raise
    if raised:
        raise raised.pop()
    return answer.pop()

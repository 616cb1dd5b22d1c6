# SPDX-License-Identifier: Apache-2.0
"""The functions of the package."""

from __future__ import annotations

import ctypes
import json
import operator
import re
import threading
from collections.abc import Callable, Sequence
from typing import Union

from zbpp import _model
from zbpp._library import Error, Search, Text, call
from zbpp._model import Fault, Plan, Policy, Problem, Progress

_NANOSECONDS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_SEPARATOR = re.compile(r"[\s,]*")
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
    """Orders the passes of a problem on its own placement and cut.

    `policy` is the name or title of one of `policies()`. One that searches takes at most about `seconds`
    of a machine that places a pass in 50 ns, with proofs, and with what saves memory. The budget is
    counted in passes, so the same problem, budget and seed give the same plan on any machine. Setting
    `stop` ends a search, and the plan is the best so far. `progress` is called some times a second by the
    thread that called `plan`, once a search tells how far it is.

    Other threads run meanwhile. What a signal handler or `progress` raises, such as
    KeyboardInterrupt, ends the search and comes out of this call.

    Raises Error when the problem is wrong, when the policy cannot schedule it, or when the plan does
    not fit the memory limits.
    """
    if not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise Error(f"seed: found {seed!r:.60}; expected a whole number from 0 to 2^64 - 1")
    try:
        budget = float(seconds)
    except (TypeError, ValueError, OverflowError):
        raise Error(f"seconds: found {seconds!r:.60}; expected a number") from None
    arguments = (_text_of(problem), Text(_string(policy, "policy")), budget, seed)
    return Plan(_search("plan", problem, arguments, stop, progress))


def find_plan(
    problem: Problem,
    *,
    placement: Union[str, Sequence[int], None] = None,
    chunks: int | None = None,
    first_layer: Sequence[int] | None = None,
    recompute: Sequence[bool] | None = None,
    policy: str | None = None,
    most_chunks: int = 8,
    most_cuts: int = 0,
    most_memory_for: float = 0,
    seconds: float = 10,
    seed: int = 3,
    stop: threading.Event | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> Plan:
    """Finds the cheapest plan within every memory limit: placement, cut, stages that recompute, and order.

    What is given stays, and all else is searched at once. `placement` and `chunks` are as in `Problem`,
    and so are `first_layer` and `recompute`, which need a placement. Without a placement, that of the
    problem, linear, V, and looped ones with up to `most_chunks` stages per rank are tried. A problem of
    stages is cut at its stages, or at their halves where ranks have fewer than two.

    With `policy`, the name or title of one of `policies()`, the cuts are searched for which its order
    costs least. It is asked for up to `most_cuts` orders on each placement; 0 stands for 1000, or for 100
    of a policy that searches. Without one, a plan may cost more by the share `most_memory_for`, from 0 to
    1, where it takes less memory for that.

    `problem` of the plan has the placement, and `first_layer` the cut. Budget, `stop` and `progress` are
    as in `plan`.

    Raises Error when a value is wrong, when the policy takes no placement that is tried, or when nothing
    that was tried fits the memory limits.
    """
    choices = _text_of_choices(
        placement=placement,
        chunks=chunks,
        first_layer=first_layer,
        recompute=recompute,
        policy=policy,
        most_chunks=most_chunks,
        most_cuts=most_cuts,
        most_memory_for=most_memory_for,
        seconds=seconds,
        seed=seed,
    )
    return Plan(_search("find_plan", problem, (_text_of(problem), choices), stop, progress))


def find_plans(
    problem: Problem,
    limits: Sequence[int],
    *,
    placement: Union[str, Sequence[int], None] = None,
    chunks: int | None = None,
    first_layer: Sequence[int] | None = None,
    recompute: Sequence[bool] | None = None,
    policy: str | None = None,
    most_chunks: int = 8,
    most_cuts: int = 0,
    most_memory_for: float = 0,
    seconds: float = 10,
    seed: int = 3,
    stop: threading.Event | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> list[Plan]:
    """Finds the cheapest plan for each of several memory limits, in place of the problem's own.

    Each gets the whole budget; all else is as in `find_plan`. Returns one plan for each limit that fits,
    ascending; the limit is that of `problem` of the plan. With more memory no plan costs more.
    `plan_seconds` of each is how long all of them took.

    Raises Error when a value is wrong.
    """
    choices = _text_of_choices(
        placement=placement,
        chunks=chunks,
        first_layer=first_layer,
        recompute=recompute,
        policy=policy,
        most_chunks=most_chunks,
        most_cuts=most_cuts,
        most_memory_for=most_memory_for,
        seconds=seconds,
        seed=seed,
    )
    sizes = _sizes(limits)
    arguments = (_text_of(problem), (ctypes.c_int64 * len(sizes))(*sizes), len(sizes), choices)
    text = _search("find_plans", problem, arguments, stop, progress)
    plans = []
    at = 1  # after the bracket
    while text[at] != "]":  # times stay exact where texts are not written again
        end = json.JSONDecoder().raw_decode(text, at)[1]
        plans.append(Plan(text[at:end] + "\n"))
        at = _SEPARATOR.match(text, end).end()
    return plans


def _search(
    name: str,
    problem: Problem,
    arguments: tuple,
    stop: threading.Event | None,
    progress: Callable[[Progress], object] | None,
) -> str:
    """Calls `zbpp_<name>`, a search, in the background, and returns its answer."""
    search = Search()

    def look() -> None:
        if stop is not None and stop.is_set():
            search.stop()
        if progress is not None:
            cost, bound, spent = search.progress()
            if spent > 0:
                unit = _NANOSECONDS[problem.time_unit]
                progress(Progress(cost / unit, bound / unit, spent))

    return _in_background(
        lambda: call(name, *arguments, search.handle),
        search.stop,
        look if stop is not None or progress is not None else None,
    )


def policies() -> list[Policy]:
    """Returns the policies that come with the library."""
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


def _sizes(limits: Sequence[int]) -> list[int]:
    try:
        sizes = [operator.index(one) for one in limits]
    except TypeError:
        sizes = [-1]
    if not all(0 <= one < 2**63 for one in sizes):
        raise Error(f"limits: found {limits!r:.60}; expected whole numbers from 0 to 2^63 - 1")
    return sizes


def _text_of(problem: object) -> Text:
    if not isinstance(problem, Problem):
        raise Error(f"problem: found {problem!r:.60}; expected a zbpp.Problem")
    return Text(problem.to_json())


def _text_of_choices(**choices: object) -> Text:
    return Text(_model.json_of("choices", choices))


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

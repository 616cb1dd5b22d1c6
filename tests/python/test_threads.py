# SPDX-License-Identifier: Apache-2.0
"""Searches run beside Python, end when they are told to, and give their memory back.

Nothing here looks at a clock: the searches have a budget of days, so a test whose search does not end
would not end either.
"""

import os
import signal
import threading

import pytest

import zbpp
from conftest import endless, problem
from zbpp import _library

DAYS = 1e6


def plan_works():
    found = zbpp.plan(problem(), "zb_h1")
    return zbpp.verify(found) == []


def searches():
    return [one for one in threading.enumerate() if one.name == "zbpp.plan"]


def test_two_threads_search_while_a_third_waits():
    changed = threading.Condition()
    stop = threading.Event()
    seen = [[], []]
    plans = [None, None]

    def search(which):
        def progress(now):
            with changed:
                seen[which].append(now)
                changed.notify()

        plans[which] = zbpp.plan(endless(), seed=which, seconds=DAYS, stop=stop, progress=progress)

    threads = [threading.Thread(target=search, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    with changed:
        changed.wait_for(lambda: all(len(one) >= 3 for one in seen))
    stop.set()
    for thread in threads:
        thread.join()
    for found, told in zip(plans, seen):
        assert zbpp.verify(found) == []
        spent = [now.spent for now in told]
        assert spent == sorted(spent) and 0 < spent[0] <= spent[-1] < 1
        costs = [now.cost for now in told]
        assert costs == sorted(costs, reverse=True)
        assert found.cost <= costs[-1] < 2 * found.cost
        least = zbpp.lower_bound(endless())
        assert all(least <= now.lower_bound <= found.cost for now in told)
        assert least <= found.lower_bound <= found.cost


@pytest.mark.parametrize("find", [zbpp.plan, zbpp.find_plan])
def test_ctrl_c_ends_a_search(find):
    def interrupt():
        while not any(one.is_alive() for one in searches()):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    for _ in range(3):
        sender = threading.Thread(target=interrupt)
        sender.start()
        with pytest.raises(KeyboardInterrupt):
            find(endless(), seconds=DAYS)
        sender.join()
        for thread in searches():
            thread.join()
        assert plan_works()


def test_ctrl_c_ends_a_search_that_has_come_far():
    def progress(now):
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        zbpp.plan(endless(), seconds=DAYS, progress=progress)
    assert plan_works()


def test_what_progress_raises_ends_a_search():
    class Enough(Exception):
        pass

    def progress(now):
        raise Enough

    with pytest.raises(Enough):
        zbpp.plan(endless(), seconds=DAYS, progress=progress)
    assert plan_works()


def test_a_search_that_is_stopped_before_it_begins_has_a_plan():
    stop = threading.Event()
    stop.set()
    assert zbpp.verify(zbpp.plan(endless(), seconds=DAYS, stop=stop)) == []


def refused_text():
    with pytest.raises(zbpp.Error):
        _library.call("csv", _library.Text("{"), 0)


# What one call would keep at least: the text of a plan, the list of policies, a line, a control.
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="the system does not say")
@pytest.mark.parametrize(
    "call, times, kept",
    [
        (lambda: zbpp.plan(problem(ranks=2, microbatches=2), "zb_h1"), 1000, 1600),
        (lambda: _library.call("policies"), 1000, 1000),
        (refused_text, 8000, 100),
        (lambda: _library.Search().stop(), 20000, 50),
    ],
)
def test_calls_give_their_memory_back(call, times, kept):
    def in_use():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for _ in range(100):
        call()
    before = in_use()
    for _ in range(times):
        call()
    assert in_use() - before < times * kept / 2

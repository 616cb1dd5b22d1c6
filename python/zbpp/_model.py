# SPDX-License-Identifier: Apache-2.0
"""What goes into the planner and what comes out: `docs/formats.md` says what each value means."""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Union

from zbpp import _library
from zbpp._library import Error

Table = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Stage:
    """What the passes of one stage take for one microbatch.

    Times are in the `time_unit` of the problem, sizes are whole numbers in any one unit.
    """

    forward: float
    backward_input: float
    backward_weight: float
    activation: int = 0
    weight_gradient_input: int = 0
    backward_fused: float | None = None
    recompute: float | None = None
    norm: float = 0
    optimizer_step: float = 0
    recompute_input: int = 0
    edge: int = 0
    static: int = 0
    workspace: int = 0
    tied: int = 0
    overlapped: float | None = None
    overlapped_fused: float | None = None
    output_gradient: int = 0
    gradients: int = 0
    optimizer_state: int = 0


@dataclass(frozen=True)
class Transfer:
    """What a message takes: `latency + time_per_size * edge`, each one number or rows [from][to]."""

    latency: Union[float, Table] = 0
    time_per_size: Union[float, Table, None] = None


@dataclass(frozen=True)
class Replicas:
    """Pipelines like this one that train beside it, which add up the gradients of each stage.

    A message between them takes `latency + time_per_size * size`. With `shards_optimizer` each steps a
    share of a stage and keeps the state of the optimizer for it alone.
    """

    count: int
    latency: float = 0
    time_per_size: float = 0
    shards_optimizer: bool = False


Layer = Stage
"""What a stage of one layer alone would take."""


@dataclass(frozen=True)
class Problem:
    """A model on its ranks: what is to be planned.

    It states either `stages`, with one entry for all stages or one for each, or `layers`, with one entry
    for each from the input on. A list may hold one object many times, as in
    `[embedding] + 32 * [block] + [head]`. Layers are cut into stages of nearly equal times, unless
    `first_layer` has the first layer of each stage, and `recompute` whether it recomputes; `find_plan`
    searches for the cut.

    `placement` is "linear", "looped" (with `chunks` per rank), "v", or the rank of every stage.
    `transfer` is one time for all pairs of ranks, rows [from][to], or a `Transfer`. `memory_limit` is one
    for all ranks, a list with one for each, or None. `time_unit` is "ns", "us", "ms" or "s".
    `microbatch_factors` has one number for each microbatch, by which its times are multiplied, or is None
    where all are of one size. `rank_speeds`, beside layers, has one number for each rank: at 0.5 all takes
    twice as long there.

    A problem is checked where it is used.
    """

    ranks: int
    microbatches: int
    stages: Union[Sequence[Stage], None] = None
    placement: Union[str, Sequence[int]] = "linear"
    chunks: int | None = None
    transfer: Union[float, Table, Transfer] = 0
    memory_limit: Union[int, Sequence[int], None] = None
    time_unit: str = "ms"
    microbatch_factors: Sequence[float] | None = None
    layers: Union[Sequence[Layer], None] = None
    rank_speeds: Sequence[float] | None = None
    replicas: Replicas | None = None
    first_layer: Sequence[int] | None = None
    recompute: Sequence[bool] | None = None

    @staticmethod
    def from_json(text: str) -> Problem:
        """Reads a problem. Raises Error where the text is none."""
        return _problem_of(json.loads(_library.call("read_problem", _library.Text(text))))

    def to_json(self) -> str:
        """Writes the problem. The library says what is wrong with a value when the text is used."""
        return json_of("problem", vars(self))


def json_of(name: str, values: dict[str, object]) -> str:
    """Writes values as an object of JSON, without those that are None. `name` says what they are."""
    try:
        return json.dumps(_plain(values))
    except RecursionError:
        raise Error(f"{name}: found a list in itself; expected numbers") from None
    except ValueError as wrong:  # Python writes no number of more than 4300 digits
        raise Error(f"{name}: {wrong}") from None


def _plain(value: object) -> object:
    """Makes JSON of values, of numbers and arrays of other libraries too, such as NumPy's.

    What JSON cannot hold becomes a string, which the library refuses with the place where it stands.
    """
    if isinstance(value, (Stage, Transfer, Replicas)):
        value = vars(value)
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items() if one is not None}
    if isinstance(value, (str, bool)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else str(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Sequence):
        return [_plain(one) for one in value]
    return f"{value!r:.60}"


def _problem_of(read: dict) -> Problem:
    for key in ("stages", "layers"):
        if key in read:
            read[key] = [one for entry in read[key] for one in entry.pop("count", 1) * [Stage(**entry)]]
    for key, kind in (("transfer", Transfer), ("replicas", Replicas)):
        if isinstance(read.get(key), dict):
            read[key] = kind(**read[key])
    return Problem(**read)


class Pass(NamedTuple):
    """One pass of a plan, timed in the unit of its problem."""

    kind: str
    """F, B (gradient of the input), W (gradient of the weights), BW (both) or R (recompute)."""
    stage: int
    microbatch: int
    start: float
    end: float
    paired: bool = False
    """Whether it runs together with the F right before it."""


@dataclass(frozen=True)
class Plan:
    """An order of passes with its times, and what is said of it.

    Times are in the unit of the problem. Plans are equal when their texts are.
    """

    text: str = field(repr=False)
    """The plan as JSON, which all other values are read from."""
    policy: str = field(init=False, compare=False)
    """The title of the policy that made it."""
    problem: Problem = field(init=False, repr=False, compare=False)
    """What is planned: its stages, on the placement that was chosen."""
    cost: float = field(init=False, compare=False)
    """The time of one step."""
    period: float = field(init=False, compare=False)
    """The time of a step when many follow each other."""
    lower_bound: float = field(init=False, compare=False)
    """No schedule that runs the microbatches of each stage in order costs less."""
    optimal: bool = field(init=False, compare=False)
    """Whether the cost is proved to be the least."""
    bubble_rate: float = field(init=False, compare=False)
    """From 0 to 1."""
    plan_seconds: float = field(init=False, repr=False, compare=False)
    """How long the policy took."""
    peak_memory: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """What each rank holds at most, in the unit of the problem's sizes."""
    ranks: tuple[tuple[Pass, ...], ...] = field(init=False, repr=False, compare=False)
    """The passes of each rank, in the order in which it runs them."""

    first_layer: Union[tuple[int, ...], None] = field(init=False, repr=False, compare=False)
    """The first layer of each stage, of a plan that cuts layers into stages; else None. The stages
    that recompute are then those of `problem` that state a time for it."""

    def __post_init__(self) -> None:
        read = json.loads(_library.call("read_plan", _library.Text(self.text)))
        first = read.get("first_layer")
        read["first_layer"] = None if first is None else tuple(first)
        ranks = read.pop("ranks")
        read["problem"] = _problem_of(read["problem"])
        read["peak_memory"] = tuple(rank["peak_memory"] for rank in ranks)
        read["ranks"] = tuple(tuple(_pass_of(one) for one in rank["passes"]) for rank in ranks)
        for name, value in read.items():
            object.__setattr__(self, name, value)

    @staticmethod
    def from_json(text: str) -> Plan:
        """Reads a plan. It believes what the text says: see `verify`. Raises Error where it is none."""
        return Plan(text)

    def to_json(self) -> str:
        """Returns the plan as JSON, with exact times."""
        return self.text

    def to_csv(self, overlap: bool = False) -> str:
        """Writes the order as PyTorch's pipelining runtime reads it.

        With `overlap`, an F and the BW right after it are a pair such as (0F7;7B3)OVERLAP_F_B.
        """
        return _library.call("csv", _library.Text(self.text), overlap)

    def to_svg(self, width: int = 1200) -> str:
        """Draws the timeline, `width` pixels wide."""
        return draw([self], width)


def _pass_of(read: dict) -> Pass:
    times = (read["start"], read["end"])
    return Pass(read["pass"], read["stage"], read["microbatch"], *times, read.get("paired", False))


def draw(plans: Sequence[Plan], width: int) -> str:
    """Draws the timelines of plans below each other on one scale."""
    if not isinstance(width, int) or not 0 <= width < 2**31:
        raise Error(f"width: found {width!r:.60}; expected a number of pixels")
    for one in plans:
        if not isinstance(one, Plan):
            raise Error(f"plans: found {one!r:.60}; expected zbpp.Plan")
    texts = (_library.Text * len(plans))(*(_library.Text(one.text) for one in plans))
    return _library.call("svg", texts, len(plans), width)


@dataclass(frozen=True)
class Fault:
    """One fault of an order or a plan. A place that does not apply is None."""

    kind: str
    """Such as "missing", "deadlock" or "memory"; "claim" where a plan says what is not true."""
    text: str
    """One line that says where it is and what is right."""
    rank: int | None = None
    position: int | None = None
    """Counts the instructions of the rank from 0, transfers included."""
    stage: int | None = None
    microbatch: int | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Policy:
    """A policy that comes with the library."""

    name: str
    title: str
    summary: str


@dataclass(frozen=True)
class Progress:
    """How far a search has come. Times are in the unit of the problem."""

    cost: float
    """The least so far."""
    lower_bound: float
    """No schedule that runs the microbatches of each stage in order costs less."""
    spent: float
    """Share of the budget, from 0 to 1."""

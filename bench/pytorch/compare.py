#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares steps of zbpp and LibTorch with those of torch.distributed.pipelining, and prints tables.

    python3 compare.py PATH-OF-TRAIN_MLP [--turns N] [--sizes sized tiny]

Two ranks train an MLP: as two processes of train_mlp, which keep the memory of freed tensors, as two
that leave it to the C library, and as two of train_mlp.py with this Python. They wait for lines and run one kind at a time. Each turn runs every kind for some steps, each in
another order, so that other work on the machine hits all alike. All kinds have the same weights at
the beginning, and the same batches, so their losses have to agree after each turn.
"""

import argparse
import importlib.util
import os
import pathlib
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
RANKS = 2
BACK = "C++, giving back"  # the side that leaves freed memory to the C library
REFERENCE = ("Python", "gloo", "ScheduleZBVZeroBubble")
TOLERANCE = 1e-4  # of losses, relative: other kernels and other orders of sums

# Name: blocks, width, rows of a microbatch, microbatches; steps of a turn, the first not timed.
SIZES = {
    "sized": ((8, 512, 640, 8), 3),
    "tiny": ((8, 8, 4, 8), 40),
}

# Who runs it, how, by which policy.
KINDS = [
    ("C++", "plain", "-"),
    ("C++", "both", "-"),
    ("C++", "threads", "zb_v"),
    ("C++", "threads", "zb_h1"),
    ("C++", "threads", "one_f_one_b"),
    ("C++", "tcp", "zb_v"),
    ("C++", "tcp", "zb_h1"),
    ("C++", "tcp", "one_f_one_b"),
    (BACK, "plain", "-"),
    (BACK, "threads", "zb_v"),
    (BACK, "tcp", "zb_v"),
    ("Python", "plain", "-"),
    ("Python", "gloo", "ScheduleZBVZeroBubble"),
    ("Python", "gloo", "ScheduleInterleavedZeroBubble"),
    ("Python", "gloo", "Schedule1F1B"),
]

NAMES = {
    ("C++", "plain"): "LibTorch, plain loop, memory kept",
    ("C++", "both"): "limit: two plain loops at once, by half",
    ("C++", "threads"): "zbpp, threads, memory kept",
    ("C++", "tcp"): "zbpp, TCP, memory kept",
    (BACK, "plain"): "LibTorch, plain loop",
    (BACK, "threads"): "zbpp, threads",
    (BACK, "tcp"): "zbpp, TCP",
    ("Python", "plain"): "PyTorch, plain loop",
    ("Python", "gloo"): "PyTorch, gloo",
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


class Side:
    """The two processes of one program."""

    def __init__(self, name, command):
        self.name = name
        common = os.environ | {
            "WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": free_port(),
            "ZBPP_TOKEN": secrets.token_hex(32),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        self.processes = [
            subprocess.Popen(
                command,
                env=common | {"RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            for rank in range(RANKS)
        ]
        self.version = [self.answer(process) for process in self.processes][0]

    def answer(self, process):
        line = process.stdout.readline()
        if not line:
            self.give_up()
        return line.strip()

    def give_up(self):
        sys.exit(f"compare.py: a process of {self.name} has ended; what it wrote above says why")

    def run(self, runtime, policy, numbers, steps):
        """Gives seconds of a step, by the slower rank, and the last loss."""
        alone = runtime in ("plain", "threads")
        asked = self.processes[:1] if alone else self.processes
        both = runtime == "both"  # a pipeline without any cost would take half of that
        if both:
            runtime = "plain"
        try:
            for process in asked:
                print(runtime, policy, *numbers, steps, file=process.stdin)
        except BrokenPipeError:
            self.give_up()
        answers = [[float(each) for each in self.answer(process).split()] for process in asked]
        took = max(time for time, _ in answers)
        return took / 2 if both else took, max(loss for _, loss in answers)

    def end(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait()


def take_turns(sides, chosen, turns):
    """Gives the times of each kind of each size, and the largest relative difference of losses."""
    times = {(size, kind): [] for size in chosen for kind in KINDS}
    widest = dict.fromkeys(chosen, 0.0)
    for turn in range(-1, turns):  # the first one makes the pipelines, and is not counted
        shift = turn % len(KINDS)
        for size in chosen:
            numbers, steps = SIZES[size]
            losses = {}
            for kind in KINDS[shift:] + KINDS[:shift]:
                who, runtime, policy = kind
                seconds, losses[kind] = sides[who].run(runtime, policy, numbers, steps)
                if turn >= 0:
                    times[size, kind].append(seconds)
            least, most = min(losses.values()), max(losses.values())
            widest[size] = max(widest[size], (most - least) / most)
            if not most - least <= TOLERANCE * most:
                for kind, loss in losses.items():
                    print(*kind, loss, file=sys.stderr)
                sys.exit(f"compare.py: the losses of {size} differ by more than {TOLERANCE}")
    return times, widest


def milliseconds(seconds):
    return f"{1e3 * seconds:.1f}"


def print_table(size, times, widest):
    numbers, steps = SIZES[size]
    blocks, width, rows, microbatches = numbers
    print(
        f"\n### {size}: {blocks} x (Linear {width}, GELU), {microbatches} microbatches of {rows} rows\n\n"
        f"{steps - 1} timed steps a turn. Losses differ by {widest[size]:.1g} of their value at most.\n\n"
        "| kind | policy | step: median, ms | range, ms | over PyTorch's ZBV | fastest over its fastest |\n"
        "|---|---|---|---|---|---|"
    )
    reference = times[size, REFERENCE]
    for kind in KINDS:
        own = times[size, kind]
        ratio = statistics.median(a / b for a, b in zip(own, reference))
        print(
            f"| {NAMES[kind[:2]]} | {kind[2]} | {milliseconds(statistics.median(own))} "
            f"| {milliseconds(min(own))} to {milliseconds(max(own))} "
            f"| {ratio:.2f} | {min(own) / min(reference):.2f} |"
        )


def load():  # of 1, 5 and 15 minutes
    return ", ".join(f"{each:.1f}" for each in os.getloadavg())


def cpu():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "a CPU without a name"


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("program", help="train_mlp, built with LibTorch of the same version")
    options.add_argument("--turns", type=int, default=30)
    options.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    wanted = options.parse_args()
    if not os.access(wanted.program, os.X_OK) or os.path.isdir(wanted.program):
        sys.exit(
            f"compare.py: there is no program {wanted.program}; build the target train_mlp "
            "(docs/libtorch.md says how with the LibTorch of PyTorch's wheel)")
    if importlib.util.find_spec("torch") is None:
        sys.exit(
            f"compare.py: {sys.executable} has no torch; run this script with a Python that has PyTorch")

    before = load()
    with tempfile.TemporaryDirectory() as folder:
        sides = {
            "C++": Side("train_mlp", [wanted.program]),
            BACK: Side("train_mlp --give-back", [wanted.program, "--give-back"]),
            "Python": Side(
                "train_mlp.py",
                [sys.executable, str(HERE / "train_mlp.py"), os.path.join(folder, "store")]),
        }
        times, widest = take_turns(sides, wanted.sizes, wanted.turns)
        for side in sides.values():
            side.end()
    print(
        f"{cpu()}, {len(os.sched_getaffinity(0))} cores; load average {before} before, {load()} after. "
        f"LibTorch {sides['C++'].version}, PyTorch {sides['Python'].version}, {wanted.turns} turns."
    )
    if sides["C++"].version != sides["Python"].version.partition("+")[0]:
        print("The two versions differ, and so may their kernels.")
    for size in wanted.sizes:
        print_table(size, times, widest)


if __name__ == "__main__":
    main()

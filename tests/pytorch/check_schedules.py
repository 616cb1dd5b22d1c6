# SPDX-License-Identifier: Apache-2.0
"""Runs schedules of zbpp-plan in PyTorch's pipelining runtime, and checks PyTorch's with zbpp-plan.

    python3 check_schedules.py PATH-OF-ZBPP-PLAN

Two processes with gloo train a small model for one step. The gradients have to be those of a plain
loop to the bit, for several policies, in both forms of the CSV. Exits with 77 where there is no
PyTorch with torch.distributed.pipelining.
"""

import os
import subprocess
import sys
import tempfile

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining import schedules
except (ImportError, OSError) as missing:
    print(f"skipped, torch is not installed: {missing}")
    sys.exit(77)

RANKS = 2
ROWS = 3  # of a microbatch
WIDTH = 16
TIMES = "--forward 10 --backward-input 11 --backward-weight 9 --transfer 1".split()

# What zbpp-plan is asked for: policy, placement, microbatches.
CASES = [
    ("gpipe", "linear", 4),
    ("one_f_one_b", "linear", 5),
    ("interleaved", "looped --chunks 2", 4),
    ("interleaved_zb", "looped --chunks 2", 4),
    ("zb_h1", "linear", 6),
    ("zb_h2", "linear", 6),
    ("zb_v", "v", 6),
    ("v_half", "v", 6),
    ("v_min", "v", 5),
    ("dualpipe_v", "v", 8),
    ("greedy_auto", "v", 7),
]

# PyTorch's own schedules that it can write, and whether their gradients are summed in the order of a
# plain loop. Its 1F1B cannot be written; the file one_f_one_b lowered by PyTorch stands for it.
OWN = [
    ("ScheduleInterleaved1F1B", "looped", 4, True),
    ("ScheduleInterleavedZeroBubble", "looped", 4, True),
    ("ScheduleZBVZeroBubble", "v", 4, True),
    ("ScheduleDualPipeV", "v", 4, True),
    ("ScheduleLoopedBFS", "looped", 4, False),
]

FORMS = ("compute_only", "compute_comms")


def stages_of(placement, rank):
    """The stages of a rank, in ascending order."""
    if placement == "linear":
        return [rank]
    if placement == "v":
        return [rank, 2 * RANKS - 1 - rank]
    return [rank, rank + RANKS]


def make_modules(count):
    """The same stages on every rank: weights follow from a seed."""
    torch.manual_seed(7)
    return [
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH))
        for _ in range(count)
    ]


def loss_of(output, target):
    return torch.nn.functional.mse_loss(output, target)


def make_batch(microbatches):
    values = torch.Generator().manual_seed(11)
    shape = (microbatches * ROWS, WIDTH)
    return torch.randn(shape, generator=values), torch.randn(shape, generator=values)


def plain_loop(modules, microbatches):
    """Trains all stages in one process, microbatch by microbatch."""
    inputs, targets = make_batch(microbatches)
    for x, target in zip(inputs.chunk(microbatches), targets.chunk(microbatches)):
        for module in modules:
            x = module(x)
        loss_of(x, target).backward()
    for module in modules:
        for weights in module.parameters():
            weights.grad.div_(microbatches)


# [run
def run_planned(path, form, modules, placement, microbatches):
    """Trains for one step as the file at `path` says; returns the modules of this rank."""
    rank = dist.get_rank()
    mine = stages_of(placement, rank)
    stages = [PipelineStage(modules[s], s, len(modules), torch.device("cpu")) for s in mine]
    runtime = schedules._PipelineScheduleRuntime(stages, microbatches, loss_fn=loss_of)
    runtime._load_csv(path, format=form)  # compute_only or compute_comms

    inputs, targets = make_batch(microbatches)
    has_first, has_last = 0 in mine, len(modules) - 1 in mine
    runtime.step(
        *([inputs] if has_first else []),
        target=targets if has_last else None,
        losses=[] if has_last else None,
    )
    # run]
    if rank == 0:
        runtime._dump_csv(path + ".lowered", format="compute_comms")
    return {s: modules[s] for s in mine}


def check_planned(folder, policy, placement, microbatches, form):
    name = placement.split()[0]
    count = RANKS if name == "linear" else 2 * RANKS
    path = os.path.join(folder, f"{policy}.{form}.csv")
    trained = run_planned(path, form, make_modules(count), name, microbatches)
    expected = make_modules(count)
    plain_loop(expected, microbatches)
    for stage, module in trained.items():
        for got, wanted in zip(module.parameters(), expected[stage].parameters()):
            if not torch.equal(got.grad, wanted.grad):
                raise AssertionError(f"{policy}, {form}: gradients of stage {stage} differ")
    if dist.get_rank() == 0:
        print(f"{policy:16} {form:14} {microbatches} microbatches: gradients equal to the bit", flush=True)


def dump_own(folder, name, placement, microbatches):
    """Has PyTorch write both forms of one of its schedules."""
    count = RANKS if placement == "linear" else 2 * RANKS
    modules = make_modules(count)
    mine = stages_of(placement, dist.get_rank())
    stages = [PipelineStage(modules[s], s, count, torch.device("cpu")) for s in mine]
    own = getattr(schedules, name)(stages, microbatches, loss_fn=loss_of)
    if dist.get_rank() == 0:
        for form in FORMS:
            own._dump_csv(os.path.join(folder, f"{name}.{form}.csv"), format=form)


def run_rank(rank, folder):
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    for policy, placement, microbatches in CASES:
        for form in FORMS:
            check_planned(folder, policy, placement, microbatches, form)
    for name, placement, microbatches, _ in OWN:
        dump_own(folder, name, placement, microbatches)
    dist.barrier()
    dist.destroy_process_group()


def ask(program, *arguments):
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


def check_dump(program, path, microbatches, is_lowered, ascends=True):
    """Demands that zbpp-plan finds a file of PyTorch right, and says what is to say of it."""
    found = ask(program, "--check", path)
    good = found.returncode == 0 and f" {microbatches} microbatches" in found.stdout
    good = good and ("remark: sum order" in found.stdout) != ascends
    good = good and ("actions of PyTorch's runtime left out" in found.stdout) == is_lowered
    if not good:
        sys.exit(f"{path}: {found.stdout}{found.stderr}")
    print(f"{os.path.basename(path)}: right by zbpp-plan --check")


def lines_of(path):
    with open(path) as text:
        return text.read().splitlines()


def main():
    program = sys.argv[1]
    print(f"torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        for policy, placement, microbatches in CASES:
            for form in FORMS:
                path = os.path.join(folder, f"{policy}.{form}.csv")
                found = ask(
                    program, "--policy", policy, "--ranks", str(RANKS),
                    "--microbatches", str(microbatches), "--placement", *placement.split(),
                    "--csv", path, *TIMES, *(["--csv-transfers"] if form == "compute_comms" else []))
                if found.returncode != 0:
                    sys.exit(f"{policy}: {found.stderr}")
        torch.multiprocessing.spawn(run_rank, (folder,), nprocs=RANKS)
        for policy, _, microbatches in CASES:
            ours = os.path.join(folder, policy + ".compute_comms.csv")
            check_dump(program, ours, microbatches, True)
            if lines_of(ours) != lines_of(ours + ".lowered"):
                sys.exit(f"{ours}: PyTorch reads something else than it says")
            check_dump(
                program, os.path.join(folder, policy + ".compute_only.csv.lowered"), microbatches, True)
        for name, _, microbatches, ascends in OWN:
            for form in FORMS:
                path = os.path.join(folder, f"{name}.{form}.csv")
                check_dump(program, path, microbatches, form == "compute_comms", ascends)


if __name__ == "__main__":
    main()

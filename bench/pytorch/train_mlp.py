# SPDX-License-Identifier: Apache-2.0
"""Trains the MLP of train_mlp.cpp with PyTorch: in a plain loop, and by torch.distributed.pipelining.

    RANK=0 WORLD_SIZE=2 python3 train_mlp.py STORE        (and one with RANK=1; STORE is a new file)

Reads and answers the same lines as train_mlp.cpp; the runtimes are `plain` and `gloo`, the policies
the names of PyTorch's schedules.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed import pipelining

RANKS = 2
LEARNING_RATE = 0.01


def random_numbers(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Sizes:
    def __init__(self, blocks, width, rows, microbatches):
        self.blocks = blocks
        self.width = width
        self.rows = rows
        self.microbatches = microbatches


def make_slice(of, stage, stages):
    """One stage of the model: the same weights each time."""
    layers = []
    count = of.blocks // stages
    for block in range(stage * count, (stage + 1) * count):
        linear = torch.nn.Linear(of.width, of.width)
        with torch.no_grad():
            linear.weight.copy_(random_numbers(block, of.width, of.width) * of.width**-0.5)
            linear.bias.zero_()
        layers += [linear, torch.nn.GELU()]
    return torch.nn.Sequential(*layers)


def make_batches(of):
    """Inputs and targets of the microbatches of each step."""
    return [
        [random_numbers(first + mb, of.rows, of.width) for mb in range(of.microbatches)]
        for first in (1000, 2000)
    ]


def loss_of(of):
    return lambda y, target: torch.nn.functional.mse_loss(y, target) / of.microbatches


class PlainLoop:
    def __init__(self, of):
        self.model = make_slice(of, 0, 1)
        self.sgd = torch.optim.SGD(self.model.parameters(), LEARNING_RATE)
        self.batches = list(zip(*make_batches(of)))
        self.loss_of = loss_of(of)

    def train(self, steps):
        for _ in range(steps):
            losses = []
            for x, target in self.batches:
                loss = self.loss_of(self.model(x), target)
                loss.backward()
                losses.append(loss.detach())
            self.sgd.step()
            self.sgd.zero_grad()
        return sum(loss.item() for loss in losses)


class Pipelined:
    def __init__(self, name, of):
        schedule = getattr(pipelining, name)
        has_chunks = issubclass(schedule, pipelining.schedules.PipelineScheduleMulti)
        count = RANKS * (2 if has_chunks else 1)
        rank = dist.get_rank()
        mine = [rank]
        if has_chunks:
            mine += [count - 1 - rank if name == "ScheduleZBVZeroBubble" else rank + RANKS]
        modules = [make_slice(of, s, count) for s in mine]
        stages = [
            pipelining.PipelineStage(module, s, count, torch.device("cpu"))
            for s, module in zip(mine, modules)
        ]
        self.schedule = schedule(
            stages if has_chunks else stages[0],
            of.microbatches,
            loss_fn=loss_of(of),
            scale_grads=False,  # the loss is divided instead, as in the plain loop
        )
        parameters = [each for module in modules for each in module.parameters()]
        self.sgd = torch.optim.SGD(parameters, LEARNING_RATE)
        inputs, targets = make_batches(of)
        self.inputs = [torch.cat(inputs)] if 0 in mine else []
        self.targets = torch.cat(targets) if count - 1 in mine else None

    def train(self, steps):
        for _ in range(steps):
            losses = None if self.targets is None else []
            self.schedule.step(
                *self.inputs, target=self.targets, losses=losses, return_outputs=False)
            self.sgd.step()
            self.sgd.zero_grad()
        return -1 if losses is None else sum(loss.item() for loss in losses)


def main():
    torch.set_num_threads(1)
    print(torch.__version__, flush=True)
    store = dist.FileStore(sys.argv[1], RANKS)
    dist.init_process_group("gloo", store=store, rank=int(os.environ["RANK"]), world_size=RANKS)
    trainers = {}
    for line in sys.stdin:
        runtime, policy, *numbers = line.split()
        *numbers, steps = map(int, numbers)
        key = (runtime, policy, *numbers)
        if key not in trainers:
            of = Sizes(*numbers)
            trainers[key] = PlainLoop(of) if runtime == "plain" else Pipelined(policy, of)
        trainers[key].train(1)
        start = time.perf_counter()
        loss = trainers[key].train(steps - 1)
        print((time.perf_counter() - start) / (steps - 1), loss, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

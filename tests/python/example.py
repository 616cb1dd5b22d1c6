# SPDX-License-Identifier: Apache-2.0
# [example
import zbpp

stage = zbpp.Stage(forward=10, backward_input=10, backward_weight=8, activation=1000, weight_gradient_input=500)
problem = zbpp.Problem(ranks=4, microbatches=8, stages=[stage], transfer=0.5, memory_limit=6000)

before = zbpp.plan(problem, "one_f_one_b")
after = zbpp.plan(problem, seconds=1)  # greedy_auto
print(f"{before.policy}: {before.cost} ms, bubble rate {before.bubble_rate:.1%}")
print(f"{after.policy}: {after.cost} ms, bubble rate {after.bubble_rate:.1%}, at least {after.lower_bound} ms")
print("rank 3:", " ".join(f"{one.kind}{one.microbatch}" for one in after.ranks[3][:8]), "...")

with open("schedule.csv", "w") as file:
    file.write(after.to_csv())
with open("timelines.svg", "w") as file:
    file.write(zbpp.svg(before, after))
for fault in zbpp.verify(after.to_csv().replace("3F0,", ""), problem):
    print(fault)
    break
# example]

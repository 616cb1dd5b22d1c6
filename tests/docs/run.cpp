// SPDX-License-Identifier: Apache-2.0
//
// Code of docs/flows.md: a run that pauses to evaluate and to save, and stops when it is asked to.

// [train
#include <zbpp/zbpp.hpp>

#include <atomic>
#include <cstdint>
#include <cstdio>

// train]
namespace docs_run {

// [train
void save(zbpp::training_state const& state);  // with weights and optimizers

// Trains up to a number of steps, or until somebody presses Ctrl-C on one of the ranks.
void train(zbpp::pipeline_core& pipe, std::int64_t steps, std::atomic<bool> const& is_interrupted) {
  auto const on_step = [&](zbpp::step_result const& step) {
    std::printf("step %d: loss %.4f\n", static_cast<int>(pipe.steps()), step.loss());
    return is_interrupted ? zbpp::after_step::stop : zbpp::after_step::go_on;
  };
  auto const on_pause = [&] {
    double sum = 0;  // of a validation of ten batches; flows know which by mb.evaluation()
    for (int batch = 0; batch < 10; ++batch) sum += pipe.evaluate().loss();
    std::printf("validated: loss %.4f\n", sum / 10);
    save(pipe.state());
  };
  pipe.run(steps, on_step, {.pause_every = 50, .on_pause = on_pause});
  save(pipe.state());
}
// train]

}  // namespace docs_run

// SPDX-License-Identifier: Apache-2.0
//
// Trains a byte-level GPT through pipelines on GPUs, under one policy after another; with --check
// every loss and every parameter has to be, bit for bit, that of a sequential run on one rank's
// GPU, or part of a GPU. All ranks are here, or this is one of several processes.
//
// Read on in options.hpp; then the model: shape.hpp, model.hpp, layers.hpp, rows.hpp and chunk.hpp;
// its stages, stages.hpp; and training: train.hpp, planning.hpp, runs.hpp and saving.hpp.
//
// Exit status: 0 all as it should be; 1 something is not identical, or failed; 2 bad input.
#include "options.hpp"
#include "ranks_here.hpp"
#include "train.hpp"
#include "train_gpt/program.hpp"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#ifdef ZBPP_CUDA_MODEL
#include <gpu_model/cuda/cuda_model.hpp>
#include <gpu_model/cuda/environment.hpp>
#endif

namespace gpt::cuda {
namespace {

/// Trains with all ranks here, or as one of them.
int train_by_transport(options const& o) {
  if (o.by == transport::nccl) return train_in_processes(o);
  auto const on = read(o);
  return train(o, on, ranks_here(o));
}

#ifdef ZBPP_CUDA_MODEL

/// Tells what the program did wrong.
/// @return whether there was anything
bool tell_faults(std::vector<std::string> const& faults) {
  for (auto const& fault : faults) std::fprintf(stderr, "train_gpt_cuda: %s\n", fault.c_str());
  return !faults.empty();
}

/// Starts the model of CUDA, and looks for faults when all is done.
int start(options const& o) {
  bool const is_apart = o.by == transport::nccl;
  zbpp::cuda_model::reset(zbpp::cuda_model::as_in_environment(
      {.seed = o.interleaving,
       .devices = is_apart || o.one_device_each ? o.ranks : 1,
       .hosts = is_apart ? 0 : 1,  // the ranks come and go by themselves
       .copy_ns = 20'000}));
  try {
    auto const status = train_by_transport(o);
    bool const is_wrong = tell_faults(zbpp::cuda_model::faults());
    return tell_faults(zbpp::cuda_model::leaks()) || is_wrong ? 1 : status;
  } catch (zbpp::error const&) {
    tell_faults(zbpp::cuda_model::faults());
    throw;
  }
}

#else

int start(options const& o) { return train_by_transport(o); }

#endif

}  // namespace
}  // namespace gpt::cuda

int main(int argc, char** argv) {
  try {
    auto const o = gpt::cuda::read_options(argc, argv);
    // On the usual 8 hardware queues streams of a few ranks would wait for one another, and over
    // NCCL programs might deadlock. CUDA reads it once.
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    auto const status = o ? gpt::cuda::start(*o) : 0;
    gpt::finish_output();
    return status;
  } catch (gpt::setting_error const& wrong) {
    std::fprintf(stderr, "train_gpt_cuda: %s\n", wrong.what());
    return 2;
  } catch (std::exception const& failed) {
    std::fprintf(stderr, "train_gpt_cuda: %s\n", failed.what());
    return 1;
  }
}

// SPDX-License-Identifier: Apache-2.0
//
// Trains a byte-level GPT twice over: in one plain loop, and through pipelines that zbpp runs under
// different policies. Every loss and every parameter has to come out the same, bit for bit.
//
// To read on: model.hpp, what a chunk of the model does; stages.hpp, the chunk as a stage of a
// pipeline; sequential.hpp, the plain loop; training.cpp, the whole way from a text to the outcome;
// options.cpp, the command line.
//
// Exit status: 0 all as it should be; 1 something is not identical, or failed; 2 bad input; 130
// interrupted.
#include "program.hpp"
#include "ways.hpp"

#include <cstdio>
#include <exception>

namespace gpt {
namespace {

/// Does what the command line says.
/// @return the exit status
int run(int argc, char** argv) {
  auto const o = read_options(argc, argv);
  if (!o) return 0;
  if (o->by == transport::tcp) return train_in_processes(*o);
  if (o->by == transport::mpi) return train_over_mpi(*o);
  return train_on_threads(*o);
}

}  // namespace
}  // namespace gpt

int main(int argc, char** argv) {
  try {
    auto const status = gpt::run(argc, argv);
    gpt::finish_output();
    return status;
  } catch (gpt::setting_error const& wrong) {
    std::fprintf(stderr, "train_gpt: %s\n", wrong.what());
    return 2;
  } catch (std::exception const& failed) {
    std::fprintf(stderr, "train_gpt: %s\n", failed.what());
    return 1;
  }
}

// SPDX-License-Identifier: Apache-2.0
//
// The C++ block of docs/mpi.md.

// [ranks
#include <zbpp/mpi/ranks.hpp>

// ranks]
#include <zbpp/zbpp.hpp>

#include <vector>

namespace docs_mpi {

template <class Stage>
void train(std::vector<Stage>& own) {
  // [ranks
  zbpp::mpi::rendezvous run;  // of MPI_COMM_WORLD, or give a communicator of your own
  zbpp::stage_costs const costs{.forward = 1, .backward_input = 1, .backward_weight = 1};
  zbpp::problem const problem(zbpp::placement::linear(run.ranks()), 8, costs);
  auto const plan = zbpp::make_plan(zbpp::zb_h1{}, problem);
  zbpp::pipeline pipe(plan, zbpp::mpi::ranks(run), own);  // the stages of this rank
  pipe.step();
  // ranks]
}

struct stage {
  zbpp::flow operator()(zbpp::microbatch mb) const;
};
template void train(std::vector<stage>&);

}  // namespace docs_mpi

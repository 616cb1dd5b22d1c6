// SPDX-License-Identifier: Apache-2.0
//
// What a step over NCCL issues is there for a reason: leave out any wait, record, send, receive or
// copy, and the model finds a race, a wrong message, a deadlock, or a step that returns too early.
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/cuda/transfer_order.hpp>
#include <zbpp/nccl/detail/peer_channels.hpp>
#include <zbpp/nccl/detail/transport.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/catch.hpp>
#include <support/cuda_model/cuda_model.hpp>
#include <support/cuda_training.hpp>
#include <support/nccl_in_one_process.hpp>
#include <support/needless_calls.hpp>
#include <support/padded_toy.hpp>
#include <support/plan_grid.hpp>
#include <support/thinned.hpp>
#include <support/toy_history.hpp>
#include <support/toy_reference.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace test_nccl_mutations {

using namespace zbpp::test;
namespace model = zbpp::cuda_model;
using zbpp::plan;
using zbpp::problem;

namespace {

using passes = toy::padded_passes<toy::launched_passes_with_scratch>;

// What the second of two steps gives in one process.
toy::model gradients_of(plan const& planned) {
  toy::fused_passes const is_fused(planned);
  auto all = toy::make_model(planned.problem().stages());
  for (int step : {0, 1}) {
    toy::clear_gradients(all);
    static_cast<void>(toy::reference_step(all, step, planned.problem().microbatches(), is_fused));
  }
  return all;
}

bool has_gradients(toy::model const& all, toy::model const& expected) {
  for (std::size_t s = 0; s < all.size(); ++s)
    for (std::size_t k = 0; k < all[s].layers.size(); ++k)
      if (!toy::is_same(all[s].layers[k].gradient, expected[s].layers[k].gradient)) return false;
  return true;
}

// Runs two steps; leaves out one call of the second. With `asked`, threads of NCCL launch late, and
// it is how often the second step asks whether they have. @return whether nothing was found
bool is_clean(
    plan const& planned,
    std::string_view function,
    std::uint64_t index,
    std::function<bool(int)> const& by_copies,
    toy::model const& expected,
    std::uint64_t* asked = nullptr) {
  model::reset(
      {.seed = 9,
       .devices = planned.problem().ranks(),
       .late_launches = asked != nullptr,
       .shares_memory = true});
  auto all = toy::make_model(planned.problem().stages());
  std::vector<passes> objects(all.begin(), all.end());
  std::vector<zbpp::as_flow<passes>> stages(objects.begin(), objects.end());
  nccl_in_one_process backend;
  backend.edges = toy::edge_shapes(planned.problem());
  backend.by_copies = by_copies;
  try {
    zbpp::pipeline pipe{planned, std::move(backend), stages};
    pipe.step();
    toy::clear_gradients(all);
    model::start_counting();
    if (!function.empty()) model::skip(function, index);
    pipe.step();
    if (asked != nullptr) *asked = model::count("ncclCommGetAsyncError");
    // Where a message never came there is an earlier one, in the same memory.
    if (!has_gradients(all, expected)) return false;
  } catch (zbpp::error const&) {
    return false;
  }
  return model::faults().empty();
}

void check_all(std::string const& name, plan const& planned) {
  INFO(name);
  auto const expected = gradients_of(planned);
  auto const needless = needless_calls(
      {"cudaStreamWaitEvent", "cudaEventRecord", "ncclSend", "ncclRecv"},
      [&](std::string_view function, std::uint64_t i) {
        return is_clean(
            planned, function, i, [](int) { return false; }, expected);
      });
  CHECK(needless == "");
}

struct slot_waits {
  std::size_t all = 0;
  std::size_t unproved = 0;  ///< those that may be needless, though no program shows it
};

// The waits for slots. One is needless if its memory was used before the step alone, since the host
// has waited for that; in another process it does not know. And flows may keep a message until the
// last pass of its microbatch, where these keep a gradient until B.
slot_waits count_slot_waits(plan const& planned, std::function<bool(int)> const& by_copies) {
  zbpp::traffic const messages(planned.program());
  std::vector<zbpp::cuda::slot_filling> filling;
  for (int c = 0; c < messages.map().size(); ++c)
    filling.push_back(
        by_copies(c) ? zbpp::cuda::slot_filling::by_sends : zbpp::cuda::slot_filling::by_receives);
  auto const slots = zbpp::nccl::detail::held_messages(planned.program(), messages);
  auto const waits = zbpp::cuda::transfer_waits_of(planned.program(), messages, filling, slots);
  slot_waits count;
  for (int rank = 0; rank < planned.problem().ranks(); ++rank) {
    auto const row = planned.program().instructions(rank);
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (!row[i].is_send()) continue;
      auto const& note = messages.notes(rank)[i];
      auto const c = zbpp::detail::index(note.channel);
      auto const n = zbpp::detail::index(note.sequence);
      if (!by_copies(note.channel) || !waits[c][n].for_slot) continue;
      ++count.all;
      if (n < slots[c] || !row[i].moves_activation()) ++count.unproved;
    }
  }
  return count;
}

// Copies carry all channels, or all but every third. Each write of a counter belongs to a wait, and
// comes too late if a later one stands in for it.
// @return how many waits for slots nobody missed, and of how many
std::pair<std::size_t, std::size_t> check_copies(
    std::string const& name, plan const& planned, bool has_nccl) {
  INFO(name);
  auto const by_copies = [=](int c) { return !has_nccl || c % 3 != 0; };
  auto const expected = gradients_of(planned);
  auto const runs_clean = [&](std::string_view function, std::uint64_t i) {
    return is_clean(planned, function, i, by_copies, expected);
  };
  auto const needless =
      needless_calls({"cudaStreamWaitEvent", "cudaEventRecord", "cudaMemcpyAsync"}, runs_clean);
  CHECK(needless == "");
  CHECK(model::count("cuStreamWriteValue32") == model::count("cuStreamWaitValue32"));
  auto const waits = needless_calls({"cuStreamWaitValue32"}, runs_clean);
  INFO(waits);
  auto const left_out = static_cast<std::size_t>(std::ranges::count(waits, ','));
  auto const for_slots = count_slot_waits(planned, by_copies);
  CHECK(left_out <= for_slots.unproved);
  return {left_out, for_slots.all};
}

}  // namespace

TEST_CASE("no call of a step over NCCL can be left out", "[nccl][long]") {
  for (auto const& placement : placements_to_run(3))
    for_each_plan_of(problem(placement, 4, launched_costs(), 87), {.fused = false}, check_all);
}

TEST_CASE("nor can one where receives are opened early, over NCCL", "[nccl][long]") {
  for (auto const& placement : placements_to_run(3))
    for_each_plan_of(
        problem(placement, 4, launched_costs(), 87),
        {.fused = false, .receive_ahead = 2},
        check_all);
}

// Of calls that ask whether a communicator is ready, which says so when it is left out.
TEST_CASE("nor can a wait for a launch that a thread of NCCL makes", "[nccl]") {
  for (auto const& placement : placements_to_run(3))
    for_each_plan_of(
        problem(placement, 2, launched_costs(), 87),
        {.fused = false},
        [](std::string const& name, plan const& planned) {
          INFO(name);
          auto const expected = gradients_of(planned);
          auto const by_copies = [](int) { return false; };
          std::uint64_t asked = 0;
          REQUIRE(is_clean(planned, "", 0, by_copies, expected, &asked));
          CHECK(asked > 1);
          for (std::uint64_t i = 0, last = asked; i < last; i += thinned(1U, 7U)) {
            INFO(i);
            CHECK_FALSE(is_clean(planned, "ncclCommGetAsyncError", i, by_copies, expected, &asked));
          }
        });
}

TEST_CASE("nor can one where copies between processes carry messages", "[nccl][long]") {
  std::size_t left_out = 0;
  std::size_t waits = 0;
  for (auto const& placement : placements_to_run(3))
    for (int const ahead : {0, 2})
      for_each_plan_of(
          problem(placement, 4, launched_costs(), 87),
          {.fused = false, .receive_ahead = ahead},
          [&, ahead](std::string const& name, plan const& planned) {
            auto const [needless, all] = check_copies(name, planned, ahead > 0);
            left_out += needless;
            waits += all;
          });
  CHECK(2 * left_out < waits);  // the program shows where most of them are needed
}

}  // namespace test_nccl_mutations

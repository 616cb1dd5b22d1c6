// SPDX-License-Identifier: Apache-2.0
//
// No setting of a rank over MPI is ignored: each field, set to something else, has an effect or is
// refused. `mpirun` starts this program twice, and both processes run all cases.
#include <zbpp/analysis/plan.hpp>
#include <zbpp/mpi/ranks.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/plain_flow.hpp>
#include <support/settings_fields.hpp>

#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <span>
#include <string>

namespace test_mpi_settings {

using namespace zbpp;
using namespace std::chrono_literals;
using settings = mpi::ranks_settings;
using test::effect_of;

namespace {

std::ptrdiff_t count_threads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

// What settings do on all ranks, which each get the same text.
std::string effect(settings const& changed) {
  mpi::rendezvous run(MPI_COMM_WORLD, test::patient_settings());
  // Before a pipeline does, since where one is refused MPI_Finalize ends all with a failure.
  mpi::ranks(run, changed).check();
  int calls = 0;
  auto given = changed;
  if (changed.on_thread_start) given.on_thread_start = [&](std::span<int const>) { ++calls; };
  problem const stated(
      placement::linear(run.ranks()), 2, stage_costs{.forward = 1, .edge = sizeof(double)});
  std::array stages{test::plain_flow{}};
  auto const threads_before = count_threads();
  pipeline pipe(make_plan(zb_h1{}, stated), mpi::ranks(run, given), stages);
  auto const threads = count_threads() - threads_before;
  auto const& step = pipe.step();
  auto const own = "calls: " + std::to_string(calls) + ", threads: " + std::to_string(threads) +
                   ", messages: " + std::to_string(step.messages.size()) +
                   (std::isnan(step.loss()) ? "\n" : ", losses\n");
  std::string text;
  for (auto const& part : run.all_gather(std::as_bytes(std::span(own))))
    text.append(reinterpret_cast<char const*>(part.data()), part.size());
  return text;
}

}  // namespace

TEST_CASE("each setting of a rank over MPI has an effect", "[mpi][settings]") {
  test::changed_field<settings> const fields[]{
      {"largest_undeclared_message", [](auto& s) { s.largest_undeclared_message = 0; }},
      {"progress_thread", [](auto& s) { s.progress_thread = false; }},
      // How often MPI is called shows in speed alone, so what is wrong is refused.
      {"progress_interval", [](auto& s) { s.progress_interval = 0us; }},
      {"spin", [](auto& s) { s.spin = -1us; }},
      {"share_losses", [](auto& s) { s.share_losses = true; }},
      {"on_thread_start", [](auto& s) { s.on_thread_start = [](std::span<int const>) {}; }},
      {"records_messages", [](auto& s) { s.records_messages = true; }}};
  test::check_fields(fields, {}, effect);
}

TEST_CASE("a setting of a rank over MPI that is out of range is refused by its name", "[mpi]") {
  mpi::rendezvous run(MPI_COMM_WORLD, test::patient_settings());  // initializes MPI
  auto const refused = [&](settings const& wrong) {
    return effect_of([&] {
      mpi::ranks(run, wrong).check();
      return std::string("taken");
    });
  };
  CHECK(
      refused({.largest_undeclared_message = -1}) ==
      "refused: ranks_settings::largest_undeclared_message is 0 bytes or less; set it above 0");
  CHECK(
      refused({.progress_interval = -1us}) ==
      "refused: ranks_settings::progress_interval is 0 or less; set it above 0, or progress_thread "
      "to false");
  CHECK(refused({.progress_thread = false, .progress_interval = 0us}) == "taken");
  CHECK(refused({.spin = -1us}) == "refused: ranks_settings::spin is below 0; set it to 0 or more");
  CHECK(refused({.spin = 0us}) == "taken");
}

}  // namespace test_mpi_settings

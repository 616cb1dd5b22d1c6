// SPDX-License-Identifier: Apache-2.0
//
// Trainings of the checked model whose ranks are joined by sockets alone: each has a model of its
// own, of which it trains its stages.
#pragma once

#include <zbpp/asio/tcp.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/checked_model.hpp>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::test {

/// What a run of ranks leaves behind.
struct run_of_ranks {
  std::vector<std::string> thrown;  ///< by rank, or ""
  std::vector<std::uint32_t> bits;  ///< weights and moments of all stages, each as its rank has it
};

/// Runs `body(pipeline, rank, model)` on every rank of a plan.
template <class Body>
[[nodiscard]] run_of_ranks run_checked_ranks(
    plan const& planned,
    checked::model_settings settings,
    training_options const& options,
    Body body,
    asio::tcp_settings const& tcp = {}) {
  auto const& placement = planned.problem().placement();
  settings.stages = placement.stages();
  auto const start = checked::model(settings).bits();
  std::vector<std::string> thrown;
  auto joined = start;
  std::mutex mutex;
  thrown = run_ranks(placement.ranks(), patient_settings(), [&](asio::rendezvous& meeting) {
    checked::model all(settings);
    std::vector<stage_ref> own;
    for (int s : placement.stages_of(meeting.rank()))
      own.push_back(all.stages()[zbpp::detail::index(s)]);
    pipeline pipe(planned, asio::tcp(meeting, tcp), own, options);
    body(pipe, meeting.rank(), all);
    std::lock_guard const lock(mutex);
    auto const bits = all.bits();  // a rank changes its own stages alone
    for (std::size_t i = 0; i < bits.size(); ++i)
      if (bits[i] != start[i]) joined[i] = bits[i];
  });
  return {std::move(thrown), std::move(joined)};
}

/// Checks that every rank threw something with these words, or nothing when they are none.
inline void check_thrown(std::vector<std::string> const& thrown, std::string const& words) {
  for (auto const& text : thrown) {
    INFO(text);
    CHECK((words.empty() ? text.empty() : text.find(words) != std::string::npos));
  }
}

}  // namespace zbpp::test

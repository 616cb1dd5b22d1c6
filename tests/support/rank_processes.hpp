// SPDX-License-Identifier: Apache-2.0
//
// Runs of the program asio_rank: one process for each rank, started as torchrun does.
#pragma once

#include <support/processes.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace zbpp::test {

/// Is the token of these runs.
inline constexpr char const* rank_token = "0123456789abcdef0123456789abcdef";

/// Says how one process is started.
struct rank_process {
  int rank = 0;
  int ranks = 1;
  std::vector<std::string> arguments = {};
  std::string token = rank_token;
  std::vector<std::string> wrapper = {};  ///< what runs the program with its arguments, if anything
};

/// Starts a process that meets the others at a port of this host.
[[nodiscard]] inline process start_rank(rank_process const& settings, std::uint16_t port) {
  auto words = settings.wrapper;
  words.emplace_back(ZBPP_ASIO_RANK);
  words.insert(words.end(), settings.arguments.begin(), settings.arguments.end());
  std::vector<std::pair<std::string, std::string>> const environment{
      {"RANK", std::to_string(settings.rank)},
      {"WORLD_SIZE", std::to_string(settings.ranks)},
      {"LOCAL_RANK", std::to_string(settings.rank)},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(port)},
      {"ZBPP_TOKEN", settings.token}};
  return process(words, environment);
}

/// Starts a process for each rank of a run, all alike.
[[nodiscard]] inline std::vector<process> start_ranks(
    int ranks, std::vector<std::string> const& arguments, std::uint16_t port = free_port()) {
  std::vector<process> all;
  for (int rank = 0; rank < ranks; ++rank)
    all.push_back(start_rank({rank, ranks, arguments}, port));
  return all;
}

/// @return a time far beyond every deadline of the ranks: a process that is still there then hangs
[[nodiscard]] inline std::chrono::steady_clock::time_point soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(60);
}

/// @return what all processes have written, for a failed check
[[nodiscard]] inline std::string everything(std::vector<process> const& all) {
  std::string text;
  for (std::size_t r = 0; r < all.size(); ++r)
    text += "---- process " + std::to_string(r) + "\n" + all[r].output();
  return text;
}

}  // namespace zbpp::test

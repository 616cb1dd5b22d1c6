// SPDX-License-Identifier: Apache-2.0
//
// What a program that is one rank of several does around its work: which rank it is, and what
// becomes of failures and losses, which the others want to know.
#pragma once

#include "settings.hpp"
#include <zbpp/asio/rendezvous.hpp>

#include <cstdio>
#include <exception>
#include <new>
#include <optional>
#include <string>

namespace gpt {

/// Refuses a number of ranks that is not what was started.
/// @throws setting_error
inline void check_ranks(int ranks, zbpp::asio::launch const& start) {
  if (ranks != start.ranks)
    throw setting_error(
        "--ranks is " + std::to_string(ranks) + " and " + start.source + " started " +
        std::to_string(start.ranks) + "; start as many, or leave --ranks out");
}

/// Finds out which rank this process is, of how many.
/// @param transport  what the user chose, as an error shall name it
/// @param ranks      what the user said, if anything
/// @throws setting_error
[[nodiscard]] inline zbpp::asio::launch find_launch(
    std::string const& transport, std::optional<int> ranks) {
  zbpp::asio::launch start;
  try {
    start = zbpp::asio::find_launch();
  } catch (zbpp::error const& wrong) {
    throw setting_error("--transport " + transport + ": " + wrong.what());
  }
  if (ranks) check_ranks(*ranks, start);
  return start;
}

/// Meets the other ranks.
/// @throws setting_error for a wrong token or address; zbpp::error
[[nodiscard]] inline zbpp::asio::rendezvous meet(
    zbpp::asio::launch const& start, zbpp::asio::rendezvous_settings const& settings) {
  std::optional<zbpp::asio::run_token> token;
  try {
    token = zbpp::asio::run_token::from_environment();
  } catch (zbpp::error const& wrong) {
    throw setting_error(wrong.what());
  }
  try {
    return zbpp::asio::rendezvous(start, settings, *token);
  } catch (zbpp::error const& wrong) {
    if (wrong.code() == zbpp::errc::bad_argument) throw setting_error(wrong.what());
    throw;
  }
}

/// Is what people are told when memory ends.
inline constexpr char const* no_memory_text =
    "out of memory; choose a smaller model or smaller microbatches, or more ranks";

/// Does the work of a rank; what fails is told to all of them.
template <class Work>
int take_part(zbpp::asio::rendezvous& meeting, Work const& work) {
  try {
    return work();
  } catch (std::bad_alloc const&) {
    meeting.fail(no_memory_text);
    throw;
  } catch (std::exception const& failed) {
    meeting.fail(failed.what());
    throw;
  }
}

/// Turns what fails in a rank into a line on standard error and an exit status.
template <class Work>
[[nodiscard]] int status_of(char const* program, int rank, Work const& work) {
  auto const tell = [&](char const* what) {
    std::fprintf(stderr, "%s: rank %d: %s\n", program, rank, what);
  };
  // Some errors begin with their rank themselves.
  auto const tell_once = [&](zbpp::error const& failed) {
    if (failed.location().rank != rank) return tell(failed.what());
    std::fprintf(stderr, "%s: %s\n", program, failed.what());
  };
  try {
    return work();
  } catch (setting_error const& wrong) {
    tell(wrong.what());
    return 2;
  } catch (zbpp::error const& failed) {
    tell_once(failed);
    return 1;
  } catch (std::bad_alloc const&) {
    tell(no_memory_text);
    return 1;
  } catch (std::exception const& failed) {
    tell(failed.what());
    return 1;
  }
}

}  // namespace gpt

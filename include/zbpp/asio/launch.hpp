// SPDX-License-Identifier: Apache-2.0
//
// Which rank a process is, how many ranks there are and where they meet, as its arguments or the
// variables of torchrun, Open MPI, PMI, Slurm and PMIx say. Reads only; opens no socket.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace zbpp::asio {

/// Says which rank a process is and where the run meets.
struct launch {
  int rank = 0;
  int ranks = 1;
  int local_rank = -1;               ///< its number on its machine; -1 where nothing says so
  std::string host = "127.0.0.1";    ///< of rank 0, as the other ranks reach it
  std::uint16_t port = 29400;        ///< of rank 0
  std::string source = "arguments";  ///< who said which rank this is
};

/// Holds the values set by the caller; each takes precedence over the environment.
struct launch_arguments {
  std::optional<int> rank = {};
  std::optional<int> ranks = {};
  std::optional<int> local_rank = {};
  std::optional<std::string> host = {};
  std::optional<int> port = {};
};

/// Gives the value of an environment variable, or nothing where it is not set.
using environment_lookup = std::function<std::optional<std::string>(char const* name)>;

/// Looks into the environment of this process, which nobody may change meanwhile.
[[nodiscard]] std::optional<std::string> environment(char const* name);

/// Finds out which rank this process is. Each argument takes precedence over the environment. Where
/// they do not give both rank and ranks, the first launcher with a variable set is asked: torchrun,
/// Open MPI, PMI, Slurm, PMIx. The host is the argument, else MASTER_ADDR, else the first of
/// several hosts in Slurm's list, else 127.0.0.1; the port is the argument, MASTER_PORT or 29400.
/// @throws error (bad_argument) that names the variable, its value and what it must be
[[nodiscard]] launch find_launch(
    launch_arguments const& arguments = {}, environment_lookup const& look = environment);

}  // namespace zbpp::asio

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/asio/impl/launch.ipp>
#endif

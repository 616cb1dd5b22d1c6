// SPDX-License-Identifier: Apache-2.0
//
// Reads arguments and the variables of launchers.
#pragma once

#include <zbpp/asio/launch.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace zbpp::asio {

ZBPP_INLINE std::optional<std::string> environment(char const* name) {
  char const* const value = std::getenv(name);
  if (value == nullptr) return {};
  return value;
}

namespace detail {

inline constexpr int most_ranks = 65536;

// The variables by which a launcher tells; null where it has none.
struct launcher {
  char const* name;
  char const* rank;
  char const* ranks;
  char const* local_rank;
  char const* local_ranks;
  char const* advice;  // how to start a run with it
};

// PMIx comes last: `srun --mpi=pmix` sets its rank too, and Slurm's variables say more.
inline constexpr launcher launchers[] = {
    {"torchrun",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     "set both, as torchrun does"},
    {"Open MPI",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     "start the ranks with mpirun"},
    {"PMI",
     "PMI_RANK",
     "PMI_SIZE",
     "MPI_LOCALRANKID",
     "MPI_LOCALNRANKS",
     "start the ranks with mpiexec"},
    {"Slurm",
     "SLURM_PROCID",
     "SLURM_NTASKS",
     "SLURM_LOCALID",
     nullptr,
     "start the ranks with srun"},
    {"PMIx", "PMIX_RANK", nullptr, nullptr, nullptr, "set RANK and WORLD_SIZE"},
};

// A value and who gave it, for messages.
template <class Value>
struct sourced_value {
  Value value;
  std::string by;
};

[[noreturn]] ZBPP_INLINE void wrong_launch(std::string const& text) {
  throw error(errc::bad_argument, text);
}

[[nodiscard]] ZBPP_INLINE int checked_number(
    sourced_value<std::int64_t> const& number, int least, int most, std::string const& why = {}) {
  if (number.value < least || number.value > most)
    wrong_launch(
        zbpp::detail::joined(number.by) + " is " + number.value + "; it must be from " + least +
        " to " + most + why);
  return static_cast<int>(number.value);
}

// Reads variables of one environment.
class variables {
 public:
  explicit variables(environment_lookup const& look) : look_(look) {}

  [[nodiscard]] std::optional<std::string> text(char const* name) const {
    auto value = name == nullptr ? std::nullopt : look_(name);
    if (value && value->empty())
      wrong_launch(zbpp::detail::joined(name, " is empty; give it a value or unset it"));
    return value;
  }

  // An argument, else a variable.
  [[nodiscard]] std::optional<sourced_value<std::int64_t>> number(
      std::optional<int> argument, char const* argument_name, char const* name) const {
    if (argument)
      return sourced_value<std::int64_t>{
          *argument, zbpp::detail::joined("argument ", argument_name)};
    auto const value = text(name);
    if (!value) return {};
    std::int64_t result = 0;
    auto const* const end = value->data() + value->size();
    auto const read = std::from_chars(value->data(), end, result);
    if (read.ec != std::errc{} || read.ptr != end)
      wrong_launch(zbpp::detail::joined(name, " is '", *value, "'; it must be a decimal number"));
    return sourced_value<std::int64_t>{result, name};
  }

 private:
  environment_lookup const& look_;
};

struct first_node {
  std::string name;
  bool is_only = true;
};

// Finds the first host in Slurm's short form of a list: `node[03-05,9],x` gives node03.
[[nodiscard]] ZBPP_INLINE first_node first_of_nodes(std::string const& list, char const* variable) {
  auto const refuse = [&](char const* reason) {
    wrong_launch(
        zbpp::detail::joined(variable) + " is '" + list + "': " + reason +
        "; it must be a list of hosts such as node[03-05,9],x, or give the host of rank 0 in "
        "MASTER_ADDR");
  };
  first_node first;
  for (std::size_t at = 0; at < list.size();) {
    if (list[at] == ',') {
      first.is_only = false;
      break;
    }
    if (list[at] != '[') {
      if (list[at] == ']') refuse("a bracket closes that was not opened");
      first.name += list[at++];
      continue;
    }
    auto const close = list.find(']', at);
    if (close == std::string::npos) refuse("a bracket is not closed");
    auto const range = std::string_view(list).substr(at + 1, close - at - 1);
    auto const digits = range.find_first_not_of("0123456789");
    if (digits == 0 || range.empty()) refuse("a bracket does not begin with a number");
    if (digits != std::string_view::npos) {
      if (range[digits] != '-' && range[digits] != ',') refuse("a bracket holds no numbers");
      first.is_only = false;
    }
    first.name.append(range.substr(0, digits));
    at = close + 1;
  }
  if (first.name.empty()) refuse("the first host has no name");
  return first;
}

// The host that the launcher itself implies; empty: this machine.
[[nodiscard]] ZBPP_INLINE std::string host_by(
    launcher const& by, int ranks, variables const& environment) {
  if (std::string_view(by.name) == "Slurm") {
    for (auto const* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"})
      if (auto const list = environment.text(name)) {
        auto first = first_of_nodes(*list, name);
        return first.is_only ? std::string() : std::move(first.name);
      }
    return {};
  }
  auto const here = environment.number({}, "", by.local_ranks);
  if (here && here->value < ranks)
    wrong_launch(
        zbpp::detail::joined(here->by) + " is " + here->value + " of " + ranks +
        " ranks, so the run spans machines; set MASTER_ADDR to the host of rank 0");
  return {};
}

[[nodiscard]] ZBPP_INLINE launcher const* find_launcher(variables const& environment) {
  for (auto const& by : launchers)
    if (environment.text(by.rank) || environment.text(by.ranks)) return &by;
  return nullptr;
}

[[noreturn]] ZBPP_INLINE void nothing_launched() {
  std::string text = "nothing says which rank this process is; give the arguments rank and ranks, "
                     "or start it so that one of these is set:";
  for (auto const& by : launchers)
    if (by.ranks != nullptr)
      text += zbpp::detail::joined(&by == launchers ? " " : ", ") + by.rank + " and " + by.ranks +
              " (" + by.name + ")";
  wrong_launch(text);
}

// The port where rank 0 listens. torchrun's agent itself may listen on MASTER_PORT; then it says
// so, and the run takes the port beside it.
[[nodiscard]] ZBPP_INLINE std::uint16_t port_of(
    std::optional<int> argument, variables const& environment) {
  auto const stated = environment.number(argument, "port", "MASTER_PORT");
  if (!stated) return launch{}.port;
  auto const port = checked_number(*stated, 0, 65535);
  bool const is_taken =
      !argument && environment.text("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  if (!is_taken) return static_cast<std::uint16_t>(port);
  return static_cast<std::uint16_t>(port == 65535 ? port - 1 : port + 1);
}

}  // namespace detail

ZBPP_INLINE launch find_launch(launch_arguments const& arguments, environment_lookup const& look) {
  detail::variables const known(look);
  bool const is_told = arguments.rank && arguments.ranks;
  auto const* const by = is_told ? nullptr : detail::find_launcher(known);
  if (!is_told && by == nullptr) {
    if (arguments.rank || arguments.ranks)
      detail::wrong_launch(
          zbpp::detail::joined("the argument ") + (arguments.rank ? "rank" : "ranks") +
          " is given, but not " + (arguments.rank ? "ranks" : "rank") + "; give both or none");
    detail::nothing_launched();
  }

  auto const ranks = known.number(arguments.ranks, "ranks", by != nullptr ? by->ranks : nullptr);
  auto const rank = known.number(arguments.rank, "rank", by != nullptr ? by->rank : nullptr);
  if (!ranks || !rank) {
    auto const& there = ranks ? *ranks : *rank;
    char const* const missing = ranks ? by->rank : by->ranks;
    detail::wrong_launch(
        zbpp::detail::joined(there.by) + " is " + there.value + ", but " +
        (missing != nullptr ? missing + std::string(" is not set")
                            : "nothing says how many ranks there are") +
        "; " + by->advice + ", or give the argument " + (ranks ? "rank" : "ranks"));
  }

  launch result;
  if (by != nullptr) result.source = by->name;
  result.ranks = detail::checked_number(*ranks, 1, detail::most_ranks);
  result.rank = detail::checked_number(
      *rank, 0, result.ranks - 1, zbpp::detail::joined(", for ", ranks->by, " is ", ranks->value));
  result.port = detail::port_of(arguments.port, known);

  auto host = arguments.host ? arguments.host : known.text("MASTER_ADDR");
  if (host && host->empty()) detail::wrong_launch("the argument host is empty; give a host name");
  if (!host && by != nullptr) host = detail::host_by(*by, result.ranks, known);
  if (host && !host->empty()) result.host = std::move(*host);

  auto const local =
      known.number(arguments.local_rank, "local_rank", by != nullptr ? by->local_rank : nullptr);
  if (local) result.local_rank = detail::checked_number(*local, 0, result.ranks - 1);
  return result;
}

}  // namespace zbpp::asio

// SPDX-License-Identifier: Apache-2.0
//
// Which call of the user a rank is in, as ranks tell rank 0, which compares them.
#pragma once

#include <zbpp/asio/roster.hpp>
#include <zbpp/asio/wire.hpp>
#include <zbpp/runtime/detail/run_terms.hpp>

#include <cstdint>
#include <span>
#include <string>

namespace zbpp::asio {

/// Says what the user of a rank has called.
enum class call_kind : std::uint8_t {
  barrier,
  all_gather,
  broadcast,
  agree,
  make_pipeline,
  run,               ///< `step`, `run` or `evaluate` of a pipeline
  destroy_pipeline,  ///< no call that others make in turn
};

/// Describes a call that all ranks make, and which part of it a rank begins.
struct rank_call {
  call_kind kind = call_kind::barrier;
  std::int32_t root = 0;      ///< of a broadcast
  std::int32_t pipeline = 0;  ///< which one of the process, counted from 1; 0 where there is none
  zbpp::detail::run_statement steps{};  ///< where a pipeline runs

  [[nodiscard]] static rank_call of(collective kind, int root) noexcept;
  /// @return what the user wrote, as in "broadcast from rank 2" and "run(5)"
  [[nodiscard]] std::string name() const;
};

/// Says what two ranks do that is not the same, in the words of an error.
/// @param others  in words, who made `other_call`; `one` is the first of them
/// @param own_call  of the rank `rank`
/// @return empty where both make the same call
[[nodiscard]] std::string mismatch(
    rank_call const& other_call,
    std::string const& others,
    int one,
    rank_call const& own_call,
    int rank);

namespace detail {

/// The most bytes that a call takes as a message.
inline constexpr std::size_t most_call = 72 + sizeof(zbpp::detail::step_terms);

}  // namespace detail

/// Writes a call.
void fields(wire_writer& to, rank_call const& call);
/// Reads a call. @throws error (bad_format)
void fields(wire_reader& from, rank_call& call);

}  // namespace zbpp::asio

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/asio/impl/rank_call.ipp>
#endif

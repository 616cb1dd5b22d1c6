// SPDX-License-Identifier: Apache-2.0
//
// How calls of ranks are named, compared and sent.
#pragma once

#include <zbpp/asio/rank_call.hpp>
#include <zbpp/asio/wire.hpp>
#include <zbpp/config.hpp>
#include <zbpp/runtime/detail/run_terms.hpp>

#include <cstdint>
#include <string>
#include <type_traits>

namespace zbpp::asio {

ZBPP_INLINE rank_call rank_call::of(collective kind, int root) noexcept {
  switch (kind) {
    case collective::all_gather: return {.kind = call_kind::all_gather};
    case collective::broadcast: return {.kind = call_kind::broadcast, .root = root};
    case collective::barrier:
    case collective::maximum: break;
  }
  return {};
}

ZBPP_INLINE std::string rank_call::name() const {
  switch (kind) {
    case call_kind::barrier: return "barrier";
    case call_kind::all_gather: return "all_gather";
    case call_kind::broadcast: return zbpp::detail::joined("broadcast from rank ", root);
    case call_kind::agree: return "agree";
    case call_kind::make_pipeline: return "the constructor of a pipeline";
    case call_kind::destroy_pipeline: return "the destructor of a pipeline";
    case call_kind::run: break;
  }
  return text_of(steps);
}

ZBPP_INLINE std::string mismatch(
    rank_call const& other_call,
    std::string const& others,
    int one,
    rank_call const& own_call,
    int rank) {
  using zbpp::detail::run_mismatch;
  bool const both_run = other_call.kind == call_kind::run && own_call.kind == call_kind::run;
  bool const is_first = one < rank;
  std::string const own_name = zbpp::detail::joined("rank ", rank);
  auto const difference = both_run ? compare(other_call.steps, own_call.steps) : run_mismatch::none;
  if (difference != run_mismatch::none) {
    auto const& name = difference == run_mismatch::terms ? "rank " + std::to_string(one) : others;
    return is_first ? zbpp::detail::mismatch(other_call.steps, name, own_call.steps, own_name)
                    : zbpp::detail::mismatch(own_call.steps, own_name, other_call.steps, name);
  }
  bool const is_same_call = other_call.kind == own_call.kind && other_call.root == own_call.root;
  if (is_same_call && other_call.pipeline == own_call.pipeline) return {};
  // Numbers of pipelines are of use only where nothing else tells the calls apart.
  auto const tell = [&](std::string const& name, rank_call const& call) {
    auto text = name + " called " + call.name();
    if (is_same_call) text += zbpp::detail::joined(" of pipeline ", call.pipeline);
    return text;
  };
  auto const former = tell(others, other_call);
  auto const latter = tell(own_name, own_call);
  return (is_first ? former + ", " + latter : latter + ", " + former) +
         "; all ranks have to make the same calls in the same order";
}

namespace detail {

template <class Wire>
void fields_of(Wire& wire, wire_value<Wire, rank_call>& call) {
  auto& run = call.steps;
  auto marks = static_cast<std::uint8_t>(
      (run.is_training ? 1 : 0) + (run.terms ? 2 : 0) + (run.step_decides ? 4 : 0) +
      (run.pause_decides ? 8 : 0) + (run.compares_weights ? 16 : 0));
  wire.choice(call.kind, 7, "the kind of a call is")
      .number(call.root)
      .number(call.pipeline)
      .choice(marks, 32, "the marks of a call are");
  if constexpr (std::is_same_v<Wire, wire_reader>) {
    run.is_training = (marks & 1U) != 0;
    if ((marks & 2U) != 0) run.terms.emplace();
    run.step_decides = (marks & 4U) != 0;
    run.pause_decides = (marks & 8U) != 0;
    run.compares_weights = (marks & 16U) != 0;
  }
  wire.number(run.first)
      .number(run.count)
      .number(run.step)
      .number(run.at_once)
      .number(run.pause_every);
  if (run.terms) wire.plain(*run.terms);
}

}  // namespace detail

ZBPP_INLINE void fields(wire_writer& to, rank_call const& call) { detail::fields_of(to, call); }
ZBPP_INLINE void fields(wire_reader& from, rank_call& call) { detail::fields_of(from, call); }

}  // namespace zbpp::asio

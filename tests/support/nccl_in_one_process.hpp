// SPDX-License-Identifier: Apache-2.0
//
// All ranks of a run in one process, whose messages travel by NCCL: with one device and so one
// thread, an interleaving of the model is repeated by its seed.
#pragma once

#include <zbpp/analysis/verify.hpp>
#include <zbpp/cuda/clock.hpp>
#include <zbpp/cuda/issuer.hpp>
#include <zbpp/cuda/memory.hpp>
#include <zbpp/cuda/site.hpp>
#include <zbpp/cuda/slots.hpp>
#include <zbpp/nccl/links.hpp>
#include <zbpp/nccl/transport.hpp>
#include <zbpp/runtime/crew.hpp>
#include <zbpp/runtime/failure.hpp>

#include <chrono>
#include <exception>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

namespace zbpp::test {

/// @return a pause that takes no time and gives up in the end
[[nodiscard]] inline nccl::pause_call brief_pause() {
  return [left = 100'000](std::chrono::microseconds) mutable {
    if (--left == 0) throw std::runtime_error("waited for too long");
  };
}

/// @return the communicators of all channels, for ranks that are all here
[[nodiscard]] inline std::shared_ptr<nccl::links> link_up(
    std::vector<channel> const& channels,
    std::vector<nccl::local_rank> here,
    channel_layout layout) {
  auto how = nccl::wire(channels, static_cast<int>(here.size()), layout);
  std::vector<ncclUniqueId> ids(how.communicators.size());
  for (auto& id : ids) nccl::check(ncclGetUniqueId(&id));
  return std::make_shared<nccl::links>(
      channels, std::move(here), std::move(how), ids, 1, brief_pause());
}

/// A backend for that.
struct nccl_in_one_process {
  using carrier = nccl::transport;
  using clock = cuda::clock;
  static constexpr bool reserves_memory = true;

  channel_layout layout = channel_layout::one_per_directed_pair;
  bool verifies = true;  ///< false: a layout that does not work is used all the same
  std::vector<cuda::message_shape> edges = {};
  std::vector<cuda::site> sites = {};

  class crew;
};

class nccl_in_one_process::crew : public one_process {
 public:
  crew(nccl_in_one_process settings, plan const& planned)
      : one_process(planned),
        settings_(std::move(settings)),
        shapes_(cuda::detail::shapes_of(planned.what, settings_.edges)),
        issuer_(settings_.sites, ranks(), planned, {}) {
    if (settings_.verifies) verify_or_throw(planned.code, planned.what, settings_.layout);
  }

  [[nodiscard]] arena make_memory(int rank) {
    return arena(cuda::device_memory(issuer_.at(rank).device()));
  }
  [[nodiscard]] where place_of(int rank, arena& buffers) noexcept {
    return where(buffers, backend_kind::cuda, &issuer_.at(rank));
  }
  [[nodiscard]] std::unique_ptr<nccl::transport> make_carrier(
      program const& code, traffic const& messages, problem const&) {
    std::vector<cuda::place*> places;
    std::vector<nccl::local_rank> here;
    for (int rank : ranks()) {
      places.push_back(&issuer_.at(rank));
      here.push_back({rank, issuer_.at(rank).device()});
    }
    if (links_ == nullptr) links_ = link_up(messages.channels(), std::move(here), settings_.layout);
    return std::make_unique<nccl::transport>(
        links_,
        std::move(places),
        cuda::detail::needs_of(code, messages, shapes_, slot_filling::by_receptions));
  }
  static void connect(nccl::transport&) noexcept {}
  [[nodiscard]] bell* bell_of(int rank) { return issuer_.bell_of(rank); }
  void start_step() { issuer_.start_step(); }
  [[nodiscard]] clock clock_of(int rank) noexcept { return issuer_.clock_of(rank); }

  template <class Engine>
  void warm_up(std::vector<Engine>& engines) {
    issuer_.warm_up(engines);
  }
  template <class Engine>
  void run(std::vector<Engine>& engines, nccl::transport& carrier, step_status const& status) {
    issuer_.issue(engines);
    try {
      if (!status.has_failed())
        for (auto& e : engines) issuer_.at(e.rank()).end().synchronize();
      if (!status.has_failed()) issuer_.collect(engines);
    } catch (...) {
      engines.front().fail(std::current_exception());
    }
    if (status.has_failed()) {
      links_->abort();
      issuer_.settle();
    }
    for (auto const* end : carrier.over().ends()) cudaStreamSynchronize(end->messages.get());
  }

 private:
  nccl_in_one_process settings_;
  std::vector<cuda::message_shape> shapes_;
  cuda::issuer issuer_;
  std::shared_ptr<nccl::links> links_;
};

}  // namespace zbpp::test

// SPDX-License-Identifier: Apache-2.0
//
// What is compiled for each backend of a pipeline: how an executor and the engines of a program are
// made. The pipeline itself is compiled once.
#pragma once

#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/detail/program_run.hpp>
#include <zbpp/runtime/gradient_sums.hpp>
#include <zbpp/runtime/state_link.hpp>
#include <zbpp/runtime/transport.hpp>

#include <memory>
#include <utility>
#include <vector>

namespace zbpp::detail {

/// Makes what runs the plans of a pipeline.
class backend_link {
 public:
  explicit backend_link(backend_traits const& traits) noexcept : traits_(traits) {}
  backend_link(backend_link const&) = delete;
  backend_link& operator=(backend_link const&) = delete;
  virtual ~backend_link() = default;

  [[nodiscard]] backend_traits const& traits() const noexcept { return traits_; }
  [[nodiscard]] virtual std::unique_ptr<executor> make_executor(plan const& planned) const = 0;
  /// @param setup  with an executor that this has made
  [[nodiscard]] virtual std::unique_ptr<program_run> make_run(
      program code, run_setup const& setup) const = 0;
  /// @return the devices on which the ranks of this process run, by rank, where those on one hand
  ///         messages over; empty where no two ranks do
  [[nodiscard]] virtual std::vector<int> devices_of(int ranks) const = 0;
  /// Keeps the times of a problem for the plans that follow, where clocks go by one.
  virtual void keep_times(problem const& stated) = 0;

 private:
  backend_traits traits_;
};

/// Makes it on a backend.
template <backend Backend>
class backend_of final : public backend_link {
 public:
  explicit backend_of(Backend backend)
      : backend_link(
            {.reserves_memory = Backend::reserves_memory,
             .agrees = agreeing_transport<transport_type>,
             .repeats_steps = multi_step_transport<transport_type>,
             .sums_in_place = summing_transport<transport_type>,
             .acknowledges = acknowledging_transport<transport_type>}),
        backend_(std::move(backend)) {}

  [[nodiscard]] std::unique_ptr<executor> make_executor(plan const& planned) const override {
    return std::make_unique<typename Backend::executor>(backend_, planned);
  }
  [[nodiscard]] std::unique_ptr<program_run> make_run(
      program code, run_setup const& setup) const override {
    return std::make_unique<program_run_on<Backend>>(std::move(code), setup, traits());
  }
  [[nodiscard]] std::vector<int> devices_of([[maybe_unused]] int ranks) const override {
    if constexpr (shares_devices<Backend>)
      return backend_.devices_of(ranks);
    else
      return {};
  }
  void keep_times([[maybe_unused]] problem const& stated) override {
    if constexpr (requires { backend_.stated.has_value(); })
      if (!backend_.stated) backend_.stated = stated;
  }

 private:
  using transport_type = typename Backend::transport_type;

  Backend backend_;
};

}  // namespace zbpp::detail

// SPDX-License-Identifier: Apache-2.0
#include <zbpp/analysis/plan.hpp>
#include <zbpp/analysis/traffic.hpp>
#include <zbpp/optim/sgd.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/backend.hpp>
#include <zbpp/runtime/flow.hpp>
#include <zbpp/runtime/in_process.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/threads.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/catch.hpp>
#include <support/refusal.hpp>

#include <array>
#include <memory>
#include <string>
#include <vector>

namespace test_backend {

using zbpp::test::refusal;

namespace {

struct without_executor {
  using transport_type = zbpp::in_process;
  using pass_observer = zbpp::virtual_time::pass_observer;
};
struct with_an_executor_that_runs_no_clock : zbpp::virtual_time {
  class executor : public zbpp::virtual_time::executor {
   public:
    executor(with_an_executor_that_runs_no_clock, zbpp::plan const& planned)
        : zbpp::virtual_time::executor({}, planned) {}
    static void start_run() = delete;
  };
};

// A backend of virtual time with another transport.
template <class Transport>
struct with_transport : zbpp::virtual_time {
  using transport_type = Transport;

  class executor : public zbpp::virtual_time::executor {
   public:
    executor(with_transport, zbpp::plan const& planned)
        : zbpp::virtual_time::executor({}, planned) {}
    static std::unique_ptr<Transport> make_transport(
        zbpp::program const&, zbpp::traffic const& messages, zbpp::problem const& problem) {
      return std::make_unique<Transport>(problem.ranks(), messages.channels());
    }
  };
};
struct without_states : zbpp::in_process {
  using in_process::in_process;
  zbpp::state_link& states() = delete;
};
struct without_steps : zbpp::in_process {
  using in_process::in_process;
  bool begin_step(int) = delete;
};

struct idle_stage {
  zbpp::flow operator()(zbpp::microbatch mb) const {
    co_await mb.recv_activation();
    co_await zbpp::F([](zbpp::pass_context) {});
    co_await mb.send_activation(zbpp::message());
    co_await mb.recv_gradient();
    co_await zbpp::B([](zbpp::pass_context) {});
    co_await mb.send_gradient(zbpp::message());
    co_await zbpp::W([](zbpp::pass_context) {});
  }
};

// An idle stage with tied weights.
struct tied_stage : idle_stage {
  std::array<float, 4> weights{};
  std::array<float, 4> gradients{};
  zbpp::optim::sgd own{std::vector<zbpp::optim::layer>{{weights, gradients, true}}};

  tied_stage() = default;
  tied_stage(tied_stage const&) = delete;
  tied_stage& operator=(tied_stage const&) = delete;
  zbpp::optim::sgd& optimizer() { return own; }
};

// What a pipeline says that is made and run with a transport.
template <class Transport>
std::string refusal_of(zbpp::step_kind kind, zbpp::bytes tied = 0) {
  auto const planned = zbpp::make_plan(
      zbpp::zb_h1{},
      zbpp::problem(zbpp::placement::linear(2), 3, zbpp::stage_costs{.forward = 1, .tied = tied}),
      {.step = kind});
  std::vector<idle_stage> stages(2);
  return refusal([&] {
    zbpp::pipeline pipe(planned, with_transport<Transport>{}, stages);
    pipe.run(3);
  });
}

}  // namespace

TEST_CASE("ranks agree as far as their transport lets them", "[backend]") {
  using zbpp::step_kind;
  CHECK(refusal_of<zbpp::in_process>(step_kind::post_validated) == "<nothing was refused>");
  CHECK(refusal_of<without_steps>(step_kind::synchronous) == "<nothing was refused>");
  CHECK(
      refusal_of<without_steps>(step_kind::post_validated) ==
      "on this backend ranks begin no step before the last one is final; lower the plan with "
      "step_kind::synchronous");
  CHECK(refusal_of<without_states>(step_kind::unchecked) == "<nothing was refused>");
  CHECK(
      refusal_of<zbpp::in_process>(step_kind::unchecked, 64) ==
      "stage 0: its optimizer has 0 bytes of tied gradients, and its problem states 64; give both "
      "the same");
  std::array<tied_stage, 2> tied;
  auto const planned = zbpp::make_plan(
      zbpp::zb_h1{},
      zbpp::problem(zbpp::placement::linear(2), 3, zbpp::stage_costs{.forward = 1, .tied = 16}));
  CHECK(
      refusal([&] { zbpp::pipeline(planned, with_transport<without_states>{}, tied); }) ==
      "on this backend ranks cannot sum the gradients of tied weights; lower the plan with "
      "step_kind::none and sum them after each step");
  CHECK(
      refusal_of<without_states>(step_kind::synchronous) ==
      "on this backend ranks cannot agree on optimizer steps; lower the plan with "
      "step_kind::unchecked");
}

TEST_CASE("the backend concept takes what can run ranks and nothing else", "[backend]") {
  STATIC_REQUIRE(zbpp::backend<zbpp::threads>);
  STATIC_REQUIRE(zbpp::backend<zbpp::virtual_time>);
  STATIC_REQUIRE_FALSE(zbpp::backend<without_executor>);
  STATIC_REQUIRE_FALSE(zbpp::backend<with_an_executor_that_runs_no_clock>);
  STATIC_REQUIRE_FALSE(zbpp::backend<int>);
}

TEST_CASE("backends of one process run all ranks", "[backend]") {
  for (int ranks : {1, 2, 5}) {
    auto const planned = zbpp::make_plan(
        zbpp::one_f_one_b{},
        zbpp::problem(zbpp::placement::linear(ranks), 3, zbpp::stage_costs{.forward = 1}));
    zbpp::one_process const executor(planned);
    REQUIRE(executor.ranks().size() == static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank)
      CHECK(executor.ranks()[static_cast<std::size_t>(rank)] == rank);
  }
}

}  // namespace test_backend

// SPDX-License-Identifier: Apache-2.0
//
// A pass that throws, wherever it stands, ends the step: the caller gets that very exception, in an
// error that says where; nothing is left behind, nobody hangs, and the next step works.
#include <support/backends.hpp>
#include <support/nested.hpp>

#include <exception>
#include <latch>
#include <new>
#include <thread>
#include <type_traits>

namespace test_failures {

using namespace zbpp;
using namespace zbpp::test;

namespace {

struct planned_failure : std::runtime_error {
  explicit planned_failure(pass pass) : runtime_error("planned: " + to_string(pass)) {}
};

// Counts the objects of this type that live in frames.
class counted {
 public:
  explicit counted(std::atomic<int>& live) : live_(&live) { ++*live_; }
  counted(counted const&) = delete;
  counted& operator=(counted const&) = delete;
  ~counted() { --*live_; }

 private:
  std::atomic<int>* live_;
};

// What all stages of a test share.
struct control {
  std::optional<pass> culprit;       // throws
  std::function<void(pass)> before;  // called before every pass, if set
  std::atomic<int> live{0};

  void enter(pass_kind kind, microbatch mb) const {
    pass const here{kind, mb.stage(), mb.index()};
    if (before) before(here);
    if (culprit == here) throw planned_failure(here);
  }
};

// Adds its number to what it gets, keeps buffers across every pass, and counts what W sees.
struct worker {
  control* shared = nullptr;
  int weights_done = 0;
  int updates = 0;
  bool fails_to_update = false;
  bool fails_to_start = false;

  flow operator()(microbatch mb) {
    if (fails_to_start) throw std::logic_error("cannot start");
    return run(mb);
  }

  flow run(microbatch mb) {
    counted const one(shared->live);
    buffer kept;
    buffer out;
    message const in = co_await mb.recv_activation();
    co_await F([&](pass_context ctx) {
      kept = ctx.allocate(100);
      out = ctx.allocate_edge(8);
      auto const value = mb.is_first_stage() ? mb.index() : in[0].as<std::int64_t>()[0];
      out.as<std::int64_t>()[0] = value * 3 + mb.stage();
      shared->enter(pass_kind::forward, mb);
      if (mb.is_last_stage()) mb.report_loss(static_cast<double>(out.as<std::int64_t>()[0]));
    });
    counted const two(shared->live);
    co_await mb.send_activation(std::move(out));
    co_await R([&] { shared->enter(pass_kind::recompute, mb); });
    message const back = co_await mb.recv_gradient();
    if (mb.is_fused()) {
      co_await BW([&](pass_context ctx) {
        out = ctx.allocate_edge(8);
        shared->enter(pass_kind::backward, mb);
        ++weights_done;
      });
      co_await mb.send_gradient(std::move(out));
    } else {
      co_await B([&](pass_context ctx) {
        out = ctx.allocate_edge(8);
        shared->enter(pass_kind::backward_input, mb);
      });
      co_await mb.send_gradient(std::move(out));
      co_await W([&] {
        shared->enter(pass_kind::backward_weight, mb);
        ++weights_done;
      });
    }
  }

  void update(pass_context) {
    if (fails_to_update) throw std::logic_error("cannot update");
    ++updates;
  }
};

problem small(placement placement, int microbatches) {
  return {
      std::move(placement),
      microbatches,
      stage_costs{
          .forward = 3, .backward_input = 2, .backward_weight = 1, .activation = 100, .edge = 8},
      1};
}

template <class Backend>
struct rig {
  rig(plan const& planned, Backend backend)
      : stages(detail::index(planned.problem().stages()), worker{&shared}),
        pipe(planned, backend, stages) {}

  [[nodiscard]] bool is_clean() const { return shared.live == 0 && uses_no_memory(pipe); }

  [[nodiscard]] bool next_step_works() {
    for (auto& s : stages) s.weights_done = s.updates = 0;
    auto const& result = pipe.step();
    auto const m = pipe.planned().problem().microbatches();
    bool right = pipe.failures().empty() && is_clean();
    for (int i = 0; i < m; ++i) {
      std::int64_t value = i;
      for (int s = 0; s < pipe.planned().problem().stages(); ++s) value = value * 3 + s;
      right = right && result.losses[detail::index(i)] == static_cast<double>(value);
    }
    for (auto const& s : stages) right = right && s.weights_done == m && s.updates == 1;
    return right;
  }

  control shared;
  std::vector<worker> stages;
  pipeline<Backend> pipe;
};

// Lets every pass of a plan fail in turn, on one pipeline.
template <class Backend>
void check_every_pass(std::string const& name, plan const& planned, Backend backend) {
  INFO(name);
  rig r(planned, backend);
  REQUIRE(r.next_step_works());
  for (int rank = 0; rank < planned.problem().ranks(); ++rank) {
    auto const row = planned.program().instructions(rank);
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (!row[i].is_pass()) continue;
      auto const culprit = row[i].as_pass();
      INFO("rank " << rank << ", " << to_string(culprit));
      r.shared.culprit = culprit;
      location const place{rank, static_cast<std::int64_t>(i), culprit.stage, culprit.microbatch};
      auto const text = "planned: " + to_string(culprit);
      std::string inner = "nothing was thrown";
      try {
        r.pipe.step();
      } catch (error const& thrown) {
        CHECK(thrown.code() == errc::pass_failed);
        CHECK(thrown.location() == place);
        CHECK(thrown.what() == to_string(place) + ": in " + to_string(row[i]) + ": " + text);
        look_into<planned_failure>(
            thrown, [&](planned_failure const& nested) { inner = nested.what(); });
      }
      CHECK(inner == text);
      CHECK(r.is_clean());
      REQUIRE(r.pipe.failures().size() == 1);
      auto const& failure = r.pipe.failures().front();
      CHECK(failure.location == place);
      CHECK(failure.instruction == row[i]);
      CHECK_THROWS_AS(std::rethrow_exception(failure.exception), planned_failure);
      r.shared.culprit.reset();
      CHECK(r.next_step_works());
    }
  }
}

plan one_plan() { return make_plan(zb_h1{}, small(placement::linear(3), 4)); }

template <class Backend>
std::string text_of_failed_step(pipeline<Backend>& pipe) {
  return refusal(errc::pass_failed, [&] { pipe.step(); });
}

}  // namespace

TEST_CASE("any pass may throw, on every backend", "[failures]") {
  auto const check = [](auto backend) {
    for (auto const& stated :
         {small(placement::linear(3), 3),
          small(placement::v_shape(2), 3),
          small(placement::looped(2, 2), 2)})
      for_each_plan_of(
          stated, {.recomputed = true}, [&](std::string const& name, plan const& planned) {
            check_every_pass(name, planned, backend);
          });
  };
  on_backends(check);
  check(threads{.count = 2, .emulates_transfers = true});
}

TEST_CASE("a stage that cannot start a flow or update its weights ends the step", "[failures]") {
  on_backends([](auto backend) {
    rig r(one_plan(), backend);
    r.stages[1].fails_to_start = true;
    CHECK(
        text_of_failed_step(r.pipe) ==
        "rank 1, position 1, stage 1, microbatch 0: in 1F0: cannot start");
    CHECK(to_string(r.pipe.failures().front().instruction) == "1F0");
    r.stages[1].fails_to_start = false;
    CHECK(r.next_step_works());
    r.stages[0].fails_to_update = true;
    auto const text = text_of_failed_step(r.pipe);
    CHECK(text.find("rank 0, position ") == 0);
    CHECK(has(text, ": in 0STEP: cannot update"));
    CHECK(to_string(r.pipe.failures().front().instruction) == "0STEP");
    CHECK(r.is_clean());
    r.stages[0].fails_to_update = false;
    CHECK(r.next_step_works());
  });
}

TEST_CASE("what is thrown need not be a std::exception", "[failures]") {
  rig r(one_plan(), threads{});
  r.shared.before = [](pass p) {
    if (p == pass{pass_kind::backward_input, 1, 2}) throw 42;  // NOLINT
  };
  std::string text;
  int inner = 0;
  try {
    r.pipe.step();
  } catch (error const& thrown) {
    text = thrown.message();
    look_into<int>(thrown, [&](int nested) { inner = nested; });
  }
  CHECK(text == "in 1B2: failed for an unknown reason");
  CHECK(inner == 42);
  r.shared.before = nullptr;
  CHECK(r.is_clean());
  CHECK(r.next_step_works());
}

namespace {

// An error of a type of its own, as components and users have them.
struct own_error : error {
  explicit own_error(zbpp::location const& at) : error(errc::io_failed, "no such file", at) {}
};

}  // namespace

TEST_CASE("an error keeps its type and what it says, and gets its place", "[failures]") {
  on_backends([](auto backend) {
    rig r(one_plan(), backend);
    auto fail_with = [&](auto const& fault) {
      r.shared.before = [&](pass p) {
        if (p == pass{pass_kind::forward, 1, 0}) throw fault;
      };
      try {
        r.pipe.step();
      } catch (std::decay_t<decltype(fault)> const& thrown) {
        CHECK(thrown.code() == fault.code());
        CHECK(thrown.message() == fault.message());
        CHECK(r.is_clean());
        return std::string(thrown.what());
      }
      return std::string("another type");
    };
    std::string const place = "rank 1, position 1, stage 1, microbatch 0: ";
    CHECK(fail_with(error(errc::wrong_size, "too large")) == place + "too large");
    CHECK(fail_with(own_error({})) == place + "no such file");
    // One that has a place, in a machine of the user's for example, keeps it.
    CHECK(fail_with(own_error({.rank = 7})) == "rank 7: no such file");
    r.shared.before = nullptr;
    CHECK(r.next_step_works());
  });
}

TEST_CASE("memory that runs out in a pass tells where, in words", "[failures]") {
  rig r(one_plan(), threads{});
  r.shared.before = [](pass p) {
    if (p == pass{pass_kind::backward_weight, 2, 1}) throw std::bad_alloc();
  };
  auto const text = text_of_failed_step(r.pipe);
  CHECK(text.find("rank 2, position ") == 0);
  CHECK(has(text, ", stage 2, microbatch 1: in 2W1: out of memory"));
  CHECK(throws_nested<std::bad_alloc>([&] { r.pipe.step(); }));
}

TEST_CASE("what is told of steps fails as a rank does", "[failures]") {
  rig r(one_plan(), threads{});
  auto fail = [](step_result const&) { throw planned_failure({}); };
  CHECK(throws_nested<planned_failure>([&] { r.pipe.run(3, fail); }));
  REQUIRE(r.pipe.failures().size() == 1);
  CHECK(to_string(r.pipe.failures()[0].location) == "rank 0");
  CHECK(r.pipe.steps() == 1);
  for (auto& s : r.stages) s.weights_done = s.updates = 0;
  CHECK(r.next_step_works());
}

TEST_CASE("when two ranks fail at once the first wins and the other is attached", "[failures]") {
  auto const planned = one_plan();
  pass const first{pass_kind::forward, 0, 2};
  pass const second{pass_kind::forward, 1, 0};
  rig r(planned, threads{});
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::latch both(2);
    r.shared.before = [&](pass p) {
      if (p != first && p != second) return;
      both.arrive_and_wait();
      throw planned_failure(p);
    };
    auto const text = text_of_failed_step(r.pipe);
    CHECK(r.is_clean());
    auto const& failures = r.pipe.failures();
    REQUIRE(failures.size() == 2);
    auto const name = to_string(failures[0].instruction);
    CHECK(text == to_string(failures[0].location) + ": in " + name + ": planned: " + name);
    auto const other = failures[0].instruction == to_instruction(first) ? second : first;
    CHECK(failures[1].instruction == to_instruction(other));
    r.shared.before = nullptr;
    CHECK(r.next_step_works());
  }
}

TEST_CASE("every rank may fail at once", "[failures]") {
  rig r(make_plan(zb_h1{}, small(placement::linear(4), 8)), threads{});
  for (int repeat = 0; repeat < 10; ++repeat) {
    std::latch all(4);
    r.shared.before = [&](pass p) {
      if (p.kind != pass_kind::forward || p.microbatch != 3 - p.stage) return;
      all.arrive_and_wait();
      throw planned_failure(p);
    };
    auto const text = text_of_failed_step(r.pipe);
    CHECK(r.is_clean());
    REQUIRE(r.pipe.failures().size() == 4);
    auto const& failure = r.pipe.failures()[0];
    auto const name = to_string(failure.instruction);
    CHECK(text == to_string(failure.location) + ": in " + name + ": planned: " + name);
    r.shared.before = nullptr;
    CHECK(r.next_step_works());
  }
}

TEST_CASE("a failed evaluation leaves nothing behind either", "[failures]") {
  on_backends([](auto backend) {
    rig r(one_plan(), backend);
    r.shared.culprit = pass{pass_kind::forward, 2, 1};
    CHECK(throws_nested<planned_failure>([&] { r.pipe.evaluate(); }));
    CHECK(r.is_clean());
    CHECK(throws_nested<planned_failure>([&] { r.pipe.step(); }));
    CHECK(r.is_clean());
    r.shared.culprit.reset();
    CHECK(r.pipe.evaluate().losses.size() == 4);
    CHECK(r.next_step_works());
  });
}

TEST_CASE("a step that failed is not counted", "[failures]") {
  rig r(one_plan(), virtual_time{});
  r.shared.culprit = pass{pass_kind::forward, 2, 1};
  CHECK(throws_nested<planned_failure>([&] { r.pipe.step(); }));
  CHECK(r.pipe.steps() == 0);
  r.shared.culprit.reset();
  r.pipe.step();
  CHECK(r.pipe.steps() == 1);
}

TEST_CASE("a pipeline may go right after a step that failed", "[failures]") {
  auto r = std::make_unique<rig<threads>>(one_plan(), threads{});
  r->shared.culprit = pass{pass_kind::backward_input, 0, 3};
  std::exception_ptr thrown;
  try {
    r->pipe.step();
  } catch (...) {
    thrown = std::current_exception();
  }
  auto const failures = r->pipe.failures();
  r.reset();
  CHECK(throws_nested<planned_failure>([&] { std::rethrow_exception(thrown); }));
  CHECK_THROWS_AS(std::rethrow_exception(failures.front().exception), planned_failure);
}

TEST_CASE("of all ranks that fail at the same time exactly one is first", "[failures]") {
  step_status status;
  for (int repeat = 0; repeat < 50; ++repeat) {
    status.reset();
    CHECK_FALSE(status.has_failed());
    {
      std::vector<std::jthread> ranks;
      for (int rank = 0; rank < 3; ++rank) ranks.emplace_back([&, rank] { status.fail(rank); });
    }
    REQUIRE(status.has_failed());
    auto const first = status.first();
    CHECK((first >= 0 && first < 3));
    status.fail((first + 1) % 3);
    CHECK(status.first() == first);
  }
}

}  // namespace test_failures

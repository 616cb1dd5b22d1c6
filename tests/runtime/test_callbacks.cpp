// SPDX-License-Identifier: Apache-2.0
//
// Callbacks that throw, once at each of their calls: the error names the callback and its place,
// and what called it is whole afterwards and goes on with the same bits.
#include <zbpp/analysis/simulate.hpp>

#include <support/adaptive_loop.hpp>
#include <support/backends.hpp>
#include <support/checked_model.hpp>
#include <support/toy_history.hpp>
#include <support/toy_mlp.hpp>

#include <iterator>

namespace test_callbacks {

using namespace zbpp;
using namespace zbpp::test;
using zbpp::test::checked::model;

namespace {

constexpr int ranks = 3;
constexpr int microbatches = 4;
constexpr std::int64_t steps = 6;

double falling(std::int64_t updates) { return 0.01 / static_cast<double>(1 + updates); }

// Throws once, at one of its calls; ranks may call at once.
class fuse {
 public:
  explicit fuse(int at) : at_(at) {}
  void operator()() {
    if (calls_.fetch_add(1, std::memory_order_relaxed) == at_) throw std::runtime_error("no luck");
  }
  [[nodiscard]] bool has_thrown() const { return calls_.load(std::memory_order_relaxed) > at_; }

 private:
  int at_;
  std::atomic<int> calls_ = 0;
};

enum class site { on_step, on_pause, learning_rate, on_gradients_ready };

// Trains while a callback throws at one of its calls. Returns whether it came to that call.
template <class Backend>
bool train(Backend const& backend, step_kind kind, site where, int at) {
  problem const small(placement::linear(ranks), microbatches, checked::costs(), 87);
  model all({.stages = ranks});
  fuse burn(at);
  auto const call = [&](site here) {
    if (here == where) burn();
  };
  training_options const options{
      .learning_rate =
          [&](std::int64_t updates) {
            call(site::learning_rate);
            return falling(updates);
          },
      .on_gradients_ready = [&](int, pass_context) { call(site::on_gradients_ready); }};
  pipeline pipe(make_plan(zb_h1{}, small, {.step = kind}), backend, all.stages(), options);
  auto const run = [&] {
    pipe.run(
        steps - pipe.steps(),
        [&](step_result const&) { call(site::on_step); },
        {.pause_every = 2, .on_pause = [&] { call(site::on_pause); }});
  };
  std::string text;
  try {
    run();
  } catch (error const& thrown) {
    text = thrown.what();
    CHECK(thrown.code() == errc::pass_failed);
    CHECK_THROWS_AS(std::rethrow_if_nested(thrown), std::runtime_error);
    REQUIRE(pipe.failures().size() == 1);
    CHECK(pipe.failures().front().location == thrown.location());
  }
  REQUIRE(burn.has_thrown() == !text.empty());
  if (!text.empty()) {
    auto const name = where == site::on_step         ? "on_step"
                      : where == site::on_pause      ? "on_pause"
                      : where == site::learning_rate ? "learning_rate"
                                                     : "on_gradients_ready";
    CHECK(has(text, ": " + std::string(name) + " threw: no luck"));
    CHECK(has(text, "rank "));
    CHECK(has(text, "stage ") == (where == site::on_gradients_ready));
    CHECK(!has(text, "position "));
    // What W has added up of a step that did not end is dropped.
    all.skip();
    if (pipe.steps() < steps) run();
  }
  CHECK(pipe.steps() == steps);
  // Where ranks do not agree, some stages have stepped when another one fails.
  bool const is_between_steps = where == site::on_step || where == site::on_pause;
  if (kind == step_kind::unchecked && !is_between_steps && !text.empty()) return true;
  auto const alone =
      checked::train_alone({.stages = ranks}, microbatches, steps, {.learning_rate = falling});
  CHECK((all.bits() == alone.bits));
  return !text.empty();
}

}  // namespace

TEST_CASE("what a callback of a run throws is told by name, and the run goes on", "[callbacks]") {
  for (auto const where :
       {site::on_step, site::on_pause, site::learning_rate, site::on_gradients_ready})
    for (auto const kind : kinds_of_steps) {
      INFO("callback " << static_cast<int>(where) << ", kind " << static_cast<int>(kind));
      int at = 0;
      while (train(virtual_time{}, kind, where, at)) ++at;
      CHECK(at >= 3);
      at = 0;
      while (train(threads{}, kind, where, at)) ++at;
      CHECK(at >= 3);
    }
}

TEST_CASE("an error of a callback keeps its type", "[callbacks]") {
  struct own_error : error {
    using error::error;
  };
  problem const small(placement::linear(ranks), microbatches, checked::costs(), 87);
  for (auto const kind : {step_kind::unchecked, step_kind::synchronous}) {
    model all({.stages = ranks});
    pipeline pipe(make_plan(zb_h1{}, small, {.step = kind}), threads{}, all.stages());
    try {
      pipe.run(2, [](step_result const&) { throw own_error(errc::io_failed, "the disk is full"); });
      CHECK(false);
    } catch (own_error const& thrown) {
      CHECK(thrown.code() == errc::io_failed);
      CHECK(std::string(thrown.what()) == "rank 0: on_step threw: the disk is full");
      CHECK(thrown.message() == "on_step threw: the disk is full");
    }
    CHECK(refusal(errc::pass_failed, [&] {
            pipe.run(2, [](step_result const&) { throw 7; });
          }) == "rank 0: on_step threw: failed for an unknown reason");
  }
}

TEST_CASE("what on_thread_start throws, the pipeline throws that is not made", "[callbacks]") {
  auto const planned =
      make_plan(zb_h1{}, problem(placement::linear(ranks), microbatches, checked::costs(), 87));
  for (int at = 0; at < ranks; ++at) {
    model all({.stages = ranks});
    fuse burn(at);
    threads const backend{.on_thread_start = [&](std::span<int const>) { burn(); }};
    auto const text = refusal(
        errc::pass_failed, [&] { pipeline(planned, backend, all.stages(), training_options()); });
    CHECK(text == "on_thread_start threw: no luck");
    pipeline pipe(planned, backend, all.stages());
    pipe.run(steps);
    CHECK(all.bits() == checked::train_alone({.stages = ranks}, microbatches, steps, {}).bits);
  }
}

namespace {

enum class ending { pays, taken_back, refused };

// A stage of which the second pipeline cannot get ready.
struct late_stage : toy::hand_written {
  using toy::hand_written::hand_written;
  int* made = nullptr;

  void warm_up(pass_context) {
    if (made != nullptr && ++*made == 2) throw std::runtime_error("no memory");
  }
};

struct outcome {
  std::vector<plan_switch> switches;
  std::vector<schedule> ran;  // by step
  std::vector<std::string> lines;
  toy::model weights;
  int thrown = 0;
};

// Trains with a plan that changes, while on_report or gather throw at one of their calls.
template <class Backend>
outcome adapt(Backend const& backend, ending how, int report_at, int gather_at) {
  auto const first = make_plan(zb_h1{}, roomy_problem(ranks, 9, toy::edge));
  outcome found;
  fuse report(report_at);
  fuse gather(gather_at);
  auto settings = at_once();
  settings.seconds = 0.05;
  settings.gather = [&](plan const& running, timeline const&) {
    gather();
    bool const is_slow = how == ending::taken_back && running.schedule() != first.schedule();
    return simulate(running.schedule(), with_slow_first(first.problem(), is_slow ? 3 : 1));
  };
  report_call const on_report = [&](std::string const& line) {
    report();
    found.lines.push_back(line);
  };
  auto all = toy::make_model(ranks);
  std::vector<late_stage> stages(all.begin(), all.end());
  int made = 0;
  if (how == ending::refused) stages[0].made = &made;
  adaptive_loop pipe{first, backend, stages, settings, on_report};
  for (int i = 0; i < 16; ++i) {
    try {
      static_cast<void>(pipe.step());
    } catch (error const& thrown) {
      ++found.thrown;
      std::string const name = report_at >= 0 ? "on_report" : "gather";
      CHECK(std::string(thrown.what()) == name + " threw: no luck");
      // The step has run; or a switch was refused before it, and it has not.
      if (pipe.current().steps() == i) --i;
    }
    if (pipe.current().steps() > std::ssize(found.ran)) {
      found.ran.push_back(pipe.current().planned().schedule());
      toy::update(all);
    }
  }
  found.switches = pipe.switches();
  found.weights = all;
  CHECK(pipe.current().steps() == 16);
  return found;
}

}  // namespace

TEST_CASE("what on_report and gather throw leaves plans as they are decided", "[callbacks]") {
  on_backends([](auto const& backend) {
    for (auto const how : {ending::pays, ending::taken_back, ending::refused}) {
      INFO("ending " << static_cast<int>(how));
      auto const expected = adapt(backend, how, -1, -1);
      REQUIRE(expected.switches.size() == 1);
      CHECK(expected.switches[0].is_taken_back == (how != ending::pays));
      CHECK(expected.lines.size() == 3);
      for (int at = 0; at < 3; ++at) {
        auto const found = adapt(backend, how, at, -1);
        CHECK(found.thrown == 1);
        CHECK(found.switches == expected.switches);
        CHECK(found.ran == expected.ran);
        CHECK(toy::is_same(found.weights, expected.weights));
        // The line that it was called with is lost, and no other one.
        auto lines = expected.lines;
        lines.erase(lines.begin() + at);
        CHECK(found.lines == lines);
      }
      for (int at = 0; at < 6; ++at) {
        auto const found = adapt(backend, how, -1, at);
        CHECK(found.thrown == 1);
        CHECK(toy::is_same(found.weights, expected.weights));
      }
    }
  });
}

}  // namespace test_callbacks

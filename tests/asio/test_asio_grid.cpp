// SPDX-License-Identifier: Apache-2.0
//
// Runs of processes that are grids: here threads that share nothing but sockets. Each runs a rank
// of its pipeline, and makes collective calls with the ranks beside it.
#include <zbpp/analysis/plan.hpp>
#include <zbpp/asio/measure.hpp>
#include <zbpp/asio/socket_grid.hpp>
#include <zbpp/asio/tcp.hpp>
#include <zbpp/runtime/gradient_state.hpp>
#include <zbpp/runtime/pipeline.hpp>
#include <zbpp/runtime/virtual_time.hpp>

#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/checked_model.hpp>
#include <support/checked_ranks.hpp>
#include <support/group_suite.hpp>
#include <support/plain_flow.hpp>
#include <support/toy_mlp.hpp>
#include <support/toy_run.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace test_asio_grid {

using namespace zbpp::test;
using namespace std::chrono_literals;
using zbpp::after_step;
using zbpp::errc;
using zbpp::grid_axis;
using zbpp::grid_layout;
using zbpp::group;
using zbpp::step_kind;
using zbpp::asio::rendezvous;
using zbpp::asio::socket_grid;
using zbpp::detail::index;

namespace {

using texts = std::vector<std::string>;

// Runs the members of a group, and throws what the first of them threw.
void run_members(int size, std::function<void(group&)> const& work) {
  std::mutex guard;
  std::exception_ptr first;
  auto const thrown = run_ranks(size, patient_settings(), [&](rendezvous& run) {
    zbpp::wakeup wake{0};
    socket_grid groups(run, grid_layout({.tensor = size}, size), wake);
    groups.connect();
    try {
      work(groups.grid().tensor());
      groups.grid().tensor().barrier();  // nobody leaves while others are in the call before
    } catch (...) {
      std::scoped_lock const lock(guard);
      if (!first) first = std::current_exception();
    }
  });
  if (first) std::rethrow_exception(first);
  for (auto const& text : thrown) expect(text.empty(), text);
}

}  // namespace

TEST_CASE("collective calls over sockets give what they promise", "[asio][grid]") {
  check_collective_calls(run_members, 4, 60);
}

TEST_CASE("members over sockets that make different calls are told which", "[asio][grid]") {
  check_different_calls(run_members);
}

TEST_CASE("spans that do not fit a call over sockets are refused", "[asio][grid]") {
  check_wrong_spans(run_members);
}

TEST_CASE("a member that sends much ahead of the others is held back", "[asio][grid][long]") {
  constexpr int calls = 40;
  constexpr std::size_t count = 300'000;
  run_members(3, [](group& own) {
    std::vector<float> values(count);
    for (int call = 0; call < calls; ++call) {
      if (own.place() == 1) std::ranges::fill(values, static_cast<float>(call));
      own.broadcast(values, 1);
      expect(
          std::ranges::count(values, static_cast<float>(call)) == std::int64_t{count},
          "what the root has");
    }
  });
}

TEST_CASE("what is larger than a member may send is refused", "[asio][grid]") {
  auto const thrown = run_ranks(2, patient_settings(), [](rendezvous& run) {
    zbpp::wakeup wake{0};
    socket_grid groups(run, grid_layout({}, 2), wake, {.largest_undeclared_message = 1000});
    groups.connect();
    std::vector<float> values(300);
    groups.grid().data().all_reduce(std::span(values).first(200));
    groups.grid().data().all_reduce(values);
  });
  for (auto const& text : thrown)
    CHECK(
        text == "wrong size: a collective call sends another member 1232 bytes at once; "
                "largest_undeclared_message of the settings allows 1000");
}

TEST_CASE("over sockets the groups of a grid are those of its layout", "[asio][grid]") {
  grid_layout const layout({.pipeline = 2, .data = 2, .tensor = 2, .expert = 2}, 8);
  zbpp::problem const problem(zbpp::placement::linear(2), 2, zbpp::stage_costs{.forward = 1});
  auto const planned = zbpp::make_plan(zbpp::zb_h1{}, problem);
  auto const thrown = run_ranks(8, patient_settings(), [&](rendezvous& run) {
    zbpp::asio::tcp::executor executor(zbpp::asio::tcp(run, layout), planned);
    auto* const grid = executor.grid_of(executor.ranks()[0]);
    expect(grid != nullptr, "a rank of a grid knows it");
    expect(grid->at() == layout.coordinates(run.rank()), "the coordinates");
    expect(executor.ranks()[0] == grid->at().pipeline, "the rank in the plan");
    for (auto axis :
         {grid_axis::data, grid_axis::tensor, grid_axis::expert, grid_axis::expert_data}) {
      auto const ranks = layout.group(axis, run.rank());
      std::vector<float> found(ranks.size());
      std::vector<float> const share{static_cast<float>(run.rank())};
      grid->along(axis).all_gather(share, found);
      expect(
          std::ranges::equal(
              found, ranks, [](float a, int b) { return a == static_cast<float>(b); }),
          "the ranks of a group");
      expect(grid->along(axis).place() == layout.place_in_group(axis, run.rank()), "the place");
    }
  });
  check_thrown(thrown, "");
  auto const alone = run_ranks(2, patient_settings(), [&](rendezvous& run) {
    zbpp::asio::tcp::executor executor(zbpp::asio::tcp(run), planned);
    expect(executor.grid_of(0) == nullptr, "a pipeline of all ranks knows no grid");
  });
  check_thrown(alone, "");
}

namespace {

// Trains the replicas of a grid, each with faults of its own, and gives the bits that each ends
// with.
std::vector<std::vector<std::uint32_t>> train_replicas(
    grid_layout const& layout,
    zbpp::plan const& planned,
    std::vector<checked::model_settings> const& settings,
    zbpp::training_options const& options,
    int steps) {
  auto const& placement = planned.problem().placement();
  std::vector<std::vector<std::uint32_t>> joined;
  for (auto const& each : settings) joined.push_back(checked::model(each).bits());
  auto const start = joined.front();
  std::mutex guard;
  auto const thrown = run_ranks(layout.ranks(), patient_settings(), [&](rendezvous& run) {
    auto const at = layout.coordinates(run.rank());
    auto const replica = index(at.data);
    checked::model all(settings[replica]);
    std::vector<zbpp::stage_ref> own;
    for (int s : placement.stages_of(at.pipeline)) own.push_back(all.stages()[index(s)]);
    zbpp::pipeline pipe(planned, zbpp::asio::tcp(run, layout), own, options);
    pipe.run(steps - 4);
    pipe.evaluate();
    pipe.run(4);
    std::scoped_lock const lock(guard);
    auto const bits = all.bits();  // a rank changes its own stages alone
    for (std::size_t i = 0; i < bits.size(); ++i)
      if (bits[i] != start[i]) joined[replica][i] = bits[i];
  });
  check_thrown(thrown, "");
  return joined;
}

}  // namespace

TEST_CASE("replicas over sockets have the bits of one process that adds them up", "[asio][grid]") {
  constexpr int steps = 9;
  constexpr int microbatches = 4;
  zbpp::training_options const options{.clip = 50};
  for (auto const& sizes :
       {zbpp::grid{.pipeline = 2, .data = 2},
        zbpp::grid{.pipeline = 2, .data = 3, .order = "pp-dp"},
        zbpp::grid{.pipeline = 3, .data = 2}})
    for (auto kind : {step_kind::synchronous, step_kind::post_validated}) {
      grid_layout const layout(sizes, sizes.pipeline * sizes.data);
      INFO(to_string(layout) << ", kind " << static_cast<int>(kind));
      auto const placement = zbpp::placement::v_shape(sizes.pipeline);
      std::vector<int> const tied{0, placement.stages() - 1};
      auto const problem = with_replicas(
          checked::make_problem(placement, microbatches, 87, tied), {.count = sizes.data});
      auto const planned = zbpp::make_plan(zbpp::zb_v{}, problem, {.step = kind});
      std::vector<checked::model_settings> settings;
      for (int replica = 0; replica < sizes.data; ++replica)
        settings.push_back(
            {.stages = placement.stages(),
             .first_batch = 100 * replica,
             .faults = {{3 + replica, replica, replica}},
             .tied = tied});
      auto const bits = train_replicas(layout, planned, settings, options, steps);
      auto const expected = checked::train_replicas(
          settings, std::vector<int>(std::size_t{steps}, microbatches), options);
      for (int replica = 0; replica < sizes.data; ++replica)
        CHECK((bits[index(replica)] == expected[index(replica)].bits));
    }
}

namespace {

// Adds up its outputs with those of the tensor group in each F, and waits for the replicas in W.
class sharing : public toy::passes {
 public:
  sharing(toy::stage_model& stage, zbpp::rank_grid& grid, bool fails)
      : toy::passes(stage), grid_(grid), fails_(fails) {}

  zbpp::message forward(
      saved& kept, zbpp::message const& in, zbpp::microbatch mb, zbpp::pass_context ctx) {
    if (fails_ && mb.step() == 1 && mb.index() == 2) throw std::out_of_range("the toy broke");
    auto out = toy::passes::forward(kept, in, mb, ctx);
    for (auto const& part : out.buffers()) {
      auto values = part.template as<float>();
      std::vector<float> sums(values.begin(), values.end());
      grid_.tensor().all_reduce(sums);
      for (std::size_t i = 0; i < sums.size(); ++i)
        values[i] = sums[i] / static_cast<float>(grid_.tensor().size());
    }
    return out;
  }
  void backward_weight(saved& kept, zbpp::microbatch mb, zbpp::pass_context ctx) {
    grid_.data().barrier();
    toy::passes::backward_weight(kept, mb, ctx);
  }

 private:
  zbpp::rank_grid& grid_;
  bool fails_;
};

}  // namespace

TEST_CASE("passes make collective calls with the ranks beside theirs", "[asio][grid]") {
  grid_layout const layout({.pipeline = 2, .data = 2, .tensor = 2}, 8);
  auto const planned = toy_plan("zb_h1", 2, 5);
  auto alone = toy::make_model(2);
  std::vector<toy::hand_written> alone_stages(alone.begin(), alone.end());
  zbpp::pipeline reference(planned, zbpp::virtual_time{}, alone_stages);
  std::vector<std::vector<double>> losses;
  for (int step = 0; step < 3; ++step) losses.push_back(reference.step().losses);
  losses.push_back(reference.evaluate().losses);
  auto const thrown = run_ranks(8, patient_settings(), [&](rendezvous& run) {
    auto const at = layout.coordinates(run.rank());
    auto all = toy::make_model(2);
    zbpp::wakeup wake{0};
    socket_grid groups(run, layout, wake);
    groups.connect();
    sharing stage(all[index(at.pipeline)], groups.grid(), false);
    std::array stages{zbpp::as_flow(stage)};
    zbpp::pipeline pipe(planned, zbpp::asio::tcp(run, layout, {.share_losses = true}), stages);
    for (int step = 0; step < 3; ++step) {
      expect(pipe.step().losses == losses[index(step)], "the losses of a step");
      std::vector<float> mean{static_cast<float>(step)};  // between steps, too
      groups.grid().data().all_reduce(mean);
      groups.grid().tensor().all_reduce(mean);
      expect(mean[0] == static_cast<float>(4 * step), "a sum between steps");
    }
    expect(pipe.evaluate().losses == losses[3], "the losses of an evaluation");
  });
  check_thrown(thrown, "");
}

TEST_CASE("a failure in one replica ends all, with its place", "[asio][grid]") {
  grid_layout const layout({.pipeline = 2, .data = 2}, 4);
  auto const planned = toy_plan("zb_h1", 2, 5);
  for (bool shares : {false, true})
    for (int culprit = 0; culprit < 4; ++culprit) {
      auto const stage = std::to_string(culprit / 2);
      auto const words = "rank " + std::to_string(culprit) + ", position ";
      auto const thrown = run_ranks(4, patient_settings(), [&](rendezvous& run) {
        auto const at = layout.coordinates(run.rank());
        auto all = toy::make_model(2);
        zbpp::rank_grid nothing;
        zbpp::wakeup wake{0};
        socket_grid groups(run, layout, wake);
        groups.connect();
        sharing part(
            all[index(at.pipeline)], shares ? groups.grid() : nothing, run.rank() == culprit);
        std::array stages{zbpp::as_flow(part)};
        zbpp::pipeline pipe(planned, zbpp::asio::tcp(run, layout), stages);
        pipe.step();
        run.barrier();
        std::string first;
        while (first.empty()) {  // the other replica may be some steps ahead
          try {
            pipe.step();
          } catch (std::exception const& failed) {
            first = failed.what();
          }
        }
        if (pipe.failures().size() != 1)
          throw std::logic_error(std::to_string(pipe.failures().size()) + " failures; " + first);
        auto const& f = pipe.failures().front();
        if (f.location.rank != culprit || f.location.stage != culprit / 2 ||
            f.location.microbatch != 2)
          throw std::logic_error("another place: " + to_string(f.location));
        auto const place = " (rank " + std::to_string(culprit) + " is pipeline " + stage +
                           ", replica " + std::to_string(culprit % 2) + ")";
        if (first.find(words) != 0 || first.find("the toy broke") == std::string::npos ||
            (run.rank() != culprit && first.find(place) == std::string::npos))
          throw std::logic_error("another text: '" + first + "'");
        try {
          groups.grid().data().barrier();
          throw std::logic_error("a call after the end of the run");
        } catch (zbpp::error const& failed) {
          if (std::string(failed.what()).find("the toy broke") == std::string::npos) throw;
        }
      });
      INFO("culprit " << culprit << (shares ? ", others in collective calls" : ""));
      check_thrown(thrown, "");
    }
}

TEST_CASE("a rank that asks without waiting is woken, and told of a failure", "[asio][grid]") {
  auto const thrown = run_ranks(2, patient_settings(), [&](rendezvous& run) {
    zbpp::wakeup wake{0};
    socket_grid groups(run, grid_layout({}, 2), wake);
    groups.connect();
    auto& link = *groups.grid().data().link();
    std::array<std::byte, 3> const head{std::byte{1}, std::byte{2}, std::byte{3}};
    if (run.rank() == 0) {
      link.send(1, head, {});
      return run.fail("no more weights");
    }
    while (!link.has_arrived(0)) wake.wait(0);
    std::vector<std::byte> bytes;
    link.take(0, bytes);
    expect(std::ranges::equal(bytes, head), "what was sent");
    while (!link.has_arrived(0)) std::this_thread::yield();
  });
  CHECK(thrown == texts{"", "another rank failed: rank 0: no more weights"});
}

TEST_CASE("who does not come to a collective call is named", "[asio][grid]") {
  auto settings = patient_settings();
  settings.collective_deadline = 2s;
  std::promise<void> over;
  auto const is_over = over.get_future().share();
  auto const thrown = run_ranks(2, settings, [&](rendezvous& run) {
    zbpp::wakeup wake{0};
    socket_grid groups(run, grid_layout({}, 2), wake);
    groups.connect();
    if (run.rank() == 1) {
      is_over.wait();
      return run.barrier();
    }
    try {
      groups.grid().data().barrier();
    } catch (...) {
      over.set_value();
      throw;
    }
  });
  check_thrown(
      thrown,
      "another rank failed: rank 1: has not come to a collective call of its data group within "
      "2.0 s; rendezvous_settings::collective_deadline sets this limit");
}

TEST_CASE("who leaves while others wait for it in a collective call is named", "[asio][grid]") {
  for (int leaving : {0, 1, 2}) {
    auto const thrown = run_ranks(3, patient_settings(), [&](rendezvous& run) {
      zbpp::wakeup wake{0};
      socket_grid groups(run, grid_layout({}, 3), wake);
      groups.connect();
      groups.grid().data().barrier();
      if (run.rank() != leaving) groups.grid().data().barrier();
    });
    INFO("rank " << leaving << " leaves");
    for (int rank = 0; rank < 3; ++rank) {
      auto const& text = thrown[index(rank)];
      INFO(text);
      auto const words = "another rank failed: rank " + std::to_string(leaving) + ": ";
      CHECK((rank == leaving ? text.empty() : text.starts_with(words)));
    }
  }
}

TEST_CASE("ranks with different layouts or plans are told so", "[asio][grid]") {
  zbpp::stage_costs const costs{.forward = 1, .backward_input = 1, .backward_weight = 1};
  auto const plan_of = [&](int microbatches, zbpp::ticks forward) {
    auto own = costs;
    own.forward = forward;
    return zbpp::make_plan(
        zbpp::zb_h1{}, zbpp::problem(zbpp::placement::linear(2), microbatches, own));
  };
  auto const refused = [&](auto layout_of, auto plan_of_rank) {
    auto const thrown = run_ranks(4, patient_settings(), [&](rendezvous& run) {
      auto all = toy::make_model(2);
      grid_layout const layout = layout_of(run.rank());
      auto const at = layout.coordinates(run.rank());
      std::array stages{toy::hand_written(all[index(at.pipeline)])};
      zbpp::pipeline const pipe(plan_of_rank(run.rank(), at), zbpp::asio::tcp(run, layout), stages);
    });
    for (auto const& text : thrown) CHECK(text == thrown.front());
    return thrown.front();
  };
  grid_layout const usual({.pipeline = 2, .data = 2}, 4);
  auto const same_layout = [&](int) { return usual; };
  auto const same_plan = [&](int, auto const&) { return plan_of(4, 1); };
  CHECK(
      refused(
          [&](int rank) {
            return rank == 3 ? grid_layout({.pipeline = 2, .data = 2, .order = "pp-dp"}, 4) : usual;
          },
          same_plan) ==
      "ranks disagree: rank 3 differs from rank 0 in: grid_layout (4 ranks, pp-dp: pipeline 2 x "
      "data 2 x tensor 1; rank = pipeline ... at rank 3, 4 ranks, tp-cp-ep-dp-pp: pipeline 2 x "
      "data 2 "
      "x tensor 1; rank = ... at rank 0); start all ranks with the same grid_layout, problem and "
      "plan");
  CHECK(refused(same_layout, [&](int, auto const& at) {
          return plan_of(at.data == 1 ? 5 : 4, 1);
        }).find("ranks disagree: rank 1 differs from rank 0 in: number of microbatches") == 0);
  // Replicas may differ in costs, and the ranks of one may not.
  CHECK(refused(same_layout, [&](int, auto const& at) { return plan_of(4, 1 + at.data); }) == "");
  CHECK(
      refused(same_layout, [&](int rank, auto const&) { return plan_of(4, rank == 3 ? 2 : 1); }) ==
      "ranks disagree: rank 3 differs from rank 1 in: costs of stage 0, costs of stage 1; start "
      "all "
      "ranks with the same grid_layout, problem and plan");
}

TEST_CASE("layouts and plans of another size than the run are refused", "[asio][grid]") {
  auto const planned = toy_plan("zb_h1", 2, 3);
  auto const refused = [&](grid_layout const& layout) {
    auto const thrown = run_ranks(2, patient_settings(), [&](rendezvous& run) {
      auto all = toy::make_model(2);
      std::array stages{toy::hand_written(all[0])};
      zbpp::pipeline const pipe(planned, zbpp::asio::tcp(run, layout), stages);
    });
    CHECK(thrown[0] == thrown[1]);
    return thrown[0];
  };
  CHECK(
      refused(grid_layout({.pipeline = 2, .data = 2}, 4)) ==
      "bad argument: the run has 2 processes and the grid_layout 4 ranks; make it for "
      "rendezvous::ranks()");
  CHECK(
      refused(grid_layout({.pipeline = 1, .data = 2}, 2)) ==
      "bad argument: a pipeline of the grid_layout has 1 ranks and the plan 2; give the plan as "
      "many ranks as grid::pipeline says");
}

TEST_CASE("one replica ends or pauses the run of all after the same step", "[asio][grid]") {
  grid_layout const layout({.pipeline = 2, .data = 2}, 4);
  auto const planned = toy_plan("zb_h1", 2, 3);
  for (int asking = 0; asking < 4; ++asking) {
    std::array<std::int64_t, 4> ends{};
    std::array<std::int64_t, 4> pauses{};
    auto const thrown = run_ranks(4, patient_settings(), [&](rendezvous& run) {
      auto all = toy::make_model(2);
      std::array stages{toy::hand_written(all[index(layout.coordinates(run.rank()).pipeline)])};
      zbpp::pipeline pipe(planned, zbpp::asio::tcp(run, layout), stages);
      auto const ask = [&](zbpp::step_result const&) {
        if (run.rank() != asking) return after_step::go_on;
        return pipe.steps() == 2   ? after_step::pause
               : pipe.steps() == 6 ? after_step::stop
                                   : after_step::go_on;
      };
      pipe.run(30, ask, {.on_pause = [&] {
                 pauses[index(run.rank())] = pipe.steps();
                 pipe.evaluate();
               }});
      ends[index(run.rank())] = pipe.steps();
      pipe.evaluate();
    });
    INFO("rank " << asking);
    check_thrown(thrown, "");
    for (auto const& all : {ends, pauses})
      CHECK(all == std::array<std::int64_t, 4>{all[0], all[0], all[0], all[0]});
    CHECK(pauses[0] >= 2);
    CHECK(ends[0] >= 6);
    CHECK(ends[0] <= 8);
  }
}

namespace {

// Lets one rank of a run hang at one place, until another one ends the run.
class hanging_rank {
 public:
  hanging_rank(rendezvous& run, std::string_view place, bool is_here)
      : run_(run), place_(is_here ? place : "") {}

  void come_to(std::string_view place, std::int64_t step = 1) const {
    if (place != place_ || step != 1) return;
    auto& channel = run_.control_channel();
    channel.loop().run_until([&] { return channel.has_stopped(); });
  }

 private:
  rendezvous& run_;
  std::string_view place_;
};

// Has one gradient, and steps nothing.
class hanging_optimizer final : public zbpp::optimizer {
 public:
  explicit hanging_optimizer(hanging_rank const& hangs) : hangs_(hangs) {}

  [[nodiscard]] int layers() const override { return 1; }
  [[nodiscard]] std::optional<std::int64_t> gradient_count() const override { return 1; }
  void measure(std::span<zbpp::gradient_state> states, zbpp::pass_context) override {
    states[0] = {1};
  }
  void step(zbpp::step_settings const&, zbpp::pass_context) override {
    hangs_.come_to("STEP", ++steps_);
  }
  void commit(zbpp::pass_context) override {}
  void undo(zbpp::pass_context) override {}
  void skip(zbpp::pass_context) override {}
  void read_gradients(std::span<float> copy, zbpp::pass_context) override { copy[0] = 1; }
  void write_gradients(std::span<float const>, zbpp::pass_context) override {}

 private:
  hanging_rank const& hangs_;
  std::int64_t steps_ = -1;
};

// Makes two calls with its tensor group in each F and each B.
class hanging_stage {
 public:
  explicit hanging_stage(hanging_rank const& hangs) : hangs_(hangs), optimizer_(hangs) {}

  void warm_up(zbpp::pass_context) const { hangs_.come_to("warm_up"); }
  [[nodiscard]] hanging_optimizer& optimizer() { return optimizer_; }

  zbpp::flow operator()(zbpp::microbatch mb) {
    auto const come_to = [&](std::string_view place) {
      if (mb.index() == 2) hangs_.come_to(place, mb.step());
    };
    auto const call = [&](std::string_view place, std::string_view between) {
      std::array<float, 1> sum{1};
      come_to(place);
      mb.grid().tensor().all_reduce(sum);
      come_to(between);
      mb.grid().tensor().all_reduce(sum);
    };
    static_cast<void>(co_await mb.recv_activation());
    co_await zbpp::F([&] {
      call("F", "F between");
      if (mb.is_last_stage()) mb.report_loss(1);
    });
    co_await mb.send_activation();
    static_cast<void>(co_await mb.recv_gradient());
    co_await zbpp::B([&] { call("B", "B between"); });
    co_await mb.send_gradient();
    co_await zbpp::W([&] { come_to("W"); });
  }

 private:
  hanging_rank const& hangs_;
  hanging_optimizer optimizer_;
};

}  // namespace

TEST_CASE("of a grid that stalls the one rank is named for which all others wait", "[asio][grid]") {
  grid_layout const layout({.pipeline = 2, .data = 2, .tensor = 2}, 8);
  auto const problem = with_replicas(
      zbpp::problem(zbpp::placement::linear(2), 3, zbpp::stage_costs{.forward = 1}), {.count = 2});
  auto settings = patient_settings();
  settings.stall_deadline = 2s;
  struct trial {
    std::string place;
    int rank;
    step_kind kind;
    std::string does;
  };
  for (auto const& hung : std::vector<trial>{
           {"F", 0, step_kind::synchronous, "runs F 2 of stage 0"},
           {"F between", 5, step_kind::synchronous, "runs F 2 of stage 1"},
           {"B", 3, step_kind::post_validated, "runs B 2 of stage 0"},
           {"B between", 6, step_kind::unchecked, "runs B 2 of stage 1"},
           {"W", 7, step_kind::synchronous, "runs W 2 of stage 1"},
           {"W", 0, step_kind::unchecked, "runs W 2 of stage 0"},
           {"STEP", 2, step_kind::synchronous, "runs STEP of stage 0"},
           {"STEP", 4, step_kind::post_validated, "runs STEP of stage 1"},
           {"warm_up", 0, step_kind::synchronous, "is outside step()"},
           {"warm_up", 5, step_kind::synchronous, "is outside step()"},
           {"behind a step", 6, step_kind::synchronous, "is outside step()"}}) {
    auto const planned = zbpp::make_plan(zbpp::zb_h1{}, problem, {.step = hung.kind});
    auto const thrown = run_ranks(8, settings, [&](rendezvous& run) {
      hanging_rank const hangs(run, hung.place, run.rank() == hung.rank);
      std::array stages{hanging_stage(hangs)};
      zbpp::pipeline pipe(planned, zbpp::asio::tcp(run, layout), stages);
      pipe.step();
      hangs.come_to("behind a step");
      pipe.step();
      pipe.step();
      run.barrier();
    });
    INFO(hung.place << " on rank " << hung.rank);
    auto const suspect = "rank " + std::to_string(hung.rank) + " (" +
                         zbpp::coordinates_text(layout, hung.rank) + "), which waits for no " +
                         "rank: it " + hung.does + " for ";
    for (auto const& text : thrown) {
      INFO(text);
      CHECK(text.find("a step stalled") == 0);
      auto const at = text.find(suspect);
      REQUIRE(at != std::string::npos);
      CHECK(text.find("rank", at + suspect.size()) == std::string::npos);
      CHECK(text.find(" or ") == std::string::npos);
      CHECK(text.find('\n') == std::string::npos);
    }
  }
}

TEST_CASE("measured steps of a grid are those of the pipeline that all name", "[asio][grid]") {
  auto const planned = toy_plan("zb_h1", 2, 3);
  constexpr int ranks = 4;
  for (char const* const order : {"tp-cp-ep-dp-pp", "pp-tp-cp-ep-dp"})
    for (int const named : {0, 3}) {
      std::vector<zbpp::asio::gathered_step> found(ranks);
      std::vector<zbpp::step_result> own(ranks);
      std::vector<std::vector<zbpp::stage_costs>> costs(ranks);
      std::vector<std::optional<zbpp::problem>> measured(ranks);
      grid_layout const layout({.pipeline = 2, .data = 2, .order = order}, ranks);
      auto const thrown = run_ranks(ranks, patient_settings(), [&](rendezvous& run) {
        auto const here = index(run.rank());
        auto const at = layout.coordinates(run.rank());
        zbpp::asio::pipeline_ranks const among(layout, named, ranks);
        auto all = toy::make_model(2);
        std::array stages{toy::hand_written(all[index(at.pipeline)])};
        zbpp::pipeline pipe(
            planned, zbpp::asio::tcp(run, layout, {.records_messages = true}), stages);
        own[here] = pipe.step();
        found[here] = zbpp::asio::gather_step(run, planned, own[here], among);
        std::vector<zbpp::stage_costs> const of_rank(1, {.forward = 10 + run.rank()});
        costs[here] = zbpp::asio::gather_costs(run, planned.problem().placement(), of_rank, among);
        measured[here] = zbpp::asio::measure(run, pipe, {.steps = 2}, among);
      });
      for (auto const& text : thrown) CHECK(text.empty());
      auto const members = layout.group(zbpp::grid_axis::pipeline, named);
      for (int rank = 0; rank < ranks; ++rank) {
        INFO(order << ", pipeline of rank " << named << ", rank " << rank);
        auto const& one = found[index(rank)];
        CHECK(one.measured == found[0].measured);
        CHECK(one.messages == found[0].messages);
        CHECK(measured[index(rank)] == measured[0]);
        REQUIRE(one.measured.ranks() == 2);
        REQUIRE(costs[index(rank)].size() == 2);
        for (int p = 0; p < 2; ++p) {
          auto const of = index(members[index(p)]);
          CHECK(costs[index(rank)][index(p)].forward == 10 + members[index(p)]);
          // Times between passes of a rank are those of its clock.
          auto const row = one.measured[p];
          auto const expected = own[of].measured[p];
          REQUIRE(row.size() == expected.size());
          for (std::size_t i = 0; i < row.size(); ++i)
            CHECK(row[i].start - row[0].start == expected[i].start - expected[0].start);
        }
      }
    }
}

TEST_CASE("measured steps of a grid are not taken for those of one pipeline", "[asio][grid]") {
  auto const planned = toy_plan("zb_h1", 2, 3);
  auto const refused = [&](zbpp::asio::pipeline_ranks const& among) {
    auto const thrown = run_ranks(4, patient_settings(), [&](rendezvous& run) {
      grid_layout const layout({.pipeline = 2, .data = 2}, 4);
      auto all = toy::make_model(2);
      std::array stages{toy::hand_written(all[index(layout.coordinates(run.rank()).pipeline)])};
      zbpp::pipeline pipe(planned, zbpp::asio::tcp(run, layout), stages);
      static_cast<void>(zbpp::asio::gather_step(run, planned, pipe.step(), among));
    });
    for (auto const& text : thrown) CHECK(text == thrown.front());
    return thrown.front();
  };
  CHECK(
      refused({}) ==
      "bad argument: gather_timeline takes a run of one pipeline: the run has 4 ranks and the "
      "plan 2; in a grid give pipeline_ranks, which says whose steps they are");
  CHECK(
      refused({grid_layout({.pipeline = 4, .data = 1}, 4), 0, 4}) ==
      "bad argument: gather_timeline takes a pipeline of the run: the run has 4 ranks and the "
      "plan 2, and pipeline_ranks is for 4 and 4; give those of the run");
}

}  // namespace test_asio_grid

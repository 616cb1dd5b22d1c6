// SPDX-License-Identifier: Apache-2.0
//
// What the pipelines of a grid have to hold and do alike: where one differs, all end at once with
// one text that names the thing, both values and both places; nobody waits for what will not come.
#include <zbpp/runtime/in_process_grid.hpp>

#include <support/backends.hpp>
#include <support/checked_model.hpp>
#include <support/differing_pipelines.hpp>

#include <mutex>

namespace test_grid_agreement {

using namespace zbpp;
using namespace zbpp::test;
using namespace zbpp::test::differing;
using zbpp::test::checked::model_settings;

namespace {

constexpr step_kind kinds_of_steps[]{
    step_kind::unchecked, step_kind::synchronous, step_kind::post_validated};

// What the pipelines of a grid threw, by the number of the pipeline.
template <class Work>
std::vector<std::string> texts_of(grid const& sizes, Work work) {
  in_process_grid whole(sizes);
  std::vector<std::string> texts(static_cast<std::size_t>(sizes.data * sizes.tensor));
  try {
    whole.run([&](grid_place const& at) {
      try {
        work(at);
      } catch (error const& failed) {
        texts[static_cast<std::size_t>(at.data() * sizes.tensor + at.tensor())] = failed.what();
        throw;
      }
    });
  } catch (error const&) {  // noted above
  }
  return texts;
}

void check_all(std::vector<std::string> const& texts, std::vector<std::string> const& parts) {
  for (auto const& text : texts) {
    INFO(text);
    CHECK_FALSE(text.empty());
    for (auto const& part : parts) CHECK(has(text, part));
  }
}

// Runs two replicas, each with its own options and calls.
template <class Backend>
std::vector<std::string> run_replicas(
    step_kind kind,
    std::function<training_options(int replica)> const& options_of,
    std::function<void(int replica, pipeline<Backend>&)> const& calls,
    std::function<void(int replica, checked::model&)> const& change = {}) {
  auto const planned = replicated_plan(kind);
  return texts_of({.pipeline = ranks, .data = 2}, [&](grid_place const& at) {
    checked::model own({.stages = ranks, .first_batch = 100 * at.data()});
    if (change) change(at.data(), own);
    Backend backend;
    backend.place = at;
    pipeline replica(planned, backend, own.stages(), options_of(at.data()));
    calls(at.data(), replica);
  });
}

training_options no_options(int) { return {}; }

// Runs two members of a tensor group, of which the second is at fault.
template <class Backend>
std::vector<std::string> run_members(
    step_kind kind,
    int faulty_stage,
    left_out fault,
    std::function<training_options(int member)> const& options_of,
    std::function<void(int member, pipeline<Backend>&)> const& calls,
    std::function<void(int member, std::vector<summing_stage>&)> const& change = {},
    bool is_replicated = true) {
  auto const planned = summing_plan(kind);
  return texts_of({.pipeline = ranks, .data = 1, .tensor = 2}, [&](grid_place const& at) {
    std::vector<summing_stage> stages;
    for (int stage = 0; stage < ranks; ++stage)
      stages.emplace_back(
          at.tensor() == 1 && stage == faulty_stage ? fault : left_out::nothing,
          first_weights(stage),
          is_replicated);
    if (change) change(at.tensor(), stages);
    Backend backend;
    backend.place = at;
    pipeline shared(planned, backend, stages, options_of(at.tensor()));
    calls(at.tensor(), shared);
  });
}

template <class Backend>
void run_four(int, pipeline<Backend>& pipe) {
  pipe.run(4);
}

}  // namespace

TEMPLATE_TEST_CASE(
    "replicas that begin with other weights are told which", "[grid]", threads, virtual_time) {
  auto const stage = GENERATE(0, 1);
  for (auto const kind : kinds_of_steps) {
    CAPTURE(static_cast<int>(kind), stage);
    auto const other = [&](int replica, checked::model& own) {
      if (replica == 1) own.maths(stage).optimized().back().weights[5] += 0x1p-20F;
    };
    auto const texts = run_replicas<TestType>(kind, no_options, run_four<TestType>, other);
    check_all(
        texts,
        {"weights of layer " + std::to_string(stage) + " of stage " + std::to_string(stage) + " (",
         " on rank " + std::to_string(2 * stage) + " (pipeline " + std::to_string(stage) +
             ", replica 0), ",
         "replica 1)); begin with the same layers and weights on all of them, or set "
         "training_options::compares_weights to false"});
    auto const off = [](int) { return training_options{.compares_weights = false}; };
    for (auto const& text : run_replicas<TestType>(kind, off, run_four<TestType>, other))
      CHECK(text.empty());
  }
}

TEMPLATE_TEST_CASE(
    "weights that are loaded on one replica alone are found behind resume",
    "[grid]",
    threads,
    virtual_time) {
  auto const texts = run_replicas<TestType>(
      step_kind::unchecked,
      no_options,
      [](int, pipeline<TestType>& pipe) {
        pipe.run(2);
        pipe.resume(pipe.state());
        pipe.run(2);
      },
      {});
  for (auto const& text : texts) CHECK(text.empty());
  std::array<checked::model*, 2> models{};
  auto const loaded = run_replicas<TestType>(
      step_kind::unchecked,
      no_options,
      [&](int replica, pipeline<TestType>& pipe) {
        pipe.run(2);
        if (replica == 1) models[1]->maths(0).optimized().front().weights[0] = 17;
        pipe.resume(pipe.state());
        pipe.run(2);
      },
      [&](int replica, checked::model& own) { models[static_cast<std::size_t>(replica)] = &own; });
  check_all(loaded, {"weights of layer 0 of stage 0 ("});
}

TEMPLATE_TEST_CASE(
    "options that differ between replicas are named with both values",
    "[grid]",
    threads,
    virtual_time) {
  for (auto const kind : kinds_of_steps) {
    CAPTURE(static_cast<int>(kind));
    auto const told = [&](std::function<training_options(int)> const& options_of) {
      return run_replicas<TestType>(kind, options_of, run_four<TestType>);
    };
    auto const places = [](std::string const& first, std::string const& second) {
      return " is " + first + " on rank 0 (pipeline 0, replica 0) and " + second +
             " on rank 1 (pipeline 0, replica 1); give all ranks the same";
    };
    check_all(
        told([](int replica) { return training_options{.accumulate = 1 + replica}; }),
        {"training_options::accumulate" + places("1", "2")});
    auto const rate = [](int replica) {
      return training_options{.learning_rate = [=](std::int64_t) { return 0.5 + replica; }};
    };
    check_all(told(rate), {"training_options::learning_rate" + places("0.5", "1.5")});
    // In a later step of a run, ranks are on their way.
    auto const later = [](int replica) {
      return training_options{.learning_rate = [=](std::int64_t updates) {
        return updates == 2 ? 0.25 + replica : 0.125;
      }};
    };
    check_all(told(later), {"training_options::learning_rate is ", "0.25 on ", "1.25 on "});
    if (kind == step_kind::unchecked) continue;
    check_all(
        told([](int replica) { return training_options{.clip = 1.0 + replica}; }),
        {"training_options::clip" + places("1", "2")});
  }
}

TEMPLATE_TEST_CASE(
    "pipelines that run different numbers of steps are told", "[grid]", threads, virtual_time) {
  for (auto const kind : kinds_of_steps) {
    CAPTURE(static_cast<int>(kind));
    auto const runs = run_replicas<TestType>(
        kind, no_options, [](int replica, pipeline<TestType>& pipe) { pipe.run(3 + replica); });
    check_all(
        runs,
        {"rank 0 (pipeline 0, replica 0) called run(3) for step 0, rank 1 (pipeline 0, replica 1) "
         "called run(4) for step 0; all ranks have to make the same calls in the same order"});
    auto const steps =
        run_replicas<TestType>(kind, no_options, [](int replica, pipeline<TestType>& pipe) {
          for (int step = 0; step < 3 + replica; ++step) pipe.step();
        });
    CHECK(steps[0].empty());
    INFO(steps[1]);
    CHECK(
        has(steps[1],
            "in the data group rank 1 (pipeline 0, replica 1) waits for rank 0 (pipeline 0, "
            "replica 0), whose pipeline has ended; run as many steps on all pipelines of a grid"));
    auto const resumed =
        run_replicas<TestType>(kind, no_options, [](int replica, pipeline<TestType>& pipe) {
          pipe.step();
          auto state = pipe.state();
          state.steps += replica;
          pipe.resume(state);
          pipe.step();
        });
    check_all(resumed, {"give all ranks the same training_state to resume from"});
    auto const members = run_members<TestType>(
        kind, 0, left_out::nothing, no_options, [](int member, pipeline<TestType>& pipe) {
          pipe.run(3 + member);
        });
    check_all(
        members,
        {"rank 0 (pipeline 0, tensor 0) called run(3) for step 0, rank 1 (pipeline 0, tensor 1) "
         "called run(4) for step 0; "});
  }
}

TEMPLATE_TEST_CASE(
    "one replica evaluates alone, and members of a tensor group do so together",
    "[grid]",
    threads,
    virtual_time) {
  auto const replicas = run_replicas<TestType>(
      step_kind::synchronous, no_options, [](int replica, pipeline<TestType>& pipe) {
        pipe.step();
        if (replica == 1) pipe.evaluate();
        pipe.step();
      });
  for (auto const& text : replicas) CHECK(text.empty());
  auto const members = run_members<TestType>(
      step_kind::synchronous,
      0,
      left_out::nothing,
      no_options,
      [](int member, pipeline<TestType>& pipe) {
        pipe.step();
        if (member == 1) pipe.evaluate();
        pipe.step();
      });
  check_all(
      members,
      {"rank 0 (pipeline 0, tensor 0) called step() for step 1, rank 1 (pipeline 0, tensor 1) "
       "called evaluate(); all ranks have to make the same calls in the same order"});
}

TEMPLATE_TEST_CASE(
    "what one member asks for behind a step is no other call, and resume on one alone is",
    "[grid]",
    threads,
    virtual_time) {
  auto const evaluated = run_members<TestType>(
      step_kind::synchronous,
      0,
      left_out::nothing,
      no_options,
      [](int member, pipeline<TestType>& pipe) {
        if (member == 0)
          pipe.run(4, [](step_result const&) { return after_step::go_on; });
        else
          pipe.run(4);
        pipe.evaluate();
      });
  for (auto const& text : evaluated) CHECK(text.empty());
  auto const resumed = run_replicas<TestType>(
      step_kind::unchecked, no_options, [](int replica, pipeline<TestType>& pipe) {
        pipe.step();
        if (replica == 0) pipe.resume(pipe.state());
        pipe.step();
      });
  check_all(
      resumed,
      {"rank 0 (pipeline 0, replica 0) called step() for step 1 behind resume(), rank 1 (pipeline "
       "0, replica 1) called step() for step 1 without resume(); "});
}

TEMPLATE_TEST_CASE(
    "a learning rate that throws on one replica ends the calls of all",
    "[grid]",
    threads,
    virtual_time) {
  auto const texts = run_replicas<TestType>(
      step_kind::synchronous,
      [](int replica) {
        return training_options{.learning_rate = [=](std::int64_t) -> double {
          if (replica == 1) throw std::runtime_error("no rate");
          return 0.5;
        }};
      },
      run_four<TestType>);
  check_all(texts, {"no rate"});
}

TEMPLATE_TEST_CASE(
    "members that step by themselves are told which option differs",
    "[grid]",
    threads,
    virtual_time) {
  for (auto const kind : kinds_of_steps) {
    CAPTURE(static_cast<int>(kind));
    auto const told = [&](std::function<training_options(int)> const& options_of) {
      return run_members<TestType>(kind, 0, left_out::nothing, options_of, run_four<TestType>);
    };
    check_all(
        told([](int member) { return training_options{.accumulate = 1 + member}; }),
        {"training_options::accumulate is 1 on rank 0 (pipeline 0, tensor 0) and 2 on rank 1 "
         "(pipeline 0, tensor 1); give all ranks the same"});
    check_all(
        told([](int member) {
          return training_options{.learning_rate = [=](std::int64_t updates) {
            return updates == 2 ? 0.25 + member : 0.125;
          }};
        }),
        {"training_options::learning_rate is 0.25 on rank ", "tensor 0) and 1.25 on rank "});
    if (kind == step_kind::unchecked) continue;
    check_all(
        told([](int member) { return training_options{.clip = 1.0 + member}; }),
        {"training_options::clip is 1 on rank 0 (pipeline 0, tensor 0) and 2 on rank 1 "
         "(pipeline 0, tensor 1); give all ranks the same"});
  }
}

TEMPLATE_TEST_CASE(
    "members compare the layers that each of them has whole", "[grid]", threads, virtual_time) {
  for (auto const kind : kinds_of_steps) {
    CAPTURE(static_cast<int>(kind));
    auto const differ = [](int member, std::vector<summing_stage>& all) {
      if (member == 1) all[1].weights()[0] = -1;
    };
    auto const run = [&](auto const& change, bool is_replicated) {
      return run_members<TestType>(
          kind, 0, left_out::nothing, no_options, run_four<TestType>, change, is_replicated);
    };
    check_all(run(differ, true), {"weights of layer 0 of stage 1 ("});
    // A mark that was forgotten, which would count the layer twice in a norm.
    auto const unmarked = run([](int, auto&) {}, false);
    if (kind == step_kind::unchecked)
      for (auto const& text : unmarked) CHECK(text.empty());
    else
      check_all(
          unmarked,
          {"the weights of layer 0 of stage 0 are the same on all members of the tensor group, and "
           "the norm would count them once for each; mark the layer is_replicated"});
    auto const parts = run(
        [](int member, auto& all) {
          for (auto& each : all) each.weights()[0] += static_cast<float>(member);
        },
        false);
    for (auto const& text : parts) CHECK(text.empty());
    auto const zeros = run(
        [](int, auto& all) {
          for (auto& each : all) each.weights() = {};
        },
        false);
    for (auto const& text : zeros) CHECK(text.empty());
  }
}

TEMPLATE_TEST_CASE(
    "a collective call that one member leaves out is named with the call in its place",
    "[grid]",
    threads,
    virtual_time) {
  for (auto const kind : kinds_of_steps)
    for (int const stage : {0, 1})
      for (auto const fault :
           {left_out::sum_in_f, left_out::last_sum_in_b, left_out::exchange_in_f}) {
        CAPTURE(static_cast<int>(kind), stage, static_cast<int>(fault));
        auto const s = std::to_string(stage);
        auto const name = [&](int member) {
          return "rank " + std::to_string(2 * stage + member) + " (pipeline " + s + ", tensor " +
                 std::to_string(member) + ")";
        };
        std::mutex guard;
        std::vector<double> losses;
        auto const texts = run_members<TestType>(
            kind, stage, fault, no_options, [&](int, pipeline<TestType>& pipe) {
              for (int step = 0; step < 2; ++step) {
                auto const& result = pipe.step();
                std::scoped_lock const lock(guard);
                losses.insert(losses.end(), result.losses.begin(), result.losses.end());
              }
            });
        // No loss of a step in which calls of different microbatches met.
        if (fault != left_out::last_sum_in_b) CHECK(losses.empty());
        auto const call = fault == left_out::sum_in_f ? "all_reduce of 8 numbers in " + s + "F1 "
                          : fault == left_out::last_sum_in_b
                              ? "all_reduce of 8 numbers in " + s + "B2 "
                              : "all_to_all in " + s + "F1 ";
        check_all(texts, {"in the tensor group ", name(0), name(1), call, " as its call "});
      }
}

}  // namespace test_grid_agreement

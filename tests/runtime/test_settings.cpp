// SPDX-License-Identifier: Apache-2.0
//
// No setting of the core is ignored: each field of each struct of settings and of costs, set to
// something else, has an effect or is refused. `threads` is in test_threads.cpp, and those of other
// components are in tests of theirs.
#include <zbpp/analysis/lower.hpp>
#include <zbpp/analysis/memory.hpp>
#include <zbpp/analysis/simulate.hpp>
#include <zbpp/analysis/steps.hpp>
#include <zbpp/io/ascii.hpp>
#include <zbpp/io/chrome_trace.hpp>
#include <zbpp/io/csv.hpp>
#include <zbpp/io/line_chart.hpp>
#include <zbpp/io/svg.hpp>
#include <zbpp/io/sweep_svg.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/optim/adamw.hpp>
#include <zbpp/optim/sgd.hpp>
#include <zbpp/planner/chunk_policies.hpp>
#include <zbpp/planner/detail/bottleneck.hpp>
#include <zbpp/planner/detail/cut_search.hpp>
#include <zbpp/planner/find_plan.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/policy/dualpipe_v.hpp>
#include <zbpp/policy/interleaved.hpp>
#include <zbpp/runtime/in_process_grid.hpp>
#include <zbpp/runtime/object.hpp>

#include <support/backends.hpp>
#include <support/checked_model.hpp>
#include <support/planner_problems.hpp>
#include <support/random_layers.hpp>
#include <support/settings_fields.hpp>

#include <new>

namespace test_settings {

using namespace zbpp;
using namespace zbpp::test;

namespace {

// What settings call counts its calls here.
int calls = 0;

template <class... Values>
void add(std::string& text, Values const&... values) {
  (text.append(number_text(static_cast<double>(values))).append(" "), ...);
}

template <class Values>
void add_all(std::string& text, Values const& values) {
  for (auto const& value : values) add(text, value);
}

bool is_stopped() { return true; }

}  // namespace

TEST_CASE("fields are counted whatever their type", "[settings]") {
  struct none {};
  struct some {
    std::vector<int> a;
    std::optional<std::string> b;
    loss_scaling c;
    std::function<void()> d;
    int const* e = nullptr;
  };
  CHECK(count_of_fields<none>() == 0);
  CHECK(count_of_fields<some>() == 5);
  CHECK(count_of_fields<loss_scaling>() == 4);
}

// --- optimizer steps

namespace {

// A training in which all steps are clipped, and one has a gradient that is not finite.
std::string train(training_options const& options) {
  checked::model all({.stages = 3, .faults = {{.step = 1, .stage = 1, .microbatch = 2}}});
  problem const small(placement::linear(3), 4, checked::costs(), 87);
  calls = 0;
  pipeline pipe(
      make_plan(zb_h1{}, small, {.step = step_kind::post_validated}),
      virtual_time{},
      all.stages(),
      options);
  std::string text;
  pipe.run(9, [&](step_result const& result) {
    auto const& update = result.update;
    add(text, update.loss_scale, update.norm, update.learning_rate, update.is_post_validated);
  });
  add_all(text, all.bits());
  add(text, calls);
  return text;
}

// What comes of two replicas with other weights.
std::string train_apart(training_options const& options) {
  std::vector<stage_costs> costs(2, checked::costs());
  for (std::size_t s = 0; s < costs.size(); ++s)
    costs[s].gradients = static_cast<bytes>((1 + s) * sizeof(checked::matrix));
  auto const planned =
      make_plan(zb_h1{}, with_replicas(problem(placement::linear(2), 3, costs), {.count = 2}));
  in_process_grid whole({.pipeline = 2, .data = 2});
  try {
    whole.run([&](grid_place const& at) {
      checked::model own({.stages = 2});
      if (at.data() == 1) own.maths(0).optimized().front().weights[0] = 1;
      pipeline(planned, virtual_time{.place = at}, own.stages(), options).step();
    });
  } catch (error const& failed) {
    return std::string(failed.message());
  }
  return "trained";
}

training_options usual_options() {
  return {.clip = 1e-3, .scaling = {.initial = 4, .growth_interval = 2}};
}

}  // namespace

TEST_CASE("each training option has an effect", "[settings]") {
  changed_field<training_options> const options[]{
      ZBPP_FIELD(clip, 2e-3),
      {"learning_rate", [](auto& o) { o.learning_rate = [](std::int64_t) { return 0.02; }; }},
      {"on_gradients_ready",
       [](auto& o) { o.on_gradients_ready = [](int, pass_context) { ++calls; }; }},
      {"scaling", [](auto& o) { o.scaling.initial = 8; }},
      ZBPP_FIELD(accumulate, 2),
      {"window", [](auto& o) { o.window.most_amended = 0; }},
      {"agreement", [](auto& o) { o.agreement.share = 0.25; }},
      {"on_stall", [](auto& o) { o.on_stall.overrun = 1; }},
      ZBPP_FIELD(compares_weights, false)};
  check_fields(options, usual_options(), [](training_options const& changed) {
    return train(changed) + train_apart({.compares_weights = changed.compares_weights});
  });

  changed_field<loss_scaling> const scaling[]{
      ZBPP_FIELD(initial, 2),
      ZBPP_FIELD(growth_interval, 1),
      ZBPP_FIELD(largest, 4),
      ZBPP_FIELD(smallest, 4)};
  check_fields(scaling, usual_options().scaling, [](loss_scaling const& changed) {
    auto with = usual_options();
    with.scaling = changed;
    return train(with);
  });

  changed_field<validation_window> const window[]{
      ZBPP_FIELD(steps, 2), ZBPP_FIELD(most_amended, 1)};
  check_fields(window, usual_options().window, [](validation_window const& changed) {
    auto with = usual_options();
    with.window = changed;
    return train(with);
  });

  changed_field<agreement_interval> const agreement[]{
      ZBPP_FIELD(every, 2), ZBPP_FIELD(share, 1e-6)};
  check_fields(agreement, {.every = 4, .share = 0.9}, [](agreement_interval const& changed) {
    auto with = usual_options();
    with.clip = 1e3;
    with.scaling.growth_interval = 0;
    with.agreement = changed;
    return train(with);
  });
}

TEST_CASE("each option of ranks that wait has an effect", "[settings]") {
  changed_field<stall_options> const fields[]{ZBPP_FIELD(runs_w, false), ZBPP_FIELD(overrun, 1e9)};
  check_fields(fields, {.runs_w = true}, [](stall_options const& options) {
    // Times that the plan does not know, so that ranks wait for longer and shorter than W take.
    virtual_noise const noise{.pass_time = [](int rank, pass const& p, ticks stated) {
      return stated + stated * ((rank + 2 * p.microbatch) % 5) / 2;
    }};
    checked::model all({.stages = 3});
    problem const small(placement::linear(3), 5, checked::costs());
    pipeline pipe(
        make_plan(zb_h1{}, small), virtual_time{noise}, all.stages(), {.on_stall = options});
    std::string text;
    for (int i = 0; i < 4; ++i)
      for (auto const& timed : pipe.step().measured.all()) add(text, timed.start);
    return text;
  });
}

TEST_CASE("each option of a run has an effect", "[settings]") {
  changed_field<run_options> const fields[]{
      ZBPP_FIELD(pause_every, 3),
      {"on_pause", [](auto& o) { o.on_pause = [] { return after_step::stop; }; }}};
  run_options usual;
  usual.pause_every = 2;
  usual.on_pause = [] { ++calls; };
  check_fields(fields, usual, [](run_options const& options) {
    checked::model all({.stages = 2});
    problem const small(placement::linear(2), 3, checked::costs());
    calls = 0;
    pipeline pipe(make_plan(zb_h1{}, small), virtual_time{}, all.stages());
    pipe.run(6, options);
    std::string text;
    add(text, pipe.steps(), calls);
    return text;
  });
}

namespace {

struct two_layers {
  std::array<float, 4> weights{0.5F, -0.25F, 1.5F, 0.125F};
  std::array<float, 4> gradients{1e-7F, 0.5F, -0.25F, 0};

  [[nodiscard]] std::vector<optim::layer> all() {
    auto const halves = [](auto& of) {
      return std::pair{std::span(of).first(2), std::span(of).last(2)};
    };
    auto const [w, x] = halves(weights);
    auto const [g, h] = halves(gradients);
    return {{.weights = w, .gradients = g}, {.weights = x, .gradients = h}};
  }
};

// Steps, looks at what is changed already, makes the step final, and takes another.
template <class Optimizer>
std::string step_twice(
    two_layers& of, Optimizer& optimizer, step_settings const& settings, auto const& moments) {
  arena memory;
  pass_context const ctx(memory);
  std::string text;
  optimizer.step(settings, ctx);
  add_all(text, of.weights);
  add_all(text, of.gradients);
  add_all(text, moments());
  if (!settings.is_final) optimizer.commit(ctx);
  of.gradients = {0.5F, 1e-7F, 0.125F, 0.25F};
  optimizer.step({.updates = 1, .learning_rate = 0.01}, ctx);
  add_all(text, of.weights);
  return text;
}

// Says that its layer is frozen.
struct frozen_source : optim::layer_source {
  bool locate(optim::layer&) override { return false; }
  void locate_weights(optim::layer&) const override {}
  void hold_gradients() override {}
  void return_gradients(bool) override {}
};

step_settings const not_final{.learning_rate = 0.01, .is_final = false};

std::string adamw_steps(
    std::vector<optim::layer> const& layers,
    two_layers& of,
    optim::adamw_settings const& settings,
    step_settings const& step = not_final) {
  optim::adamw optimizer(layers, settings);
  auto text = step_twice(of, optimizer, step, [&] { return optimizer.mean(); });
  add(text, optimizer.is_tied(1));
  add(text, optimizer.is_replicated(1).value());
  return text;
}

}  // namespace

TEST_CASE("each setting of an optimizer has an effect", "[settings]") {
  changed_field<optim::adamw_settings> const adamw[]{
      ZBPP_FIELD(beta1, 0.8F),
      ZBPP_FIELD(beta2, 0.9F),
      ZBPP_FIELD(epsilon, 1e-4F),
      ZBPP_FIELD(weight_decay, 0.1F),
      // Moments change with the step, rather than when it is final.
      ZBPP_FIELD(undo, optim::undo_method::copies)};
  check_fields(adamw, {}, [](optim::adamw_settings const& settings) {
    two_layers own;
    return adamw_steps(own.all(), own, settings);
  });

  changed_field<optim::sgd_settings> const sgd[]{
      ZBPP_FIELD(momentum, 0.5F),
      ZBPP_FIELD(weight_decay, 0.1F),
      ZBPP_FIELD(undo, optim::undo_method::copies)};
  check_fields(sgd, {.momentum = 0.9F}, [](optim::sgd_settings const& settings) {
    two_layers own;
    optim::sgd optimizer(own.all(), settings);
    return step_twice(own, optimizer, not_final, [&] { return optimizer.momentum(); });
  });
}

TEST_CASE("each setting of a step, and of a layer, has an effect", "[settings]") {
  changed_field<step_settings> const step[]{
      ZBPP_FIELD(updates, 3),
      ZBPP_FIELD(learning_rate, 0.02),
      ZBPP_FIELD(coefficient, 0.5),
      ZBPP_FIELD(gradient_scale, 4),
      ZBPP_FIELD(is_final, true)};
  check_fields(step, not_final, [](step_settings const& settings) {
    two_layers own;
    return adamw_steps(own.all(), own, {}, settings);
  });

  static two_layers other;  // what the fields of a layer are changed to
  changed_field<optim::layer> const layer[]{
      ZBPP_FIELD(weights, other.weights),
      ZBPP_FIELD(gradients, std::span(other.gradients).last(2)),
      ZBPP_FIELD(is_tied, true),
      ZBPP_FIELD(decays, false),
      ZBPP_FIELD(source, std::make_shared<frozen_source>()),
      ZBPP_FIELD(is_replicated, true)};
  two_layers own;
  check_fields(layer, own.all()[1], [&](optim::layer const& changed) {
    own = {};
    other = {};
    return adamw_steps({own.all()[0], changed}, own, {.weight_decay = 0.1F});
  });
}

// --- memory

namespace {

struct source_counts {
  int taken = 0;
  int given_back = 0;
  std::size_t bytes = 0;
  std::uintptr_t context = 0;
};
source_counts counts;

void* take_counted(std::size_t size, std::uintptr_t context) {
  ++counts.taken;
  counts.bytes += size;
  counts.context = context;
  return ::operator new(size, std::align_val_t{256});
}
void give_back_counted(void* memory, std::size_t, std::uintptr_t) noexcept {
  ++counts.given_back;
  ::operator delete(memory, std::align_val_t{256});
}

}  // namespace

TEST_CASE("each field of a source of memory has an effect", "[settings]") {
  changed_field<memory_source> const fields[]{
      {"take",
       [](auto& s) {
         s.take = [](std::size_t, std::uintptr_t) -> void* { throw std::bad_alloc(); };
       }},
      {"give_back",
       [](auto& s) {
         s.give_back = [](void* memory, std::size_t, std::uintptr_t) noexcept {
           ::operator delete(memory, std::align_val_t{256});
         };
       }},
      ZBPP_FIELD(context, 7),
      ZBPP_FIELD(alignment, 256),
      ZBPP_FIELD(is_host, false)};
  memory_source const usual{.take = take_counted, .give_back = give_back_counted};
  check_fields(fields, usual, [](memory_source const& source) -> std::string {
    counts = {};
    std::string text;
    try {
      arena memory(source);
      auto const first = memory.allocate(8);
      auto const second = memory.allocate(8);
      add(text, second.data() - first.data());
      text += effect_of([&] {
        static_cast<void>(object(memory, std::string("in memory of the host"), 8, purpose::edge));
        return std::string("holds objects ");
      });
    } catch (std::bad_alloc const&) {
      return "no memory";
    }
    add(text, counts.taken, counts.given_back, counts.bytes, counts.context);
    return text;
  });
}

// --- programs and costs

TEST_CASE("each option of a program has an effect", "[settings]") {
  problem const on_v(placement::v_shape(3), 5, uneven_costs(), 87);
  auto const order = zb_v{}(on_v);
  changed_field<lower_options> const fields[]{
      ZBPP_FIELD(receive_ahead, 1),
      ZBPP_FIELD(step, step_kind::unchecked),
      ZBPP_FIELD(tied, {0, 3}),
      ZBPP_FIELD(at_once, {0}),
      ZBPP_FIELD(reduces, true),
      ZBPP_FIELD(shards_optimizer, true),
      ZBPP_FIELD(layout, channel_layout::one_per_rank)};
  check_fields(fields, {.step = step_kind::synchronous}, [&](lower_options const& options) {
    return to_csv(lower(order, options));
  });
}

TEST_CASE("each cost of a stage has an effect", "[settings][long]") {
  changed_field<stage_costs> const fields[]{
      {"forward", [](auto& c) { ++c.forward; }},
      {"backward_input", [](auto& c) { ++c.backward_input; }},
      {"backward_weight", [](auto& c) { ++c.backward_weight; }},
      ZBPP_FIELD(backward_fused, 1300),
      ZBPP_FIELD(recompute, 700),
      ZBPP_FIELD(overlapped, 1500),
      ZBPP_FIELD(overlapped_fused, 2300),
      ZBPP_FIELD(norm, 50),
      ZBPP_FIELD(optimizer_step, 50),
      ZBPP_FIELD(activation, 1001),
      ZBPP_FIELD(weight_gradient_input, 371),
      ZBPP_FIELD(output_gradient, 9),
      ZBPP_FIELD(recompute_input, 111),
      ZBPP_FIELD(edge, 18),
      ZBPP_FIELD(static_memory, 10),
      ZBPP_FIELD(workspace, 10),
      ZBPP_FIELD(tied, 64),
      ZBPP_FIELD(gradients, 4096),
      ZBPP_FIELD(optimizer_state, 10)};
  for (std::size_t i = 0; i < std::size(fields); ++i) {  // as the table has them
    auto costs = uneven_costs();
    fields[i].change(costs);
    CHECK(detail::cost_fields[i].name == fields[i].name);
    CHECK(detail::cost_fields[i].of(costs) != detail::cost_fields[i].of(uneven_costs()));
  }
  check_fields(fields, uneven_costs(), [](stage_costs const& costs) {
    std::string text;
    auto const note = [&](std::string const&, plan const& planned) {
      auto const times = times_of_steps(planned);
      add(text, times.alone, times.steady.whole, times.steady.part);
      for (auto const& peak : peak_memory(planned.program(), planned.problem()))
        add(text, peak.total);
    };
    problem const on_v(placement::v_shape(2), 4, costs, 87);
    for_each_plan_of(on_v, {.recomputed = true}, note);
    problem const linear(placement::linear(2), 4, costs, 87);
    note("", make_plan(zb_h1{}, linear, {.step = step_kind::synchronous}));
    note("", make_plan(zb_h1{}, with_replicas(linear, {.count = 2, .time_per_byte = 1})));
    return text;
  });
}

TEST_CASE("each cost of replicas has an effect", "[settings]") {
  changed_field<replica_costs> const fields[]{
      ZBPP_FIELD(count, 3),
      ZBPP_FIELD(latency, 90),
      ZBPP_FIELD(time_per_byte, 2),
      ZBPP_FIELD(shards_optimizer, true)};
  auto costs = uneven_costs();
  costs.gradients = 4096;
  costs.optimizer_state = 8192;
  problem const alone(placement::linear(2), 4, costs, 87);
  check_fields(fields, {.count = 2, .time_per_byte = 1}, [&](replica_costs const& replicas) {
    auto const planned = make_plan(zb_h1{}, with_replicas(alone, replicas));
    return std::to_string(times_of_steps(planned).alone) + " ns, " +
           std::to_string(peak_memory(planned.program(), planned.problem()).front().total) +
           " bytes";
  });
}

// --- searches

namespace {

changed_field<search_settings> const search_fields[]{
    ZBPP_FIELD(seconds, 0),
    ZBPP_FIELD(seed, 17),
    ZBPP_FIELD(stop, is_stopped),
    {"on_progress", [](auto& s) { s.on_progress = [](search_progress const&) { ++calls; }; }}};

search_settings const brief{.seconds = 0.03};

// Uneven problems, for which no answer of so brief a search is proved optimal.
std::vector<problem> uneven_problems(char kind) {
  std::vector<problem> found;
  plain_random random(5);
  while (found.size() < 3) {
    auto one = uneven_problem(random, kind);
    if (one.ranks() >= 3 && one.ranks() <= 6 && one.microbatches() <= 16) found.push_back(one);
  }
  return found;
}

// Checks what a policy has: settings of its search, and of these all; and for memory, if it takes
// some.
template <class Policy>
void check_search(std::vector<problem> const& problems) {
  INFO(Policy::name);
  auto const effect = [&](Policy const& decide) {
    calls = 0;
    std::string text;
    for (auto const& one : problems) text += to_csv(decide(one));
    add(text, calls);
    return text;
  };
  check_fields(search_fields, brief, [&](search_settings const& search) {
    return effect({.search = search});
  });
  changed_field<Policy> const search{"search", [](Policy& p) { p.search.stop = is_stopped; }};
  if constexpr (requires(Policy p) { p.most_memory_for; }) {
    changed_field<Policy> const fields[]{search, ZBPP_FIELD(most_memory_for, 0.2)};
    check_fields(fields, {.search = brief}, effect);
  } else {
    changed_field<Policy> const fields[]{search};
    check_fields(fields, {.search = brief}, effect);
  }
}

}  // namespace

TEST_CASE("each setting of a search has an effect in all policies that search", "[settings]") {
  check_search<greedy_auto>(uneven_problems('l'));
  check_search<v_half>(uneven_problems('v'));
  check_search<v_min>(uneven_problems('v'));
  check_search<interleaved_zb>(uneven_problems('o'));
}

TEST_CASE("each setting of grouped 1F1B-I has an effect", "[settings]") {
  changed_field<grouped_interleaved> const fields[]{ZBPP_FIELD(group, 4), ZBPP_FIELD(fused, true)};
  problem const even(placement::looped(4, 2), 8, uneven_costs());
  check_fields(fields, grouped_interleaved{}, [&](grouped_interleaved const& decide) {
    return to_csv(decide(even));
  });
}

TEST_CASE("a budget that is no number is refused, whether it is needed or not", "[settings]") {
  search_settings const wrong{.seconds = std::numeric_limits<double>::quiet_NaN()};
  std::string const text = "a budget of nan seconds; it lies between 0 and 1000000.000000";
  auto const refused = [](auto const& decide, placement const& placement) {
    problem const roomy(placement, 4, uneven_costs(), 87);
    return refusal([&] { static_cast<void>(decide(roomy)); });
  };
  auto const v = placement::v_shape(2);
  CHECK(refused(greedy_auto{.search = wrong}, v) == text);
  CHECK(refused(v_half{.search = wrong}, v) == text);
  CHECK(refused(v_min{.search = wrong}, v) == text);
  CHECK(refused(interleaved_zb{.search = wrong}, placement::looped(2, 2)) == text);
  problem const roomy(v, 4, uneven_costs(), 87);
  CHECK(refusal([&] { static_cast<void>(find_plan(roomy, {.seconds = wrong.seconds})); }) == text);
}

namespace {

problem uneven_layers(placement const& placement, int count, std::uint64_t seed) {
  seeded_random random(seed, 0);
  problem const model(
      random_layers(random, count), {.ranks = placement.ranks(), .microbatches = 6, .transfer = 5});
  return with_placement(model, placement);
}

void add_plan(std::string& text, found_plan const& found) {
  text += found.problem.placement().text() + to_csv(found.schedule);
  add_all(text, found.problem.first_layer());
  add(text, found.cost, found.lower_bound, found.tries);
}

}  // namespace

TEST_CASE("each choice of a plan has an effect", "[settings][long]") {
  std::vector<problem> models;
  for (std::uint64_t seed : {1U, 4U, 5U, 6U})
    models.push_back(uneven_layers(placement::linear(3), 9, seed));
  auto const effect = [&](plan_choices const& choices) {
    calls = 0;
    std::string text;
    for (auto const& model : models) add_plan(text, find_plan(model, choices));
    add(text, calls);
    return text;
  };
  plan_choices const some{.seconds = 0.05};
  changed_field<plan_choices> const fields[]{
      ZBPP_FIELD(placement, placement::linear(3)),
      {"first_layer",
       [](auto& c) {
         c.placement = placement::linear(3);
         c.first_layer = {0, 1, 2};
       }},
      ZBPP_FIELD(recompute, {true, false, false}),  // is refused
      ZBPP_FIELD(policy, one_f_one_b{}),
      ZBPP_FIELD(most_chunks, 2),
      ZBPP_FIELD(most_cuts, -1),  // is refused
      ZBPP_FIELD(most_memory_for, 0.2),
      ZBPP_FIELD(stage_per_layer, true),
      ZBPP_FIELD(seconds, 0),
      ZBPP_FIELD(seed, 17),
      ZBPP_FIELD(stop, is_stopped),
      {"on_progress", [](auto& c) { c.on_progress = [](search_progress const&) { ++calls; }; }}};
  check_fields(fields, some, effect);
  auto few = some;
  few.policy = one_f_one_b{};
  auto fewer = few;
  fewer.most_cuts = 1;
  CHECK(effect(fewer) != effect(few));
}

TEST_CASE("each setting of a search for cuts has an effect", "[settings]") {
  auto const layers = uneven_layers(placement::linear(4), 18, 7);
  changed_field<detail::cut_settings> const cuts[]{
      ZBPP_FIELD(schedules, 1),
      ZBPP_FIELD(seed, 17),
      ZBPP_FIELD(stop, is_stopped),
      {"on_progress", [](auto& s) { s.on_progress = [](search_progress const&) { ++calls; }; }}};
  check_fields(cuts, {.schedules = 60}, [&](detail::cut_settings const& settings) {
    calls = 0;
    std::string text;
    add_plan(text, detail::search_cuts(layers, one_f_one_b{}, settings));
    add(text, calls);
    return text;
  });

  auto const looped = uneven_layers(placement::looped(3, 3), 24, 7);
  changed_field<detail::bottleneck_settings> const steps[]{ZBPP_FIELD(steps, 1)};
  check_fields(steps, {}, [&](detail::bottleneck_settings const& settings) {
    auto const found = detail::bottleneck_partition(looped.layers(), looped.placement(), settings);
    std::string text;
    add_all(text, found.first_layer);
    add(text, found.work, found.memory, found.optimal);
    return text;
  });
  CHECK(refusal([&] {
          static_cast<void>(
              detail::bottleneck_partition(looped.layers(), looped.placement(), {-1}));
        }) == "bottleneck_settings::steps is below 0; give a number of steps from 0");
}

// --- files and pictures

TEST_CASE("each option of files and pictures has an effect", "[settings]") {
  problem const on_v(placement::v_shape(2), 8, uneven_costs(), 87);
  auto const order = dualpipe_v{}(on_v);
  auto const line = simulate(order, on_v);

  changed_field<csv_options> const csv[]{ZBPP_FIELD(overlap, true), ZBPP_FIELD(for_pytorch, true)};
  auto const code = lower(order);
  check_fields(
      csv, {}, [&](csv_options options) { return to_csv(order, options) + to_csv(code, options); });

  changed_field<ascii_options> const ascii[]{
      ZBPP_FIELD(width, 60), ZBPP_FIELD(colour, true), ZBPP_FIELD(legend, false)};
  check_fields(ascii, {}, [&](ascii_options options) { return to_ascii(line, options); });

  changed_field<svg_options> const svg[]{ZBPP_FIELD(width, 600), ZBPP_FIELD(row_height, 11)};
  check_fields(svg, {}, [&](svg_options options) { return to_svg(line, options); });

  std::vector<sweep_curve> const curves{{"v", {{1000, 0.2, 0.1, false}, {2000, 0.1, 0.1, true}}}};
  changed_field<sweep_svg_options> const sweep[]{
      ZBPP_FIELD(width, 600),
      ZBPP_FIELD(height, 300),
      ZBPP_FIELD(title, "a title"),
      ZBPP_FIELD(unit, "GB")};
  check_fields(
      sweep, {}, [&](sweep_svg_options const& options) { return sweep_to_svg(curves, options); });
}

TEST_CASE("each part of a chart changes the picture", "[settings]") {
  chart_panel const usual{.curves = {{"a", {{1, 20}, {2, 25}}}, {"b", {{1, 25}, {2, 20}}}}};
  auto const draw = [](chart_panel const& panel) { return to_svg(line_chart{.panels = {panel}}); };

  changed_field<line_chart> const fields[]{
      ZBPP_FIELD(title, "a title"),
      {"vertical", [](auto& c) { c.vertical.title = "loss"; }},
      {"panels", [](auto& c) { c.panels.push_back(c.panels[0]); }},
      ZBPP_FIELD(width, 600),
      ZBPP_FIELD(height, 300),
      ZBPP_FIELD(is_overlaid, true),
      ZBPP_FIELD(dashed_meaning, "a bound"),
      ZBPP_FIELD(filled_meaning, "proved"),
      ZBPP_FIELD(hollow_meaning, "found")};
  check_fields(fields, {.panels = {usual}}, [](line_chart const& chart) { return to_svg(chart); });

  changed_field<chart_panel> const panels[]{
      ZBPP_FIELD(title, "a title"),
      {"horizontal", [](auto& p) { p.horizontal.title = "step"; }},
      {"curves", [](auto& p) { p.curves.pop_back(); }},
      ZBPP_FIELD(level, chart_level{22, "level"})};
  check_fields(panels, usual, draw);

  changed_field<chart_axis> const axes[]{
      ZBPP_FIELD(title, "step"),
      ZBPP_FIELD(unit, "ms"),
      {"labels",
       [](auto& a) {
         a.labels = {{1, "low"}};
       }},
      ZBPP_FIELD(is_logarithmic, true),
      ZBPP_FIELD(is_whole, true),
      ZBPP_FIELD(begins_at_zero, true)};
  check_fields(axes, {}, [&](chart_axis const& axis) {
    auto panel = usual;
    panel.horizontal = axis;
    return draw(panel);
  });

  changed_field<chart_curve> const curves[]{
      ZBPP_FIELD(name, "c"),
      {"points", [](auto& c) { c.points.pop_back(); }},
      ZBPP_FIELD(is_dashed, true),
      ZBPP_FIELD(has_marks, false),
      ZBPP_FIELD(colour_like, "a")};
  check_fields(curves, usual.curves[1], [&](chart_curve const& curve) {
    return draw({.curves = {usual.curves[0], curve}});
  });

  changed_field<chart_point> const points[]{
      ZBPP_FIELD(x, 1.5),
      ZBPP_FIELD(y, 21),
      ZBPP_FIELD(title, "a point"),
      ZBPP_FIELD(is_hollow, true)};
  check_fields(points, {1, 20}, [&](chart_point const& point) {
    return draw({.curves = {{"a", {point, {2, 25}}}}});
  });

  changed_field<chart_level> const levels[]{ZBPP_FIELD(value, 22), ZBPP_FIELD(name, "entropy")};
  check_fields(levels, {21, "level"}, [&](chart_level const& level) {
    return draw({.curves = usual.curves, .level = level});
  });

  changed_field<chart_label> const labels[]{ZBPP_FIELD(value, 0), ZBPP_FIELD(text, "first")};
  check_fields(labels, {1, "one"}, [&](chart_label const& label) {
    return draw({.horizontal = {.labels = {label}}, .curves = usual.curves});
  });
}

TEST_CASE("each part of a timeline with a name is drawn", "[settings]") {
  static problem const linear(placement::linear(2), 3, uneven_costs(), 87);
  static auto const order = zb_h1{}(linear);
  changed_field<named_timeline> const fields[]{
      ZBPP_FIELD(name, "another name"),
      ZBPP_FIELD(line, simulate(gpipe{}(linear), linear)),
      ZBPP_FIELD(memory, activation_profile(order, linear)),
      {"updates",
       [](auto& t) {
         auto const code = lower(order, {.step = step_kind::synchronous});
         t.updates = simulate_steps(code, linear, 1).updates;
       }},
      {"reductions",
       [](auto& t) {
         t.reductions = rows<timed_reduction>(
             std::vector<std::vector<timed_reduction>>{{{0, 1, 2}}, {{1, 1, 2}}});
       }},
      {"path",
       [](auto& t) {
         t.path.push_back({0, 1, 2});
       }},
      {"longer", [](auto& t) {
         t.longer.push_back({1, 2, 3});
       }}};
  check_fields(fields, {"a name", simulate(order, linear)}, [](named_timeline const& drawn) {
    std::vector const one{drawn};
    return to_ascii(one) + to_svg(one) + to_chrome_trace(one);
  });
}

}  // namespace test_settings

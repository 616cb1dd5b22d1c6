// SPDX-License-Identifier: Apache-2.0
//
// The optimizers of optim/: their arithmetic beside the formulas in double, and steps that come
// back to the very bits.
#include <zbpp/optim/adamw.hpp>
#include <zbpp/optim/detail/adamw_numbers.hpp>
#include <zbpp/optim/sgd.hpp>

#include <support/catch.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace test_optim {

using namespace zbpp;
using namespace zbpp::test;
using namespace zbpp::optim;

namespace {

constexpr std::size_t size = 37;  // no multiple of what compilers take at once

arena& memory() {
  static arena all;
  return all;
}
pass_context ctx() { return pass_context(memory()); }

constexpr std::size_t fixed = 5;  // weights of the first layer, which do not decay

// Weights and gradients in two layers of uneven size.
struct values {
  std::vector<float> weights = std::vector<float>(size);
  std::vector<float> gradients = std::vector<float>(size);

  explicit values(seeded_random& random) {
    for (auto& w : weights) w = static_cast<float>(random.real(-1, 1));
    refill(random);
  }
  void refill(seeded_random& random) {
    for (auto& g : gradients) g = static_cast<float>(random.real(-1, 1));
  }
  [[nodiscard]] std::vector<layer> layers() {
    std::span const w(weights);
    std::span const g(gradients);
    return {
        {.weights = w.first(fixed), .gradients = g.first(fixed), .decays = false},
        {w.subspan(fixed), g.subspan(fixed)}};
  }
};

bool is_same(std::vector<float> const& a, std::vector<float> const& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

template <class Optimizer>
std::vector<float> moments_of(Optimizer& of) {
  std::vector<float> all;
  auto const add = [&](std::span<float const> more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  if constexpr (std::is_same_v<Optimizer, sgd>) {
    add(of.momentum());
  } else {
    add(of.mean());
    add(of.mean_square());
  }
  return all;
}

// Takes steps in all ways: final; early and committed; early, undone and then final with another
// coefficient. All must leave the bits that final steps leave.
template <class Optimizer, class Settings>
void check_ways(Settings settings) {
  for (auto undo : {undo_method::weights, undo_method::copies}) {
    settings.undo = undo;
    ZBPP_SEEDED(random, 5);
    values plain(random);
    auto early = plain;
    auto undone = plain;
    Optimizer by_final(plain.layers(), settings);
    Optimizer by_commit(early.layers(), settings);
    Optimizer by_undo(undone.layers(), settings);
    for (int step = 0; step < 20; ++step) {
      plain.refill(random);
      early.gradients = plain.gradients;
      undone.gradients = plain.gradients;
      step_settings update{
          .updates = step,
          .learning_rate = 0.01,
          .coefficient = step % 3 == 0 ? 0.37 : 1.0,
          .gradient_scale = 4};
      by_final.step(update, ctx());
      auto const before = undone.weights;
      auto const moments = moments_of(by_undo);
      update.is_final = false;
      by_commit.step(update, ctx());
      CHECK(is_same(early.weights, plain.weights));
      by_commit.commit(ctx());
      auto wrong = update;
      wrong.coefficient = 1;
      by_undo.step(wrong, ctx());
      by_undo.undo(ctx());
      REQUIRE(is_same(undone.weights, before));
      REQUIRE(is_same(moments_of(by_undo), moments));
      update.is_final = true;
      by_undo.step(update, ctx());
      for (auto* other : {&early, &undone}) {
        CHECK(is_same(other->weights, plain.weights));
        CHECK(is_same(other->gradients, std::vector<float>(size, 0.0F)));
      }
      CHECK(is_same(moments_of(by_commit), moments_of(by_final)));
      CHECK(is_same(moments_of(by_undo), moments_of(by_final)));
    }
  }
}

}  // namespace

TEST_CASE(
    "a step early and committed, or undone and taken again, has the bits of a final one",
    "[optim]") {
  check_ways<sgd>(sgd_settings{.momentum = 0.9F, .weight_decay = 0.01F});
  check_ways<sgd>(sgd_settings{});
  check_ways<adamw>(adamw_settings{.weight_decay = 0.1F});
}

TEST_CASE("AdamW follows its formula", "[optim]") {
  ZBPP_SEEDED(random, 1);
  values all(random);
  std::vector<double> w(all.weights.begin(), all.weights.end());
  std::vector<double> m(size, 0);
  std::vector<double> v(size, 0);
  adamw own(all.layers(), {.beta1 = 0.9F, .beta2 = 0.95F, .epsilon = 1e-6F, .weight_decay = 0.1F});
  for (int t = 1; t <= 50; ++t) {
    all.refill(random);
    constexpr double rate = 0.02;
    constexpr double coefficient = 0.5;
    constexpr double scale = 8;
    for (std::size_t i = 0; i < size; ++i) {
      auto const g = static_cast<double>(all.gradients[i]) * coefficient / scale;
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.95 * v[i] + 0.05 * g * g;
      auto const unbiased_m = m[i] / (1 - std::pow(0.9, t));
      auto const unbiased_v = v[i] / (1 - std::pow(0.95, t));
      w[i] = w[i] * (1 - rate * (i < fixed ? 0 : 0.1)) -
             rate * unbiased_m / (std::sqrt(unbiased_v) + 1e-6);
    }
    own.step(
        {.updates = t - 1,
         .learning_rate = rate,
         .coefficient = coefficient,
         .gradient_scale = scale},
        ctx());
    for (std::size_t i = 0; i < size; ++i)
      REQUIRE(std::abs(static_cast<double>(all.weights[i]) - w[i]) < 1e-5);
  }
}

TEST_CASE("corrections of bias have the bits of std::pow", "[optim]") {
  ZBPP_SEEDED(random, 4);
  adamw_settings by;
  auto const check = [&](std::int64_t updates) {
    step_settings const settings{.updates = updates, .learning_rate = 0.01};
    auto const found = optim::detail::numbers_of(by, settings);
    auto const count = static_cast<double>(updates + 1);
    auto const correction = [&](float share) {
      return 1 - std::pow(static_cast<double>(share), count);
    };
    return found.rate == static_cast<float>(0.01 / correction(by.beta1)) &&
           found.unbias_square == static_cast<float>(1 / correction(by.beta2));
  };
  for (float const mean : {0.0F, 0.5F, 0.9F, 0.95F})
    for (float const square : {0.9F, 0.95F, 0.999F, 0.9999F}) {
      by.beta1 = mean;
      by.beta2 = square;
      std::int64_t wrong = 0;
      for (std::int64_t updates = 0; updates < 2000; ++updates) wrong += check(updates) ? 0 : 1;
      CHECK(wrong == 0);
    }
  for (int i = 0; i < 10000; ++i) {
    by.beta1 = static_cast<float>(random.real());
    by.beta2 = static_cast<float>(random.real());
    auto const updates = random.integer(0, std::int64_t{1} << random.integer(0, 60));
    INFO(by.beta1 << " " << by.beta2 << " " << updates);
    if (!check(updates)) CHECK(updates < 0);
  }
}

TEST_CASE("SGD follows its formula", "[optim]") {
  ZBPP_SEEDED(random, 2);
  values all(random);
  std::vector<double> w(all.weights.begin(), all.weights.end());
  std::vector<double> v(size, 0);
  sgd own(all.layers(), {.momentum = 0.8F, .weight_decay = 0.05F});
  for (int t = 0; t < 50; ++t) {
    all.refill(random);
    for (std::size_t i = 0; i < size; ++i) {
      v[i] = 0.8 * v[i] + static_cast<double>(all.gradients[i]) + (i < fixed ? 0 : 0.05) * w[i];
      w[i] -= 0.01 * v[i];
    }
    own.step({.updates = t, .learning_rate = 0.01}, ctx());
    for (std::size_t i = 0; i < size; ++i)
      REQUIRE(std::abs(static_cast<double>(all.weights[i]) - w[i]) < 1e-5);
  }
}

TEST_CASE("gradients are measured by layer, and skipped ones are gone", "[optim]") {
  ZBPP_SEEDED(random, 3);
  values all(random);
  sgd own(all.layers());
  REQUIRE(own.layers() == 2);
  std::vector<gradient_state> states(2);
  own.measure(states, ctx());
  double sum = 0;
  for (std::size_t i = fixed; i < size; ++i)
    sum += static_cast<double>(all.gradients[i]) * static_cast<double>(all.gradients[i]);
  CHECK(std::abs(states[1].sum_of_squares - sum) < 1e-12);
  for (float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    all.gradients[2] = bad;
    own.measure(states, ctx());
    CHECK_FALSE(states[0].is_finite);
    CHECK(states[1].is_finite);
  }
  all.gradients[2] = std::numeric_limits<float>::max();  // its square is no float
  own.measure(states, ctx());
  CHECK(states[0].is_finite);
  auto const before = all.weights;
  own.skip(ctx());
  CHECK(is_same(all.weights, before));
  CHECK(is_same(all.gradients, std::vector<float>(size, 0.0F)));
}

TEST_CASE("a layer with fewer gradients than weights is refused", "[optim]") {
  std::vector<float> weights(3);
  std::vector<float> gradients(2);
  CHECK(refusal([&] {
          sgd({{weights, gradients}});
        }) == "a layer has as many gradients as weights");
}

TEST_CASE("settings of optimizers that are out of bounds are refused by name", "[optim]") {
  std::vector<float> weights(3), gradients(3);
  constexpr auto nan = std::numeric_limits<float>::quiet_NaN();
  constexpr auto infinite = std::numeric_limits<float>::infinity();
  auto const with_adamw = [&](adamw_settings const& settings) {
    return refusal([&] { adamw({{weights, gradients}}, settings); });
  };
  auto const with_sgd = [&](sgd_settings const& options) {
    return refusal([&] { sgd({{weights, gradients}}, options); });
  };
  for (float wrong : {-0.1F, 1.0F, nan, infinite}) {
    CHECK(with_adamw({.beta1 = wrong}) == "adamw_settings::beta1 is a share from 0 to below 1");
    CHECK(with_adamw({.beta2 = wrong}) == "adamw_settings::beta2 is a share from 0 to below 1");
    CHECK(with_sgd({.momentum = wrong}) == "sgd_settings::momentum is a share from 0 to below 1");
  }
  for (float wrong : {-1e-8F, nan, infinite}) {
    CHECK(with_adamw({.epsilon = wrong}) == "adamw_settings::epsilon is a number from 0");
    CHECK(with_adamw({.weight_decay = wrong}) == "adamw_settings::weight_decay is a number from 0");
    CHECK(with_sgd({.weight_decay = wrong}) == "sgd_settings::weight_decay is a number from 0");
  }
}

namespace {

// A layer whose memory is another one whenever it is asked for, and which can be frozen.
class moving final : public layer_source {
 public:
  bool is_frozen = false;
  std::vector<float> weights = {1, 2, 3};
  std::vector<float> gradients = std::vector<float>(3);

  bool locate(layer& found) override {
    if (is_frozen) return false;
    locate_weights(found);
    gradients = std::vector<float>(gradients);
    found.gradients = gradients;
    return true;
  }
  void locate_weights(layer& found) const override {
    auto& own = const_cast<std::vector<float>&>(weights);
    own = std::vector<float>(own);
    found.weights = own;
  }
  void hold_gradients() override {
    held_ = std::move(gradients);
    gradients.assign(3, 0.0F);
  }
  void return_gradients(bool was_undone) override {
    if (was_undone) gradients = held_;
  }

 private:
  std::vector<float> held_;
};

}  // namespace

TEST_CASE("a layer that moves and freezes steps as one that stays", "[optim]") {
  auto const check = [](auto make) {
    ZBPP_SEEDED(random, 6);
    auto const source = std::make_shared<moving>();
    source->is_frozen = random.chance(0.5);
    std::vector<float> fixed_weights(3, 1.0F);
    std::vector<float> fixed_gradients(3);
    std::vector<float> weights = source->weights;
    std::vector<float> gradients(3);
    layer made{{}, {}, false, true, source};
    if (!source->is_frozen) source->locate(made);
    auto own = make(std::vector<layer>{made, {fixed_weights, fixed_gradients}});
    auto plain = make(std::vector<layer>{{weights, gradients}});
    CHECK(own.has_moments(0) == !source->is_frozen);
    bool was_trained = !source->is_frozen;
    std::int64_t taken = 0;  // by the layer
    for (int step = 0; step < 40; ++step) {
      source->is_frozen = random.chance(0.5);
      was_trained = was_trained || !source->is_frozen;
      for (auto& g : source->gradients) g = static_cast<float>(random.real(-1, 1));
      for (auto& g : fixed_gradients) g = static_cast<float>(random.real(-1, 1));
      gradients = source->gradients;
      std::vector<gradient_state> states(2);
      own.measure(states, ctx());
      CHECK((states[0] == gradient_state{}) == source->is_frozen);
      step_settings settings{.updates = step, .learning_rate = 0.01};
      if (!source->is_frozen) plain.step({.updates = taken++, .learning_rate = 0.01}, ctx());
      settings.is_final = random.chance(0.3);
      own.step(settings, ctx());
      if (!settings.is_final && random.chance(0.5)) {
        own.undo(ctx());
        settings.is_final = true;
        own.step(settings, ctx());
      } else if (!settings.is_final) {
        own.commit(ctx());
      }
      CHECK(is_same(source->weights, weights));
      CHECK(own.has_moments(0) == was_trained);
    }
    own.keep_moments(0, false);
    CHECK(own.first_moment(1) == 0);
    own.keep_moments(0, true);
    CHECK(own.first_moment(1) == 3);
  };
  for (auto const undo : {undo_method::weights, undo_method::copies}) {
    check([&](std::vector<layer> layers) {
      return adamw(std::move(layers), {.weight_decay = 0.1F, .undo = undo});
    });
    check([&](std::vector<layer> layers) {
      return sgd(std::move(layers), {.momentum = 0.5F, .weight_decay = 0.1F, .undo = undo});
    });
  }
}

namespace {

// Steps a parameter that is trained in some steps of a run only, in double.
struct reference {
  std::vector<double> weights = {1, 2, 3};
  std::vector<double> mean = std::vector<double>(3);
  std::vector<double> mean_square = std::vector<double>(3);
  int taken = 0;

  void step(std::vector<float> const& gradients) {
    ++taken;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      auto const g = static_cast<double>(gradients[i]);
      mean[i] = 0.9 * mean[i] + 0.1 * g;
      mean_square[i] = 0.999 * mean_square[i] + 0.001 * g * g;
      auto const m = mean[i] / (1 - std::pow(0.9, taken));
      auto const v = mean_square[i] / (1 - std::pow(0.999, taken));
      weights[i] -= 0.1 * m / (std::sqrt(v) + 1e-8);
    }
  }
};

// AdamW of one layer that can be frozen, and of one that stays as it is.
struct freezing_adamw {
  std::shared_ptr<moving> source = std::make_shared<moving>();
  std::vector<float> other_weights = std::vector<float>(2, 1.0F);
  std::vector<float> other_gradients = std::vector<float>(2);
  adamw own;

  explicit freezing_adamw(undo_method undo = undo_method::weights, bool is_frozen = false)
      : own(layers(is_frozen), {.undo = undo}) {}

  void step(step_settings const& settings, std::vector<float> const& gradients, bool is_frozen) {
    source->is_frozen = is_frozen;
    source->gradients = gradients;
    own.step(settings, ctx());
  }
  [[nodiscard]] bool is_near(reference const& expected) const {
    for (std::size_t i = 0; i < 3; ++i)
      if (std::abs(static_cast<double>(source->weights[i]) - expected.weights[i]) > 1e-5)
        return false;
    return true;
  }

 private:
  std::vector<layer> layers(bool is_frozen) {
    source->is_frozen = is_frozen;
    layer made{{}, {}, false, true, source};
    if (!is_frozen) source->locate(made);
    return {made, {other_weights, other_gradients}};
  }
};

step_settings settings_of(std::int64_t updates) {
  return {.updates = updates, .learning_rate = 0.1};
}

std::vector<float> random_gradients(seeded_random& random) {
  std::vector<float> made(3);
  for (auto& g : made) g = static_cast<float>(random.real(-1, 1));
  return made;
}

}  // namespace

TEST_CASE("a layer that was frozen steps as one of a fresh AdamW", "[optim]") {
  for (auto const undo : {undo_method::weights, undo_method::copies})
    for (bool const was_trained : {false, true})
      for (int const frozen : {1, 7, 1000}) {
        ZBPP_SEEDED(random, static_cast<std::uint64_t>(frozen));
        CAPTURE(was_trained, frozen);
        freezing_adamw some(undo, !was_trained);
        reference expected;
        std::int64_t updates = 0;
        auto const train = [&](int steps) {
          for (int i = 0; i < steps; ++i) {
            auto const gradients = random_gradients(random);
            expected.step(gradients);
            some.step(settings_of(updates++), gradients, false);
            REQUIRE(some.is_near(expected));
          }
        };
        train(was_trained ? 3 : 0);
        auto const before = some.source->weights;
        for (int i = 0; i < frozen; ++i) some.step(settings_of(updates++), {5, 5, 5}, true);
        CHECK(is_same(some.source->weights, before));
        CHECK(some.own.missed_steps()[0] == frozen);
        CHECK(some.own.missed_steps()[1] == 0);
        train(20);
        CHECK(some.own.missed_steps()[0] == frozen);
      }
}

TEST_CASE("what a step that is taken back has counted is gone", "[optim]") {
  for (auto const undo : {undo_method::weights, undo_method::copies}) {
    ZBPP_SEEDED(random, 7);
    freezing_adamw some(undo, true);
    reference expected;
    std::int64_t updates = 0;
    std::int64_t missed = 0;
    for (int round = 0; round < 60; ++round) {
      auto const gradients = random_gradients(random);
      bool const is_frozen = round < 2 || random.chance(0.5);
      auto early = settings_of(updates);
      early.is_final = false;
      auto const before = some.source->weights;
      some.step(early, gradients, is_frozen);
      CHECK(some.own.missed_steps()[0] == missed);
      auto const act = random.integer(0, 3);
      if (act > 0) {
        some.own.undo(ctx());
        CHECK(some.own.missed_steps()[0] == missed);
        CHECK(is_same(some.source->weights, before));
      }
      if (act == 1) {
        some.own.skip(ctx());  // the run does not count the step
        CHECK(some.own.missed_steps()[0] == missed);
        continue;
      }
      if (act == 0)
        some.own.commit(ctx());
      else
        some.step(settings_of(updates), gradients, is_frozen);
      ++updates;
      if (is_frozen) ++missed;
      if (!is_frozen) expected.step(gradients);
      CHECK(some.own.missed_steps()[0] == missed);
      CHECK(some.is_near(expected));
    }
    CHECK(missed > 2);
    CHECK(expected.taken > 2);
  }
}

TEST_CASE("a layer that missed more steps than there were steps as in the first one", "[optim]") {
  ZBPP_SEEDED(random, 9);
  freezing_adamw first;
  freezing_adamw other;
  other.own.missed_steps()[0] = 50;
  auto const gradients = random_gradients(random);
  first.step(settings_of(0), gradients, false);
  other.step(settings_of(3), gradients, false);
  CHECK(is_same(other.source->weights, first.source->weights));
}

TEST_CASE("AdamW goes on from the steps that its layers had missed", "[optim]") {
  for (bool const tells : {true, false}) {
    ZBPP_SEEDED(random, 10);
    freezing_adamw whole;
    std::int64_t updates = 0;
    for (; updates < 9; ++updates)
      whole.step(settings_of(updates), random_gradients(random), updates > 0 && updates < 7);
    freezing_adamw again;
    again.source->weights = whole.source->weights;
    std::ranges::copy(whole.own.mean(), again.own.mean().begin());
    std::ranges::copy(whole.own.mean_square(), again.own.mean_square().begin());
    if (tells) std::ranges::copy(whole.own.missed_steps(), again.own.missed_steps().begin());
    auto const gradients = random_gradients(random);
    whole.step(settings_of(updates), gradients, false);
    // Without the number a layer has taken all steps of the run, as older checkpoints have it.
    again.step(settings_of(updates), gradients, false);
    CHECK(is_same(whole.source->weights, again.source->weights) == tells);
    CHECK(again.own.missed_steps()[0] == (tells ? 6 : 0));
  }
}

TEST_CASE("replicas that share AdamW keep the steps that each layer missed", "[optim]") {
  ZBPP_SEEDED(random, 11);
  freezing_adamw whole;
  freezing_adamw first;
  freezing_adamw second;
  first.own.share(0, 1);
  second.own.share(1, 2);
  for (int step = 0; step < 12; ++step) {
    auto const gradients = random_gradients(random);
    for (auto* each : {&whole, &first, &second}) {
      each->other_gradients = {gradients[0], gradients[1]};
      each->step(settings_of(step), gradients, step > 1 && step < 6);
    }
    CHECK(is_same(first.source->weights, whole.source->weights));
    CHECK(is_same(second.other_weights, whole.other_weights));
  }
  CHECK(first.own.missed_steps()[0] == 4);
}

}  // namespace test_optim

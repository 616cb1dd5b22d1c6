// SPDX-License-Identifier: Apache-2.0
//
// Checks the hand-written gradients of the model: against central differences of the loss for every
// parameter, and bit for bit against themselves in every order and cut in which a pipeline may run
// the passes. Exit status 1 and a line for each fault.
#include "sequential.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace gpt {
namespace {

constexpr int microbatches = 3;
// Random directions and single elements for each parameter.
#ifdef ZBPP_SLOW_BUILD  // a sanitizer, which makes each of them ten times as dear
constexpr int directions = 1;
#else
constexpr int directions = 3;
#endif
constexpr std::uint64_t seed = 7;
constexpr std::int64_t step = 5;
constexpr model_config tiny{.layers = 3, .width = 64, .context = 21, .sequences = 2};

int faults = 0;

/// Counts a fault unless `good`, and prints it.
void expect(bool good, std::string const& what) {
  if (good) return;
  ++faults;
  std::printf("FAILED  %s\n", what.c_str());
}

/// Hands out arrays that lie one float beside a cache line, filled with signalling rubbish: results
/// must depend neither on where an array lies nor on what it held.
struct shifted_memory {
  struct tensor {
    floats owner;
    float* data() { return owner.empty() ? nullptr : owner.data() + 1; }
    float const* data() const { return owner.empty() ? nullptr : owner.data() + 1; }
  };
  static tensor allocate(index count) {
    tensor t{floats(static_cast<std::size_t>(count) + 1)};
    std::fill(t.owner.begin(), t.owner.end(), std::bit_cast<float>(0x7fc12345U));
    return t;
  }
  static tensor allocate_edge(index count) { return allocate(count); }
};

/// Makes a text with some structure.
text make_text() {
  std::vector<std::uint8_t> bytes;
  for (std::uint64_t i = 0; i < 4000; ++i)
    bytes.push_back(static_cast<std::uint8_t>(random_bits(seed, i / 3) % 7 * 31 + i % 3));
  return text(std::move(bytes));
}

/// Moves every parameter away from its special first value (0 or 1), so that no gradient is small
/// by accident; a function of what the parameter is, like the first values.
void disturb(chunk& c) {
  auto& p = c.parameters();
  for (auto const& e : p.entries())
    for (index i = 0; i < e.at.size; ++i) {
      auto const bits = random_bits(99, e.part, e.name.size(), e.name.front(), e.name.back(), i);
      p.values()[static_cast<std::size_t>(e.at.offset + i)] += 0.1F * normal(bits);
    }
}

/// Gives the loss of one forward pass over all microbatches.
double loss_of(chunk const& model, text const& on) {
  heap_memory heap;
  double total = 0.0;
  for (int i = 0; i < microbatches; ++i) {
    chunk_saved<heap_memory> keep;
    total += model.forward(heap, keep, batch(tiny, on, seed, step, i), nullptr).loss;
  }
  return total / microbatches;
}

/// Names the order of passes within a run.
enum class order { fused, weights_last, interleaved };

/// Runs a step over the model cut in stages, and returns the mean loss.
template <memory Memory>
double run(std::vector<chunk>& stages, text const& on, order how) {
  Memory at;
  auto const count = stages.size();
  std::vector<std::vector<chunk_saved<Memory>>> keep(microbatches);
  std::vector<batch> of;
  std::vector<double> loss(microbatches);
  for (int i = 0; i < microbatches; ++i) of.emplace_back(tiny, on, seed, step, i);
  auto const forward = [&](std::size_t i) {
    keep[i].resize(count);
    typename Memory::tensor x;
    for (std::size_t s = 0; s < count; ++s) {
      auto out = stages[s].forward(at, keep[i][s], of[i], x.data());
      loss[i] = out.loss;
      x = std::move(out.y);
    }
  };
  auto const backward_input = [&](std::size_t i) {
    typename Memory::tensor dy;
    for (std::size_t s = count; s-- > 0;)
      dy = stages[s].backward_input(at, keep[i][s], std::move(dy));
  };
  auto const backward_weight = [&](std::size_t i) {
    for (std::size_t s = 0; s < count; ++s) stages[s].backward_weight(at, keep[i][s], of[i]);
  };
  for (std::size_t i = 0; i < microbatches; ++i) {
    forward(i);
    if (how == order::weights_last) continue;
    backward_input(i);
    if (how == order::fused) backward_weight(i);
  }
  for (std::size_t i = 0; i < microbatches && how == order::weights_last; ++i) backward_input(i);
  for (std::size_t i = 0; i < microbatches && how != order::fused; ++i) backward_weight(i);
  double total = 0.0;
  for (auto const value : loss) total += value;
  return total / microbatches;
}

/// Cuts the model in stages.
std::vector<chunk> make_stages(index count) {
  std::vector<chunk> stages;
  for (index s = 0; s < count; ++s) {
    stages.emplace_back(tiny, blocks_of_stage(tiny.layers, count, s), microbatches, seed);
    disturb(stages.back());
  }
  return stages;
}

/// Joins the gradients of all stages.
std::vector<float> gradients_of(std::vector<chunk> const& stages) {
  std::vector<float> all;
  for (auto const& s : stages) {
    auto const g = s.parameters().gradients();
    all.insert(all.end(), g.begin(), g.end());
  }
  return all;
}

/// Says whether two arrays hold the same bits.
bool same_bits(std::vector<float> const& a, std::vector<float> const& b) {
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i)
    same = std::bit_cast<std::uint32_t>(a[i]) == std::bit_cast<std::uint32_t>(b[i]);
  return same;
}

/// Compares every cut and order with the whole model run microbatch after microbatch.
void check_orders(text const& on) {
  auto whole = make_stages(1);
  auto const loss = run<heap_memory>(whole, on, order::fused);
  auto const gradients = gradients_of(whole);
  expect(loss > 1.0 && loss < 20.0, "the loss is " + std::to_string(loss));
  for (index const count : {1, 2, 3})
    for (auto const how : {order::fused, order::weights_last, order::interleaved}) {
      auto const name =
          std::to_string(count) + " stages, order " + std::to_string(static_cast<int>(how)) + ": ";
      auto stages = make_stages(count);
      expect(run<heap_memory>(stages, on, how) == loss, name + "another loss");
      expect(same_bits(gradients_of(stages), gradients), name + "other gradients");
      auto shifted = make_stages(count);
      expect(run<shifted_memory>(shifted, on, how) == loss, name + "another loss, shifted");
      expect(same_bits(gradients_of(shifted), gradients), name + "other gradients, shifted");
    }
}

/// Compares the gradient along a direction with a central difference of the loss.
class difference_check {
 public:
  explicit difference_check(text const& on) : text_(on), stages_(make_stages(1)) {
    run<heap_memory>(stages_, text_, order::fused);
  }

  /// @return the model
  [[nodiscard]] chunk& model() { return stages_.front(); }

  /// @param direction  of one piece of the parameters, of any length
  void along(parameter_set::entry const& e, std::vector<double> direction, char const* what) {
    double norm = 0.0;
    for (auto const d : direction) norm += d * d;
    norm = std::sqrt(norm);
    expect(norm > 0.0, std::string(e.name) + ": gradient is 0");
    if (norm == 0.0) return;
    auto const offset = static_cast<std::size_t>(e.at.offset);
    auto& p = model().parameters();
    double slope = 0.0;
    for (std::size_t i = 0; i < direction.size(); ++i) {
      direction[i] /= norm;
      slope += direction[i] * static_cast<double>(p.gradients()[offset + i]);
    }
    // Two step lengths give the error of the third order away (Richardson).
    auto const coarse = central_difference(offset, direction, 2.0 * reach);
    auto const fine = central_difference(offset, direction, reach);
    auto const difference = (4.0 * fine - coarse) / 3.0;
    auto const error = std::abs(difference - slope);
    auto const limit = noise + 5e-4 * std::abs(slope);
    worst_ = std::max(worst_, error / limit);
    if (!(error <= limit)) {
      std::array<char, 200> line{};
      std::snprintf(
          line.data(),
          line.size(),
          "part %d %.*s %s: gradient %.7f, difference %.7f",
          static_cast<int>(e.part),
          static_cast<int>(e.name.size()),
          e.name.data(),
          what,
          slope,
          difference);
      expect(false, line.data());
    }
  }

  /// @return the largest error seen, as a share of what is allowed
  [[nodiscard]] double worst() const { return worst_; }

 private:
  // A longer step leaves less of the noise of single precision in the difference and more of the
  // curvature. Own choice: on two compilers the largest error is half of what this allows.
  static constexpr double reach = 0.03;
  static constexpr double noise = 5e-6;

  double central_difference(
      std::size_t offset, std::vector<double> const& direction, double length) {
    auto const values = model().parameters().values();
    std::vector<float> const before(values.begin(), values.end());
    auto const at = [&](double sign) {
      for (std::size_t i = 0; i < direction.size(); ++i)
        values[offset + i] = before[offset + i] + static_cast<float>(sign * length * direction[i]);
      auto const loss = loss_of(model(), text_);
      std::copy(before.begin(), before.end(), values.begin());
      return loss;
    };
    return (at(1.0) - at(-1.0)) / (2.0 * length);
  }

  text const& text_;
  std::vector<chunk> stages_;
  double worst_ = 0.0;
};

/// Checks each parameter along its gradient, along random directions, and along its largest
/// elements.
void check_differences(text const& on) {
  difference_check check(on);
  auto const entries = check.model().parameters().entries();
  for (auto const& e : entries) {
    auto const g = check.model().parameters().gradients().subspan(
        static_cast<std::size_t>(e.at.offset), static_cast<std::size_t>(e.at.size));
    check.along(e, {g.begin(), g.end()}, "along itself");
    for (std::uint64_t n = 0; n < directions; ++n) {
      // Random signs on the gradient: no direction says more about each of its elements.
      std::vector<double> direction(g.size());
      for (std::size_t i = 0; i < g.size(); ++i)
        direction[i] = static_cast<double>(g[i]) * (random_bits(seed, n, i) % 2 == 0 ? 1.0 : -0.5);
      check.along(e, direction, "along a direction");
    }
    std::vector<double> rest(g.begin(), g.end());
    for (int n = 0; n < directions; ++n) {
      auto const largest = std::max_element(
          rest.begin(), rest.end(), [](double a, double b) { return std::abs(a) < std::abs(b); });
      std::vector<double> direction(g.size());
      direction[static_cast<std::size_t>(largest - rest.begin())] = 1.0;
      check.along(e, direction, "along an element");
      *largest = 0.0;
    }
  }
  std::printf("largest error: %.0f %% of what is allowed\n", 100.0 * check.worst());
}

/// Runs every check and prints the outcome.
int run_checks() {
  auto const on = make_text();
  check_orders(on);
  check_differences(on);
  std::printf("%s, %d faults\n", faults == 0 ? "gradients agree" : "gradients are wrong", faults);
  return faults == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace gpt

int main() { return gpt::run_checks(); }

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
#include <map>
#include <span>
#include <string>
#include <string_view>
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
// The second has its head divided, into 87, 86 and 86 words, and the third its blocks, among two
// members with a head each.
constexpr model_config tiny{.layers = 3, .width = 64, .context = 21, .sequences = 2, .words = 259};
constexpr model_config divided{
    .layers = 3, .width = 64, .context = 21, .sequences = 2, .words = 259, .shards = 3};
constexpr model_config shared{
    .layers = 3, .width = 64, .context = 21, .sequences = 2, .words = 259, .members = 2};

int faults = 0;

/// Counts a fault unless `good`, and prints it.
void expect(bool good, std::string const& what) {
  if (good) return;
  ++faults;
  std::printf("FAILED  %s\n", what.c_str());
}

/// Is what a microbatch keeps in a chunk, and what goes out of it. Arrays lie some floats beside
/// aligned memory, and are filled with signalling rubbish: results must depend neither on where an
/// array lies nor on what it held.
class arrays {
 public:
  arrays(chunk const& of, index shift) : shift_(shift) {
    auto const& size = of.keeps();
    keep_ = {array(size.until_b), array(size.until_w), array(size.gradients)};
    scratch = array(size.scratch);
    y = array(of.floats_out());
    dx = array(of.floats_in());
  }

  [[nodiscard]] kept const& keep() const { return keep_; }

  float* scratch = nullptr;
  float* y = nullptr;
  float* dx = nullptr;

 private:
  [[nodiscard]] float* array(index count) {
    auto& all = owned_.emplace_back(static_cast<std::size_t>(count + shift_));
    std::fill(all.begin(), all.end(), std::bit_cast<float>(0x7fc12345U));
    return all.data() + shift_;
  }

  index shift_;
  std::vector<std::vector<float>> owned_;
  kept keep_;
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
  arrays const at(model, 0);
  double total = 0.0;
  for (int i = 0; i < microbatches; ++i)
    total += model.forward(at.keep(), batch(tiny, on, seed, step, i), nullptr, at.scratch, nullptr);
  return total / microbatches;
}

/// Names the order of passes within a run.
enum class order { fused, weights_last, interleaved };

/// Runs a step over the model cut in stages, and returns the mean loss.
/// @param shift  floats by which arrays lie beside aligned memory
double run(std::vector<chunk>& stages, text const& on, order how, index shift) {
  auto const count = stages.size();
  std::vector<std::vector<arrays>> at(microbatches);
  std::vector<batch> of;
  double total = 0.0;
  for (int i = 0; i < microbatches; ++i) of.emplace_back(tiny, on, seed, step, i);
  auto const forward = [&](std::size_t i) {
    float const* x = nullptr;
    for (auto const& s : stages) {
      auto const& own = at[i].emplace_back(s, shift);
      total += s.forward(own.keep(), of[i], x, own.scratch, own.y);
      x = own.y;
    }
  };
  auto const dy = [&](std::size_t i, std::size_t s) {
    return s + 1 == count ? nullptr : at[i][s + 1].dx;
  };
  auto const backward_input = [&](std::size_t i) {
    for (std::size_t s = count; s-- > 0;)
      stages[s].backward_input(at[i][s].keep(), of[i], dy(i, s), at[i][s].scratch, at[i][s].dx);
  };
  auto const backward_weight = [&](std::size_t i) {
    for (std::size_t s = 0; s < count; ++s)
      stages[s].backward_weight(at[i][s].keep(), of[i], dy(i, s), at[i][s].scratch);
  };
  for (std::size_t i = 0; i < microbatches; ++i) {
    forward(i);
    if (how == order::weights_last) continue;
    backward_input(i);
    if (how == order::fused) backward_weight(i);
  }
  for (std::size_t i = 0; i < microbatches && how == order::weights_last; ++i) backward_input(i);
  for (std::size_t i = 0; i < microbatches && how != order::fused; ++i) backward_weight(i);
  return total / microbatches;
}

/// Cuts a model in stages.
std::vector<chunk> make_stages(model_config const& of, index count) {
  std::vector<chunk> stages;
  for (index s = 0; s < count; ++s) {
    stages.push_back(
        count == 1 ? whole_model(of, microbatches, seed)
                   : chunk(of, layers_of_stage(of, count, s), microbatches, seed));
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
void check_orders(model_config const& of, text const& on) {
  auto whole = make_stages(of, 1);
  auto const loss = run(whole, on, order::fused, 0);
  auto const gradients = gradients_of(whole);
  expect(loss > 1.0 && loss < 20.0, "the loss is " + std::to_string(loss));
  for (index const with_blocks : {1, 2, 3})
    for (auto const how : {order::fused, order::weights_last, order::interleaved})
      for (index const shift : {0, 1}) {
        auto const count = with_blocks + (of.shards > 1 ? of.shards : 0);
        auto const name = std::to_string(count) + " stages, order " +
                          std::to_string(static_cast<int>(how)) + ", shift " +
                          std::to_string(shift) + ": ";
        auto stages = make_stages(of, count);
        expect(run(stages, on, how, shift) == loss, name + "another loss");
        expect(same_bits(gradients_of(stages), gradients), name + "other gradients");
      }
}

/// Compares the gradient along a direction with a central difference of the loss.
class difference_check {
 public:
  difference_check(model_config const& of, text const& on)
      : text_(on), stages_(make_stages(of, 1)) {
    run(stages_, text_, order::fused, 0);
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
void check_differences(model_config const& of, text const& on) {
  difference_check check(of, on);
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

/// Joins the pieces of each name, in the order of the model.
/// @param from  as many numbers as the set has parameters
std::map<std::string_view, std::vector<float>> by_name(
    parameter_set const& of, std::span<float const> from) {
  std::map<std::string_view, std::vector<float>> all;
  for (auto const& e : of.entries()) {
    auto const piece =
        from.subspan(static_cast<std::size_t>(e.at.offset), static_cast<std::size_t>(e.at.size));
    all[e.name].insert(all[e.name].end(), piece.begin(), piece.end());
  }
  return all;
}

/// Compares a model whose head is divided with the one whose head is whole.
/// @param lifted  a shard with logits so large that the others do not count; -1 for none
void check_division(text const& on, index lifted) {
  std::vector<chunk> parts;
  std::vector<chunk> whole;
  parts.push_back(whole_model(divided, microbatches, seed));
  whole.push_back(whole_model(tiny, microbatches, seed));
  auto& from = parts.front().parameters();
  auto& to = whole.front().parameters();
  expect(
      by_name(from, from.values()) == by_name(to, to.values()), "shards begin with other values");

  disturb(parts.front());
  for (auto const& e : from.entries())
    if (e.name == "head bias" && e.part == divided.layers + 1 + lifted)
      for (auto& bias : from.values().subspan(
               static_cast<std::size_t>(e.at.offset), static_cast<std::size_t>(e.at.size)))
        bias += 200.0F;
  auto const values = by_name(from, from.values());
  std::map<std::string_view, index> done;
  for (auto const& e : to.entries()) {
    auto& first = done[e.name];
    std::copy_n(values.at(e.name).begin() + first, e.at.size, to.values().begin() + e.at.offset);
    first += e.at.size;
  }

  auto const name = "shard " + std::to_string(lifted) + " lifted, ";
  auto const expected = run(whole, on, order::fused, 0);
  auto const loss = run(parts, on, order::fused, 0);
  expect(std::abs(loss - expected) <= 1e-6 * expected, name + "loss " + std::to_string(loss));
  auto const gradients = by_name(from, from.gradients());
  for (auto const& [piece, right] : by_name(to, to.gradients())) {
    auto const& own = gradients.at(piece);
    double off = 0.0;
    double size = 0.0;
    for (std::size_t i = 0; i < right.size(); ++i) {
      off += std::pow(static_cast<double>(own[i] - right[i]), 2);
      size += std::pow(static_cast<double>(right[i]), 2);
    }
    expect(
        off <= 1e-10 * size,
        name + std::string(piece) + " is off by " + std::to_string(std::sqrt(off / size)) +
            " of its size");
  }
}

/// Compares a model that members share with the one that is not divided.
void check_shares(text const& on) {
  auto of = shared;
  of.width = 160;  // 5 heads
  double alone = 0.0;
  for (index const members : {1, 2, 3, 5}) {
    of.members = members;
    std::vector<chunk> whole;
    whole.push_back(whole_model(of, microbatches, seed));
    auto const loss = run(whole, on, order::fused, 0);
    if (members == 1) alone = loss;
    expect(
        std::abs(loss - alone) <= 1e-6 * alone,
        std::to_string(members) + " members, loss " + std::to_string(loss) + " for " +
            std::to_string(alone));
  }
}

/// Runs every check and prints the outcome.
int run_checks() {
  auto const on = make_text();
  check_shares(on);
  for (auto const& of : {tiny, divided, shared}) {
    check_orders(of, on);
    check_differences(of, on);
  }
  for (index lifted = -1; lifted < divided.shards; ++lifted) check_division(on, lifted);
  std::printf("%s, %d faults\n", faults == 0 ? "gradients agree" : "gradients are wrong", faults);
  return faults == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace gpt

int main() { return gpt::run_checks(); }

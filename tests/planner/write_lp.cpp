// SPDX-License-Identifier: Apache-2.0
//
// Writes the integer linear program of a problem to standard output, to be given to a solver:
//   write_lp 4 8 20 19 11 1 100 37 400 > four.lp && cbc four.lp sec 100 solve solution four.txt
#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>

#include <support/ilp.hpp>
#include <support/tiny_problem.hpp>

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr char const* usage =
    "usage: write_lp RANKS MICROBATCHES F B W [HOP [ACTIVATION WEIGHT_GRADIENT_INPUT LIMIT]]\n"
    "       write_lp RANKS MICROBATCHES random SEED\n"
    "Times and sizes are whole numbers, the same for all ranks, or random ones for each.\n";

std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t value = 0;
  auto const [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<zbpp::problem> read(std::vector<std::string_view> const& words) {
  bool const is_random = words.size() == 4 && words[2] == "random";
  if (!is_random && words.size() != 5 && words.size() != 6 && words.size() != 9)
    return std::nullopt;
  std::vector<std::int64_t> values;
  for (auto const& word : words) {
    if (word == "random" && is_random) continue;
    auto const value = number(word);
    if (!value) return std::nullopt;
    values.push_back(*value);
  }
  if (values[0] < 1 || values[0] > 1000 || values[1] < 1 || values[1] > 1000) return std::nullopt;
  auto const placement = zbpp::placement::linear(static_cast<int>(values[0]));
  auto const microbatches = static_cast<int>(values[1]);
  if (is_random) {
    zbpp::test::seeded_random random(static_cast<std::uint64_t>(values[2]), 0);
    return zbpp::test::tiny_problem(random, placement, microbatches);
  }
  zbpp::stage_costs costs{
      .forward = values[2], .backward_input = values[3], .backward_weight = values[4]};
  std::vector<zbpp::bytes> limits;
  if (values.size() == 9) {
    costs.activation = values[6];
    costs.weight_gradient_input = values[7];
    limits.push_back(values[8]);
  }
  return zbpp::problem(placement, microbatches, costs, values.size() > 5 ? values[5] : 0, limits);
}

}  // namespace

int main(int count, char** words) {
  try {
    auto const problem = read({words + 1, words + count});
    if (!problem) {
      std::fputs(usage, stderr);
      return 2;
    }
    auto const text = zbpp::test::ilp(*problem).text();
    return std::fputs(text.c_str(), stdout) < 0 ? 1 : 0;
  } catch (std::exception const& fault) {
    std::fprintf(stderr, "write_lp: %s\n", fault.what());
    return 2;
  }
}

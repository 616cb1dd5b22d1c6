// SPDX-License-Identifier: Apache-2.0
//
// The paper's integer linear program, as text in the format of CPLEX that COIN CBC reads. With it a
// solver that knows nothing of pipelines can say what the optimum is.
// @source arXiv 2401.10241 app. G
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/problem.hpp>

#include <array>
#include <sstream>
#include <string>

namespace zbpp::test {

/// Writes the program of a problem with one chunk per rank.
///
/// Variables are the ends of passes (`F_1_0` is that of rank 1's F of microbatch 0), the cost, and
/// for two passes of a rank whose order is open, which one is first (`F1_B0_2` is 1 when F1 runs
/// before B0 on rank 2). Added to what the paper writes down: B after F on the last rank, W after
/// B, and microbatches in turn on each rank, which takes nothing away: microbatches are alike, so
/// those that are out of turn can change their numbers and keep their times.
///
/// Passes may start later than they could. So the optimum is not the least cost that `simulate`
/// gives any order, but the least period: an order meets a cost C when numbers S, the first starts,
/// exist with S(j) + C >= S(i) + L(i, j) for all ranks, and they do exactly if no cycle of ranks
/// has a mean of L above C, see `period`.
class ilp {
 public:
  explicit ilp(problem const& problem) : problem_(problem), last_(problem.microbatches() - 1) {
    zbpp::detail::require(problem.placement().is_linear(), "the program is for one chunk per rank");
    for (int r = 0; r < problem.ranks(); ++r) {
      zbpp::detail::require(
          problem.costs(r).output_gradient == 0, "in the program memory rises with F only");
      for (auto k : kinds) most_ += 2 * problem.microbatches() * problem.costs(r).of(k);
      if (r > 0)
        most_ += 2 * problem.microbatches() *
                 (problem.transfer_time(r - 1, r, 0) + problem.transfer_time(r, r - 1, 0));
    }
    text_ << "Minimize\n obj: cost\nSubject To\n";
    for (int r = 0; r < problem.ranks(); ++r) {
      write_span(r);
      for (int m = 0; m <= last_; ++m) write_inputs(r, m);
      for (auto k : kinds)
        for (int m = 1; m <= last_; ++m) write_after({k, r, m}, {k, r, m - 1}, 0);
      for (int m = 1; m <= last_; ++m)
        for (int earlier = 0; earlier < m; ++earlier) write_open_orders(r, m, earlier);
      for (int m = 0; m <= last_; ++m) write_memory(r, m);
    }
    text_ << "Binary\n" << binaries_.str() << "End\n";
  }

  /// @return the text
  [[nodiscard]] std::string text() const { return text_.str(); }

 private:
  static constexpr std::array kinds{
      pass_kind::forward, pass_kind::backward_input, pass_kind::backward_weight};

  [[nodiscard]] ticks time(pass const& p) const { return problem_.costs(p.stage).of(p.kind); }

  [[nodiscard]] static std::string end(pass const& p) {
    return std::string(to_string(p.kind)) + "_" + std::to_string(p.stage) + "_" +
           std::to_string(p.microbatch);
  }
  // 1 when `a` runs before `b`.
  [[nodiscard]] static std::string first(pass const& a, pass const& b) {
    return std::string(to_string(a.kind)) + std::to_string(a.microbatch) + "_" +
           std::string(to_string(b.kind)) + std::to_string(b.microbatch) + "_" +
           std::to_string(a.stage);
  }

  void write_span(int r) {
    pass const begin{pass_kind::forward, r, 0};
    text_ << " cost - " << end({pass_kind::backward_weight, r, last_}) << " + " << end(begin)
          << " >= " << time(begin) << "\n";
  }

  // `later` starts when `earlier` is over and `hop` has passed.
  void write_after(pass const& later, pass const& earlier, ticks hop) {
    text_ << " " << end(later) << " - " << end(earlier) << " >= " << time(later) + hop << "\n";
  }

  void write_inputs(int r, int m) {
    pass const forward{pass_kind::forward, r, m};
    pass const backward{pass_kind::backward_input, r, m};
    if (r == 0)
      text_ << " " << end(forward) << " >= " << time(forward) << "\n";
    else
      write_after(forward, {pass_kind::forward, r - 1, m}, problem_.transfer_time(r - 1, r, 0));
    if (r + 1 < problem_.ranks())
      write_after(
          backward, {pass_kind::backward_input, r + 1, m}, problem_.transfer_time(r + 1, r, 0));
    else
      write_after(backward, forward, 0);
    write_after({pass_kind::backward_weight, r, m}, backward, 0);
  }

  // Among passes of a microbatch and an earlier one, those whose order does not follow.
  void write_open_orders(int r, int m, int earlier) {
    pass const forward{pass_kind::forward, r, m};
    pass const backward{pass_kind::backward_input, r, m};
    pass const earlier_backward{pass_kind::backward_input, r, earlier};
    pass const earlier_weight{pass_kind::backward_weight, r, earlier};
    write_one_first(forward, earlier_backward);
    write_one_first(forward, earlier_weight);
    write_one_first(backward, earlier_weight);
    // A W that runs before F has its B before F: said again, for passes that take no time.
    text_ << " " << first(forward, earlier_weight) << " - " << first(forward, earlier_backward)
          << " >= 0\n";
  }

  void write_one_first(pass const& a, pass const& b) {
    text_ << " " << end(a) << " - " << end(b) << " + " << most_ << " " << first(a, b)
          << " >= " << time(a) << "\n";
    text_ << " " << end(b) << " - " << end(a) << " - " << most_ << " " << first(a, b)
          << " >= " << time(b) - most_ << "\n";
    binaries_ << " " << first(a, b) << "\n";
  }

  // What is held while F of a microbatch runs: its activation and those of earlier ones, of which B
  // and W have freed their parts if F did not come first.
  void write_memory(int r, int m) {
    auto const limit = problem_.memory_limit(r);
    if (!limit) return;
    auto const& c = problem_.costs(r);
    auto const freed = c.activation - c.weight_gradient_input;
    pass const forward{pass_kind::forward, r, m};
    text_ << " 0 cost";
    for (int earlier = 0; earlier < m; ++earlier)
      text_ << " + " << freed << " " << first(forward, {pass_kind::backward_input, r, earlier})
            << " + " << c.weight_gradient_input << " "
            << first(forward, {pass_kind::backward_weight, r, earlier});
    text_ << " <= " << *limit - c.static_memory - c.activation << "\n";
  }

  problem const& problem_;
  int last_;
  ticks most_ = 0;  // more than any two ends have to be apart
  std::ostringstream text_;
  std::ostringstream binaries_;
};

}  // namespace zbpp::test

// SPDX-License-Identifier: Apache-2.0
//
// The C++ blocks of docs/explaining.md.

// [explain_step
#include <zbpp/plan.hpp>
#include <zbpp/zbpp.hpp>

#include <iostream>

// explain_step]
#include <vector>

namespace docs_explaining {

// [explain_step
template <class Pipeline>
void explain_step(Pipeline& pipe) {
  auto const& step = pipe.step();
  auto const found = zbpp::explain(pipe.planned(), step.measured, {.ranks = step.ranks});
  std::cout << to_text(found, zbpp::time_unit::milliseconds);
}
// explain_step]

// [recorded
template <class Stages>
void print_messages(zbpp::plan const& planned, Stages& stages) {
  zbpp::pipeline pipe{planned, zbpp::threads{.records_messages = true}, stages};
  for (zbpp::timed_message const& m : pipe.step().messages.all()) std::cout << to_string(m) << '\n';
}
// recorded]

// [explain_messages
template <class Pipeline>
zbpp::explanation explain_messages(Pipeline& pipe) {
  auto const& step = pipe.step();
  return zbpp::explain(
      pipe.planned(), step.measured, {.ranks = step.ranks, .messages = step.messages.all()});
}
// explain_messages]

// [slow_rank
template <class Stages>
zbpp::explanation with_slow_rank(zbpp::plan const& planned, Stages& stages) {
  zbpp::virtual_noise const noise{.pass_time = [](int rank, zbpp::pass const&, zbpp::ticks stated) {
    return rank == 1 ? stated * 3 / 2 : stated;
  }};
  zbpp::pipeline pipe{planned, zbpp::virtual_time{noise}, stages};
  return zbpp::explain(planned, pipe.step().measured);
}
// slow_rank]

}  // namespace docs_explaining

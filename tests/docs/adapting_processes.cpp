// SPDX-License-Identifier: Apache-2.0
//
// The C++ block of docs/adapting.md that needs zbpp::asio.
#include <zbpp/adapt/replanner.hpp>
#include <zbpp/asio/measure.hpp>
#include <zbpp/asio/tcp.hpp>
#include <zbpp/zbpp.hpp>

namespace docs_adapting_processes {

template <class Stages>
double train(zbpp::asio::rendezvous& meeting, zbpp::plan const& first, Stages& stages) {
  // [gather
  zbpp::replan_settings settings{.in_background = false};
  settings.gather = [&](zbpp::plan const& running, zbpp::timeline const& own) {
    return zbpp::asio::gather_timeline(meeting, running.schedule(), own);
  };
  zbpp::pipeline pipe{first, zbpp::asio::tcp(meeting), stages};
  zbpp::replanner again(pipe, settings);
  // gather]
  if (auto const better = again.after(pipe.step())) pipe.take(*better);
  return pipe.step().loss();
}

}  // namespace docs_adapting_processes

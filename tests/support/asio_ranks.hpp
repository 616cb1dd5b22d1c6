// SPDX-License-Identifier: Apache-2.0
//
// The ranks of a run as threads of one process, each with a rendezvous and a io_loop of its own.
#pragma once

#include <zbpp/asio/rendezvous.hpp>

#include <chrono>
#include <cstdint>
#include <exception>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace zbpp::test {

/// Patient enough for a busy machine, and for sanitizers.
[[nodiscard]] inline asio::rendezvous_settings patient_settings() {
  asio::rendezvous_settings settings;
  settings.join_deadline = std::chrono::seconds(30);
  settings.collective_deadline = std::chrono::seconds(30);
  settings.deadline = std::chrono::seconds(20);
  return settings;
}

[[nodiscard]] inline asio::run_token test_token() {
  return asio::run_token::from_text("a token for tests only");
}

/// Says how one process is started; its port is that where rank 0 listens.
struct start_of_rank {
  int rank = 0;
  int ranks = 1;
  asio::run_token token = test_token();
  std::string host = "127.0.0.1";  ///< of rank 0, as it is told
};

/// Starts the processes of a run, the first one being rank 0, each as a thread, and runs
/// `body(rendezvous&, index)` in those that find each other.
/// @return for each, what it threw: "" or the code in words and the message
template <class Body>
[[nodiscard]] std::vector<std::string> run_processes(
    std::vector<start_of_rank> const& starts,
    asio::rendezvous_settings const& settings,
    Body body) {
  std::promise<std::uint16_t> listening;
  auto const port = listening.get_future().share();
  std::vector<std::string> thrown(starts.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < starts.size(); ++i)
    threads.emplace_back([&, i] {
      try {
        auto const& given = starts[i];
        auto own = settings;
        asio::launch start{given.rank, given.ranks, given.rank, given.host, 0, "test"};
        if (i == 0)
          own.on_listening = [&](std::uint16_t number) { listening.set_value(number); };
        else
          start.port = port.get();
        asio::rendezvous meeting(start, own, given.token);
        body(meeting, i);
      } catch (error const& wrong) {
        thrown[i] = std::string(to_string(wrong.code())) + ": " + wrong.what();
      } catch (std::exception const& wrong) {
        thrown[i] = wrong.what();
      }
      // Without a rank 0 that listens, nobody waits for its port.
      if (i == 0 && port.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
        listening.set_value(0);
    });
  for (auto& t : threads) t.join();
  return thrown;
}

/// As above, for `ranks` ranks that belong together; `body(rendezvous&)`.
/// @param host_of  where a rank other than 0 is to find rank 0
template <class Body>
[[nodiscard]] std::vector<std::string> run_ranks(
    int ranks,
    asio::rendezvous_settings const& settings,
    Body body,
    std::string (*host_of)(int rank) = [](int) { return std::string("127.0.0.1"); }) {
  std::vector<start_of_rank> starts;
  for (int r = 0; r < ranks; ++r) starts.push_back({r, ranks, test_token(), host_of(r)});
  return run_processes(
      starts, settings, [&](asio::rendezvous& meeting, std::size_t) { body(meeting); });
}

}  // namespace zbpp::test

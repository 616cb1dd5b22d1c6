// SPDX-License-Identifier: Apache-2.0
//
// No setting of a run on several processes is ignored: each field, set to something else, has an
// effect or is refused. What deadlines do when they end is in the tests of those who wait.
#include <zbpp/asio/launch.hpp>
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/asio/settings.hpp>
#include <zbpp/asio/tcp.hpp>
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/plain_flow.hpp>
#include <support/processes.hpp>
#include <support/settings_fields.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace test_asio_settings {

using namespace zbpp;
using namespace std::chrono_literals;
using test::changed_field;
using test::check_fields;
using test::effect_of;

namespace {

std::atomic<int> calls{0};  // of what settings call

asio::launch const alone{0, 1, 0, "127.0.0.1", 0, "test"};

}  // namespace

TEST_CASE("each setting of a rendezvous has an effect", "[asio][settings]") {
  using settings = asio::rendezvous_settings;
  changed_field<settings> const fields[]{
      {"bind", [](auto& s) { s.bind = "127.0.0.2"; }},
      {"advertise", [](auto& s) { s.advertise = "localhost"; }},
      {"join_deadline", [](auto& s) { s.join_deadline = 0ms; }},
      {"collective_deadline", [](auto& s) { s.collective_deadline = 0ms; }},
      {"connect_deadline", [](auto& s) { s.connect_deadline = 0ms; }},
      {"deadline", [](auto& s) { s.deadline = 0ms; }},
      {"stall_deadline", [](auto& s) { s.stall_deadline = 0ms; }},
      {"largest_blob", [](auto& s) { s.largest_blob = 50; }},
      {"on_listening", [](auto& s) { s.on_listening = [](std::uint16_t) { ++calls; }; }}};
  check_fields(fields, {}, [](settings const& changed) {
    calls = 0;
    asio::rendezvous meeting(alone, changed, test::test_token());
    auto text = meeting.everybody().ranks.front().host;
    text += effect_of([&] {
      return " gathers " + std::to_string(meeting.all_gather(asio::blob(100)).front().size());
    });
    return text + ", calls: " + std::to_string(calls);
  });
}

TEST_CASE("a deadline that is over at once is refused by its name", "[asio][settings]") {
  using settings = asio::rendezvous_settings;
  auto const refused = [](std::chrono::milliseconds settings::*deadline) {
    settings changed;
    changed.*deadline = -1ms;
    return effect_of([&] {
      asio::rendezvous const meeting(alone, changed, test::test_token());
      return std::string("it met");
    });
  };
  auto const text = [](std::string const& name) {
    return "refused: rendezvous_settings::" + name + " is 0 ms or less; set it above 0 ms";
  };
  CHECK(refused(&settings::join_deadline) == text("join_deadline"));
  CHECK(refused(&settings::collective_deadline) == text("collective_deadline"));
  CHECK(refused(&settings::connect_deadline) == text("connect_deadline"));
  CHECK(refused(&settings::deadline) == text("deadline"));
  CHECK(refused(&settings::stall_deadline) == text("stall_deadline"));
}

TEST_CASE("each setting of TCP has an effect", "[asio][settings]") {
  using settings = asio::tcp_settings;
  changed_field<settings> const fields[]{
      {"largest_undeclared_message", [](auto& s) { s.largest_undeclared_message = 0; }},
      // How large a buffer of the kernel is shows in speed alone, so what is wrong is refused.
      {"send_buffer", [](auto& s) { s.send_buffer = -1; }},
      {"receive_buffer", [](auto& s) { s.receive_buffer = -1; }},
      {"on_thread_start",
       [](auto& s) { s.on_thread_start = [](std::span<int const>) { ++calls; }; }},
      {"share_losses", [](auto& s) { s.share_losses = true; }},
      {"records_messages", [](auto& s) { s.records_messages = true; }}};
  auto const effect = [](settings const& changed) {
    calls = 0;
    asio::rendezvous meeting(alone, {}, test::test_token());
    problem const alone_there(placement::linear(1), 2, stage_costs{.forward = 1});
    std::array stages{test::plain_flow{}};
    pipeline pipe(make_plan(zb_h1{}, alone_there), asio::tcp(meeting, changed), stages);
    pipe.step();
    // Of two ranks the first one has no losses of its own.
    problem const of_two(placement::linear(2), 2, stage_costs{.forward = 1, .edge = 8});
    std::atomic<bool> has_losses = false;
    std::atomic<std::size_t> messages = 0;
    auto const thrown = test::run_ranks(2, test::patient_settings(), [&](asio::rendezvous& two) {
      std::array own{test::plain_flow{}};
      pipeline part(make_plan(zb_h1{}, of_two), asio::tcp(two, changed), own);
      auto const& step = part.step();
      if (two.rank() == 0) has_losses = !std::isnan(step.loss());
      messages += step.messages.size();
      two.barrier();
    });
    CHECK(thrown == std::vector<std::string>(2));
    return "calls: " + std::to_string(calls) + ", messages: " + std::to_string(messages) +
           (has_losses ? ", all have losses" : "");
  };
  check_fields(fields, {}, effect);
  CHECK(
      effect_of([&] { return effect({.send_buffer = -1}); }) ==
      "refused: tcp_settings::send_buffer is below 0 bytes; give a size, or 0 to leave it to the "
      "kernel");
  CHECK(
      effect_of([&] { return effect({.receive_buffer = -5}); }) ==
      "refused: tcp_settings::receive_buffer is below 0 bytes; give a size, or 0 to leave it to "
      "the kernel");
}

TEST_CASE("each field of a launch has an effect", "[asio][settings]") {
  static auto const nobody = test::free_port();  // listens there
  changed_field<asio::launch> const fields[]{
      {"rank", [](auto& l) { l.rank = 2; }},
      {"ranks", [](auto& l) { l.ranks = 1; }},
      {"local_rank", [](auto& l) { l.local_rank = 5; }},
      {"host", [](auto& l) { l.host = "127.0.0.2"; }},
      {"port", [](auto& l) { l.port = 0; }},
      {"source", [](auto& l) { l.source = "another"; }}};
  check_fields(fields, {1, 2, 1, "127.0.0.1", nobody, "test"}, [](asio::launch const& changed) {
    asio::rendezvous_settings settings;
    settings.join_deadline = 1ms;
    auto text = effect_of([&] {
      asio::rendezvous const meeting(changed, settings, test::test_token());
      return std::string("it met");
    });
    text = text.substr(0, text.find(" within "));  // how often it tried comes behind
    text = text.substr(std::string_view("refused: ").size());
    asio::launch start = alone;
    start.local_rank = changed.local_rank;
    start.source = changed.source;
    asio::rendezvous meeting(start, {}, test::test_token());
    return text + ", local rank " + std::to_string(meeting.local_rank()) + " by " +
           meeting.control_channel().start().source;
  });
}

TEST_CASE("each argument of a launch has an effect", "[asio][settings]") {
  using arguments = asio::launch_arguments;
  changed_field<arguments> const fields[]{
      {"rank", [](auto& a) { a.rank = 2; }},
      {"ranks", [](auto& a) { a.ranks = 5; }},
      {"local_rank", [](auto& a) { a.local_rank = 3; }},
      {"host", [](auto& a) { a.host = "elsewhere"; }},
      {"port", [](auto& a) { a.port = 77; }}};
  auto const look = [](char const* name) -> std::optional<std::string> {
    if (name == std::string_view("RANK") || name == std::string_view("LOCAL_RANK")) return "1";
    if (name == std::string_view("WORLD_SIZE")) return "4";
    return {};
  };
  check_fields(fields, {}, [&](arguments const& given) {
    auto const found = asio::find_launch(given, look);
    std::string text;
    for (int number : {found.rank, found.ranks, found.local_rank, int{found.port}})
      text += std::to_string(number) + " ";
    return text + found.host;
  });
}

}  // namespace test_asio_settings

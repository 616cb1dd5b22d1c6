// SPDX-License-Identifier: Apache-2.0
#include <zbpp/runtime/in_process.hpp>
#include <zbpp/runtime/transport.hpp>

#include <support/catch.hpp>
#include <support/transport_suite.hpp>

#include <memory>
#include <vector>

namespace test_transport {

namespace {

// Has what the concept names and nothing more.
struct archetype {
  static constexpr zbpp::ticks not_yet = -1;
  void bind(int, zbpp::arena&, zbpp::wakeup*) {}
  void post_receive(int, zbpp::bytes) {}
  void send(int, zbpp::message&&, zbpp::ticks) {}
  [[nodiscard]] zbpp::ticks arrival(int, std::int32_t) const { return not_yet; }
  zbpp::message take(int, std::int32_t, zbpp::bytes) { return {}; }
  void retire(int, std::int32_t) {}
  void abort() {}
  void drain() {}
};
struct changes_when_asked : archetype {
  zbpp::ticks arrival(int, std::int32_t) { return not_yet; }
};
struct takes_nothing : archetype {
  void take(int, std::int32_t, zbpp::bytes) {}
};
struct cannot_abort : archetype {
  void abort() = delete;
};
struct without_not_yet {
  void bind(int, zbpp::arena&, zbpp::wakeup*) {}
  void post_receive(int, zbpp::bytes) {}
  void send(int, zbpp::message&&, zbpp::ticks) {}
  [[nodiscard]] zbpp::ticks arrival(int, std::int32_t) const { return 0; }
  zbpp::message take(int, std::int32_t, zbpp::bytes) { return {}; }
  void retire(int, std::int32_t) {}
  void abort() {}
  void drain() {}
};

}  // namespace

TEST_CASE("the transport concept takes what can move messages and nothing else", "[transport]") {
  STATIC_REQUIRE(zbpp::transport<zbpp::in_process>);
  STATIC_REQUIRE(zbpp::transport<archetype>);
  STATIC_REQUIRE_FALSE(zbpp::transport<int>);
  STATIC_REQUIRE_FALSE(zbpp::transport<changes_when_asked>);
  STATIC_REQUIRE_FALSE(zbpp::transport<takes_nothing>);
  STATIC_REQUIRE_FALSE(zbpp::transport<cannot_abort>);
  STATIC_REQUIRE_FALSE(zbpp::transport<without_not_yet>);
}

TEST_CASE("in-process channels do what every transport has to do", "[transport]") {
  zbpp::test::check_transport<zbpp::in_process>(
      [](int ranks, std::vector<zbpp::channel> const& channels) {
        return std::make_unique<zbpp::in_process>(ranks, channels);
      });
}

TEST_CASE("in-process messages carry the time at which they count as arrived", "[transport]") {
  zbpp::in_process transport(2, {{0, 1, 2, 2}, {1, 0, 2, 2}});
  std::array<zbpp::arena, 2> memory;
  for (int rank : {0, 1}) transport.bind(rank, memory[static_cast<std::size_t>(rank)], nullptr);
  transport.send(0, {}, 0);
  transport.send(0, {}, 1234);
  CHECK(transport.arrival(0, 0) == 0);
  CHECK(transport.arrival(0, 1) == 1234);
  CHECK(transport.arrival(0, 2) == zbpp::in_process::not_yet);
}

}  // namespace test_transport

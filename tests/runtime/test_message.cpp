// SPDX-License-Identifier: Apache-2.0
#include <zbpp/runtime/message.hpp>

#include <support/catch.hpp>
#include <support/refusal.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>

namespace test_message {

using namespace zbpp;

TEST_CASE("a message is made of buffers and of nothing else", "[message]") {
  STATIC_REQUIRE(std::is_constructible_v<message, buffer>);
  STATIC_REQUIRE(std::is_constructible_v<message, buffer&, buffer const&, buffer>);
  STATIC_REQUIRE(std::is_convertible_v<buffer, message>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<message, int>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<message, message&, buffer>);
  STATIC_REQUIRE_FALSE(std::is_constructible_v<
                       message,
                       buffer,
                       buffer,
                       buffer,
                       buffer,
                       buffer,
                       buffer,
                       buffer,
                       buffer,
                       buffer>);
  STATIC_REQUIRE(std::is_nothrow_move_constructible_v<message>);
}

TEST_CASE("a message gives its buffers in order", "[message]") {
  arena memory;
  auto const first = memory.allocate(1);
  auto const second = memory.allocate(2);
  message const msg(first, second);
  CHECK(msg.size() == 2);
  CHECK_FALSE(msg.empty());
  CHECK(msg[0].data() == first.data());
  CHECK(msg[1].data() == second.data());
  CHECK_FALSE(msg[2]);
  CHECK(msg.total_size() == 3);
  CHECK(msg.buffers().size() == 2);
  buffer const only = msg;
  CHECK(only.data() == first.data());
}

TEST_CASE("an empty message is an empty buffer", "[message]") {
  message const nothing;
  CHECK(nothing.empty());
  CHECK(nothing.total_size() == 0);
  buffer const first = nothing;
  CHECK_FALSE(first);
}

TEST_CASE("copying a message keeps all its buffers, from whatever it is copied", "[message]") {
  arena memory;
  message msg(memory.allocate(1), memory.allocate(2), memory.allocate(3));
  message const& fixed = msg;
  message const from_variable(msg);
  message const from_const(fixed);
  message from_assignment(memory.allocate(9));
  from_assignment = msg;
  for (auto const* copy :
       std::array<message const*, 3>{&from_variable, &from_const, &from_assignment}) {
    REQUIRE(copy->size() == 3);
    for (std::size_t i = 0; i < 3; ++i) CHECK((*copy)[i].data() == msg[i].data());
  }
  CHECK(msg[2].use_count() == 4);
}

TEST_CASE("moving a message leaves an empty one", "[message]") {
  arena memory;
  message msg(memory.allocate(1), memory.allocate(2));
  auto moved = std::move(msg);
  CHECK(msg.empty());  // NOLINT(bugprone-use-after-move): it is specified to be empty
  CHECK(moved.size() == 2);
  CHECK(moved[0].use_count() == 1);
  msg = std::move(moved);
  CHECK(moved.empty());  // NOLINT(bugprone-use-after-move)
  CHECK(msg.total_size() == 3);
  auto& same = msg;
  msg = std::move(same);
  CHECK(msg.total_size() == 3);
  msg = same;
  CHECK(msg.total_size() == 3);
  msg.clear();
  CHECK(memory.usage().now(purpose::activation) == 0);
}

TEST_CASE("assigning a message lets go of what it held", "[message]") {
  arena memory;
  message msg(memory.allocate(10), memory.allocate(20), memory.allocate(30));
  msg = message(memory.allocate(1));
  CHECK(msg.size() == 1);
  CHECK(memory.usage().now(purpose::activation) == 1);
  msg = message{};
  CHECK(memory.usage().now(purpose::activation) == 0);
}

TEST_CASE("a message takes eight buffers and refuses a ninth", "[message]") {
  arena memory;
  message msg;
  for (std::size_t i = 0; i < message::max_buffers; ++i) msg.push_back(memory.allocate(i));
  CHECK(msg.size() == 8);
  CHECK(msg.total_size() == 28);
  auto const text =
      zbpp::test::refusal(zbpp::errc::wrong_size, [&] { msg.push_back(memory.allocate(1)); });
  CHECK(text == "a message carries at most 8 buffers, or one object");
  CHECK(msg.total_size() == 28);
  CHECK(memory.usage().now(purpose::activation) == 28);
}

}  // namespace test_message

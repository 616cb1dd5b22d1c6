// SPDX-License-Identifier: Apache-2.0
#include <zbpp/asio/detail/channel_ends.hpp>

#include <support/catch.hpp>
#include <support/seeded.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace test_asio_message_frame {

namespace {

using zbpp::asio::detail::decode;
using zbpp::asio::detail::encode;
using zbpp::asio::detail::message_frame;
using zbpp::asio::detail::message_frame_kind;
using zbpp::asio::detail::message_frame_rule;

std::vector<std::byte> bytes_of(message_frame const& f) {
  std::vector<std::byte> bytes(message_frame::most_size);
  bytes.resize(encode(f, bytes.data()));
  return bytes;
}

std::string wrong_of(std::span<std::byte const> bytes, message_frame_rule const& rule) {
  message_frame into;
  auto const reading = decode(bytes, rule, into);
  CHECK((reading.wrong.empty() || reading.size == 0));
  return reading.wrong;
}

message_frame random_message(zbpp::test::seeded_random& random) {
  message_frame f;
  f.parts = static_cast<std::uint8_t>(random.integer(0, 8));
  f.has_credit = random.chance(0.5);
  f.step = static_cast<std::uint32_t>(random.bits());
  f.sequence = static_cast<std::uint32_t>(random.bits());
  f.credit = static_cast<std::uint32_t>(random.bits());
  for (std::size_t i = 0; i < f.parts; ++i)
    f.sizes[i] = random.chance(0.2) ? message_frame::no_buffer : random.bits() >> 8;
  return f;
}

bool is_same(message_frame const& a, message_frame const& b) {
  bool same = a.kind == b.kind && a.parts == b.parts && a.has_credit == b.has_credit &&
              a.step == b.step && a.sequence == b.sequence && a.credit == b.credit;
  for (std::size_t i = 0; same && i < a.parts; ++i) same = a.sizes[i] == b.sizes[i];
  return same;
}

}  // namespace

TEST_CASE("a header is read as it was written, and needs all of its bytes", "[asio]") {
  for (int trial = 0; trial < 500; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto const sent = random_message(random);
    auto const bytes = bytes_of(sent);
    message_frame_rule const rule{
        message_frame_kind::message, sent.step, sent.sequence, ~std::uint64_t{0} - 1};
    message_frame read;
    auto const whole = decode(bytes, rule, read);
    CHECK(whole.wrong.empty());
    CHECK(whole.size == bytes.size());
    CHECK(is_same(read, sent));
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      auto const part = decode(std::span(bytes).first(size), rule, read);
      REQUIRE((part.size == 0 && part.wrong.empty()));
    }
  }
}

TEST_CASE("a credit is read as it was written", "[asio]") {
  message_frame const sent{
      .kind = message_frame_kind::credit, .has_credit = true, .credit = 0xfedcba98};
  message_frame read;
  auto const reading = decode(bytes_of(sent), {.kind = message_frame_kind::credit}, read);
  CHECK(reading.wrong.empty());
  CHECK(reading.size == message_frame::base_size);
  CHECK(is_same(read, sent));
}

TEST_CASE("a message is the next one of its step or the first of a later one", "[asio]") {
  auto wrong = [](std::uint32_t round, std::uint32_t sequence) {
    return wrong_of(bytes_of({.step = round, .sequence = sequence}), {.step = 3, .sequence = 7});
  };
  CHECK(wrong(3, 7).empty());
  CHECK(wrong(4, 0).empty());
  CHECK(wrong(9, 0).empty());
  CHECK(
      wrong(3, 8) ==
      "found message 8 of step 3; expected message 7 of step 3, or message 0 of a later one");
  for (auto const& [round, sequence] :
       {std::array<std::uint32_t, 2>{3, 6}, {3, 0}, {4, 1}, {4, 7}, {2, 0}, {2, 7}})
    CHECK_FALSE(wrong(round, sequence).empty());
}

TEST_CASE("a message is no larger than it may be, however its parts add up", "[asio]") {
  auto wrong = [](std::vector<std::uint64_t> const& sizes) {
    message_frame f;
    for (auto size : sizes) f.sizes[f.parts++] = size;
    return wrong_of(bytes_of(f), {.most = 100});
  };
  CHECK(wrong({100}).empty());
  CHECK(wrong({60, 40, 0, message_frame::no_buffer}).empty());
  CHECK(wrong({60, 41}) == "part 1 of message 0 has 41 bytes; the whole message has at most 100");
  CHECK_FALSE(wrong({101}).empty());
  CHECK_FALSE(wrong({message_frame::no_buffer - 1}).empty());
  CHECK_FALSE(wrong({50, message_frame::no_buffer - 40}).empty());  // the sum would wrap around
}

TEST_CASE("what is no header of the kind that is expected is refused at once", "[asio]") {
  auto damaged =
      [](std::size_t at, int value, message_frame_kind kind = message_frame_kind::message) {
        auto bytes = bytes_of({.kind = kind, .has_credit = true});
        bytes[at] = static_cast<std::byte>(value);
        return wrong_of(bytes, {.kind = kind});
      };
  CHECK(
      damaged(0, 'G') == "found the bytes 71, 1 where a frame begins with 176, 1 (mark, version)");
  CHECK_FALSE(damaged(1, 2).empty());
  CHECK(damaged(2, 2) == "found a frame of kind 2; this end takes kind 1, a message");
  CHECK(
      damaged(2, 1, message_frame_kind::credit) ==
      "found a frame of kind 1; this end takes kind 2, a credit");
  CHECK(damaged(3, 9) == "found a message of 9 parts; it has at most 8");
  CHECK(damaged(3, 0, message_frame_kind::credit).find("a credit with parts") != std::string::npos);
  CHECK_FALSE(damaged(3, 0x81, message_frame_kind::credit).empty());
  CHECK_FALSE(damaged(4, 1, message_frame_kind::credit).empty());
  CHECK_FALSE(damaged(8, 1, message_frame_kind::credit).empty());
}

TEST_CASE("random bytes are refused or a header", "[asio]") {
  for (int trial = 0; trial < 5000; ++trial) {
    ZBPP_SEEDED(random, trial);
    auto bytes = bytes_of(random_message(random));
    bytes.resize(static_cast<std::size_t>(random.integer(0, 80)));
    for (int i = 0; i < 2 && !bytes.empty(); ++i)
      random.pick(std::span(bytes)) = static_cast<std::byte>(random.integer(0, 255));
    message_frame_rule const rule{message_frame_kind::message, 0, 0, 1 << 20};
    message_frame read;
    auto const reading = decode(bytes, rule, read);
    REQUIRE(reading.size <= bytes.size());
    if (reading.size > 0) REQUIRE((reading.wrong.empty() && read.payload() <= rule.most));
  }
}

}  // namespace test_asio_message_frame

// SPDX-License-Identifier: Apache-2.0
#include <zbpp/asio/wire.hpp>

#include <support/catch.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace test_asio_wire {

namespace {

using zbpp::asio::blob;
using zbpp::asio::wire_reader;
using zbpp::asio::wire_writer;

constexpr std::size_t most = 64;

template <class Act>
std::string unreadable(Act act) {
  return zbpp::test::refusal(zbpp::errc::bad_format, [&] { static_cast<void>(act()); });
}

blob random_blob(zbpp::test::seeded_random& random, std::int64_t longest) {
  blob result(static_cast<std::size_t>(random.integer(0, longest)));
  for (auto& b : result) b = static_cast<std::byte>(random.integer(0, 255));
  return result;
}

using field = std::variant<std::uint8_t, std::int32_t, std::uint64_t, double, std::string, blob>;

field random_field(zbpp::test::seeded_random& random) {
  switch (random.integer(0, 5)) {
    case 0: return static_cast<std::uint8_t>(random.bits());
    case 1: return static_cast<std::int32_t>(random.bits());
    case 2: return random.bits();
    case 3: return random.real(-1e9, 1e9);
    case 4: return zbpp::asio::to_text(random_blob(random, most));
    default: return random_blob(random, most);
  }
}

void write(wire_writer& out, field const& value) {
  std::visit(
      [&](auto const& v) {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::string>)
          out.put(std::string_view(v));
        else if constexpr (std::is_same_v<std::decay_t<decltype(v)>, blob>)
          out.put(std::span<std::byte const>(v));
        else
          out.put(v);
      },
      value);
}

// Reads a field of the kind that `like` has.
field read(wire_reader& in, field const& like) {
  return std::visit(
      [&](auto const& v) -> field {
        using type = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<type, std::string>)
          return in.get_text(most);
        else if constexpr (std::is_same_v<type, blob>)
          return in.get_blob(most);
        else
          return in.template get<type>();
      },
      like);
}

// A copy that ends where its memory ends, so that a sanitizer sees a read too far.
struct exact {
  explicit exact(std::span<std::byte const> from)
      : data(std::make_unique<std::byte[]>(from.size())), size(from.size()) {
    std::copy(from.begin(), from.end(), data.get());
  }
  std::span<std::byte const> bytes() const { return {data.get(), size}; }
  std::unique_ptr<std::byte[]> data;
  std::size_t size;
};

}  // namespace

TEST_CASE("what is written is read again", "[asio][wire]") {
  for (int trial = 0; trial < 300; ++trial) {
    ZBPP_SEEDED(random, trial);
    std::vector<field> fields(static_cast<std::size_t>(random.integer(0, 20)));
    wire_writer out;
    for (auto& f : fields) {
      f = random_field(random);
      write(out, f);
    }
    exact const copy(out.bytes());
    wire_reader in(copy.bytes());
    for (auto const& f : fields) CHECK((read(in, f) == f));
    CHECK_NOTHROW(in.expect_end());
  }
}

TEST_CASE("the bytes are those that the format says", "[asio][wire]") {
  auto const bytes = wire_writer()
                         .put(std::uint16_t{0x1234})
                         .put(std::int8_t{-1})
                         .put(std::string_view("ab"))
                         .append(zbpp::asio::to_blob("c"))
                         .take();
  CHECK(zbpp::asio::to_text(bytes) == std::string("\x34\x12\xff\x02\0\0\0abc", 10));
  CHECK(zbpp::asio::to_blob("").empty());
  CHECK(zbpp::asio::to_text({}).empty());
}

TEST_CASE("numbers come through to the bit", "[asio][wire]") {
  wire_writer out;
  out.put(std::numeric_limits<std::int64_t>::min())
      .put(std::numeric_limits<double>::quiet_NaN())
      .put(-0.0);
  wire_reader in(out.bytes());
  CHECK(in.get<std::int64_t>() == std::numeric_limits<std::int64_t>::min());
  CHECK(
      std::bit_cast<std::uint64_t>(in.get<double>()) ==
      std::bit_cast<std::uint64_t>(std::numeric_limits<double>::quiet_NaN()));
  CHECK(std::bit_cast<std::uint64_t>(in.get<double>()) == std::bit_cast<std::uint64_t>(-0.0));
}

TEST_CASE("what breaks off is refused, wherever that is", "[asio][wire]") {
  for (int trial = 0; trial < 100; ++trial) {
    ZBPP_SEEDED(random, 1000 + trial);
    std::vector<field> fields(static_cast<std::size_t>(random.integer(1, 6)));
    wire_writer out;
    for (auto& f : fields) {
      f = random_field(random);
      write(out, f);
    }
    for (std::size_t size = 0; size < out.bytes().size(); ++size) {
      exact const cut(std::span(out.bytes()).first(size));
      wire_reader in(cut.bytes());
      auto const text = unreadable([&] {
        for (auto const& f : fields) static_cast<void>(read(in, f));
        return 0;
      });
      CHECK(text.find("expected ") == 0);
    }
    auto longer = out.bytes();
    longer.push_back(std::byte{0});
    wire_reader in(longer);
    for (auto const& f : fields) static_cast<void>(read(in, f));
    CHECK(unreadable([&] { return in.expect_end(), 0; }) == "1 bytes too many at the end");
  }
}

TEST_CASE("random and changed bytes are read within their bounds", "[asio][wire]") {
  for (int trial = 0; trial < 2000; ++trial) {
    ZBPP_SEEDED(random, 10000 + trial);
    wire_writer out;
    for (int i = 0; i < 5; ++i) write(out, random_field(random));
    auto bytes = random.chance(0.5) ? random_blob(random, 200) : out.take();
    if (!bytes.empty() && random.chance(0.8)) {
      auto const at =
          static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(bytes.size()) - 1));
      bytes[at] = static_cast<std::byte>(random.integer(0, 255));
    }
    exact const copy(bytes);
    wire_reader in(copy.bytes());
    std::size_t got = 0;
    try {
      for (;;) {
        auto const value = read(in, random_field(random));
        if (auto const* text = std::get_if<std::string>(&value)) {
          CHECK(text->size() <= most);
          got += text->size() + 4;
        } else if (auto const* data = std::get_if<blob>(&value)) {
          CHECK(data->size() <= most);
          got += data->size() + 4;
        } else {
          ++got;
        }
        CHECK(got <= bytes.size());
      }
    } catch (zbpp::error const& refused) {
      CHECK(refused.code() == zbpp::errc::bad_format);
    }
  }
}

TEST_CASE("a field that claims too much is refused before it is read", "[asio][wire]") {
  auto const claim = wire_writer().put(std::uint32_t{0xffffffff}).take();
  CHECK(unreadable([&] {
          return wire_reader(claim).get_blob(100);
        }) == "a field of 4294967295 bytes; at most 100 are expected there");
  CHECK(unreadable([&] {
          return wire_reader(claim).get_text(std::size_t{1} << 40);
        }) == "expected 4294967295 more bytes, 0 are left");
  auto const fits = wire_writer().put(std::string_view("abc")).take();
  CHECK(wire_reader(fits).get_text(3) == "abc");
  CHECK(unreadable([&] {
          return wire_reader(fits).get_text(2);
        }) == "a field of 3 bytes; at most 2 are expected there");
  CHECK(
      unreadable([&] { return wire_reader(fits).take(8); }) == "expected 8 more bytes, 7 are left");
}

}  // namespace test_asio_wire

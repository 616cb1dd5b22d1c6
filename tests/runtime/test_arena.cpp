// SPDX-License-Identifier: Apache-2.0
#include <zbpp/runtime/arena.hpp>

#include <support/catch.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

namespace test_arena {

using namespace zbpp;

namespace {

bool is_aligned(buffer const& piece) {
  return reinterpret_cast<std::uintptr_t>(piece.data()) % 64 == 0;
}

void fill(buffer const& piece, std::uint8_t value) {
  if (piece.size() > 0) std::memset(piece.data(), value, piece.size());
}

bool is_filled(buffer const& piece, std::uint8_t value) {
  for (auto byte : piece.as<std::uint8_t>())
    if (byte != value) return false;
  return true;
}

}  // namespace

TEST_CASE("a buffer is as large as asked for and aligned to 64 bytes", "[arena]") {
  arena memory;
  std::vector<buffer> kept;
  for (std::size_t size :
       {0U, 1U, 63U, 64U, 65U, 1023U, 1024U, 1025U, 4096U, 100'000U, 5'000'000U}) {
    auto piece = memory.allocate(size);
    CHECK(piece);
    CHECK(piece.size() == size);
    CHECK(is_aligned(piece));
    fill(piece, 0xab);
    kept.push_back(std::move(piece));
  }
  for (auto const& piece : kept) CHECK(is_filled(piece, 0xab));
}

TEST_CASE("an empty buffer has no memory", "[arena]") {
  buffer const nothing;
  CHECK_FALSE(nothing);
  CHECK(nothing.data() == nullptr);
  CHECK(nothing.size() == 0);
  CHECK(nothing.use_count() == 0);
  CHECK(nothing.as<double>().empty());
  nothing.retag(purpose::edge);
  buffer also;
  also.reset();
  CHECK_FALSE(also);
}

TEST_CASE("copies of a buffer share its memory until the last one goes", "[arena]") {
  arena memory;
  auto first = memory.allocate(100);
  {
    auto second = first;
    CHECK(second.data() == first.data());
    CHECK(first.use_count() == 2);
    first.reset();
    CHECK_FALSE(first);
    CHECK(second.use_count() == 1);
    CHECK(memory.usage().now(purpose::activation) == 100);
    auto third = std::move(second);
    CHECK_FALSE(second);  // NOLINT(bugprone-use-after-move): it is specified to be empty
    CHECK(third.use_count() == 1);
    auto& same = third;
    third = same;
    CHECK(third.use_count() == 1);
  }
  CHECK(memory.usage().now(purpose::activation) == 0);
}

namespace {

// An arena whose memory stands for that of a device.
arena on_device() {
  memory_source source;
  source.is_host = false;
  return arena(source);
}

}  // namespace

TEST_CASE("what is lent is free when neither side has it, and the lender knows", "[arena]") {
  auto lender = on_device();
  auto borrower = on_device();
  for (bool const lender_is_last : {false, true}) {
    auto piece = lender.allocate(1000, purpose::edge);
    auto const* const data = piece.data();
    auto borrowed = borrower.borrow(piece);
    auto also = borrowed;
    CHECK(borrowed.data() == data);
    CHECK(borrowed.size() == 1000);
    CHECK(piece.use_count() == 1);
    CHECK(borrower.usage().now(purpose::borrowed) == 1000);
    also.retag(purpose::activation);
    CHECK(borrower.usage().now(purpose::activation) == 1000);
    CHECK(lender.usage().now(purpose::edge) == 1000);
    also.truncate(600);
    CHECK(piece.size() == 1000);
    CHECK(borrower.usage().now(purpose::activation) == 600);
    also.reset();
    if (!lender_is_last) {
      piece.reset();
      CHECK(lender.usage().now(purpose::edge) == 0);
      lender.start_step();
      CHECK(lender.allocate(1000).data() != data);
    }
    borrowed.reset();
    CHECK(borrower.usage().now(purpose::activation) == 0);
    CHECK(lender.allocate(1000).data() != data);
    auto other = on_device();
    other.take_released(lender).clear();
    borrower.take_released(other).clear();
    CHECK(lender.allocate(1000).data() != data);
    auto released = borrower.take_released(lender);
    borrower.take_released(lender).clear();  // there are no more
    borrower.keep_released(std::move(released));
    lender.start_step();
    CHECK(lender.allocate(1000).data() != data);
    borrower.take_released(lender).clear();
    if (lender_is_last) {
      CHECK(lender.allocate(1000).data() != data);
      piece.reset();
    }
    CHECK(lender.allocate(1000).data() == data);
  }
  CHECK_FALSE(borrower.borrow(buffer()));
}

TEST_CASE("a buffer may be lent to several, and on from one to the next", "[arena]") {
  auto first = on_device();
  auto second = on_device();
  auto third = on_device();
  auto piece = first.allocate(500);
  auto const* const data = piece.data();
  std::vector<buffer> held;
  for (int i = 0; i < 300; ++i) held.push_back(second.borrow(piece));
  auto last = third.borrow(held.front());
  CHECK(last.data() == data);
  piece.reset();
  held.clear();
  second.end_loans();
  CHECK(first.allocate(500).data() != data);
  last.reset();
  SECTION("each gives back what it has let go of") {
    third.take_released(second).clear();
    CHECK(first.allocate(500).data() != data);
    second.take_released(first).clear();
  }
  SECTION("or all at once, when nobody uses it") { third.end_loans(); }
  CHECK(first.allocate(500).data() == data);
  for (auto const& one : {&first, &second, &third})
    CHECK(one->usage().in_use == std::array<bytes, purposes>{});
}

TEST_CASE("memory that is lent outlives the arenas of both sides", "[arena]") {
  static int chunks = 0;
  memory_source source;
  source.take = [](std::size_t size, std::uintptr_t) {
    ++chunks;
    return ::operator new(size, std::align_val_t{64});
  };
  source.give_back = [](void* memory, std::size_t, std::uintptr_t) noexcept {
    --chunks;
    ::operator delete(memory, std::align_val_t{64});
  };
  source.is_host = false;
  for (int order = 0; order < 4; ++order) {
    std::optional<arena> lender(std::in_place, source);
    std::optional<arena> borrower(std::in_place, source);
    auto piece = lender->allocate(100);
    auto borrowed = borrower->borrow(piece);
    auto released = borrower->borrow(piece);
    released.reset();
    piece.reset();
    CHECK(chunks == 1);
    if (order == 0) borrowed.reset();
    (order % 2 == 0 ? lender : borrower).reset();
    if (order == 1) borrowed.reset();
    (order % 2 == 0 ? borrower : lender).reset();
    CHECK(chunks == (order < 2 ? 0 : 1));
    borrowed.reset();
    CHECK(chunks == 0);
  }
}

TEST_CASE("values that do not fit whole are left out of a view", "[arena]") {
  arena memory;
  auto const piece = memory.allocate(23);
  CHECK(piece.as<double>().size() == 2);
  CHECK(piece.as<std::byte>().size() == 23);
}

TEST_CASE("freed memory is used again for the same size class", "[arena]") {
  arena memory;
  auto piece = memory.allocate(1000);
  auto const* data = piece.data();
  piece.reset();
  piece = memory.allocate(961);  // both take 16 lines
  CHECK(piece.data() == data);
  auto const other = memory.allocate(961);
  CHECK(other.data() != data);
}

TEST_CASE("an arena counts bytes by purpose, now and at most", "[arena]") {
  arena memory;
  auto kept = memory.allocate(100);
  auto sent = memory.allocate(30, purpose::edge);
  CHECK(memory.usage().now(purpose::activation) == 100);
  CHECK(memory.usage().now(purpose::edge) == 30);

  sent.retag(purpose::activation);
  CHECK(memory.usage().now(purpose::activation) == 130);
  CHECK(memory.usage().now(purpose::edge) == 0);
  CHECK(memory.usage().most(purpose::edge) == 30);

  kept.reset();
  CHECK(memory.usage().now(purpose::activation) == 30);
  CHECK(memory.usage().most(purpose::activation) == 130);
  memory.reset_peak();
  CHECK(memory.usage().most(purpose::activation) == 30);
  CHECK(memory.usage().most(purpose::edge) == 0);

  memory.count_edge(50);
  CHECK(memory.usage().now(purpose::edge) == 50);
  memory.count_edge(-50);
  CHECK(memory.usage().now(purpose::edge) == 0);
  CHECK(memory.usage().most(purpose::edge) == 50);
}

TEST_CASE("memory from elsewhere counts as long as its handle lives", "[arena]") {
  external_memory kept;
  CHECK(kept.size() == 0);
  {
    arena memory;
    kept = memory.count_external(100);
    auto other = memory.count_external(30, purpose::edge);
    CHECK(kept.size() == 100);
    CHECK(memory.usage().now(purpose::activation) == 100);
    CHECK(memory.usage().now(purpose::edge) == 30);
    CHECK(memory.usage().reserved == 0);
    other = std::move(kept);
    CHECK(kept.size() == 0);
    CHECK(other.size() == 100);
    CHECK(memory.usage().now(purpose::activation) == 100);
    CHECK(memory.usage().now(purpose::edge) == 0);
    other.reset();
    other.reset();
    CHECK(memory.usage().now(purpose::activation) == 0);
    CHECK(memory.usage().most(purpose::activation) == 100);
    CHECK(zbpp::test::refusal([&] {
            static_cast<void>(memory.count_external(-1));
          }) == "count_external takes a number of bytes from 0");
    kept = memory.count_external(0);
    kept = memory.count_external(7);
  }
  // It may outlive the arena, as a buffer may.
  CHECK(kept.size() == 7);
}

TEST_CASE("what was reserved is used before more is taken from the system", "[arena]") {
  arena memory;
  memory.reserve(0);
  CHECK(memory.usage().reserved == 0);
  memory.reserve(1'000'000);
  auto const reserved = memory.usage().reserved;
  CHECK(reserved >= 1'000'000);
  {
    std::vector<buffer> kept;
    for (int i = 0; i < 10; ++i) kept.push_back(memory.allocate(100'000));
    CHECK(memory.usage().growths == 0);
    CHECK(memory.usage().reserved == reserved);
    for (int i = 0; i < 10; ++i) kept.push_back(memory.allocate(100'000));
    CHECK(memory.usage().growths > 0);
    CHECK(memory.usage().reserved > reserved);
  }
  auto const growths = memory.usage().growths;
  std::vector<buffer> again;
  for (int i = 0; i < 20; ++i) again.push_back(memory.allocate(100'000));
  CHECK(memory.usage().growths == growths);
}

TEST_CASE("a piece that does not fit costs nothing of what was reserved", "[arena]") {
  for (auto const large : {300'000U, 1'000'000U, 2'000'000U}) {
    INFO(large);
    arena memory;
    memory.reserve(1'000'000);
    auto const first = memory.allocate(900'000);
    auto const beyond = memory.allocate(large);
    CHECK(memory.usage().growths == 1);
    std::vector<buffer> kept;
    for (int i = 0; i < 3; ++i) kept.push_back(memory.allocate(30'000));
    CHECK(memory.usage().growths == 1);
  }
  arena memory;
  memory.reserve(1'000'000);
  static_cast<void>(memory.allocate(2'000'000));  // as in warm_up(), and let go of
  std::vector<buffer> kept;
  for (int i = 0; i < 10; ++i) kept.push_back(memory.allocate(100'000));
  CHECK(memory.usage().growths == 1);
  kept.push_back(memory.allocate(2'000'000));
  CHECK(memory.usage().growths == 1);
}

TEST_CASE("sizes that no machine has are refused", "[arena]") {
  arena memory;
  auto const most = std::numeric_limits<std::size_t>::max();
  CHECK_THROWS_AS(memory.allocate(most), std::bad_alloc);
  CHECK_THROWS_AS(memory.allocate(most - 63), std::bad_alloc);
  CHECK_THROWS_AS(memory.reserve(-1), std::bad_alloc);
  CHECK(memory.usage().now(purpose::activation) == 0);
  CHECK(memory.usage().growths == 0);
  CHECK(memory.allocate(64).size() == 64);
}

TEST_CASE("buffers may outlive their arena", "[arena]") {
  auto memory = std::make_unique<arena>();
  auto piece = memory->allocate(1000);
  auto large = memory->allocate(1'000'000);
  fill(piece, 7);
  memory.reset();
  CHECK(is_filled(piece, 7));
  auto copy = piece;
  piece.reset();
  CHECK(is_filled(copy, 7));
  large.reset();
  CHECK(is_filled(copy, 7));
}

TEST_CASE("an arena can be moved while its buffers are in use", "[arena]") {
  arena first;
  auto const piece = first.allocate(10);
  arena second(std::move(first));
  CHECK(second.usage().now(purpose::activation) == 10);
  arena third;
  third = std::move(second);
  CHECK(third.usage().now(purpose::activation) == 10);
}

#if defined(ZBPP_ADDRESS_SANITIZER)
TEST_CASE("under the address sanitizer memory that is not in use is out of bounds", "[arena]") {
  arena memory;
  auto piece = memory.allocate(100);
  auto* const data = piece.data();
  CHECK_FALSE(__asan_address_is_poisoned(data));
  CHECK_FALSE(__asan_address_is_poisoned(data + 99));
  CHECK(__asan_address_is_poisoned(data + 100));
  piece.reset();
  CHECK(__asan_address_is_poisoned(data));
  piece = memory.allocate(70);
  CHECK(piece.data() == data);
  CHECK_FALSE(__asan_address_is_poisoned(data + 69));
  CHECK(__asan_address_is_poisoned(data + 70));
}
#endif

TEST_CASE("any order of allocating, sharing and freeing keeps buffers apart", "[arena]") {
  struct piece {
    buffer data;
    std::uint8_t value = 0;
    purpose use = purpose::activation;
  };
  for (int trial = 0; trial < 20; ++trial) {
    ZBPP_SEEDED(random, trial);
    arena memory;
    if (random.chance(0.5)) memory.reserve(random.integer(1, 500'000));
    std::vector<piece> live;
    std::array<bytes, purposes> in_use{};
    std::array<bytes, purposes> peak{};
    bytes peak_total = 0;
    auto count = [&](purpose use, bytes change) {
      auto const i = static_cast<std::size_t>(use);
      in_use[i] += change;
      peak[i] = std::max(peak[i], in_use[i]);
      peak_total = std::max(peak_total, in_use[0] + in_use[1]);  // of activations and edges
    };
    bool is_right = true;
    for (int i = 0; i < 2000; ++i) {
      auto const choice = random.integer(0, 9);
      if (live.empty() || choice < 5) {
        auto const width = random.integer(0, 14);
        auto const size = static_cast<std::size_t>(random.integer(0, std::int64_t{1} << width));
        auto const role = random.chance(0.3) ? purpose::edge : purpose::activation;
        auto data = memory.allocate(size, role);
        count(role, static_cast<bytes>(size));
        auto const value = static_cast<std::uint8_t>(random.integer(0, 255));
        is_right = is_right && is_aligned(data) && data.size() == size;
        fill(data, value);
        live.push_back({std::move(data), value, role});
      } else {
        auto const at =
            static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(live.size()) - 1));
        auto& one = live[at];
        is_right = is_right && is_filled(one.data, one.value);
        if (choice == 5) {
          auto const other = random.chance(0.5) ? purpose::edge : purpose::activation;
          auto const size = static_cast<bytes>(one.data.size());
          one.data.retag(other);
          count(one.use, -size);
          count(other, size);
          for (auto& sharing : live)
            if (sharing.data.data() == one.data.data()) sharing.use = other;
        } else if (choice == 6) {
          live.push_back(one);
        } else {
          if (one.data.use_count() == 1) count(one.use, -static_cast<bytes>(one.data.size()));
          live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
        }
      }
      is_right = is_right && memory.usage().in_use == in_use && memory.usage().peak == peak &&
                 memory.usage().peak_total == peak_total;
    }
    for (auto const& one : live) is_right = is_right && is_filled(one.data, one.value);
    CHECK(is_right);
    live.clear();
    CHECK(memory.usage().in_use == std::array<bytes, purposes>{});
  }
}

TEST_CASE("what one pass of a pair has used goes to no other before both end", "[arena]") {
  struct piece {
    buffer data;
    int half = 0;  // the pass of the pair that took it; 0: none of them
  };
  struct released {
    bytes size = 0;
    int user = 0;  // the pass that may have it again; 0: none
  };
  auto const of = static_cast<std::size_t>(purpose::activation);
  for (int trial = 0; trial < 20; ++trial) {
    ZBPP_SEEDED(random, 200 + trial);
    arena memory;
    std::vector<piece> live;
    std::map<std::byte*, released> withheld;
    bytes in_use = 0;
    int half = 0;
    bool is_right = true;
    int reused = 0;
    auto const act = [&] {
      if (live.empty() || random.chance(0.5)) {
        auto const size = static_cast<std::size_t>(random.integer(1, 4) * 64);
        piece made{memory.allocate(size), half};
        auto const before = withheld.find(made.data.data());
        if (before != withheld.end()) {
          is_right = is_right && before->second.user == half;
          withheld.erase(before);
          ++reused;
        }
        in_use += static_cast<bytes>(size);
        live.push_back(std::move(made));
        return;
      }
      auto const at = random.integer(0, static_cast<std::int64_t>(live.size()) - 1);
      auto const& one = live[static_cast<std::size_t>(at)];
      auto const size = static_cast<bytes>(one.data.size());
      bool const is_own = one.half == half;
      if (half != 0) withheld[one.data.data()] = {size, is_own ? half : 0};
      if (is_own || half == 0) in_use -= size;
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    };
    for (int pair = 0; pair < 30; ++pair) {
      for (auto& one : live) one.half = 0;
      for (int i = 0; i < 20; ++i) act();
      for (half = 1; half <= 2; ++half) {
        memory.begin_half();
        for (auto& [at, one] : withheld)
          if (one.user != 0) {
            one.user = 0;
            in_use += one.size;  // until the other pass ends, too
          }
        for (int i = 0; i < 20; ++i) {
          act();
          is_right = is_right && memory.usage().in_use[of] == in_use;
        }
      }
      memory.end_pair();
      for (auto const& [at, one] : withheld)
        if (one.user == 0) in_use -= one.size;
      withheld.clear();
      half = 0;
      is_right = is_right && memory.usage().in_use[of] == in_use;
    }
    CHECK(is_right);
    CHECK(reused > 20);
    live.clear();
    CHECK(memory.usage().in_use == std::array<bytes, purposes>{});
  }
}

TEST_CASE("a pair that does not end leaves nothing behind", "[arena]") {
  buffer kept;
  {
    arena memory;
    auto before = memory.allocate(100);
    memory.begin_half();
    memory.allocate(200).reset();
    memory.begin_half();
    before.reset();
    kept = memory.allocate(300);
    CHECK(memory.usage().now(purpose::activation) == 600);
  }
  fill(kept, 7);
  CHECK(is_filled(kept, 7));
}

TEST_CASE("what was lent and let go of within a pair is free when both have done with it") {
  arena lender;
  arena borrower;
  auto piece = lender.allocate(100);
  auto* const at = piece.data();
  auto there = borrower.borrow(piece);
  lender.begin_half();
  piece.reset();
  there.reset();
  borrower.take_released(lender).clear();
  CHECK(lender.allocate(100).data() != at);
  lender.end_pair();
  CHECK(lender.usage().now(purpose::activation) == 0);
  std::vector<buffer> all;
  bool is_back = false;
  for (int i = 0; i < 3; ++i)
    is_back = (all.emplace_back(lender.allocate(100)).data() == at) || is_back;
  CHECK(is_back);
}

TEST_CASE("a repeated sequence takes memory from the system once", "[arena]") {
  ZBPP_SEEDED(random, 100);
  arena memory;
  std::vector<std::size_t> sizes;
  for (int i = 0; i < 200; ++i) sizes.push_back(static_cast<std::size_t>(random.integer(0, 9000)));
  bytes reserved = 0;
  for (int round = 0; round < 3; ++round) {
    std::array<buffer, 20> ring;
    for (std::size_t i = 0; i < sizes.size(); ++i)
      ring[i % ring.size()] = memory.allocate(sizes[i]);
    if (round == 0) reserved = memory.usage().reserved;
    CHECK(memory.usage().reserved == reserved);
  }
}

TEST_CASE("a buffer that is cut short keeps its bytes and counts as what is left", "[arena]") {
  arena memory;
  {
    auto const whole = memory.allocate(200, purpose::receive);
    whole.data()[9] = std::byte{7};
    auto const shared = whole;
    whole.truncate(10);
    whole.truncate(50);  // there is no more than 10
    CHECK(shared.size() == 10);
    CHECK(shared.data()[9] == std::byte{7});
    CHECK(memory.usage().now(purpose::receive) == 10);
    whole.retag(purpose::edge);
    CHECK(memory.usage().now(purpose::receive) == 0);
    CHECK(memory.usage().now(purpose::edge) == 10);
    CHECK(memory.usage().most(purpose::receive) == 200);
  }
  buffer{}.truncate(0);
  CHECK(memory.usage().now(purpose::edge) == 0);
  auto const again = memory.allocate(200);  // the whole piece is there again
  std::fill_n(again.data(), 200, std::byte{1});
  CHECK(again.size() == 200);
}

}  // namespace test_arena

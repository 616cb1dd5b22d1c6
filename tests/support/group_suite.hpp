// SPDX-License-Identifier: Apache-2.0
//
// What collective calls promise, whatever carries them. `run_members(size, work)` calls
// `work(group&)` for each member of a group of that size, all at once, and throws what the first of
// them threw. Members check by `expect`, which fails on any thread.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/runtime/group.hpp>

#include <support/catch.hpp>
#include <support/seeded.hpp>

#include <algorithm>
#include <barrier>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace zbpp::test {

/// Throws where something does not hold; Catch2's checks are for one thread.
inline void expect(bool holds, std::string const& text) {
  if (!holds) throw std::runtime_error("does not hold: " + text);
}

[[nodiscard]] inline bool same_bits(std::span<float const> a, std::span<float const> b) {
  return std::ranges::equal(a, b, [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
  });
}

/// Is what every member can compute of the others, so that it knows what a call has to give.
class group_values {
 public:
  explicit group_values(std::uint64_t seed) : seed_(seed) {}

  /// @return the values of a member in a call
  [[nodiscard]] std::vector<float> of(int member, std::uint64_t call, std::size_t count) const {
    auto state = seed_ * 0x9e3779b97f4a7c15U + call * 0xbf58476d1ce4e5b9U +
                 static_cast<std::uint64_t>(member) * 0x94d049bb133111ebU + 1;
    std::vector<float> values(count);
    for (auto& value : values) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      // Of very different sizes, so that another order of a sum has other bits.
      auto const mantissa = static_cast<float>(static_cast<std::int32_t>(state >> 32U));
      value = mantissa *
              std::bit_cast<float>(static_cast<std::uint32_t>((state >> 8U) % 24 + 90) << 23U);
    }
    return values;
  }

  /// @return the sum over all members in the order of their places
  [[nodiscard]] std::vector<float> sum(int size, std::uint64_t call, std::size_t count) const {
    auto sums = of(0, call, count);
    for (int member = 1; member < size; ++member) {
      auto const more = of(member, call, count);
      for (std::size_t i = 0; i < count; ++i) sums[i] += more[i];
    }
    return sums;
  }

 private:
  std::uint64_t seed_;
};

/// Makes one call that `random` chooses, the same on all members, and checks what it gives.
inline void make_random_call(
    group& own, group_values const& values, seeded_random& random, std::uint64_t call) {
  auto const n = own.size();
  auto const place = own.place();
  // Around the size up to which one exchange is made of a sum, and above.
  constexpr std::size_t sizes[]{0, 1, 7, 64, 2047, 2048, 2049, 5000, 20'001};
  auto const count = random.pick(std::span<std::size_t const>(sizes));
  auto const text = "call " + std::to_string(call) + " with " + std::to_string(count) +
                    " numbers at member " + std::to_string(place) + " of " + std::to_string(n);
  auto const size = static_cast<std::size_t>(n);
  auto const part_of = [&](std::vector<float> const& all, int member) {
    return std::span(all).subspan(static_cast<std::size_t>(member) * count, count);
  };
  switch (random.integer(0, 6)) {
    case 0: {
      auto sums = values.of(place, call, count);
      own.all_reduce(sums);
      expect(same_bits(sums, values.sum(n, call, count)), "all_reduce, " + text);
      break;
    }
    case 1: {
      auto const all = values.of(place, call, count * size);
      std::vector<float> share(count);
      own.reduce_scatter(all, share);
      auto const sums = values.sum(n, call, count * size);
      expect(same_bits(share, part_of(sums, place)), "reduce_scatter, " + text);
      break;
    }
    case 2: {
      std::vector<float> all(count * size);
      own.all_gather(values.of(place, call, count), all);
      for (int member = 0; member < n; ++member)
        expect(
            same_bits(part_of(all, member), values.of(member, call, count)), "all_gather, " + text);
      break;
    }
    case 3: {
      auto const root = static_cast<int>(random.integer(0, n - 1));
      auto given = values.of(place, call, count);
      own.broadcast(given, root);
      expect(same_bits(given, values.of(root, call, count)), "broadcast, " + text);
      break;
    }
    case 4: {
      // What goes from one member to another has a size of its own; some is nothing.
      auto const size_of = [&](int from, int to) {
        return (count + static_cast<std::size_t>(3 * from + to)) *
               static_cast<std::size_t>(from != to);
      };
      std::vector<std::vector<float>> parts;
      for (int to = 0; to < n; ++to)
        parts.push_back(values.of(place * n + to, call, size_of(place, to)));
      std::vector<std::span<float const>> const sent(parts.begin(), parts.end());
      std::vector<std::vector<float>> received;
      own.all_to_all(sent, received);
      for (int from = 0; from < n; ++from)
        expect(
            same_bits(
                received[static_cast<std::size_t>(from)],
                values.of(from * n + place, call, size_of(from, place))),
            "all_to_all, " + text);
      break;
    }
    case 5: {
      auto const size_of = [&](int from) { return count * static_cast<std::size_t>(from % 3); };
      auto const bytes_of = [](std::vector<float> const& from) {
        auto const bytes = std::as_bytes(std::span(from));
        return std::vector<std::byte>(bytes.begin(), bytes.end());
      };
      std::vector<std::vector<std::byte>> all;
      own.exchange(bytes_of(values.of(place, call, size_of(place))), all);
      for (int member = 0; member < n; ++member)
        expect(
            all[static_cast<std::size_t>(member)] ==
                bytes_of(values.of(member, call, size_of(member))),
            "exchange, " + text);
      break;
    }
    default: own.barrier();
  }
}

/// Checks that all calls give what they promise, in any order, with groups of up to `most` members.
template <class RunMembers>
void check_collective_calls(RunMembers run_members, int most, int calls) {
  for (int size = 1; size <= most; ++size) {
    ZBPP_SEEDED(random, static_cast<std::uint64_t>(size));
    group_values const values(run_seed());
    run_members(size, [&](group& own) {
      expect(own.size() == size, "the size of the group");
      auto choices = random;
      for (int call = 0; call < calls; ++call)
        make_random_call(own, values, choices, static_cast<std::uint64_t>(call));
    });
  }
}

/// Makes each of the calls, with few and many values, in memory of its own: so what is allocated is
/// by the group. What one member gives another has a size of its own.
class calls_in_turn {
 public:
  explicit calls_in_turn(group& own)
      : own_(&own), values_(60'000 * static_cast<std::size_t>(own.size())), share_(60'000) {
    for (int to = 0; to < own.size(); ++to)
      parts_.push_back(
          std::span(values_).first(static_cast<std::size_t>(100 + 9000 * (own.place() + 2 * to))));
    received_.resize(parts_.size());
    for (auto& part : received_) part.reserve(values_.size());
  }

  void make(int times) {
    for (int i = 0; i < times; ++i) {
      own_->all_reduce(std::span(values_).first(10));
      own_->broadcast(share_, i % own_->size());
      if (i % 5 == 0) own_->all_reduce(values_);
      own_->reduce_scatter(values_, share_);
      own_->all_gather(share_, values_);
      own_->barrier();
      own_->all_to_all(parts_, received_);
      own_->exchange(std::as_bytes(std::span(share_).first(1000)), exchanged_);
    }
  }

 private:
  group* own_;
  std::vector<float> values_;
  std::vector<float> share_;
  std::vector<std::span<float const>> parts_;
  std::vector<std::vector<float>> received_;
  std::vector<std::vector<std::byte>> exchanged_;
};

/// Counts by `allocated()` what the calls of all members allocate once each was made.
template <class RunMembers, class Allocated>
[[nodiscard]] std::int64_t allocations_of_calls(
    RunMembers run_members, int size, int times, Allocated allocated) {
  std::barrier<> all(size);
  std::int64_t before = 0;
  std::int64_t behind = -1;
  run_members(size, [&](group& own) {
    calls_in_turn calls(own);
    calls.make(6);
    all.arrive_and_wait();
    if (own.place() == 0) before = allocated();
    all.arrive_and_wait();
    calls.make(times);
    all.arrive_and_wait();
    if (own.place() == 0) behind = allocated();
    all.arrive_and_wait();
  });
  return behind - before;
}

/// Checks that members which make different calls are told which.
template <class RunMembers>
void check_different_calls(RunMembers run_members) {
  auto const message = [&](auto const& first, auto const& second) {
    try {
      run_members(2, [&](group& own) {
        own.barrier();
        std::vector<float> some(8);
        own.place() == 0 ? first(own, some) : second(own, some);
      });
    } catch (error const& refused) {
      return std::string(to_string(refused.code())) + ": " + std::string(refused.message());
    }
    return std::string("<nothing was refused>");
  };
  auto const all_reduce = [](group& own, std::span<float> some) { own.all_reduce(some); };
  auto const fewer = [](group& own, std::span<float> some) { own.all_reduce(some.first(5)); };
  auto const barrier = [](group& own, std::span<float>) { own.barrier(); };
  auto const is_of = [](std::string const& text, std::string const& one, std::string const& other) {
    constexpr auto cure = "; all members have to make the same calls in the same order";
    auto const of = [&](int place, std::string const& own, std::string const& others) {
      auto const name = [](int rank) {
        return "rank " + std::to_string(rank) + " (tensor " + std::to_string(rank) + ") makes ";
      };
      return "ranks disagree: in the tensor group " + name(place) + own +
             " between steps as its call 2, and " + name(1 - place) + others +
             " between steps as its call 2" + cure;
    };
    return text == of(0, one, other) || text == of(1, other, one);
  };
  CHECK(is_of(message(all_reduce, barrier), "all_reduce of 8 numbers", "barrier"));
  CHECK(is_of(message(all_reduce, fewer), "all_reduce of 8 numbers", "all_reduce of 5 numbers"));
}

/// Checks that spans that do not fit are refused before anything is sent.
template <class RunMembers>
void check_wrong_spans(RunMembers run_members) {
  run_members(2, [](group& own) {
    std::vector<float> some(8);
    std::vector<std::vector<float>> received;
    auto const is_refused = [](auto act) {
      try {
        act();
      } catch (error const& refused) {
        return refused.code() == errc::bad_argument;
      }
      return false;
    };
    expect(is_refused([&] { own.all_gather(some, some); }), "all_gather is refused");
    expect(is_refused([&] { own.reduce_scatter(some, some); }), "reduce_scatter is refused");
    expect(is_refused([&] { own.broadcast(some, 2); }), "broadcast is refused");
    expect(is_refused([&] { own.broadcast(some, -1); }), "broadcast is refused");
    expect(is_refused([&] { own.all_to_all({}, received); }), "all_to_all is refused");
    own.barrier();
  });
}

}  // namespace zbpp::test

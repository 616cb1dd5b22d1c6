// SPDX-License-Identifier: Apache-2.0
//
// Objects that cross an edge as they are. test_bit_equality.cpp trains with them,
// test_memory_use.cpp counts their bytes, and test_asio_pipeline.cpp sends them to other processes.
#include <zbpp/runtime/object.hpp>

#include <support/backends.hpp>
#include <support/pass_order.hpp>

#include <cstring>

namespace test_object {

using namespace zbpp;
using namespace zbpp::test;

// Counts how many of its kind there are; goes to other processes as two numbers.
struct tracked {
  static inline std::atomic<int> alive = 0;

  explicit tracked(int number) : value(std::make_unique<int>(number)) { ++alive; }
  tracked(tracked&& other) noexcept : value(std::move(other.value)) { ++alive; }
  tracked& operator=(tracked&&) = delete;
  ~tracked() { --alive; }

  std::unique_ptr<int> value;
};

struct without_serializer {
  int value = 0;
};

// Refers to the bytes it was read of, without a handle to them, and reads them when it ends.
struct viewing {
  static inline int seen = 0;

  explicit viewing(std::span<int const> content) : value(content) {}
  viewing(viewing&& other) noexcept : value(std::exchange(other.value, {})) {}
  viewing& operator=(viewing&&) = delete;
  ~viewing() {
    if (!value.empty()) seen = value[0];
  }

  std::span<int const> value;
};

}  // namespace test_object

template <>
struct zbpp::serializer<test_object::tracked> {
  static std::size_t size(test_object::tracked const&) { return sizeof(int); }
  static void write(test_object::tracked const& from, std::span<std::byte> to) {
    std::memcpy(to.data(), from.value.get(), sizeof(int));
  }
  static test_object::tracked read(buffer const& from) {
    if (from.size() != sizeof(int)) throw std::length_error("four bytes make a number");
    return test_object::tracked(from.as<int>()[0]);
  }
};

template <>
struct zbpp::serializer<test_object::viewing> {
  static std::size_t size(test_object::viewing const& from) { return from.value.size_bytes(); }
  static void write(test_object::viewing const& from, std::span<std::byte> to) {
    std::memcpy(to.data(), from.value.data(), from.value.size_bytes());
  }
  static test_object::viewing read(buffer const& from) {
    return test_object::viewing(from.as<int const>());
  }
};

namespace test_object {

TEST_CASE("an object counts what it says, while a handle lives", "[object]") {
  arena memory;
  pass_context const ctx(memory);
  {
    message msg = ctx.make_edge(tracked(7), 1000);
    CHECK(memory.usage().now(purpose::edge) == 1000);
    CHECK(msg.total_size() == 1000);
    CHECK(msg.size() == 0);
    CHECK_FALSE(msg.empty());
    CHECK(msg.buffers().empty());
    CHECK(*msg.get<tracked>().value == 7);
    message const copy = msg;
    CHECK(&copy.get<tracked>() == &msg.get<tracked>());
    CHECK(tracked::alive == 1);
    message const moved = std::move(msg);
    CHECK(msg.empty());  // NOLINT(bugprone-use-after-move): it is specified to be empty
    msg = moved;
    msg.clear();
    msg = message(ctx.allocate(5));
    CHECK(memory.usage().now(purpose::edge) == 1000);
    moved.held_object().retag(purpose::activation);
    CHECK(memory.usage().now(purpose::edge) == 0);
    CHECK(memory.usage().now(purpose::activation) == 1005);
  }
  CHECK(tracked::alive == 0);
  CHECK(memory.usage().in_use == std::array<bytes, purposes>{});
}

TEST_CASE("the place of an object is used again", "[object]") {
  arena memory;
  pass_context const ctx(memory);
  message msg = ctx.make_edge(tracked(1), 0);
  auto const* const place = &msg.get<tracked>();
  msg.clear();
  CHECK(tracked::alive == 0);
  buffer const plain = ctx.allocate(sizeof(tracked));  // no object is destroyed with it
  CHECK(static_cast<void const*>(plain.data()) == place);
  msg = ctx.make_edge(tracked(2), 0);
  CHECK(*msg.get<tracked>().value == 2);
}

TEST_CASE("an object may hold memory of its own arena", "[object]") {
  arena memory;
  pass_context const ctx(memory);
  struct keeps {
    buffer memory;
  };
  message msg = ctx.make_edge(keeps{ctx.allocate(10)}, 3);
  CHECK(memory.usage().now(purpose::activation) == 10);
  msg.clear();
  CHECK(memory.usage().in_use == std::array<bytes, purposes>{});
}

TEST_CASE("what cannot be done with an object is refused", "[object]") {
  arena memory;
  pass_context const ctx(memory);
  message const msg = ctx.make_edge(tracked(7), 4);
  CHECK(
      refusal([&] { static_cast<void>(msg.get<int>()); }) ==
      "a message holds an object of another type than it is asked for; ask for the type that "
      "make_edge was given");
  CHECK(refusal([&] {
          static_cast<void>(message().get<tracked>());
        }) == "a message holds nothing, as on a stage that nobody sends to; ask it for no object");
  message const plain(ctx.allocate(4));
  CHECK(
      refusal([&] { static_cast<void>(plain.get<without_serializer>()); }) ==
      "a message holds memory and no object; make it with make_edge, and specialize "
      "zbpp::serializer for its type if it comes from another process");
  CHECK(refusal([&] {
          static_cast<void>(ctx.make_edge(tracked(1), -1));
        }) == "an object counts as a number of bytes from 0");
  CHECK(refusal(errc::wrong_size, [&] {
          message(msg).push_back(ctx.allocate(1));
        }) == "a message carries at most 8 buffers, or one object");
  auto const unwritable = ctx.make_edge(without_serializer{}, 4);
  CHECK(
      refusal([&] { static_cast<void>(unwritable.to_bytes()); }) ==
      "an object of a type without zbpp::serializer cannot go to another process; specialize "
      "zbpp::serializer for the type");
  auto const small = ctx.make_edge(tracked(1), 3);
  CHECK(
      refusal(errc::wrong_size, [&] { static_cast<void>(small.to_bytes()); }) ==
      "an object that counts as 3 bytes takes 4 to send; make it with the size that its serializer "
      "states");
  arena device({.alignment = 256, .is_host = false});
  CHECK(
      refusal([&] { static_cast<void>(pass_context(device).make_edge(tracked(1), 4)); }) ==
      "on a GPU an edge carries memory and no objects; write to memory of allocate_edge instead");
  CHECK(device.usage().in_use == std::array<bytes, purposes>{});
}

TEST_CASE("an object becomes bytes, and is made of them at the first call", "[object]") {
  arena here;
  arena there;
  pass_context const ctx(here);
  auto made = ctx.make_edge(tracked(42), 100);
  auto const written = made.to_bytes();
  CHECK(here.usage().now(purpose::edge) == 4);
  CHECK(here.usage().most(purpose::edge) == 100);
  message const arrived(there.allocate(written.size(), purpose::edge));
  std::memcpy(arrived[0].data(), written.data(), written.size());
  CHECK(*arrived.get<tracked>().value == 42);
  CHECK(&arrived.get<tracked>() == &arrived.get<tracked>());
  CHECK(arrived.total_size() == 4);
  CHECK(there.usage().now(purpose::edge) == 4);
  message const too_long(there.allocate(5));
  CHECK_THROWS_AS(too_long.get<tracked>(), std::length_error);
}

namespace {

// Adds its number to what it gets, by objects, and throws where it is told to.
struct adds {
  int* wrong = nullptr;
  pass culprit{};
  bool throws = false;

  struct passes {
    adds const* own;

    message forward(message const& in, microbatch mb, pass_context ctx) const {
      auto const before = mb.is_first_stage() ? 100 * mb.index() : *in.get<tracked>().value;
      if (before != 100 * mb.index() + mb.stage()) ++*own->wrong;
      auto out = ctx.make_edge(tracked(before + 1), 16);
      if (mb.is_last_stage()) mb.report_loss(0);
      enter(pass_kind::forward, mb);
      return out;
    }
    message backward(message const& back, microbatch mb, pass_context ctx) const {
      if (!mb.is_last_stage() && *back.get<tracked>().value != -mb.stage() - 1) ++*own->wrong;
      auto out = ctx.make_edge(tracked(-mb.stage()), 16);
      enter(mb.is_fused() ? pass_kind::backward : pass_kind::backward_input, mb);
      return out;
    }
    void weight(microbatch mb) const { enter(pass_kind::backward_weight, mb); }
    void enter(pass_kind kind, microbatch mb) const {
      if (own->throws && own->culprit == pass{kind, mb.stage(), mb.index()})
        throw std::runtime_error("told to");
    }
  };
  flow operator()(microbatch mb) { return in_order(passes{this}, mb); }
};

}  // namespace

TEST_CASE("what was read of bytes is sent on as these bytes", "[object]") {
  arena memory;
  pass_context const ctx(memory);
  arena receiver;
  {
    message const came = object(ctx.make_edge(tracked(7), sizeof(int))).to_bytes();
    CHECK(*came.get<tracked>().value == 7);
    auto const sent = came.move_to(receiver);
    CHECK(sent.size() == 1);
    CHECK_FALSE(sent.has_object());
    CHECK(receiver.usage().now(purpose::edge) == sizeof(int));
    CHECK(*sent.get<tracked>().value == 7);
    CHECK(*came.get<tracked>().value == 7);
  }
  CHECK(tracked::alive == 0);
  CHECK(receiver.usage().now(purpose::edge) == 0);
}

TEST_CASE("an object may refer to the bytes that it was read of, until it ends", "[object]") {
  arena memory;
  viewing::seen = 0;
  {
    message const came = pass_context(memory).allocate_edge(sizeof(int));
    came[0].as<int>()[0] = 7;
    CHECK(came.get<viewing>().value[0] == 7);
  }
  CHECK(viewing::seen == 7);
}

TEST_CASE("after a failure no object is left, and the next step has the right ones", "[object]") {
  for (auto const& placement : placements_to_run(3)) {
    problem const problem(placement, 5, stage_costs{.forward = 1, .edge = 16}, 1);
    on_plans(problem, {}, [&](plan const& planned) {
      std::vector<int> wrong(detail::index(placement.stages()));
      std::vector<adds> stages;
      for (auto& each : wrong) stages.push_back({.wrong = &each});
      auto const check = [&](auto& pipe, pass culprit) {
        for (auto& each : stages) {
          each.culprit = culprit;
          each.throws = true;
        }
        CHECK_THROWS_WITH(pipe.step(), Catch::Contains("told to"));
        CHECK(tracked::alive == 0);
        for (auto& each : stages) each.throws = false;
        CHECK_NOTHROW(pipe.step());
        CHECK_NOTHROW(pipe.evaluate());
        CHECK(tracked::alive == 0);
        for (auto each : wrong) CHECK(each == 0);
      };
      auto const& all = planned.schedule().passes().all();
      pipeline at_once{planned, virtual_time{}, stages};
      pipeline at_a_time{planned, threads{}, stages};
      for (std::size_t i = 0; i < all.size(); i += 7) {
        check(at_once, all[i]);
        check(at_a_time, all[i]);
      }
    });
  }
}

}  // namespace test_object

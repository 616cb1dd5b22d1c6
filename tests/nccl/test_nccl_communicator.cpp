// SPDX-License-Identifier: Apache-2.0
//
// Communicators on the model of NCCL: how they are made, watched, ended and given back, and the
// links that a process makes of them.
#include <zbpp/cuda/detail/capture.hpp>
#include <zbpp/nccl/communicator.hpp>
#include <zbpp/nccl/detail/calls.hpp>
#include <zbpp/nccl/detail/communicator_set.hpp>

#include <gpu_model/cuda/cuda_model.hpp>
#include <support/catch.hpp>
#include <support/checked_gpus.hpp>
#include <support/cuda_training.hpp>
#include <support/nccl_in_one_process.hpp>
#include <support/refusal.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace test_nccl_communicator {

using namespace zbpp::test;
namespace model = zbpp::cuda_model;
namespace nccl = zbpp::nccl;
using zbpp::channel;
using zbpp::channel_layout;
using zbpp::errc;

namespace {

bool has(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

ncclUniqueId new_id() {
  ncclUniqueId id{};
  nccl::check(ncclGetUniqueId(&id));
  return id;
}

// Both ends of a communicator of two.
struct pair_of_ends {
  pair_of_ends() {
    auto const id = new_id();
    nccl::detail::group together;
    for (int rank : {0, 1}) {
      zbpp::cuda::device_guard const there(rank);
      ends.push_back(std::make_unique<nccl::communicator>(
          id, 2, rank, nccl::communicator_settings{.name = "test"}));
    }
    together.end();
    for (auto const& end : ends) end->wait(brief_pause());
  }

  std::vector<nccl::communicator*> all() const { return {ends[0].get(), ends[1].get()}; }

  std::vector<std::unique_ptr<nccl::communicator>> ends;
};

// Neighbours in a row of three, and back.
std::vector<channel> const row{{0, 1, 1, 1}, {1, 0, 1, 1}, {1, 2, 1, 1}, {2, 1, 1, 1}};

}  // namespace

TEST_CASE("a communicator is made without blocking and given back", "[nccl]") {
  checked_gpus const gpus({.devices = 2});
  pair_of_ends const two;
  CHECK(two.ends[1]->rank() == 1);
  CHECK(two.ends[1]->ranks() == 2);
  CHECK(two.ends[1]->name() == "test");
  CHECK(two.ends[1]->is_own());
  CHECK(two.ends[1]->async_error() == ncclSuccess);
  nccl::communicator::close(two.all(), std::chrono::seconds(1));
  CHECK(two.ends[1]->get() == nullptr);
}

TEST_CASE("an end alone is waited for, and then given up", "[nccl]") {
  checked_gpus const gpus({.devices = 2});
  nccl::communicator const alone(new_id(), 2, 0, {.name = "test"});
  CHECK_FALSE(alone.is_ready());
  auto const wait = [&] {
    alone.wait(nccl::limited_pause(std::chrono::milliseconds(20), "nobody came"));
  };
  CHECK(refusal(errc::no_rendezvous, wait) == "nobody came");
}

TEST_CASE("what NCCL reports is thrown with its code and its words", "[nccl]") {
  model::reset({.devices = 2});
  try {
    model::fail_next("ncclCommInitRankConfig", ncclSystemError);
    nccl::communicator const none(new_id(), 2, 0, {.name = "test"});
    FAIL("nothing was thrown");
  } catch (nccl::nccl_error const& failed) {
    CHECK(failed.native() == ncclSystemError);
    CHECK(failed.code() == errc::device_failed);
    CHECK(has(failed.what(), "unhandled system error"));
    CHECK(has(failed.what(), "communicator.hpp:"));
  }
  pair_of_ends two;
  model::comm_fault(two.ends[0]->get(), ncclRemoteError);
  CHECK(two.ends[0]->async_error() == ncclRemoteError);
  CHECK(two.ends[1]->async_error() == ncclSuccess);
  CHECK_THROWS_AS(two.ends[0]->is_ready(), nccl::nccl_error);
  two.ends.clear();
  CHECK(model::leaks().empty());
}

TEST_CASE("settings that make no communicator are refused", "[nccl]") {
  model::reset({.devices = 2});
  auto const id = new_id();
  for (auto const& [ranks, rank, ctas] : {std::array{2, 2, 1}, {2, -1, 1}, {2, 0, 0}}) {
    auto const make = [&, r = ranks, n = rank, c = ctas] {
      nccl::communicator const none(id, r, n, {.name = "test", .most_ctas = c});
    };
    CHECK(
        refusal(make) ==
        "a communicator needs a rank from 0 to ranks - 1 and most_ctas above 0; give it both");
  }
  CHECK(model::leaks().empty());
}

TEST_CASE("an adopted communicator stays its owner's", "[nccl]") {
  model::reset({.devices = 2});
  {
    pair_of_ends const owner;
    {
      nccl::communicator const owned(owner.ends[1]->get());
      CHECK(owned.rank() == 1);
      CHECK(owned.ranks() == 2);
      CHECK_FALSE(owned.is_own());
    }
    CHECK(owner.ends[1]->async_error() == ncclSuccess);
    model::start_counting();
    nccl::communicator held(owner.ends[1]->get());
    nccl::communicator* const one = &held;
    nccl::communicator::abort({&one, 1});
    CHECK(model::count("ncclCommRevoke") == 1);
    CHECK(model::count("ncclCommAbort") == 0);
  }
  CHECK(model::leaks().empty());
}

TEST_CASE("channels take communicators by their layout", "[nccl]") {
  auto const directed = nccl::detail::map_communicators(row, channel_layout::one_per_directed_pair);
  REQUIRE(directed.communicators.size() == 4);
  CHECK(directed.of_channel == std::vector{0, 1, 2, 3});
  CHECK(directed.communicators[3].ranks == std::vector{2, 1});
  CHECK(directed.communicators[3].name == "zbpp:2>1");
  auto const paired = nccl::detail::map_communicators(row, channel_layout::one_per_pair);
  REQUIRE(paired.communicators.size() == 2);
  CHECK(paired.of_channel == std::vector{0, 0, 1, 1});
  CHECK(paired.communicators[1].ranks == std::vector{1, 2});
  CHECK(paired.communicators[1].number_of(2) == 1);
  CHECK_FALSE(paired.communicators[1].has(0));
  auto const single = nccl::detail::map_communicators(row, channel_layout::one_per_rank);
  REQUIRE(single.communicators.size() == 1);
  CHECK(single.of_channel == std::vector{0, 0, 0, 0});
  CHECK(single.communicators[0].ranks == std::vector{0, 1, 2});
}

TEST_CASE("links are made, connected and given back on every layout", "[nccl]") {
  for (auto const layout :
       {channel_layout::one_per_directed_pair,
        channel_layout::one_per_pair,
        channel_layout::one_per_rank})
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      checked_gpus const gpus({.seed = seed, .devices = 3});
      auto const made = make_communicators(row, {{0, 0}, {1, 1}, {2, 2}}, layout);
      CHECK((made->endpoint_of(0, 2) == nullptr) == (layout != channel_layout::one_per_rank));
      CHECK(made->endpoint_of(2, 2)->device == 2);
      // Two ends a communicator, or all three.
      CHECK(
          made->endpoints().size() ==
          2 * nccl::detail::map_communicators(row, layout).communicators.size() +
              (layout == channel_layout::one_per_rank ? 1 : 0));
      made->check_errors();
    }
}

TEST_CASE("all communicators begin before one is waited for", "[nccl]") {
  struct given_up {};
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    checked_gpus const gpus({.seed = seed, .devices = 3});
    auto const map = nccl::detail::map_communicators(row, channel_layout::one_per_directed_pair);
    std::vector<ncclUniqueId> ids(4);
    for (auto& id : ids) id = new_id();
    // Rank 1 is in all of them. When it begins to wait, the last of its peers comes first.
    int ready = 0;
    auto const bring_peers = [&](std::chrono::microseconds) {
      for (auto k = ids.size(); k-- > 0;) {
        int const peer = k < 2 ? 0 : 2;
        zbpp::cuda::device_guard const there(peer);
        nccl::communicator const end(
            ids[k], 2, map.communicators[k].number_of(peer), {.name = "peer"});
        CHECK_NOTHROW(end.wait(brief_pause()));
        ++ready;
      }
      throw given_up();
    };
    CHECK_THROWS_AS(
        nccl::detail::communicator_set(row, {{1, 1}}, map, ids, 1, bring_peers), given_up);
    CHECK(ready == 4);
  }
}

TEST_CASE("making communicators ends when other ranks do not come", "[nccl]") {
  checked_gpus const gpus({.devices = 2});
  auto map = nccl::detail::map_communicators(row, channel_layout::one_per_directed_pair);
  std::vector<ncclUniqueId> ids(4);
  for (auto& id : ids) id = new_id();
  auto const make = [&] {
    nccl::detail::communicator_set const none(
        row,
        {{0, 0}, {1, 1}},
        map,
        ids,
        1,
        nccl::limited_pause(std::chrono::milliseconds(20), "nobody came"));
  };
  CHECK(refusal(errc::no_rendezvous, make) == "communicator zbpp:1>2: nobody came");
}

TEST_CASE("whatever fails while links are made leaves nothing behind", "[nccl]") {
  for (auto const* function :
       {"ncclCommInitRankConfig", "ncclSend", "ncclRecv", "ncclGroupEnd", "ncclGroupStart"}) {
    INFO(function);
    model::reset({.devices = 3});
    model::fail_next(function, ncclInternalError);
    CHECK_THROWS_AS(
        make_communicators(row, {{0, 0}, {1, 1}, {2, 2}}, channel_layout::one_per_directed_pair),
        nccl::nccl_error);
    for (auto const& fault : model::faults()) CHECK(fault.find("nccl") == std::string::npos);
    CHECK(model::leaks().empty());
  }
}

TEST_CASE("links that are aborted are not used any more", "[nccl]") {
  checked_gpus const gpus({.devices = 3});
  auto const made =
      make_communicators(row, {{0, 0}, {1, 1}, {2, 2}}, channel_layout::one_per_directed_pair);
  int used = 0;
  made->use([&] { ++used; });
  made->abort();
  made->abort();
  made->use([&] { ++used; });
  CHECK(used == 1);
  CHECK(made->is_aborted());
  made->check_errors();
}

TEST_CASE("links can be asked while their abort waits for a graph", "[nccl]") {
  checked_gpus const gpus({.devices = 2});
  auto const made =
      make_communicators({row[0], row[1]}, {{0, 0}, {1, 1}}, channel_layout::one_per_directed_pair);
  zbpp::cuda::device_guard const here(0);
  zbpp::arena memory(zbpp::cuda::device_memory(0));
  auto const bytes = memory.allocate(256, zbpp::purpose::edge);
  auto const& sender = *made->endpoint_of(0, 0);
  zbpp::cuda::detail::capture open(sender.messages.view());
  nccl::detail::check_started(
      ncclSend(bytes.data(), 256, ncclInt8, 1, sender.comm.get(), sender.messages.view()));
  made->await(sender.comm);
  std::optional graph(open.finish());
  model::start_counting();
  {
    nccl::detail::abort_thread aborts([&] { made->abort(); });
    aborts.start();
    while (model::count("ncclCommAbort") < 2) std::this_thread::yield();
    // Whoever holds the graph asks before it knows of the abort, which lets it go on.
    made->check_errors();
    graph.reset();
  }
  CHECK(made->is_aborted());
}

TEST_CASE("communicators are aborted whichever launch waits for another one's kernel", "[nccl]") {
  constexpr std::size_t depth = 4;
  std::vector<std::size_t> order{0, 1, 2};
  do {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      checked_gpus const gpus(
          {.seed = seed, .devices = 2, .launch_depth = depth, .lazy_connect = false});
      std::array<pair_of_ends, 3> const pairs;
      zbpp::cuda::device_guard const here(0);
      zbpp::arena memory(zbpp::cuda::device_memory(0));
      std::array<zbpp::cuda::stream, 3> const streams{
          zbpp::cuda::stream(zbpp::cuda::stream_priority::usual),
          zbpp::cuda::stream(zbpp::cuda::stream_priority::usual),
          zbpp::cuda::stream(zbpp::cuda::stream_priority::usual)};
      zbpp::cuda::event const received(zbpp::cuda::event_kind::order);
      auto const bytes = memory.allocate(std::size_t{3} * 256, zbpp::purpose::edge);
      // The first waits for a message that never comes, the others for room in their streams,
      // which stand behind it.
      auto const receive = [&](std::size_t i) {
        nccl::detail::check_started(ncclRecv(
            bytes.data() + 256 * i, 256, ncclInt8, 1, pairs[i].ends[0]->get(), streams[i].view()));
      };
      receive(0);
      while (!pairs[0].ends[0]->is_ready()) {
      }
      streams[0].view().record(received);
      for (std::size_t i : {1U, 2U}) {
        streams[i].view().wait(received);
        for (auto filled = depth - 1; filled > 0; --filled)
          zbpp::cuda::check(model::launch(streams[i].view(), "behind it", {}, {}));
      }
      nccl::detail::group others;
      for (std::size_t i : {1U, 2U}) receive(i);
      others.end();
      CHECK_FALSE(pairs[1].ends[0]->is_ready());
      std::vector<nccl::communicator*> all;
      for (auto const i : order) all.push_back(pairs[i].ends[0].get());
      nccl::communicator::abort(all);
      for (auto const* one : all) CHECK(one->get() == nullptr);
      for (auto const& each : streams) each.view().synchronize();
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("an abort thread acts at most once", "[nccl]") {
  std::atomic<int> acted{0};
  {
    nccl::detail::abort_thread const idle([&] { ++acted; });
  }
  CHECK(acted == 0);
  {
    nccl::detail::abort_thread started([&] { ++acted; });
    started.start();
    started.start();
    started.finish();
    CHECK(acted == 1);
    started.finish();
  }
  {
    nccl::detail::abort_thread finished([&] { ++acted; });
    finished.finish();
  }
  CHECK(acted == 2);
}

}  // namespace test_nccl_communicator

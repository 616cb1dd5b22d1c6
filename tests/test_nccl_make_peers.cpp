// SPDX-License-Identifier: Apache-2.0
//
// How processes find out which channels copies carry: whatever fails meanwhile, all ranks know the
// same, and no slots are freed that another process has open.
#include <zbpp/nccl/detail/channel_plan.hpp>
#include <zbpp/nccl/detail/connect.hpp>
#include <zbpp/nccl/detail/peer_channels.hpp>

#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/cuda_model/cuda_model.hpp>
#include <support/cuda_training.hpp>
#include <support/seeded.hpp>
#include <support/sharing_calls.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <latch>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace test_nccl_make_peers {

using namespace zbpp::test;
namespace cuda = zbpp::cuda;
namespace model = zbpp::cuda_model;
namespace nccl = zbpp::nccl;
using nccl::detail::peer_receiver;
using nccl::detail::peer_sender;
using nccl::detail::peer_set;

namespace {

constexpr int ranks = 3;
constexpr std::size_t edge = 256;

// A row of ranks, with a channel each way between neighbours.
struct shared_row {
  shared_row() {
    for (auto const& c : nccl::detail::channels_of(zbpp::placement::linear(ranks))) {
      auto& one = needs.emplace_back();
      one.ends = c;
      one.shapes = &shapes;
      one.edges = {0};
    }
    held.assign(needs.size(), 2);
  }
  shared_row(shared_row const&) = delete;
  shared_row& operator=(shared_row const&) = delete;

  // Of the first channels only, as a rank with another plan would have it.
  void make(zbpp::asio::rendezvous& meeting, std::size_t first, peer_set& made) const {
    nccl::detail::make_peers(
        {meeting.control_channel()},
        meeting.rank(),
        std::span(needs).first(first),
        std::span(held).first(first),
        settings,
        made);
  }

  std::vector<cuda::message_shape> shapes{{edge}};
  std::vector<cuda::channel_needs> needs;
  std::vector<std::size_t> held;
  nccl::ranks_settings settings;
};

// A rank that goes at once, or when it has told what it offers.
void leave_early(zbpp::asio::rendezvous& meeting, bool offers) {
  using nccl::detail::peer_offer;
  std::vector<peer_offer> const nothing(4);
  if (offers)
    nccl::detail::gathered_values<peer_offer> const gathered(meeting.control_channel(), nothing);
}

model::options machine_of(std::uint64_t seed) {
  return {.seed = seed, .devices = ranks, .hosts = ranks, .shares_memory = true};
}
void reset(std::uint64_t seed) { model::reset(machine_of(seed)); }

}  // namespace

TEST_CASE("slots stay until who has opened them lets go, whichever rank fails where", "[nccl]") {
  shared_row const row;
  auto seed = run_seed();
  for (int culprit = 0; culprit < ranks; ++culprit)
    for (std::size_t known = 0; known < row.needs.size(); ++known)
      for (bool const is_gone : {false, true}) {
        INFO("rank " << culprit << " knows " << known << " channels, is gone: " << is_gone);
        reset(++seed);
        std::latch failed(ranks);
        auto const thrown =
            run_ranks(ranks, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
              peer_set made(row.needs.size());
              try {
                if (is_gone && meeting.rank() == culprit) {
                  leave_early(meeting, known % 2 == 1);
                  return failed.count_down();
                }
                row.make(meeting, meeting.rank() == culprit ? known : row.needs.size(), made);
                meeting.barrier();
              } catch (std::exception const& why) {
                meeting.fail(why.what());
              }
              failed.arrive_and_wait();  // nobody has let go yet
            });
        for (auto const& text : thrown) CHECK(text == "");
        CHECK(first_of(model::faults()) == "");
        CHECK(first_of(model::leaks()) == "");
      }
}

TEST_CASE("all ranks know which channels copies carry, whatever fails", "[nccl]") {
  shared_row const row;
  auto seed = run_seed() + 100;
  for (auto const* function : calls_that_share_slots)
    for (int culprit = 0; culprit < ranks; ++culprit) {
      INFO(function << " fails when rank " << culprit << " begins");
      reset(++seed);
      std::array<std::vector<bool>, ranks> carried;
      auto const thrown =
          run_ranks(ranks, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
            peer_set made(row.needs.size());
            if (meeting.rank() == culprit) model::fail_next(function, cudaErrorNotSupported);
            row.make(meeting, row.needs.size(), made);
            for (int c = 0; c < made.channels(); ++c) {
              carried[zbpp::detail::index(meeting.rank())].push_back(made.carries(c));
              auto const& ends = row.needs[zbpp::detail::index(c)].ends;
              auto const is_mine = [&](int rank) { return rank == meeting.rank(); };
              if ((made.sender_of(c) != nullptr) != (made.carries(c) && is_mine(ends.from)) ||
                  (made.receiver_of(c) != nullptr) != (made.carries(c) && is_mine(ends.to)))
                throw std::logic_error("an end is missing, or left over");
            }
          });
      for (auto const& text : thrown) CHECK(text == "");
      for (auto const& of_rank : carried) {
        CHECK(of_rank == carried.front());
        CHECK(std::ranges::count(of_rank, false) == 1);
      }
      CHECK(first_of(model::faults()) == "");
      CHECK(first_of(model::leaks()) == "");
    }
}

TEST_CASE("all ranks know of copies that do not arrive, and no slots stay open", "[nccl]") {
  shared_row const row;
  auto seed = run_seed() + 150;
  for (auto const fate : {model::copy_fate::lost, model::copy_fate::garbled})
    for (std::size_t harmed = 0; harmed < row.needs.size(); ++harmed) {
      INFO("channel " << harmed);
      auto machine = machine_of(++seed);
      machine.direct_copies = [&](int from, int to) {
        auto const& ends = row.needs[harmed].ends;
        return from == ends.from && to == ends.to ? fate : model::copy_fate::arrives;
      };
      model::reset(machine);
      auto const thrown =
          run_ranks(ranks, patient_settings(), [&](zbpp::asio::rendezvous& meeting) {
            peer_set made(row.needs.size());
            row.make(meeting, row.needs.size(), made);
            for (int c = 0; c < made.channels(); ++c)
              if (made.carries(c) != (zbpp::detail::index(c) != harmed))
                throw std::logic_error("another channel is carried");
            if (made.sender_of(static_cast<int>(harmed)) != nullptr ||
                made.receiver_of(static_cast<int>(harmed)) != nullptr)
              throw std::logic_error("an end is left over");
          });
      for (auto const& text : thrown) CHECK(text == "");
      CHECK(first_of(model::faults()) == "");
      CHECK(first_of(model::leaks()) == "");
    }
}

TEST_CASE("an offer is taken once, by the sender or back", "[nccl]") {
  auto const make_receiver = [] {
    cuda::device_guard const there(1);
    return std::make_unique<peer_receiver>(1, 0, 2, cuda::message_shape{zbpp::bytes{edge}});
  };
  auto const open = [](peer_receiver const& at) {
    cuda::device_guard const here(0);
    return std::make_unique<peer_sender>(0, at.offer());
  };
  reset(run_seed() + 200);
  SECTION("back") {
    auto const receiver = make_receiver();
    CHECK(receiver->take_back());
    CHECK_THROWS_AS(open(*receiver), std::system_error);
    CHECK(receiver->take_back());
  }
  SECTION("by a sender, until it lets go") {
    auto const receiver = make_receiver();
    auto sender = open(*receiver);
    CHECK_FALSE(receiver->take_back());
    CHECK_THROWS_AS(open(*receiver), std::system_error);
    CHECK_FALSE(receiver->take_back());
    sender.reset();
    CHECK(receiver->take_back());
  }
  SECTION("by a sender that fails to open the slots, or to write there") {
    for (auto const* function : {"cudaIpcOpenMemHandle", "cudaMemcpyAsync", "cudaMalloc"}) {
      INFO(function);
      auto const receiver = make_receiver();
      model::fail_next(function, cudaErrorNotSupported);
      CHECK_THROWS_AS(open(*receiver), zbpp::error);
      CHECK(receiver->take_back());
    }
  }
  CHECK(first_of(model::faults()) == "");
  CHECK(first_of(model::leaks()) == "");
}

}  // namespace test_nccl_make_peers

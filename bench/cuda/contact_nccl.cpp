// SPDX-License-Identifier: Apache-2.0
//
// Tries what zbpp needs of NCCL between two processes, before anything relies on it
// (contact_lines.hpp).
#include <zbpp/cuda/detail/capture.hpp>
#include <zbpp/nccl/communicator.hpp>

#include <algorithm>
#include <bench/cuda/alone.hpp>
#include <bench/cuda/contact_lines.hpp>
#include <bench/cuda/kernels.hpp>
#include <bench/cuda/work.hpp>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>

namespace zbpp::bench {
namespace {

constexpr std::size_t size = 4096;
constexpr std::chrono::seconds patience{15};

nccl::pause_call limited(char const* fault) {
  return nccl::limited_pause(patience, std::string(fault) + " within 15 s");
}

// Two processes, each with a communicator of both.
struct pair {
  link const& to;
  cuda::stream on{cuda::stream_priority::highest};
  device_memory data{size};
  nccl::communicator own;  // last: what it still carries uses the others

  pair(link const& other, ncclUniqueId const& id)
      : to(other), own(id, 2, other.rank(), {"contact"}) {
    own.wait(limited("the communicator does not get ready"));
  }

  // Rank 0 sends to rank 1.
  void enqueue() const {
    nccl::detail::group together;
    if (to.rank() == 0)
      nccl::check(ncclSend(data.get(), size, ncclInt8, 1, own.get(), on.view().get()));
    else
      nccl::check(ncclRecv(data.get(), size, ncclInt8, 0, own.get(), on.view().get()));
    together.end();
    own.wait(limited("the group is not launched"));
  }
  void fill() const {
    cuda::check(cudaMemsetAsync(data.get(), to.rank() == 0 ? 90 : 0, size, on.view()));
  }
  void expect_data() const {
    auto const found = read_back(on, data.get<unsigned char>(), size);
    if (!std::ranges::all_of(found, [](auto each) { return each == 90; }))
      throw std::runtime_error("other data arrived than was sent");
  }
};

void choose_device(link const& to) {
  int const devices = count_devices();
  cuda::check(cudaSetDevice(to.rank() % devices));
  if (devices < 2) {  // then each poses as a machine of its own, and sockets carry messages
    ::setenv("NCCL_HOSTID", to.rank() == 0 ? "zbpp-0" : "zbpp-1", 1);
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    ::setenv("NCCL_IB_DISABLE", "1", 1);
    ::setenv("NCCL_MNNVL_ENABLE", "0", 1);
  }
}

ncclUniqueId share_id(link const& to) {
  if (to.rank() != 0) return to.receive<ncclUniqueId>();
  ncclUniqueId id{};
  nccl::check(ncclGetUniqueId(&id));
  to.send(id);
  return id;
}

std::string between_two(std::function<std::string(pair&)> const& body) {
  return run_as_two([&](link const& to) {
    choose_device(to);
    pair both(to, share_id(to));
    return body(both);
  });
}

// As zbpp makes all of a rank, in one group.
std::string two_communicators() {
  return run_as_two([](link const& to) {
    choose_device(to);
    auto const first_id = share_id(to);
    auto const second_id = share_id(to);
    nccl::detail::group together;
    nccl::communicator const first(first_id, 2, to.rank(), {"first"});
    nccl::communicator const second(second_id, 2, to.rank(), {"second"});
    together.end();
    for (auto const* each : {&first, &second})
      each->wait(limited("two communicators do not get ready"));
    to.meet();
    return std::string();
  });
}

// A receive waits for what nobody sends, until `stops` ends it.
std::string ends_in_time(std::function<void(pair&)> const& stops) {
  return between_two([&](pair& both) -> std::string {
    both.fill();
    both.enqueue();  // connects
    both.expect_data();
    if (both.to.rank() == 1) both.enqueue();
    both.to.meet();  // or rank 0 may stop what still brings the first message
    auto const start = std::chrono::steady_clock::now();
    stops(both);
    both.on.view().synchronize();
    std::chrono::duration<double> const took = std::chrono::steady_clock::now() - start;
    if (both.to.rank() == 1) both.to.send(took.count());
    return both.to.rank() == 1 ? "" : std::to_string(both.to.receive<double>()) + " s";
  });
}

std::string message() {
  return between_two([](pair& both) -> std::string {
    both.fill();
    both.enqueue();
    both.expect_data();
    both.to.meet();
    int version = 0;
    nccl::check(ncclGetVersion(&version));
    return "NCCL " + std::to_string(version);
  });
}

std::string captured() {
  return between_two([](pair& both) -> std::string {
    both.fill();
    both.enqueue();  // connects
    both.fill();
    both.on.view().synchronize();
    cuda::detail::capture step(both.on);
    both.enqueue();
    auto const graph = step.finish();
    for (int i = 0; i < 2; ++i) cuda::check(cudaGraphLaunch(graph.get(), both.on.view()));
    both.expect_data();
    both.to.meet();
    return {};
  });
}

std::string abort() {
  return ends_in_time([](pair& both) {
    nccl::communicator* const one = &both.own;
    nccl::communicator::abort({&one, 1});
  });
}

std::string revoke() {
  if (!nccl::detail::can_revoke()) throw not_here{"NCCL is older than 2.28.7"};
  return ends_in_time(
      [](pair& both) { nccl::detail::check_started(nccl::detail::revoke(both.own.get())); });
}

// A kernel is launched for the first time while a receive waits for what is sent after that.
std::string late_loading() {
  ::setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  return between_two([](pair& both) -> std::string {
    both.fill();
    both.enqueue();  // connects
    both.expect_data();
    cuda::stream const runs(cuda::stream_priority::usual);
    device_memory const other(sizeof(float));
    both.fill();
    both.on.view().synchronize();
    if (both.to.rank() == 1) {
      both.enqueue();
      cuda::check(scale(runs.view(), other.get<float>(), nullptr, 1, 1, 1));
      runs.view().synchronize();
    }
    both.to.meet();
    if (both.to.rank() == 0) both.enqueue();
    both.expect_data();
    both.to.meet();
    return {};
  });
}

constexpr line all[] = {
    {"NCCL: a message between two ranks", message, 25, "nccl", "all that goes over NCCL"},
    {"NCCL: two communicators at once", two_communicators, 25, "nccl", "all that goes over NCCL"},
    {"NCCL: a first launch beside a receive",
     late_loading,
     25,
     "late",
     "nothing, with CUDA_MODULE_LOADING=EAGER or warm kernels"},
    {"NCCL: captured messages", captured, 25, "replay", "steps over NCCL that are replayed"},
    {"NCCL: an abort in time", abort, 25, "abort", "failures over NCCL that end in time"},
    {"NCCL: a revoke in time", revoke, 25, "revoke", "adopted communicators"}};

}  // namespace

std::span<line const> lines() { return all; }

}  // namespace zbpp::bench

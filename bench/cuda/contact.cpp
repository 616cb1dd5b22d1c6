// SPDX-License-Identifier: Apache-2.0
//
// Tries what zbpp needs of CUDA before anything relies on it (contact_lines.hpp); contact_nccl does
// so of NCCL, whose library may not be there.
#include <zbpp/cuda/detail/capture.hpp>
#include <zbpp/cuda/detail/driver_api.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/memory.hpp>

#include <algorithm>
#include <bench/cuda/alone.hpp>
#include <bench/cuda/contact_lines.hpp>
#include <bench/cuda/kernels.hpp>
#include <bench/cuda/two_parts.hpp>
#include <bench/cuda/work.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <iterator>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace zbpp::bench {
namespace {

void expect(bool good, std::string const& fault) {
  if (!good) throw std::runtime_error(fault);
}

int attribute(cudaDeviceAttr name) {
  int value = 0;
  cuda::check(cudaDeviceGetAttribute(&value, name, 0));
  return value;
}

// Every byte of `memory` is to be `value`.
void expect_bytes(cuda::stream_ref on, void const* memory, std::size_t size, int value) {
  auto const found = read_back(on, static_cast<unsigned char const*>(memory), size);
  expect(
      std::ranges::all_of(found, [value](auto each) { return each == value; }),
      "other data arrived than was written");
}

// ---- parts of a GPU ----

std::string parts_are_disjoint() {
  two_parts const parts;
  constexpr int blocks = 1024;
  device_memory const notes(2 * blocks * sizeof(unsigned));
  auto const of = [&](int part) { return notes.get<unsigned>() + part * blocks; };
  for (int part : {0, 1})
    cuda::check(burn_and_note(parts.streams[zbpp::detail::index(part)], blocks, 20'000, of(part)));
  std::set<unsigned> seen[2];
  for (int part : {0, 1}) {
    auto const ids = read_back(parts.streams[zbpp::detail::index(part)], of(part), blocks);
    seen[part] = {ids.begin(), ids.end()};
  }
  std::vector<unsigned> shared;
  std::ranges::set_intersection(seen[0], seen[1], std::back_inserter(shared));
  auto const text = std::to_string(parts.multiprocessors[0]) + " multiprocessors each, " +
                    std::to_string(seen[0].size()) + " and " + std::to_string(seen[1].size()) +
                    " seen, " + std::to_string(shared.size()) + " shared";
  // Of compute capability 9, CUDA may let parts share two.
  expect(
      shared.size() <= (attribute(cudaDevAttrComputeCapabilityMajor) == 9 ? 2U : 0U),
      "parts are not disjoint: " + text);
  return text;
}

std::string event_of_part() {
  two_parts const parts;
  cuda::event const begin(cuda::event_kind::timing);
  cuda::event const end(cuda::event_kind::timing);
  device_memory const sink(sizeof(float));
  parts.streams[0].record(begin);
  cuda::check(burn(parts.streams[0], 8, 20'000, sink.get<float>()));
  parts.streams[0].record(end);
  parts.streams[0].synchronize();
  float milliseconds = 0;
  cuda::check(cudaEventElapsedTime(&milliseconds, begin.view().get(), end.view().get()));
  expect(milliseconds >= 0, "the time between two events is negative");
  return {};
}

std::string wait_across_parts() {
  two_parts const parts;
  constexpr std::size_t size = 4096;
  device_memory const data(size);
  device_memory const copy(size);
  device_memory const sink(sizeof(float));
  cuda::event const made(cuda::event_kind::order);
  cuda::check(burn(parts.streams[0], 8, 2'000'000, sink.get<float>()));
  cuda::check(cudaMemsetAsync(data.get(), 7, size, parts.streams[0]));
  parts.streams[0].record(made);
  parts.streams[1].wait(made);
  cuda::check(
      cudaMemcpyAsync(copy.get(), data.get(), size, cudaMemcpyDeviceToDevice, parts.streams[1]));
  expect_bytes(parts.streams[1], copy.get(), size, 7);
  return {};
}

std::string graph_on_part() {
  two_parts const parts;
  constexpr std::size_t size = 4096;
  device_memory const data(size);
  cuda::check(cudaMemsetAsync(data.get(), 0, size, parts.streams[0]));
  cuda::detail::capture node(parts.streams[0]);
  cuda::check(cudaMemsetAsync(data.get(), 7, size, parts.streams[0]));
  auto const graph = node.finish();
  for (int i = 0; i < 2; ++i) cuda::check(cudaGraphLaunch(graph.get(), parts.streams[0]));
  expect_bytes(parts.streams[0], data.get(), size, 7);
  return {};
}

// ---- counters ----

// A page of memory without a name; another process finds it by way of the one that made it. It is
// left to the end of both.
class memfd_page {
 public:
  static constexpr std::size_t size = 4096;
  struct place {
    int process;
    int file;
  };

  memfd_page() : at_{::getpid(), ::memfd_create("contact", MFD_CLOEXEC)} {
    expect(at_.file >= 0 && ::ftruncate(at_.file, size) == 0, "memfd_create does not work");
  }
  explicit memfd_page(place of) : at_{::getpid(), -1} {
    auto const path = "/proc/" + std::to_string(of.process) + "/fd/" + std::to_string(of.file);
    at_.file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    expect(at_.file >= 0, "the memfd of another process cannot be opened");
  }

  [[nodiscard]] place const& at() const { return at_; }
  // Registers it. @return its counter for streams
  [[nodiscard]] CUdeviceptr counter() const {
    auto* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, at_.file, 0);
    expect(memory != MAP_FAILED, "a memfd cannot be mapped");
    cuda::check(cudaHostRegister(memory, size, cudaHostRegisterMapped | cudaHostRegisterPortable));
    void* on_device = nullptr;
    cuda::check(cudaHostGetDevicePointer(&on_device, memory, 0));
    return reinterpret_cast<CUdeviceptr>(on_device);
  }

 private:
  place at_;
};

struct value_calls {
  PFN_cuStreamWriteValue32_v11070 write =
      cuda::detail::driver_function<PFN_cuStreamWriteValue32_v11070>("cuStreamWriteValue32", 11070);
  PFN_cuStreamWaitValue32_v11070 wait =
      cuda::detail::driver_function<PFN_cuStreamWaitValue32_v11070>("cuStreamWaitValue32", 11070);
};

std::string registered_page() {
  memfd_page const page;
  cuda::check(cudaSetDevice(0));
  static_cast<void>(page.counter());
  return {};
}

// A stream waits for a value that another one writes afterwards.
std::string wait_for_value(unsigned flags) {
  memfd_page const page;
  cuda::check(cudaSetDevice(0));
  value_calls const calls;
  auto const counter = page.counter();
  cuda::stream const waits(cuda::stream_priority::usual);
  cuda::stream const writes(cuda::stream_priority::usual);
  cuda::detail::check_driver(
      calls.wait(waits.view().get(), counter, 5, CU_STREAM_WAIT_VALUE_GEQ | flags));
  expect(cudaStreamQuery(waits.view().get()) == cudaErrorNotReady, "the wait does not wait");
  cuda::detail::check_driver(
      calls.write(writes.view().get(), counter, 5, CU_STREAM_WRITE_VALUE_DEFAULT));
  waits.view().synchronize();
  return {};
}

std::string values() { return wait_for_value(0); }

std::string values_with_flush() {
  if (attribute(cudaDevAttrCanFlushRemoteWrites) == 0)
    throw not_here{"the device has no such flush, and none is used"};
  return wait_for_value(CU_STREAM_WAIT_VALUE_FLUSH);
}

// ---- processes ----

constexpr std::size_t shared_size = std::size_t{1} << 20;

// What the first process lets the second one write to.
struct shared_places {
  cudaIpcMemHandle_t memory;
  memfd_page::place page;
};

std::string lend_memory(link const& to) {
  memfd_page const page;
  auto const counter = page.counter();
  value_calls const calls;
  cuda::stream const on(cuda::stream_priority::usual);
  device_memory const data(shared_size);
  cuda::check(cudaMemsetAsync(data.get(), 0, shared_size, on.view()));
  on.view().synchronize();
  shared_places lent{.memory = {}, .page = page.at()};
  cuda::check(cudaIpcGetMemHandle(&lent.memory, data.get()));
  to.send(lent);
  to.meet();  // before anything waits for what would not come if the other process failed
  cuda::detail::check_driver(calls.wait(on.view().get(), counter, 1, CU_STREAM_WAIT_VALUE_GEQ));
  to.meet();
  expect_bytes(on, data.get(), shared_size, 90);
  to.meet();
  return {};
}

std::string write_to_lent_memory(link const& to) {
  auto const lent = to.receive<shared_places>();
  memfd_page const page(lent.page);
  auto const counter = page.counter();
  value_calls const calls;
  cuda::stream const on(cuda::stream_priority::usual);
  void* opened = nullptr;
  cuda::check(cudaIpcOpenMemHandle(&opened, lent.memory, cudaIpcMemLazyEnablePeerAccess));
  device_memory const from(shared_size);
  cuda::check(cudaMemsetAsync(from.get(), 90, shared_size, on.view()));
  to.meet();
  to.meet();  // the other process waits
  cuda::check(
      cudaMemcpyAsync(opened, from.get(), shared_size, cudaMemcpyDeviceToDevice, on.view()));
  cuda::detail::check_driver(
      calls.write(on.view().get(), counter, 1, CU_STREAM_WRITE_VALUE_DEFAULT));
  on.view().synchronize();
  cuda::check(cudaIpcCloseMemHandle(opened));  // before the other process frees it
  to.meet();
  return {};
}

// The second process writes into memory of the first, and then a counter, as a channel does.
std::string memory_of_another() {
  return run_as_two([](link const& to) {
    cuda::check(cudaSetDevice(to.rank() % count_devices()));
    return to.rank() == 0 ? lend_memory(to) : write_to_lent_memory(to);
  });
}

std::string peer_copy() {
  if (count_devices() < 2) throw not_here{"there is one GPU"};
  constexpr std::size_t size = std::size_t{1} << 20;
  int can = 0;
  cuda::check(cudaDeviceCanAccessPeer(&can, 0, 1));
  device_memory const from(size);
  cuda::stream const first(cuda::stream_priority::usual);
  cuda::check(cudaMemsetAsync(from.get(), 90, size, first.view()));
  first.view().synchronize();
  if (can != 0) cuda::check(cudaDeviceEnablePeerAccess(1, 0));
  cuda::check(cudaSetDevice(1));
  device_memory const to(size);
  cuda::stream const on(cuda::stream_priority::usual);
  cuda::check(cudaMemcpyPeerAsync(to.get(), 1, from.get(), 0, size, on.view()));
  expect_bytes(on, to.get(), size, 90);
  return can != 0 ? "directly" : "by way of the host";
}

// ---- kernels that are loaded late ----

// A kernel is launched for the first time while a stream waits for what comes after it.
std::string late_loading() {
  ::setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  memfd_page const page;
  cuda::check(cudaSetDevice(0));
  value_calls const calls;
  auto const counter = page.counter();
  device_memory const data(sizeof(float));
  cuda::stream const waits(cuda::stream_priority::usual);
  cuda::stream const runs(cuda::stream_priority::usual);
  cuda::detail::check_driver(calls.wait(waits.view().get(), counter, 1, CU_STREAM_WAIT_VALUE_GEQ));
  cuda::check(scale(runs.view(), data.get<float>(), nullptr, 1, 1, 1));
  cuda::detail::check_driver(
      calls.write(runs.view().get(), counter, 1, CU_STREAM_WRITE_VALUE_DEFAULT));
  waits.view().synchronize();
  return {};
}

// ---- all of them ----

constexpr char const* no_copies =
    "NCCL carries all messages between processes (peer_copies = false)";

constexpr line all[] = {
    {"parts of a GPU are disjoint", parts_are_disjoint, 10, "parts", no_parts},
    {"an event on a part, and its time", event_of_part, 10, "parts", no_parts},
    {"a wait from part to part", wait_across_parts, 10, "parts", no_parts},
    {"capture and replay on a part", graph_on_part, 10, "parts", no_parts},
    {"a registered page of a memfd", registered_page, 10, "copies", no_copies},
    {"a wait for a value", values, 10, "copies", no_copies},
    {"the same with flush", values_with_flush, 10, "copies", no_copies},
    {"memory of another process", memory_of_another, 15, "copies", no_copies},
    {"a copy to another GPU", peer_copy, 10, "peers", "ranks of one process on several GPUs"},
    {"a first launch beside a wait",
     late_loading,
     10,
     "late",
     "nothing, with CUDA_MODULE_LOADING=EAGER or warm kernels"},
};

}  // namespace

std::span<line const> lines() { return all; }

}  // namespace zbpp::bench

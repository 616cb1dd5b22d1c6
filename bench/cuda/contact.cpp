// SPDX-License-Identifier: Apache-2.0
//
// Tries what zbpp needs of CUDA before anything relies on it (contact_lines.hpp); contact_nccl does
// so of NCCL, whose library may not be there.
#include <zbpp/cuda/detail/capture.hpp>
#include <zbpp/cuda/handles.hpp>
#include <zbpp/cuda/memory.hpp>

#include <algorithm>
#include <bench/cuda/alone.hpp>
#include <bench/cuda/contact_lines.hpp>
#include <bench/cuda/kernels.hpp>
#include <bench/cuda/two_parts.hpp>
#include <bench/cuda/work.hpp>
#include <cstddef>
#include <iterator>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
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

// ---- GPUs beside one another ----

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

// ---- all of them ----

constexpr line all[] = {
    {"parts of a GPU are disjoint", parts_are_disjoint, 10, "parts", no_parts},
    {"an event on a part, and its time", event_of_part, 10, "parts", no_parts},
    {"a wait from part to part", wait_across_parts, 10, "parts", no_parts},
    {"capture and replay on a part", graph_on_part, 10, "parts", no_parts},
    {"a copy to another GPU", peer_copy, 10, "peers", "ranks of one process on several GPUs"},
};

}  // namespace

std::span<line const> lines() { return all; }

}  // namespace zbpp::bench

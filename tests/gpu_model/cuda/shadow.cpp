// SPDX-License-Identifier: Apache-2.0
#include "shadow.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace zbpp::cuda_model {

namespace {

constexpr std::size_t alignment = 256;  // as cudaMalloc promises
constexpr int pattern = 0xA5;           // no sensible value of any type

}  // namespace

void free_storage::operator()(void* storage) const { std::free(storage); }

void* memory::allocate(std::size_t bytes, int device) {
  std::size_t const room =
      (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  auto* data = static_cast<std::byte*>(std::aligned_alloc(alignment, room));
  if (data == nullptr) throw std::bad_alloc{};
  std::memset(data, pattern, room);
  allocation made;
  made.storage.reset(data);
  made.bytes = bytes;
  made.device = device;
  made.segments.push_back({0, bytes, false, {}, {}});
  add(reinterpret_cast<std::uintptr_t>(data), std::move(made));
  return data;
}

void memory::add(std::uintptr_t begin, allocation made) {
  auto const found = std::upper_bound(
      places_.begin(), places_.end(), begin, [](std::uintptr_t address, place const& one) {
        return address < one.begin;
      });
  places_.insert(found, place{begin, static_cast<std::uint32_t>(all_.size())});
  all_.push_back(std::move(made));
}

memory::place const* memory::at_or_before(void const* data) const {
  auto const address = reinterpret_cast<std::uintptr_t>(data);
  auto const after = std::upper_bound(
      places_.begin(), places_.end(), address, [](std::uintptr_t value, place const& one) {
        return value < one.begin;
      });
  return after == places_.begin() ? nullptr : &*(after - 1);
}

allocation* memory::beginning_at(void const* data) {
  place const* holder = at_or_before(data);
  bool const exact = holder != nullptr && holder->begin == reinterpret_cast<std::uintptr_t>(data);
  return exact ? &all_[holder->allocation] : nullptr;
}

std::string memory::find(void const* data, std::size_t bytes, bool write, byte_access& found) {
  place const* holder = at_or_before(data);
  if (holder == nullptr) return "was never allocated by cudaMalloc or cudaHostAlloc";
  allocation const& of = all_[holder->allocation];
  std::size_t const begin = reinterpret_cast<std::uintptr_t>(data) - holder->begin;
  if (begin >= of.bytes && bytes > 0) return "was never allocated by cudaMalloc or cudaHostAlloc";
  if (of.freed)
    return "is in allocation " + std::to_string(holder->allocation) + ", which has been freed";
  if (bytes > of.bytes - begin) {
    return "runs over the end of allocation " + std::to_string(holder->allocation) + " of " +
           std::to_string(of.bytes) + " bytes";
  }
  found = {holder->allocation, write, begin, begin + bytes};
  return {};
}

std::size_t memory::cut(allocation& of, std::size_t begin, std::size_t end) {
  std::vector<allocation::segment>& parts = of.segments;
  auto const cut_at = [&](std::size_t position) {
    auto const after = std::upper_bound(
        parts.begin(),
        parts.end(),
        position,
        [](std::size_t value, allocation::segment const& one) { return value < one.begin; });
    auto const index = static_cast<std::size_t>(after - parts.begin()) - 1;
    if (parts[index].begin == position || position >= parts[index].end)
      return parts[index].begin == position ? index : index + 1;
    allocation::segment right = parts[index];
    right.begin = position;
    parts[index].end = position;
    parts.insert(parts.begin() + static_cast<std::ptrdiff_t>(index + 1), std::move(right));
    return index + 1;
  };
  cut_at(end);
  return cut_at(begin);
}

void memory::uninitialise(byte_access const& bytes) {
  if (bytes.begin == bytes.end) return;
  allocation& of = all_[bytes.allocation];
  for (std::size_t part = cut(of, bytes.begin, bytes.end);
       part < of.segments.size() && of.segments[part].begin < bytes.end;
       ++part) {
    of.segments[part].written = false;
  }
}

std::size_t memory::bytes_on(int device) const {
  std::size_t sum = 0;
  for (allocation const& one : all_) sum += one.device == device && !one.freed ? one.bytes : 0;
  return sum;
}

void memory::clear() {
  all_.clear();
  places_.clear();
}

}  // namespace zbpp::cuda_model

// SPDX-License-Identifier: Apache-2.0
//
// The memory of the model and its shadow: for each run of bytes, who wrote it last and who has
// read it since. From that, races, reads of what nobody wrote, and use of freed memory are found.
#pragma once

#include "clock.hpp"
#include "cuda_model.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace zbpp::cuda_model {

/// Bytes [begin, end) of an allocation, as an operation touches them.
struct byte_access {
  std::uint32_t allocation = 0;
  bool write = false;
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// Who did something: the epoch of a slot, and its name for people.
struct note {
  std::uint32_t slot = 0;
  std::uint32_t epoch = 0;  // 0: nobody
  name label{""};

  bool before(vector_clock const& clock) const { return clock[slot] >= epoch; }
};

/// Two accesses that nothing orders, or a read of bytes that nobody wrote (then `first` is nobody).
struct conflict {
  note first;
  bool first_writes = false;
  std::size_t begin = 0;
  std::size_t end = 0;
};

struct free_storage {
  void operator()(void* storage) const;
};

inline constexpr int pinned = -1;  // the device of memory that the host owns

struct allocation {
  std::unique_ptr<std::byte, free_storage> storage;
  std::size_t bytes = 0;
  int device = 0;
  bool freed = false;
  bool mapped = false;        // of the host, and kernels may touch it
  std::uint32_t pending = 0;  // appended operations that touch it

  struct segment {
    std::size_t begin = 0;
    std::size_t end = 0;
    bool written = false;
    note writer;
    std::vector<note> readers;  // since the writer, none before another
  };
  std::vector<segment> segments;  // they cover all bytes, in order
};

class memory {
 public:
  /// A new allocation, filled with a pattern.
  void* allocate(std::size_t bytes, int device);

  /// The allocation that begins at this address, or null.
  allocation* beginning_at(void const* data);

  /// Finds the allocation of the bytes.
  /// @return empty, or what is wrong with them
  std::string find(void const* data, std::size_t bytes, bool write, byte_access& found);

  /// Notes the access and reports what it conflicts with.
  template <class Report>
  void touch(
      byte_access const& bytes, note const& author, vector_clock const& clock, Report&& report);

  /// Makes the bytes count as never written.
  void uninitialise(byte_access const& bytes);

  allocation& operator[](std::uint32_t index) { return all_[index]; }
  std::vector<allocation> const& all() const { return all_; }
  std::uint32_t index_of(allocation const& one) const {
    return static_cast<std::uint32_t>(&one - all_.data());
  }
  std::size_t bytes_on(int device) const;
  void clear();

 private:
  struct place {
    std::uintptr_t begin;
    std::uint32_t allocation;
  };

  void add(std::uintptr_t begin, allocation made);
  /// The allocation at or before the address; `places_` is sorted.
  place const* at_or_before(void const* data) const;
  /// Cuts the segments at both ends of the range; returns the index of the first inside.
  static std::size_t cut(allocation& of, std::size_t begin, std::size_t end);

  std::vector<allocation> all_;
  std::vector<place> places_;
};

template <class Report>
void memory::touch(
    byte_access const& bytes, note const& author, vector_clock const& clock, Report&& report) {
  if (bytes.begin == bytes.end) return;
  allocation& of = all_[bytes.allocation];
  std::size_t const first = cut(of, bytes.begin, bytes.end);
  std::size_t last = first;
  for (; last < of.segments.size() && of.segments[last].begin < bytes.end; ++last) {
    allocation::segment& part = of.segments[last];
    if (part.writer.epoch != 0 && !part.writer.before(clock))
      report(conflict{part.writer, true, part.begin, part.end});
    if (bytes.write) {
      for (note const& reader : part.readers)
        if (!reader.before(clock)) report(conflict{reader, false, part.begin, part.end});
      continue;
    }
    if (!part.written) report(conflict{note{}, false, part.begin, part.end});
    // A later write that comes after this read also comes after the reads before it.
    std::erase_if(part.readers, [&](note const& reader) { return reader.before(clock); });
    part.readers.push_back(author);
  }
  if (bytes.write) {  // what lay in pieces is one again
    allocation::segment& whole = of.segments[first];
    whole.end = bytes.end;
    whole.written = true;
    whole.writer = author;
    whole.readers.clear();
    of.segments.erase(
        of.segments.begin() + static_cast<std::ptrdiff_t>(first + 1),
        of.segments.begin() + static_cast<std::ptrdiff_t>(last));
  }
}

}  // namespace zbpp::cuda_model

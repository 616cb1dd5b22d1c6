// SPDX-License-Identifier: Apache-2.0
//
// How an arena finds memory: free pieces by size, cut from large chunks.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/runtime/detail/object_type.hpp>
#include <zbpp/runtime/detail/poison.hpp>
#include <zbpp/runtime/memory_source.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace zbpp::detail {

class arena_core;

/// Describes a piece of an arena, apart from its data, which the host may not reach.
struct alignas(64) block {
  arena_core* owner = nullptr;
  block* next_free = nullptr;
  std::byte* data = nullptr;
  std::size_t size = 0;  // as asked for, and counted
  union {
    std::size_t capacity = 0;  // as rounded
    block* lender;             // whose memory it is, where it is borrowed
  };
  std::uint32_t references = 0;
  std::uint32_t loans = 0;  // pieces of other arenas that are this memory
  std::uint16_t size_class = 0;
  purpose use{};
  bool is_borrowed = false;
  std::uint32_t half = 0;               // the pass of a pair that took it, by number; 0: none
  object_type const* object = nullptr;  // of what stands at `data`; null for plain memory
};
static_assert(sizeof(block) == 64);

/// Keeps free blocks in lists by size, so that finding one takes constant time. Sizes are the first
/// sixteen multiples of the source's alignment (up to 1 KiB on the heap, 4 KiB on a device), and
/// eight for each doubling above. Rounding adds at most an alignment below that, under 1/8 above.
class arena_core {
 public:
  explicit arena_core(memory_source source) noexcept : source_(source) {}
  arena_core(arena_core const&) = delete;
  arena_core& operator=(arena_core const&) = delete;

  // `allocate` and `release` are called, not put in place: wherever an engine moves a message it
  // may release one, and seldom does.

  /// Gives a piece of `size` bytes that one handle owns. @throws std::bad_alloc
  [[nodiscard, gnu::noinline]] block* allocate(std::size_t size, purpose use) {
    if (size > most) throw std::bad_alloc();
    auto* found = find(size);
    if (source_.is_host) unpoison(found->data, size);
    hand_out(found, size, use);
    return found;
  }

  /// Gives a piece that holds an object, moved there, and counts as `size` bytes.
  /// @throws error (bad_argument) unless `size` >= 0 and the memory is the host's; std::bad_alloc
  [[nodiscard]] block* place(object_type const& type, void* from, bytes size, purpose use);

  /// Takes a piece back whose last handle is gone.
  [[gnu::noinline]] void release(block* piece) noexcept {
    if (piece->object != nullptr) std::exchange(piece->object, nullptr)->destroy(piece->data);
    if (half_ != 0 && piece->half != half_) return withhold(piece);
    count(piece->use, -static_cast<bytes>(piece->size));
    if (piece->loans == 0) end(piece);
  }

  /// Begins the first or the second pass of a pair. Until `end_pair` a piece that one of them lets
  /// go of goes only to the pass that took it, and counts as in use otherwise.
  void begin_half() noexcept;
  /// Ends both passes of a pair, if there is one.
  void end_pair() noexcept {
    if (half_ != 0) free_withheld();
  }

  /// Gives a piece that is the memory of another arena's piece, which stays where it is meanwhile.
  /// @throws std::bad_alloc
  [[nodiscard]] block* borrow(block* from);
  /// Returns a borrowed piece to its lender, whose memory is free now unless others hold it.
  /// @param is_all_done  whether nobody uses what the lender has borrowed in turn, either
  static void give_back(block* piece, bool is_all_done) noexcept;
  /// Takes out the borrowed pieces of one lender whose last handles are gone.
  /// @return a list of them, null when there is none
  [[nodiscard]] block* take_released(arena_core const* lender) noexcept;
  /// Puts such a list back.
  void keep_released(block* list) noexcept;
  /// Returns all borrowed pieces whose last handles are gone, and where `is_closing`, from now on
  /// each at once.
  void end_loans(bool is_closing) noexcept;

  /// Counts a piece under another purpose.
  void retag(block* piece, purpose use) noexcept {
    count(piece->use, -static_cast<bytes>(piece->size));
    piece->use = use;
    count(use, static_cast<bytes>(piece->size));
  }

  /// Keeps the first `size` bytes of a piece; the rest stays part of it, but nobody may use it.
  void truncate(block* piece, std::size_t size) noexcept {
    if (source_.is_host) poison(piece->data + size, piece->size - size);
    recount(piece, size);
  }

  /// Counts a piece as `size` bytes.
  void recount(block* piece, std::size_t size) noexcept {
    count(piece->use, static_cast<bytes>(size) - static_cast<bytes>(piece->size));
    piece->size = size;
  }

  /// Changes the bytes in use of one purpose.
  void count(purpose use, bytes change) noexcept {
    auto const i = static_cast<std::size_t>(use);
    usage_.in_use[i] += change;
    usage_.peak[i] = std::max(usage_.peak[i], usage_.in_use[i]);
    usage_.peak_total = std::max(usage_.peak_total, usage_.total());
  }

  /// Counts memory of somebody else for one holder, who gives it up by `release_external`.
  void hold_external(purpose use, bytes size) noexcept {
    count(use, size);
    ++holders_;
  }
  /// Ends what `hold_external` began.
  void release_external(purpose use, bytes size) noexcept {
    count(use, -size);
    drop();
  }

  /// Takes memory for `size` bytes of pieces from the source. @throws std::bad_alloc
  void reserve(std::size_t size);
  [[nodiscard]] static constexpr std::size_t reserved_for(std::size_t size) noexcept {
    return size == 0 ? 0 : size + size / 8 + smallest_chunk;
  }
  /// Starts measuring the peak again.
  void reset_peak() noexcept {
    usage_.peak = usage_.in_use;
    usage_.peak_total = usage_.total();
  }

  /// Counts a peak that was measured before.
  void note_peak(arena_usage const& before) noexcept {
    for (std::size_t i = 0; i < usage_.peak.size(); ++i)
      usage_.peak[i] = std::max(usage_.peak[i], before.peak[i]);
    usage_.peak_total = std::max(usage_.peak_total, before.peak_total);
  }

  /// @return a number that tells which pieces are in use
  [[nodiscard]] std::uintptr_t mark_of_pieces() const noexcept;

  /// Puts the free pieces of a device into the order in which they were made, so that a step like
  /// the one before finds each of them in the same place.
  void sort_free() noexcept;
  [[nodiscard]] arena_usage const& usage() const noexcept { return usage_; }

  /// Releases the memory for one of its holders: the arena itself and every piece in use.
  void drop() noexcept {
    if (--holders_ == 0) delete this;
  }

 private:
  static constexpr std::size_t most = ~std::size_t{0} / 4;  // so that rounding up cannot overflow
  static constexpr std::size_t smallest_chunk = 64 * 1024;
  static constexpr std::size_t blocks_at_once = 256;

  struct chunk {
    std::byte* begin;
    std::size_t size;
  };
  struct rounded {
    std::size_t size_class;
    std::size_t lines;
  };

  ~arena_core();

  [[nodiscard]] rounded round_up(std::size_t size) const noexcept {
    auto const line = source_.alignment;
    auto const lines = std::max<std::size_t>(1, (size + line - 1) / line);
    if (lines <= 16) return {lines - 1, lines};
    auto const shift = static_cast<std::size_t>(std::bit_width(lines - 1)) - 4;
    auto const step = (lines - 1) >> shift;  // 8 to 15
    return {16 + (shift - 1) * 8 + (step - 8), (step + 1) << shift};
  }

  // Ends a piece that has neither handles nor loans. A borrowed one waits for `give_back`.
  void end(block* piece) noexcept {
    if (piece->is_borrowed) return end_borrowed(piece);
    piece->next_free = free_[piece->size_class];
    free_[piece->size_class] = piece;
    if (source_.is_host) poison(piece->data, piece->capacity);
    drop();
  }
  void end_borrowed(block* piece) noexcept;

  // Finds a free piece, or makes one.
  [[nodiscard]] block* find(std::size_t size) {
    auto const [size_class, lines] = round_up(size);
    auto* found = free_[size_class];
    if (found != nullptr) {
      free_[size_class] = found->next_free;
    } else {
      found = carve(lines * source_.alignment);
      found->size_class = static_cast<std::uint16_t>(size_class);
    }
    return found;
  }

  void hand_out(block* piece, std::size_t size, purpose use) noexcept {
    piece->size = size;
    piece->references = 1;
    piece->half = half_;
    piece->use = use;
    count(use, static_cast<bytes>(size));
    ++holders_;
  }

  [[gnu::noinline, gnu::cold]] void withhold(block* piece) noexcept {
    piece->references = 1;
    piece->next_free = withheld_;
    withheld_ = piece;
  }
  void free_withheld() noexcept;

  [[nodiscard]] block* carve(std::size_t size);
  [[nodiscard]] block& next_block();
  void add_chunk(std::size_t size);

  memory_source source_;
  std::array<block*, 512> free_{};
  std::vector<chunk> chunks_;
  std::byte* next_ = nullptr;
  std::size_t left_ = 0;
  std::vector<std::unique_ptr<block[]>> blocks_;
  std::size_t blocks_left_ = 0;  // of the last ones
  arena_usage usage_;
  block* released_ = nullptr;  // borrowed, without handles, not given back yet
  block* unused_ = nullptr;    // pieces without memory, for what is borrowed next
  block* withheld_ =
      nullptr;                // let go of within a pair, which holds the last handles until it ends
  std::uint32_t half_ = 0;    // the pass of a pair that runs now, by number; 0: there is none
  std::uint32_t halves_ = 0;  // so far
  bool is_closed_ = false;
  std::size_t holders_ = 1;
};

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/arena_core.ipp>
#endif

// SPDX-License-Identifier: Apache-2.0
//
// How ranks of one process reach each other: by queues, one for each sender, at each member.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/runtime/detail/byte_queue.hpp>
#include <zbpp/runtime/in_process_grid.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace zbpp {

namespace detail {

/// Says whether a grid is over, and why.
class grid_failure {
 public:
  bool note(std::string const& text) {
    std::scoped_lock const lock(guard_);
    if (text_) return false;
    text_ = text;
    return true;
  }
  /// @throws error (peer_failed) when the grid is over
  void check() const {
    std::scoped_lock const lock(guard_);
    if (text_) throw error(errc::peer_failed, *text_);
  }

 private:
  mutable std::mutex guard_;
  std::optional<std::string> text_;
};

/// What a rank of the process has to wait for what others send it.
struct rank_inbox {
  // That runs the rank; those of one pipeline may share one. Written as a pipeline is made.
  std::atomic<std::size_t> thread{0};
  std::mutex guard;
  std::condition_variable arrived;
  wakeup* wake = nullptr;

  void notify_all() {
    {
      std::scoped_lock const lock(guard);
      notify(wake);
    }
    arrived.notify_all();
  }
};

/// Connects a rank with those of a group.
class in_process_link;

/// Knows in which links threads wait, so that those that wait for each other find out: where one
/// thread runs all ranks of a pipeline, none of them comes to a call while another waits.
class waiting_links {
 public:
  explicit waiting_links(int ranks) : waits_(index(ranks)) {}

  /// Notes that a thread waits in a link, for a rank of a thread.
  /// @throws error (no_agreement) when that one waits, over others perhaps, for this one
  void begin(in_process_link const& link, std::size_t thread, std::size_t other);
  void end(std::size_t thread);

 private:
  struct wait {
    in_process_link const* link = nullptr;
    std::size_t other = 0;
  };

  std::mutex guard_;
  std::vector<wait> waits_;  // by thread
};

/// Holds threads, and waits for their ends.
class joined_threads {
 public:
  joined_threads() = default;
  joined_threads(joined_threads const&) = delete;
  joined_threads& operator=(joined_threads const&) = delete;
  ~joined_threads() {
    for (auto& each : threads_) each.join();
  }
  void start(std::function<void()> work) { threads_.emplace_back(std::move(work)); }

 private:
  std::vector<std::thread> threads_;
};

/// Connects a rank with those of a group.
class in_process_link final : public group_link {
 public:
  in_process_link(
      int place,
      std::string name,
      std::vector<std::string> members,
      rank_inbox& own,
      grid_failure const& failure,
      waiting_links& waiting)
      : group_link(place, std::move(name), std::move(members)),
        own_(own),
        failure_(failure),
        waiting_(waiting),
        queues_(index(size())),
        has_left_(index(size())) {}

  /// Sets the links of all members, by place.
  void connect(std::vector<in_process_link*> members) { members_ = std::move(members); }

  /// Tells the other members whether this one sends no more.
  void tell_left(bool has_left) {
    for (auto* const member : members_) {
      {
        std::scoped_lock const lock(member->own_.guard);
        member->has_left_[index(place())] = has_left ? 1 : 0;
        notify(member->own_.wake);
      }
      member->own_.arrived.notify_all();
    }
  }

  void send(int to, std::span<std::byte const> head, std::span<std::byte const> body) override {
    members_[index(to)]->accept(place(), head, body);
  }
  [[nodiscard]] bool has_arrived(int from) override {
    {
      std::scoped_lock const lock(own_.guard);
      if (!queues_[index(from)].empty()) return true;
      failure_.check();
      check_left(from);
    }
    return false;
  }
  void take(int from, std::vector<std::byte>& bytes) override {
    std::scoped_lock const lock(own_.guard);
    queues_[index(from)].pop(bytes);
  }
  void reserve(std::size_t messages, std::size_t most) override {
    std::scoped_lock const lock(own_.guard);
    for (auto& queue : queues_) queue.reserve(messages, most);
  }
  void wait(int from, group_call const& made) override {
    if (has_arrived(from)) return;
    made_ = made;
    from_ = from;
    auto const thread = own_.thread.load(std::memory_order_relaxed);
    auto const other = members_[index(from)]->own_.thread.load(std::memory_order_relaxed);
    waiting_.begin(*this, thread, other);
    try {
      std::unique_lock lock(own_.guard);
      while (queues_[index(from)].empty()) {
        failure_.check();
        check_left(from);
        own_.arrived.wait(lock);
      }
    } catch (...) {
      waiting_.end(thread);
      throw;
    }
    waiting_.end(thread);
  }
  [[nodiscard]] bool is_waiting() const {
    std::scoped_lock const lock(own_.guard);
    return queues_[index(from_)].empty();
  }
  [[nodiscard]] std::string text() const {
    return "in the " + name() + " " + name_of(place()) + " " + to_string(made_) +
           " and waits for " + name_of(from_);
  }

 private:
  void check_left(int from) const {
    if (has_left_[index(from)] != 0)
      throw error(errc::no_agreement) + "in the " + name() + " " + name_of(place()) +
          " waits for " + name_of(from) +
          ", whose pipeline has ended; run as many steps on all pipelines of a grid";
  }
  void accept(int from, std::span<std::byte const> head, std::span<std::byte const> body) {
    {
      std::scoped_lock const lock(own_.guard);
      queues_[index(from)].push(head, body);
      notify(own_.wake);
    }
    own_.arrived.notify_one();
  }

  rank_inbox& own_;
  grid_failure const& failure_;
  waiting_links& waiting_;
  group_call made_;  // while the rank waits
  int from_ = 0;
  std::vector<byte_queue> queues_;  // by sender
  std::vector<char> has_left_;      // by sender: it sends no more
  std::vector<in_process_link*> members_;
};

ZBPP_INLINE void waiting_links::begin(
    in_process_link const& link, std::size_t thread, std::size_t other) {
  std::scoped_lock const lock(guard_);
  waits_[thread] = {&link, other};
  // A thread that is noted, and whose bytes are not here, sends nothing before others send.
  auto at = other;
  while (at != thread && waits_[at].link != nullptr && waits_[at].link->is_waiting())
    at = waits_[at].other;
  if (at != thread || !link.is_waiting()) return;
  std::string text;
  do {
    text += waits_[at].link->text() + "; ";
    at = waits_[at].other;
  } while (at != thread);
  waits_[thread] = {};
  throw error(errc::no_agreement) + text +
      "all members have to make the same calls in the same order";
}

ZBPP_INLINE void waiting_links::end(std::size_t thread) {
  std::scoped_lock const lock(guard_);
  waits_[thread] = {};
}

/// @return whether an exception says that another pipeline failed
[[nodiscard]] ZBPP_INLINE bool is_of_peer(std::exception_ptr const& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (error const& e) {
    return e.code() == errc::peer_failed;
  } catch (...) {
    return false;
  }
}

}  // namespace detail

struct in_process_grid::shared {
  explicit shared(int ranks) : waiting(ranks) {}

  detail::grid_failure failure;
  detail::waiting_links waiting;
  std::list<detail::rank_inbox> inboxes;  // by rank, as the vectors below
  std::vector<detail::rank_inbox*> inbox_of;
  std::vector<rank_grid> grids;
  std::vector<std::vector<detail::in_process_link*>> links_of;  // by rank
};

ZBPP_INLINE rank_grid* grid_place::grid_of(int rank) const {
  if (owner_ == nullptr) return nullptr;
  return &owner_->grid_of({rank, at_.data, at_.tensor});
}

ZBPP_INLINE void grid_place::bind(int rank, wakeup* wake) const {
  if (owner_ != nullptr) owner_->bind({rank, at_.data, at_.tensor}, wake);
}

ZBPP_INLINE void grid_place::check(int ranks, bool waits_alone, bool shares_thread) const {
  auto const& layout = owner_->layout();
  if (ranks != layout.size(grid_axis::pipeline))
    throw error(errc::bad_argument) + "the plan has " + ranks +
        " ranks and the pipelines of the grid " + layout.size(grid_axis::pipeline) +
        "; give both the same number";
  detail::require(
      waits_alone || layout.size(grid_axis::tensor) * layout.size(grid_axis::expert) == 1,
      "ranks that share stages or experts wait for each other in passes; leave threads.count at 0, "
      "for a thread of each rank");
  for (int rank = 0; rank < ranks; ++rank) {
    auto const first = layout.rank_of({shares_thread ? 0 : rank, at_.data, at_.tensor});
    auto const own = layout.rank_of({rank, at_.data, at_.tensor});
    owner_->shared_->inbox_of[detail::index(own)]->thread.store(
        detail::index(first), std::memory_order_relaxed);
  }
}

namespace detail {

[[nodiscard]] ZBPP_INLINE grid_layout whole_layout(grid const& stated) {
  require(
      stated.data >= 1,
      "a grid in one process has no number of ranks that the replicas follow from; set grid::data "
      "to 1 or more");
  for (int const size : {stated.pipeline, stated.tensor})
    require(size >= 1, "the sizes of a grid are at least 1");
  auto const ranks = std::int64_t{stated.pipeline} * stated.data * stated.tensor;
  require(ranks <= 4096, "a grid in one process has at most 4096 ranks");
  return grid_layout(stated, static_cast<int>(ranks));
}

}  // namespace detail

ZBPP_INLINE in_process_grid::in_process_grid(grid const& stated)
    : layout_(detail::whole_layout(stated)), shared_(std::make_unique<shared>(layout_.ranks())) {
  shared_->links_of.resize(detail::index(layout_.ranks()));
  for (int rank = 0; rank < layout_.ranks(); ++rank) {
    shared_->inbox_of.push_back(&shared_->inboxes.emplace_back());
    shared_->inboxes.back().thread.store(detail::index(rank), std::memory_order_relaxed);
    auto const at = layout_.coordinates(rank);
    shared_->grids.emplace_back(
        at, [this, at](std::exception_ptr const& why) { fail(at, detail::text_of(why)); });
  }
  for (auto const axis :
       {grid_axis::data, grid_axis::tensor, grid_axis::expert, grid_axis::expert_data}) {
    if (layout_.size(axis) == 1) continue;
    for (auto const& ranks : layout_.groups(axis)) {
      std::vector<detail::in_process_link*> members;
      for (int const rank : ranks) {
        auto link = std::make_unique<detail::in_process_link>(
            static_cast<int>(members.size()),
            detail::joined(to_string(axis), " group"),
            names_in_grid(layout_, ranks),
            *shared_->inbox_of[detail::index(rank)],
            shared_->failure,
            shared_->waiting);
        members.push_back(link.get());
        shared_->links_of[detail::index(rank)].push_back(link.get());
        shared_->grids[detail::index(rank)].along(axis) = group(std::move(link));
      }
      for (auto* const member : members) member->connect(members);
    }
  }
}

ZBPP_INLINE in_process_grid::~in_process_grid() = default;

ZBPP_INLINE grid_place in_process_grid::place(int data, int tensor) {
  grid_coordinates const at{0, data, tensor};
  static_cast<void>(layout_.rank_of(at));
  return {*this, at};
}

ZBPP_INLINE rank_grid& in_process_grid::grid_of(grid_coordinates const& at) {
  return shared_->grids[detail::index(layout_.rank_of(at))];
}

ZBPP_INLINE void in_process_grid::bind(grid_coordinates const& at, wakeup* wake) {
  auto& inbox = *shared_->inbox_of[detail::index(layout_.rank_of(at))];
  std::scoped_lock const lock(inbox.guard);
  inbox.wake = wake;
}

ZBPP_INLINE void in_process_grid::fail(grid_coordinates const& at, std::string const& why) {
  std::string text = detail::joined("the pipeline of replica ", at.data);
  if (layout_.size(grid_axis::tensor) > 1) text += detail::joined(", tensor ", at.tensor);
  if (!shared_->failure.note(text + " failed: " + why)) return;
  for (auto& inbox : shared_->inboxes) inbox.notify_all();
}

ZBPP_INLINE void in_process_grid::tell_left(grid_place const& at, bool has_left) {
  for (int pipeline = 0; pipeline < layout_.size(grid_axis::pipeline); ++pipeline) {
    auto const rank = layout_.rank_of({pipeline, at.data(), at.tensor()});
    for (auto* const link : shared_->links_of[detail::index(rank)]) link->tell_left(has_left);
  }
}

ZBPP_INLINE void in_process_grid::run(std::function<void(grid_place const& place)> const& work) {
  std::mutex guard;
  std::exception_ptr cause;
  bool is_of_peer = false;  // the cause is that another pipeline failed
  auto const call = [&](grid_place const& at) {
    std::string text;
    try {
      work(at);
      return tell_left(at, true);
    } catch (...) {
      auto thrown = std::current_exception();
      text = detail::text_of(thrown);
      bool const names_peer = detail::is_of_peer(thrown);
      std::scoped_lock const lock(guard);
      if (!cause || (is_of_peer && !names_peer)) {
        cause = std::move(thrown);
        is_of_peer = names_peer;
      }
    }
    fail({0, at.data(), at.tensor()}, text);
  };
  for (int data = 0; data < layout_.size(grid_axis::data); ++data)
    for (int tensor = 0; tensor < layout_.size(grid_axis::tensor); ++tensor)
      tell_left(place(data, tensor), false);
  {
    detail::joined_threads others;
    for (int data = 0; data < layout_.size(grid_axis::data); ++data)
      for (int tensor = 0; tensor < layout_.size(grid_axis::tensor); ++tensor)
        if (data != 0 || tensor != 0) others.start([&, at = place(data, tensor)] { call(at); });
    call(place(0, 0));
  }
  if (cause) std::rethrow_exception(cause);
}

}  // namespace zbpp

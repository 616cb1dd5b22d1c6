// SPDX-License-Identifier: Apache-2.0
//
// Connects the members of groups, and lets them wait for each other.
#pragma once

#include <zbpp/asio/control.hpp>
#include <zbpp/asio/detail/data_connector.hpp>
#include <zbpp/asio/detail/group_stream.hpp>
#include <zbpp/asio/detail/io_parts.hpp>
#include <zbpp/asio/detail/tcp_transport.hpp>
#include <zbpp/asio/detail/text.hpp>
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/asio/roster.hpp>
#include <zbpp/asio/socket_grid.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/text.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/group.hpp>
#include <zbpp/runtime/group_link.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zbpp::asio {

namespace detail {

/// The connection of this rank with another member of a group.
struct member_connection {
  member_connection(
      control& run,
      channel const& ends,
      std::string_view axis,
      std::uint64_t most,
      lost_handler const& on_lost,
      int number,
      wakeup& wake)
      : peer(ends.from == run.rank() ? ends.to : ends.from),
        stream(run.loop(), {number, ends, &on_lost, axis}, most, wake) {}

  int peer;  // in the run
  std::atomic<bool> is_lost{false};
  std::string lost_why;  // touched on the I/O thread
  group_stream stream;
};

/// Bounds how long a rank waits, time and again in the same memory. One thread uses it.
class wait_limit {
 public:
  explicit wait_limit(control& run) : run_(&run), timer_(run.loop().io(), &memory_) {}
  wait_limit(wait_limit const&) = delete;
  wait_limit& operator=(wait_limit const&) = delete;
  ~wait_limit() {
    run_->loop().run_until([&] { return is_stopped(); });
  }

  /// Runs handlers until `done()` holds, but not much longer than `collective_deadline`.
  template <class Predicate>
  void run_until(Predicate done) {
    auto& loop = run_->loop();
    loop.exclusively([&] {
      is_over_ = false;
      timer_.set(run_->settings().collective_deadline, [this] { is_over_ = true; });
    });
    loop.run_until([&] { return (is_over_ || done()) && is_stopped(); });
  }

 private:
  // Stops the timer. Says whether its memory is free, as it is soon.
  [[nodiscard]] bool is_stopped() {
    timer_.cancel();
    return !memory_.is_used();
  }

  control* run_;
  handler_memory memory_;
  timeout timer_;
  bool is_over_ = false;  // touched on the I/O thread
};

/// Connects a rank with those of a group.
class socket_link final : public group_link {
 public:
  /// @param ranks    of the run, by place
  /// @param members  by place; null at the place of this one
  socket_link(
      control& run,
      wait_limit& limit,
      grid_layout const& layout,
      grid_axis axis,
      int place,
      std::vector<int> const& ranks,
      std::vector<member_connection*> members)
      : group_link(
            place, zbpp::detail::joined(to_string(axis), " group"), names_in_grid(layout, ranks)),
        run_(&run),
        limit_(&limit),
        axis_(axis),
        members_(std::move(members)) {}

  void send(int to, std::span<std::byte const> head, std::span<std::byte const> body) override {
    auto& member = at(to);
    member.stream.check(head.size() + body.size());
    // Before: a member that has all it needs may be gone as soon as this has left.
    if (is_to_look(member)) look(member);
    member.stream.send(head, body);
  }
  [[nodiscard]] bool has_arrived(int from) override {
    auto& member = at(from);
    if (member.stream.has_arrived()) return true;
    if (!is_to_look(member)) return false;
    bool const is_here = run_->loop().exclusively([&] { return member.stream.has_arrived(); });
    if (!is_here) look(member);
    return is_here;
  }
  void take(int from, std::vector<std::byte>& bytes) override { at(from).stream.take(bytes); }
  void reserve(std::size_t messages, std::size_t most) override {
    run_->loop().exclusively([&] {
      for (auto* const member : members_)
        if (member != nullptr) member->stream.reserve(messages, most);
    });
  }
  void wait(int from, group_call const& made) override {
    auto& member = at(from);
    auto const has_ended = [&] { return member.stream.has_arrived() || report_lost(member); };
    auto& board = run_->board();
    note_wait(from, made);
    // Within a step the watchdog looks at ranks that wait.
    bool const is_between_steps = board.read().phase == progress_phase::outside;
    if (is_between_steps)
      limit_->run_until(has_ended);
    else
      run_->loop().run_until(has_ended);
    if (member.stream.has_arrived()) return board.wait({});
    look(member);
    run_->loop().exclusively([&] {
      run_->report(
          {{member.peer, -1, -1, -1},
           {},
           errc::peer_failed,
           zbpp::detail::joined("has not come to a collective call of its ") + to_string(axis_) +
               " group within " + seconds_text(run_->settings().collective_deadline) +
               set_by("collective_deadline")});
    });
    run_->loop().run_until([&] { return run_->has_stopped(); });
    look(member);
  }
  void note_wait(int from, group_call const& made) override {
    auto const kind = static_cast<std::uint8_t>(made.kind);
    run_->board().wait({at(from).peer, wait_kind::group, kind, axis_});
  }

 private:
  [[nodiscard]] member_connection& at(int place) const noexcept {
    return *members_[zbpp::detail::index(place)];
  }

  [[nodiscard]] bool is_to_look(member_connection const& member) const noexcept {
    return run_->is_told_of_failure() || member.is_lost.load(std::memory_order_acquire);
  }
  // Tells the run that a connection is lost, which is needed. Call only on the I/O thread.
  // @return whether the run has failed
  [[nodiscard]] bool report_lost(member_connection& member) {
    if (!member.lost_why.empty())
      run_->report(
          {{member.peer, -1, -1, -1}, {}, errc::peer_failed, std::exchange(member.lost_why, {})});
    return run_->has_stopped();
  }
  // Throws the failure of the run, if there is one.
  void look(member_connection& member) {
    std::optional<rank_failure> first;
    run_->loop().exclusively([&] {
      if (report_lost(member)) first = run_->first_failure();
    });
    if (first) throw run_failure(to_error(*first));
  }

  control* run_;
  wait_limit* limit_;
  grid_axis axis_;
  std::vector<member_connection*> members_;
};

}  // namespace detail

struct socket_grid::parts {
  struct group_of_rank {
    grid_axis axis = grid_axis::data;
    std::vector<channel> channels;                    // one for two members, which both send by it
    std::vector<detail::member_connection*> members;  // by place; null at that of this rank
  };

  parts(rendezvous& meeting, grid_layout const& ranks, wakeup& to_notify, tcp_settings const& given)
      : run(&meeting.control_channel()),
        connector(meeting.connector_.get()),
        layout(ranks),
        wake(&to_notify),
        settings(given),
        grid(ranks.coordinates(meeting.rank())),
        limit(*run),
        on_lost([this](int number, std::string why) {
          auto& lost = *by_number[zbpp::detail::index(number)];
          lost.lost_why = std::move(why);
          lost.is_lost.store(true, std::memory_order_release);
          notify(wake);
        }) {
    for (auto const axis :
         {grid_axis::data, grid_axis::tensor, grid_axis::expert, grid_axis::expert_data})
      if (layout.size(axis) > 1) add(axis);
  }

  // Makes the ends of the connections of a group, which are not connected yet.
  void add(grid_axis axis) {
    auto const most = static_cast<std::uint64_t>(settings.largest_undeclared_message);
    auto& added = groups.emplace_back();
    added.axis = axis;
    for (int const rank : layout.group(axis, run->rank())) {
      added.members.push_back(nullptr);
      if (rank == run->rank()) continue;
      auto const number = static_cast<int>(by_number.size());
      added.channels.push_back({std::min(rank, run->rank()), std::max(rank, run->rank()), 1, 1});
      added.members.back() = by_number.emplace_back(&connections.emplace_back(
          *run, added.channels.back(), to_string(axis), most, on_lost, number, *wake));
    }
  }

  // Connects the rank with the others of a group.
  void connect(group_of_rank const& of) {
    auto const axis = to_string(of.axis);
    auto sockets = connector->connect(of.channels);
    boost::system::error_code failure;
    run->loop().exclusively([&] {
      auto next = sockets.begin();
      for (auto* const member : of.members) {
        if (member == nullptr || failure) continue;
        auto own = detail::own_socket(std::move(*next++), run->loop(), settings, failure);
        if (!failure) member->stream.connect(std::move(own));
      }
    });
    if (failure)
      throw error(errc::io_failed) + "a connection of the " + axis +
          " group cannot be used: " + detail::reason_of(failure);
    grid.along(of.axis) = group(std::make_unique<detail::socket_link>(
        *run,
        limit,
        layout,
        of.axis,
        layout.place_in_group(of.axis, run->rank()),
        layout.group(of.axis, run->rank()),
        of.members));
  }

  void progress() {
    for (auto& each : connections) each.stream.progress();
  }
  template <class Is>
  [[nodiscard]] bool is_any(Is is) {
    return std::ranges::any_of(connections, [&](auto& each) { return is(each.stream); });
  }

  control* run;
  detail::data_connector* connector;
  grid_layout layout;
  wakeup* wake;
  tcp_settings settings;
  rank_grid grid;
  detail::wait_limit limit;
  detail::lost_handler on_lost;
  std::list<detail::member_connection> connections;
  std::vector<detail::member_connection*> by_number;
  std::list<group_of_rank> groups;  // those of more than one member
};

ZBPP_INLINE socket_grid::socket_grid(
    rendezvous& run, grid_layout const& layout, wakeup& wake, tcp_settings const& settings)
    : parts_(std::make_unique<parts>(run, layout, wake, settings)) {
  auto& all = *parts_;
  all.run->loop().exclusively([&] {
    all.run->loop().on_notify([](void* self) { static_cast<parts*>(self)->progress(); }, &all);
  });
}

ZBPP_INLINE socket_grid::~socket_grid() {
  using stream = detail::group_stream;
  auto& all = *parts_;
  auto& loop = all.run->loop();
  try {
    auto const is_behind = [](stream const& s) { return s.is_open() && !s.is_flushed(); };
    auto const is_open = [](stream const& s) { return s.is_open(); };
    auto const has_failed = [&] { return all.run->has_stopped(); };
    detail::run_for(
        loop, all.run->settings().deadline, [&] { return has_failed() || !all.is_any(is_behind); });
    // A connection that is closed while something unread is there takes back what the other member
    // has not read yet.
    loop.exclusively([&] {
      for (auto& each : all.connections) has_failed() ? each.stream.shut() : each.stream.finish();
    });
    detail::run_for(loop, std::chrono::milliseconds(250), [&] { return !all.is_any(is_open); });
  } catch (std::exception const&) {  // a member that needs this one finds its connection closed
  }
  loop.exclusively([&] {
    for (auto& each : all.connections) each.stream.shut();
    loop.forget(&all);
  });
  loop.run_until([&] { return !all.is_any([](stream const& s) { return s.is_pending(); }); });
}

ZBPP_INLINE void socket_grid::connect() {
  for (auto const& each : parts_->groups) parts_->connect(each);
}

ZBPP_INLINE rank_grid& socket_grid::grid() noexcept { return parts_->grid; }

ZBPP_INLINE void socket_grid::close() {
  parts_->run->loop().exclusively([&] {
    for (auto& each : parts_->connections) each.stream.shut();
  });
}

}  // namespace zbpp::asio

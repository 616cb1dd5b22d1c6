// SPDX-License-Identifier: Apache-2.0
#include "machine.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace zbpp::cuda_model {

machine& machine::the() {
  static machine one;
  return one;
}

void machine::reset(options const& machine_options) {
  std::lock_guard lock(mutex_);
  options_ = machine_options;
  ++generation_;
  streams_.clear();
  events_.clear();
  graphs_.clear();
  execs_.clear();
  greens_.clear();
  communicators_.clear();
  worlds_.clear();
  groups_.clear();
  launches_.clear();
  by_nccl_ = nullptr;
  descriptors_.clear();
  splits_ = 0;
  unique_ids_ = 0;
  captures_.clear();
  memory_.clear();
  auto const devices = static_cast<std::size_t>(options_.devices);
  queues_.assign(
      devices, std::vector<hardware_queue>(static_cast<std::size_t>(options_.connections)));
  next_queue_.assign(devices, 0);
  held_.assign(devices, 0);
  is_short_ = false;
  has_nccl_.assign(devices, false);
  sticky_.assign(devices, cudaSuccess);
  peers_.assign(devices, std::vector<bool>(devices, false));
  faults_.clear();
  unreported_ = 0;
  failing_.fill(0);
  counts_.fill(0);
  interrupts_ = 0;
  connections_ = 0;
  skips_.clear();
  log_.clear();
  counting_ = false;
  holds_groups_ = false;
  kernel_fault_in_ = -1;
  host_clock_ = {};
  host_moved_ = true;
  host_ns_ = 0;
  pending_ = 0;
  sleepers_ = 0;
  callbacks_running_ = 0;
  idle_polls_ = 0;
  random_ = (options_.seed + 1) * 0x9e3779b97f4a7c15U | 1U;
  for (int warm = 0; warm < 4; ++warm) random();
  burst_ = static_cast<unsigned>(random() & 15U);
  ready_.clear();
  operations_.clear();
  free_operations_.clear();
  records_.clear();
  free_records_.clear();
  loaded_.clear();
  snapshots_.clear();
}

host_state& machine::host() {
  thread_local host_state state;
  if (state.generation != generation_) {
    state = {};
    state.generation = generation_;
  }
  return state;
}

void machine::progressed() {
  ++progress_;
  idle_polls_ = 0;
  if (sleepers_ > 0) {
    sleepers_ = 0;
    changed_.notify_all();
  }
}

void machine::consider(stream* one) {
  if (one->head == nullptr || one->ready_index >= 0 || one->head->started) return;
  operation& next = *one->head;
  if (next.queued && one->queue->head != &next) return;
  if (next.type == kind::wait && !next.mark->done) {
    if (!next.parked) {
      next.parked = true;
      next.mark->waiting.push_back(one);
    }
    return;
  }
  if (next.type == kind::group && !next.cancelled && next.messages->over->broken) return;
  if (!has_multiprocessors(next)) {
    is_short_ = true;
    return;
  }
  one->ready_index = static_cast<int>(ready_.size());
  ready_.push_back(one);
}

bool machine::step() {
  std::vector<group_launch*> can;
  for (group_launch& each : launches_)
    if (can_go_on(each)) can.push_back(&each);
  bool const others_first =
      !ready_.empty() && (options_.late_launches || (!can.empty() && (random() & 1U) != 0));
  if (!can.empty() && !others_first) {
    go_on(*can[can.size() == 1 ? 0 : random() % can.size()]);
    return true;
  }
  return run_ready();
}

bool machine::run_ready() {
  if (ready_.empty()) return false;
  std::size_t at = static_cast<std::size_t>(random() % ready_.size());
  // In each case some streams are slow: that makes long delays likely, not only short ones.
  if (((options_.seed >> (ready_[at]->index & 31)) & 1U) != 0)
    at = static_cast<std::size_t>(random() % ready_.size());
  stream* on = ready_[at];
  ready_[at] = ready_.back();
  ready_[at]->ready_index = static_cast<int>(at);
  ready_.pop_back();
  on->ready_index = -1;
  if (has_multiprocessors(*on->head)) {
    run(*on->head);
    return true;
  }
  is_short_ = true;  // others hold them by now; when they let go, it is considered again
  return run_ready();
}

bool machine::has_multiprocessors(operation const& one) const {
  int const left = options_.sm_count - held_[static_cast<std::size_t>(one.on->device)];
  switch (one.type) {
    case kind::kernel: return left > 0;
    case kind::group: return one.cancelled || one.messages->over->ctas <= left;
    default: return true;
  }
}

void machine::let_go(message_group& one) {
  held_[static_cast<std::size_t>(one.over->device)] -= std::exchange(one.held, 0);
  if (!std::exchange(is_short_, false)) return;
  for (stream& each : streams_) consider(&each);
}

void machine::run_some() {
  go_on_with_launches();
  auto const run_one = [this] { return options_.late_launches ? run_ready() : step(); };
  switch (options_.order) {
    case mode::lazy: return;
    case mode::eager:
      while (run_one()) {
      }
      return;
    case mode::random:
      while ((random() & 15U) < burst_ && run_one()) {
      }
  }
}

void machine::run(operation& one) {
  stream& on = *one.on;
  if (on.host_snapshot < one.host_snapshot) {
    on.clock.join(snapshots_[one.host_snapshot - 1]);
    on.host_snapshot = one.host_snapshot;
  }
  on.clock.set(on.slot, on.done + 1);
  std::int64_t const start = std::max({on.ns, one.issued_ns, on.queue->ns});
  on.ns = on.queue->ns = start;
  switch (one.type) {
    case kind::record:
      one.mark->clock = on.clock;
      one.mark->ns = start;
      done(*one.mark);
      break;
    case kind::wait:
      on.clock.join(one.mark->clock);
      on.ns = on.queue->ns = std::max(start, one.mark->ns);
      break;
    case kind::group:
      if (!one.cancelled) {
        start_group(one);
        return;
      }
      break;
    case kind::host_function: {
      one.started = true;
      ++callbacks_running_;
      host_state& self = host();
      self.inside = host_state::callback::unlocked;
      bool threw = false;
      mutex_.unlock();  // it may take a lock that another thread holds in a call of ours
      try {
        one.call(one.to);
      } catch (...) {
        threw = true;
      }
      mutex_.lock();
      self.inside = host_state::callback::none;
      --callbacks_running_;
      if (threw) fault("callback: an exception left " + text_of(one.label));
      break;
    }
    case kind::kernel:
      if (kernel_fault_in_ >= 0 && kernel_fault_in_-- == 0) {
        int const device = on.device;
        finish(one);
        poison(device, kernel_fault_error_);
        return;
      }
      [[fallthrough]];
    default: run_body(one, on); break;
  }
  int const device = on.device;
  finish(one);
  if (auto const error = std::exchange(thrown_by_kernel_, cudaSuccess); error != cudaSuccess)
    poison(device, error);
}

void machine::run_body(operation& one, stream& on) {
  touch(one, on, one.accesses);
  host_state& self = host();
  self.inside = host_state::callback::locked;
  try {
    switch (one.type) {
      case kind::kernel:
        if (one.body) one.body();
        break;
      case kind::copy: run_copy(one); break;
      case kind::set:
        std::fill_n(
            static_cast<unsigned char*>(one.to), one.bytes, static_cast<unsigned char>(one.value));
        break;
      case kind::host_function: one.call(one.to); break;
      default: break;
    }
  } catch (fault_in_kernel const& wrong) {
    thrown_by_kernel_ = wrong.error;
  } catch (...) {
    fault("callback: an exception left " + text_of(one.label));
  }
  self.inside = host_state::callback::none;
  on.ns += one.ns;
}

copy_fate machine::fate_of(operation const& copy) {
  allocation const& from = memory_[copy.accesses[0].allocation];
  allocation const& to = memory_[copy.accesses[1].allocation];
  if (!options_.direct_copies || from.device == pinned || to.device == pinned ||
      from.device == to.device)
    return copy_fate::arrives;
  // CUDA does not say whose access a copy takes.
  bool const is_direct = has_access(from.device, to.device) || has_access(to.device, from.device);
  return is_direct ? options_.direct_copies(from.device, to.device) : copy_fate::arrives;
}

void machine::run_copy(operation const& one) {
  copy_fate const fate = fate_of(one);
  auto* const to = static_cast<char*>(one.to);
  if (fate != copy_fate::lost) std::copy_n(static_cast<char const*>(one.from), one.bytes, to);
  if (fate != copy_fate::garbled) return;
  char& bits = to[random() % one.bytes];
  bits = static_cast<char>(bits ^ 1);
}

void machine::done(record& one) {
  one.done = true;
  for (stream* waiter : one.waiting) consider(waiter);
  one.waiting.clear();
}

void machine::leave_queue(operation& one) {
  if (!one.queued) return;
  one.queued = false;
  hardware_queue& queue = *one.on->queue;
  queue.head = one.next_in_queue;
  one.next_in_queue = nullptr;
  if (queue.head != nullptr && queue.head->on != one.on) consider(queue.head->on);
}

void machine::finish(operation& one) {
  stream& on = *one.on;
  leave_queue(one);
  on.head = one.next;
  ++on.done;
  --on.queue->pending;
  --pending_;
  if (one.messages != nullptr) {
    --one.messages->over->launched;
    if (one.messages->held > 0) let_go(*one.messages);
  }
  for (byte_access const& each : one.accesses) --memory_[each.allocation].pending;
  if (one.mark != nullptr) {
    if (one.type == kind::wait && one.mark->event != no_event) --events_[one.mark->event].waits;
    hold(one.mark, nullptr);
  }
  discard(one);
  progressed();
  consider(&on);
}

cudaError_t machine::wait_until_erased(int device, std::function<bool()> const& reached) {
  for (;;) {
    // First the error: what was dropped counts as done.
    cudaError_t const error = sticky_[static_cast<std::size_t>(device)];
    if (error != cudaSuccess || reached()) return error;
    if (step()) continue;
    bool stuck = callbacks_running_ == 0 && sleepers_ + 1 >= hosts();
    if (!stuck) {
      std::uint64_t const seen = progress_;
      ++sleepers_;
      std::unique_lock lock(mutex_, std::adopt_lock);
      changed_.wait_for(lock, options_.patience, [&] { return progress_ != seen; });
      lock.release();
      sleepers_ -= progress_ == seen ? 1 : 0;
      stuck = progress_ == seen;
    }
    if (stuck) deadlock("a host that waits");
  }
}

void machine::polled_in_vain() {
  if (options_.order == mode::lazy || (random() & 1U) != 0) {
    if (options_.late_launches ? run_ready() : step()) return;
  }
  bool const goes_on = std::any_of(
      launches_.begin(), launches_.end(), [this](auto const& each) { return can_go_on(each); });
  if (!ready_.empty() || callbacks_running_ > 0 || goes_on) return;
  auto const now = std::chrono::steady_clock::now();
  if (idle_polls_++ == 0) idle_since_ = now;
  // A single host can only wait for itself; others may be slow.
  auto const limit = hosts() > 1 ? options_.patience
                                 : std::min(options_.patience, std::chrono::milliseconds(1000));
  if (idle_polls_ > 10'000 && now - idle_since_ > limit) deadlock("a host that polls");
}

void machine::host_saw(stream const& one) {
  host_clock_.join(one.clock);
  host_ns_ = std::max(host_ns_, one.ns);
  host_moved_ = true;
}

void machine::host_saw(record const& one) {
  host_clock_.join(one.clock);
  host_ns_ = std::max(host_ns_, one.ns);
  host_moved_ = true;
}

void machine::drop_all(int device) {
  // A host function under way ends by itself; what stands behind it goes.
  std::vector<operation*> kept(streams_.size(), nullptr);
  for (stream& one : streams_) {
    if (one.device != device) continue;
    if (one.head != nullptr && one.head->started && one.head->type == kind::host_function)
      kept[static_cast<std::size_t>(one.index)] = one.head;
    one.queue->head = one.queue->tail = nullptr;
    for (operation* each = one.head; each != nullptr; each = each->next) {
      each->queued = false;
      each->next_in_queue = nullptr;
      each->started = true;  // so that nothing makes it ready
    }
    if (one.ready_index >= 0) {
      ready_[static_cast<std::size_t>(one.ready_index)] = ready_.back();
      ready_.back()->ready_index = one.ready_index;
      ready_.pop_back();
      one.ready_index = -1;
    }
  }
  for (stream& one : streams_) {
    if (one.device != device) continue;
    operation* const running = kept[static_cast<std::size_t>(one.index)];
    if (running != nullptr) one.head = std::exchange(running->next, nullptr);
    while (one.head != nullptr) {
      operation& next = *one.head;
      if (next.type == kind::record) {
        next.mark->clock = one.clock;
        next.mark->ns = one.ns;
        done(*next.mark);
      }
      if (next.type == kind::group && !next.cancelled)
        finish_group(*next.messages);
      else
        finish(next);
    }
    one.head = one.tail = running;
  }
}

void machine::poison(int device, cudaError_t error) {
  cudaError_t& sticky = sticky_[static_cast<std::size_t>(device)];
  if (sticky == cudaSuccess) {
    sticky = error;
    drop_all(device);
    progressed();
  }
}

void machine::deadlock(std::string const& waiter) {
  fault("deadlock: " + waiter + " cannot go on\n" + wait_graph());
  for (int device = 0; device < options_.devices; ++device) poison(device, cudaErrorLaunchTimeout);
}

}  // namespace zbpp::cuda_model

// SPDX-License-Identifier: Apache-2.0
//
// The state of the model and its scheduler. One mutex guards all of it; host functions run without
// the mutex, bodies of kernels with it.
#pragma once

#include "clock.hpp"
#include "cuda_model.hpp"
#include "functions.hpp"
#include "messages.hpp"
#include "shadow.hpp"

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

struct CUdevResourceDesc_st;

namespace zbpp::cuda_model {

enum class kind : std::uint8_t { kernel, copy, set, host_function, record, wait, group };

inline constexpr std::uint32_t no_event = ~0U;  // of a record that NCCL makes, or a graph

/// One cudaEventRecord: later waits hold on to it, whatever the event is recorded for next.
struct record {
  std::uint32_t holders = 0;
  bool done = false;
  std::uint32_t slot = 0;   // of the stream, and ...
  std::uint32_t epoch = 0;  // ... where in it
  std::uint32_t event = no_event;
  int stream_index = 0;
  std::int64_t ns = 0;
  vector_clock clock;
  std::vector<stream*> waiting;
};

struct operation {
  kind type = kind::kernel;
  bool started = false;    // a group that waits for its peers, a host function that runs
  bool cancelled = false;  // of an aborted communicator
  bool parked = false;     // known to the record that it waits for
  bool queued = false;     // still in its hardware queue
  int value = 0;
  name label{""};
  stream* on = nullptr;
  operation* next = nullptr;
  operation* next_in_queue = nullptr;
  record* mark = nullptr;
  message_group* messages = nullptr;
  void* to = nullptr;
  void const* from = nullptr;
  std::size_t bytes = 0;
  std::int64_t ns = 0;
  std::int64_t issued_ns = 0;
  std::uint32_t host_snapshot = 0;
  cudaHostFn_t call = nullptr;
  std::vector<byte_access> accesses;
  std::function<void()> body;
};

/// What was captured, in the order of capture. An operation depends on the one before it in its
/// lane, a captured stream, and, if it waits, on a record; records and waits share numbers, their
/// `value`.
struct graph_body {
  struct node {
    operation work;
    std::size_t lane;
  };
  struct lane {
    int device = 0;
    communicator* of = nullptr;  // whose own stream it is; null: a stream of the program
  };
  std::vector<node> nodes;
  std::vector<lane> lanes;  // the first is the origin
  int records = 0;
};

struct host_state;

/// A capture under way. Each stream in it counts its operations, to see that all join the origin.
struct capture {
  stream* origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  host_state const* host = nullptr;  // the thread that began it
  bool invalid = false;
  std::vector<stream*> streams;
  std::vector<std::vector<std::uint32_t>> clocks;  // of each of them, over all of them
  graph_body body;

  /// @return which of its streams one is
  std::size_t place_of(stream const& on) const;
  /// Lets a stream come after what a record covers.
  void order(stream const& later, std::vector<std::uint32_t> const& covered);
};

/// A record inside a capture: what it covers.
struct captured_record {
  capture* in = nullptr;
  std::vector<std::uint32_t> clock;
  int number = 0;  // in the graph
};

/// A record that NCCL makes, for a wait of its own.
struct record_by_nccl {
  record* made = nullptr;
  captured_record captured = {};  // where it is captured
};

/// What launches a group of messages: a thread of NCCL, or the caller's for communicators that
/// block. It makes one call of CUDA after the other, each when there is room for it.
struct group_launch {
  struct call {
    enum class action : std::uint8_t { wait_for_graphs, record, wait, launch };
    action is = action::launch;
    stream* on = nullptr;
    message_group* of = nullptr;
    std::size_t record = 0;  // which of the records
  };
  std::vector<message_group*> groups;  // of each communicator, as they are launched
  bool is_slow = false;                // left to the scheduler, call by call
  bool has_begun = false;
  std::uint32_t host_snapshot = 0;  // what the host knew when it made the group
  capture* into = nullptr;
  std::vector<call> calls;
  std::size_t next = 0;
  std::vector<record_by_nccl> records;
};

struct hardware_queue {
  operation* head = nullptr;
  operation* tail = nullptr;
  std::uint32_t pending = 0;  // operations in it, or started from it, that are not done
  std::int64_t ns = 0;        // when its last operation started
};

struct stream {
  int index = 0;
  int device = 0;
  unsigned flags = 0;
  int priority = 0;
  bool alive = true;
  int green = -1;  // the green context that made it
  std::uint32_t slot = 0;
  hardware_queue* queue = nullptr;
  operation* head = nullptr;
  operation* tail = nullptr;
  std::uint32_t issued = 0;
  std::uint32_t done = 0;
  std::uint32_t deferred = 0;  // groups that a thread of NCCL is still to launch, or launches
  int ready_index = -1;        // in machine::ready_
  std::uint32_t host_snapshot = 0;
  std::int64_t ns = 0;
  vector_clock clock;
  capture* capturing = nullptr;
  communicator* of = nullptr;  // that made it, for itself
};

struct event {
  std::uint32_t index = 0;
  int device = 0;
  unsigned flags = 0;
  bool alive = true;
  record* last = nullptr;
  std::uint32_t waits = 0;  // appended and not run
  captured_record captured;
};

struct graph_object {
  bool alive = true;
  std::shared_ptr<graph_body const> body;
  // Of what can be launched: where its lanes run but for the first, which is in the stream of the
  // launch, and the end of the last launch, since two launches do not overlap.
  std::vector<stream*> lanes = {};
  record* end = nullptr;
};

struct green_context {
  bool alive = true;
  int index = 0;
  int device = 0;
  unsigned first_sm = 0;
  unsigned sms = 0;
};

/// What a host thread knows of itself.
struct host_state {
  std::uint32_t generation = 0;
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  enum class callback : std::uint8_t { none, locked, unlocked } inside = callback::none;
  int group_depth = 0;
  struct grouped {
    communicator* over;
    stream* on;
    message content;
  };
  std::vector<grouped> group;
  std::vector<communicator*> joining;
  std::vector<communicator*> aborting;
  // Communicators that do not block of its last group, which NCCL may still be at work on.
  std::vector<communicator*> at_work;
};

class machine {
 public:
  static machine& the();
  machine() { reset({}); }

  void reset(options const& machine_options);

  // ---- host threads ----
  host_state& host();
  std::mutex& mutex() { return mutex_; }

  // ---- appending ----
  operation& make(kind type, name label, stream& on);
  /// Adds an access of the operation; false (and a fault) if the bytes are not there.
  bool touches(operation& of, void const* data, std::size_t bytes, bool write);
  void discard(operation& one);
  cudaError_t append(operation& one);
  /// Faults while a thread of NCCL is still to use a stream, which nobody else may then.
  void check_not_deferred(stream const& on, name const& by);
  cudaError_t wait_for_event(stream& on, event& of);
  cudaError_t record_event(stream& on, event& of);
  /// Appends a record that no event names.
  cudaError_t append_record(stream& on, name label, record& made);
  cudaError_t append_wait(stream& on, name label, record& entry);
  /// Makes a stream part of a capture.
  void enter(stream& on, capture& into);
  /// Appends what was captured: to the stream, and to lanes of its own.
  cudaError_t launch_graph(graph_object& graph, stream& on);
  cudaError_t append_nodes(graph_object& graph, stream& on);
  cudaError_t append_node(graph_body::node const& node, stream& to, std::vector<record*>& records);
  /// Makes the lanes of a graph; false (and a fault) if there is no room.
  bool make_lanes(graph_object& of);
  /// Waits, where the options say so, until the device is done with all that it was given.
  cudaError_t drain(int device);
  /// The same before the first launch of a kernel, which CUDA loads then.
  cudaError_t load(name const& kernel, int device);

  // ---- running ----
  void run_some();
  bool step();
  /// Runs what is ready until `reached()`; tells of a deadlock and returns cudaErrorLaunchTimeout.
  template <class Reached>
  cudaError_t wait_until(int device, Reached&& reached) {
    return wait_until_erased(device, std::cref(reached));
  }
  void host_saw(stream const& one);
  void host_saw(record const& one);
  /// Counts a query that found its target incomplete; many in vain are a deadlock.
  void polled_in_vain();
  void poison(int device, cudaError_t error);

  // ---- peers ----
  /// Whether a device may access the memory of another one.
  bool has_access(int device, int other) const {
    return peers_[static_cast<std::size_t>(device)][static_cast<std::size_t>(other)];
  }
  /// What becomes of the bytes of a copy.
  copy_fate fate_of(operation const& copy);
  void run_copy(operation const& one);

  // ---- checking ----
  void fault(std::string text);
  void touch(operation const& by, stream const& on, std::vector<byte_access> const& access);
  void host_touches(byte_access const& access, char const* label);
  bool host_knows_done(stream const& one);
  /// True if nothing can come of this any more: the host has waited for it, or its device is dead.
  bool is_over(note const& one) const;

  /// The error of a call that a capture of this thread forbids; it spoils the capture.
  cudaError_t unsafe_in_capture(host_state const& self);

  // ---- messages (messages.cpp) ----
  void start_group(operation& one);
  /// Whether thread blocks of messages that run leave room for those of an operation.
  bool has_multiprocessors(operation const& one) const;
  /// Gives back what a group held.
  void let_go(message_group& one);
  /// Whether a graph that is not destroyed, or still runs, has captured groups of a communicator.
  bool is_in_graphs(communicator const& one) const;
  /// Whether a captured group in a graph that is not destroyed reads or writes an allocation.
  bool is_captured_by_nccl(std::uint32_t allocation) const;
  void cancel_all(communicator& of);

  // ---- launches of NCCL (nccl_launches.cpp) ----
  /// Begins to launch a group.
  group_launch& launch(std::vector<message_group*> groups);
  /// Makes the calls of launches that do not wait for the scheduler.
  /// @param polled  whose launch a late one is, if any
  void go_on_with_launches(communicator const* polled = nullptr);
  bool can_go_on(group_launch const& one) const;
  /// Makes the next call; the launch is gone after its last one.
  void go_on(group_launch& one);
  void end_launch(group_launch& one);

  // ---- handles ----
  stream* find(cudaStream_t handle, char const* function);
  /// What a call returns of a stream that was not found.
  cudaError_t error_of(cudaStream_t handle);
  event* find(cudaEvent_t handle, char const* function);
  cudaStream_t handle_of(stream const& one);
  cudaEvent_t handle_of(event const& one);
  cudaError_t new_stream(cudaStream_t* made, unsigned flags, int priority, int device, int green);
  /// Makes what NCCL has on a device for a communicator; false (and a fault) if there is no room.
  bool make_streams_of(communicator& one);
  template <class Object>
  Object* find_in(std::deque<Object>& all, unsigned tag, void const* handle);
  void* handle_for(unsigned tag, std::size_t index) const;
  void hold(record*& slot, record* entry);
  record* new_record();

  /// Makes hosts that sleep look again at what they wait for.
  void wake_hosts() { progressed(); }

  int hosts() const { return options_.hosts + registered_hosts_; }
  std::uint64_t random() {  // xorshift
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return random_ >> 11;
  }

  options options_;
  bool holds_groups_ = false;
  std::uint32_t generation_ = 1;
  int registered_hosts_ = 0;

  std::deque<stream> streams_;
  std::deque<event> events_;
  std::deque<graph_object> graphs_;
  std::deque<graph_object> execs_;
  std::deque<green_context> greens_;
  std::vector<std::shared_ptr<CUdevResourceDesc_st>> descriptors_;
  unsigned splits_ = 0;
  std::uint64_t unique_ids_ = 0;
  std::deque<communicator> communicators_;
  std::deque<world> worlds_;
  std::deque<message_group> groups_;
  std::list<group_launch> launches_;
  std::deque<capture> captures_;
  std::deque<std::vector<hardware_queue>> queues_;
  std::vector<unsigned> next_queue_;
  std::vector<bool> has_nccl_;  // by device, whether there was a communicator
  std::vector<int> held_;       // by device, multiprocessors of running groups
  bool is_short_ = false;       // some operation waits for multiprocessors
  std::vector<cudaError_t> sticky_;
  std::vector<std::vector<bool>> peers_;
  memory memory_;

  std::vector<std::string> faults_;
  std::size_t unreported_ = 0;

  std::array<int, function_count> failing_{};
  std::array<std::uint64_t, function_count> counts_{};
  std::uint64_t interrupts_ = 0;
  std::uint64_t connections_ = 0;
  struct skipped {
    function call;
    std::uint64_t index;
  };
  std::vector<skipped> skips_;
  std::vector<std::pair<function, std::uint64_t>> log_;
  bool counting_ = false;
  std::int64_t kernel_fault_in_ = -1;  // kernels until the one that fails
  cudaError_t kernel_fault_error_ = cudaSuccess;
  cudaError_t thrown_by_kernel_ = cudaSuccess;

  vector_clock host_clock_;
  bool host_moved_ = true;
  std::int64_t host_ns_ = 0;
  std::size_t pending_ = 0;

 private:
  /// Whether its green context is destroyed, and it is not.
  bool has_lost_context(stream const& one) const;
  hardware_queue& take_queue(int device);
  stream* add_stream(int device);
  cudaError_t wait_until_erased(int device, std::function<bool()> const& reached);
  void consider(stream* one);
  void run(operation& one);
  void run_body(operation& one, stream& on);
  void finish(operation& one);
  void leave_queue(operation& one);
  void done(record& one);
  void drop_all(int device);
  void progressed();
  void deadlock(std::string const& waiter);
  std::string wait_graph() const;
  std::string why_blocked(stream const& one) const;
  std::string text(note const& one) const;
  bool run_ready();
  bool has_room(stream const& on) const;
  /// @return what stands for all that the host has seen so far
  std::uint32_t snapshot();
  std::string why_blocked(group_launch const& one) const;
  void match(communicator& of);
  /// Adds up what the ranks of a communicator have, where all of them are at the same sum.
  /// @return whether they were
  bool match_sum(communicator& of);
  void record_for_nccl(stream& on, record_by_nccl& made);
  void wait_for_nccl(stream& on, record_by_nccl& made);
  void plan_launch(group_launch& of, message_group& one);
  void launch_now(message_group& one);
  bool put_in_line(message_group& one, operation& launch);
  bool capture_group(message_group& one, operation& launch);
  void finish_group(message_group& one);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t progress_ = 0;
  int sleepers_ = 0;
  int callbacks_running_ = 0;
  std::uint64_t idle_polls_ = 0;
  std::chrono::steady_clock::time_point idle_since_;

  std::uint64_t random_ = 1;
  unsigned burst_ = 8;  // of 16: how eager the scheduler is in this case
  std::vector<stream*> ready_;
  std::deque<operation> operations_;
  std::vector<operation*> free_operations_;
  std::deque<record> records_;
  std::vector<record*> free_records_;
  std::set<std::pair<int, std::string>> loaded_;  // kernels, by device
  std::deque<vector_clock> snapshots_;
  group_launch const* by_nccl_ = nullptr;  // whose call is being made
};

/// "F(0, 1)".
std::string text_of(name const& label);

// Kinds of handles; they are part of their value, so that one is never taken for another.
inline constexpr unsigned stream_tag = 1;
inline constexpr unsigned event_tag = 2;
inline constexpr unsigned graph_tag = 3;
inline constexpr unsigned exec_tag = 4;
inline constexpr unsigned green_tag = 5;
inline constexpr unsigned communicator_tag = 6;

template <class Object>
Object* machine::find_in(std::deque<Object>& all, unsigned tag, void const* handle) {
  auto const value = reinterpret_cast<std::uintptr_t>(handle);
  std::size_t const index = (value >> 4) & 0xfffffffU;
  bool const is_valid = value >> 36 == generation_ && ((value >> 32) & 0xf) == tag && index > 0 &&
                        index <= all.size();
  return is_valid ? &all[index - 1] : nullptr;
}

}  // namespace zbpp::cuda_model

// SPDX-License-Identifier: Apache-2.0
//
// What a test can say to the model of CUDA and NCCL, and ask it. The model defines the C functions
// of both (cuda_entry*.cpp, nccl_entry.cpp) and is linked instead of them. Calls only append to
// streams; a seeded scheduler runs what CUDA would allow to run, so each seed is an interleaving.
// What a program does wrong is collected in faults(); the model neither aborts nor hangs.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zbpp::cuda_model {

/// When the scheduler runs what is ready.
enum class mode {
  random,  ///< a random number of random ready operations at each call, often none
  eager,   ///< all that is ready, at each call
  lazy,    ///< nothing, until something synchronises or queries
};

/// Which hardware queue of its device a stream gets when it is made.
enum class queue_mapping {
  in_turn,  ///< the next one
  random,   ///< one drawn from the seed
  one,      ///< the first one, whatever others there are
};

/// What becomes of a copy.
enum class copy_fate {
  arrives,
  lost,     ///< nothing is written
  garbled,  ///< some bytes are others
};

/// The machine that the model stands for.
struct options {
  std::uint64_t seed = 1;  ///< the interleaving; the same seed and calls of one thread repeat it
  mode order = mode::random;
  int devices = 1;  ///< cudaGetDeviceCount
  /// Multiprocessors of each device. A partition is made of groups of 8, and a group of messages
  /// holds one for each of its thread blocks while it runs; a kernel needs one that is free.
  int sm_count = 132;
  int connections = 32;  ///< hardware queues of a device
  queue_mapping mapping = queue_mapping::in_turn;
  /// Operations that a hardware queue holds until they are done, for all of its streams together; a
  /// call beyond blocks its thread.
  int launch_depth = 1024;
  /// A thread of NCCL launches a group when its communicator is polled, or when all else waits. By
  /// default it takes its time now and then.
  bool late_launches = false;
  int hosts = 1;  ///< threads that issue; a deadlock is when all of them wait (see host_thread)
  /// Making or freeing memory, and the first launch of each kernel on a device, known by its label,
  /// wait until all that the device was given before is done, as CUDA may.
  bool drains = false;
  bool green_contexts = true;  ///< false: the driver lacks the green calls, as before 12.4
  /// Whether streams of green contexts take the events of the runtime API, which belong to the
  /// primary context. CUDA records an event on streams of its own context only, and does not say
  /// whether the two count as one. Waits are no question: they may cross contexts.
  bool green_events = true;
  bool peer_access = true;  ///< cudaDeviceCanAccessPeer
  /// What becomes of copies that go directly from one device to another: where peer access is
  /// enabled between them. CUDA reports success for all. Empty: they arrive.
  std::function<copy_fate(int from, int to)> direct_copies = {};
  int instances_of_gpu = 1;         ///< devices that are parts of one GPU (MIG), with its bus id
  bool check_uninitialised = true;  ///< reading bytes that nobody wrote is a fault
  bool duplicate_gpus = false;      ///< NCCL: true lets ranks of one communicator share a device
  /// NCCL: the first message to a peer, and the first sum of a class of sizes, waits on the host
  /// for the other ranks.
  bool lazy_connect = true;
  std::size_t device_bytes = 0;          ///< memory of a device, 0: no limit
  std::int64_t copy_ns = 0;              ///< virtual time of a copy or a set
  std::int64_t copy_ns_per_byte = 0;     ///< and of each byte of a copy
  std::int64_t message_ns = 0;           ///< virtual time of a group of sends and receives
  std::int64_t message_ns_per_byte = 0;  ///< and of each byte of a message in it
  /// How long hosts may wait for another host that does not issue; then it counts as a deadlock.
  std::chrono::milliseconds patience{20'000};
};

/// Forgets everything (streams, events, memory, communicators, faults, counts) and starts anew.
/// No other thread may be inside the model.
void reset(options const& machine = {});

/// Bytes that an operation reads or writes. They must lie in one allocation of the model.
struct range {
  void const* data = nullptr;
  std::size_t bytes = 0;
};

/// What an operation is called in a fault: a text that lives until reset, and up to three numbers.
struct name {
  name(char const* label, int first = -1, int second = -1, int third = -1)
      : text(label), numbers{first, second, third} {}
  char const* text;
  int numbers[3];  // below 0: not shown
};

// ---- what a test's passes do ----

/// What the body of a kernel throws to fault: it poisons its device, as by `kernel_fault`.
struct fault_in_kernel {
  cudaError_t error = cudaErrorIllegalAddress;
};

/// Launches a "kernel": `body` runs when the scheduler says so. Device memory is host memory here,
/// so the body just computes on it, within the ranges that it declares; it calls no CUDA.
/// @param ns  its virtual duration, for cudaEventElapsedTime
/// @return what cudaLaunchKernel would; cudaGetLastError also tells
cudaError_t launch(
    cudaStream_t stream,
    name label,
    std::span<range const> reads,
    std::span<range const> writes,
    std::function<void()> body = {},
    std::int64_t ns = 0);

/// The same, with the ranges in braces.
inline cudaError_t launch(
    cudaStream_t stream,
    name label,
    std::initializer_list<range> reads,
    std::initializer_list<range> writes,
    std::function<void()> body = {},
    std::int64_t ns = 0) {
  return launch(
      stream,
      label,
      std::span<range const>(reads.begin(), reads.size()),
      std::span<range const>(writes.begin(), writes.size()),
      std::move(body),
      ns);
}

/// Declares that the host reads these bytes now (pinned memory, say): a race is a fault.
void host_reads(void const* data, std::size_t bytes);

/// Declares that the host writes these bytes now: a race is a fault.
void host_writes(void* data, std::size_t bytes);

/// Makes the bytes count as never written, such as a freed piece of an arena.
void uninitialise(void const* data, std::size_t bytes);

// ---- what was wrong ----

/// Everything that the program did wrong since reset, in order; each starts with its kind: "race",
/// "deadlock", "uninitialised", "memory", "handle", "unrecorded", "capture", "nccl", "callback".
std::vector<std::string> faults();

/// Takes the faults out, so that a test can go on after those that it expected.
std::vector<std::string> take_faults();

/// What is still alive: a line for each stream, event, allocation, graph, green context and
/// communicator.
std::vector<std::string> leaks();

/// Appended operations that have not run yet.
std::size_t pending();

// ---- making things fail ----

/// The next call of the function, such as "cudaEventRecord" or "ncclGroupEnd", does nothing and
/// returns the error (an ncclResult_t for NCCL's). One after which CUDA cannot go on (such as
/// cudaErrorIllegalAddress) poisons the current device: every later call there returns it.
/// @throws std::invalid_argument when the model has no such function
void fail_next(std::string_view function, int error);

/// Groups of NCCL calls that begin from now on stay ncclInProgress until they are aborted.
void hold_groups();

/// The n-th kernel to run from now on (0: the first) poisons its device.
void kernel_fault(std::uint64_t n, cudaError_t error = cudaErrorIllegalAddress);

/// A device stops, as where the process that uses it is killed: nothing of what it was given runs
/// any more, and every later call there returns an error. Some communicators that have a rank there
/// fail with ncclRemoteError.
void stop_device(int device);

/// Makes a communicator of this rank fail asynchronously: ncclCommGetAsyncError tells.
/// @param comm  an ncclComm_t
/// @param error  an ncclResult_t, such as ncclRemoteError
void comm_fault(void* comm, int error);

/// The i-th call of the function from start_counting on (0: the first) does nothing and returns
/// success: a mutation of the program under test.
/// @throws std::invalid_argument when the model has no such function
void skip(std::string_view function, std::uint64_t index);

// ---- counting calls ----

/// A call that was made.
struct called {
  std::string_view function;
  std::uint64_t index = 0;  ///< among the calls of this function
};

/// Counts and logs calls from here on; forgets the counts, the log and the skips so far.
void start_counting();

/// How often the function (or "launch") was called since start_counting.
/// @throws std::invalid_argument when the model has no such function
std::uint64_t count(std::string_view function);

/// Records since start_counting that interrupt the host when they have run: of events that it may
/// block on.
std::uint64_t interrupts();

/// How often since start_counting a rank had to connect in NCCL first, for which hosts wait for
/// each other: with a peer, or for sums of sizes that it had not added up before.
std::uint64_t connections();

/// The most thread blocks of each communicator that is not destroyed, of all ranks.
std::vector<int> ctas_of_communicators();

/// All calls since start_counting, in order, over all threads.
std::vector<called> calls();

/// True for the functions that make the host wait for a device.
bool is_synchronising(std::string_view function);

/// True for the functions that make or free memory, streams, events, graphs or communicators.
bool is_allocating(std::string_view function);

/// The calls since start_counting that is_synchronising or is_allocating, such as
/// "cudaStreamSynchronize 2": what has no business inside a step.
std::vector<std::string> heavy_calls();

// ---- time and threads ----

/// The host's virtual time: it moves when the host synchronises, to the end of what it waited for.
std::int64_t now_ns();

/// While it lives, there is one more thread that issues, beside `options::hosts`: a host that waits
/// then waits for it too. Make all of them (with hosts = 0, say) before the threads start, and end
/// each in its thread. With one host in all, the model is deterministic by its seed.
class [[nodiscard]] host_thread {
 public:
  host_thread();
  ~host_thread();
  host_thread(host_thread const&) = delete;
  host_thread& operator=(host_thread const&) = delete;
};

}  // namespace zbpp::cuda_model

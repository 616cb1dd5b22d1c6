// SPDX-License-Identifier: Apache-2.0
//
// The model of CUDA and NCCL is right: what it says of programs whose answer is known.
#include <gpu_model/cuda/cuda_model.hpp>
#include <gpu_model/cuda/environment.hpp>
#include <support/catch.hpp>
#include <support/environment_variable.hpp>
#include <support/seeded.hpp>

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace test_cuda_model {

namespace {

namespace model = zbpp::cuda_model;

constexpr std::size_t block = 64;  // bytes of a test's buffer

cudaStream_t new_stream() {
  cudaStream_t made = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking) == cudaSuccess);
  return made;
}

template <std::size_t Count>
std::array<cudaStream_t, Count> new_streams() {
  std::array<cudaStream_t, Count> made;
  for (auto& each : made) each = new_stream();
  return made;
}

constexpr unsigned host_wait = cudaEventDisableTiming | cudaEventBlockingSync;

cudaEvent_t new_event(unsigned flags = cudaEventDisableTiming) {
  cudaEvent_t made = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&made, flags) == cudaSuccess);
  return made;
}

char* new_memory(std::size_t bytes = block) {
  void* made = nullptr;
  REQUIRE(cudaMalloc(&made, bytes) == cudaSuccess);
  return static_cast<char*>(made);
}

template <std::size_t Count>
std::array<char*, Count> new_pieces() {
  std::array<char*, Count> made;
  for (auto& each : made) each = new_memory();
  return made;
}

/// The faults of a kind; the empty kind means all.
std::size_t faults_of(std::string_view kind) {
  std::vector<std::string> const all = model::faults();
  return static_cast<std::size_t>(std::count_if(
      all.begin(), all.end(), [&](auto const& text) { return text.starts_with(kind); }));
}

std::string all_faults() {
  std::vector<std::string> const all = model::faults();
  return std::accumulate(all.begin(), all.end(), std::string{}, [](auto sum, auto const& text) {
    return sum + text + "\n";
  });
}

/// Whether a fault has this text.
bool has_fault(std::string_view text) { return all_faults().find(text) != std::string::npos; }

cudaError_t write(cudaStream_t on, char* data, int number = -1, std::size_t bytes = block) {
  return model::launch(on, {"write", number}, {}, {{data, bytes}}, [data, bytes, number] {
    std::fill_n(data, bytes, static_cast<char>(number));
  });
}

cudaError_t read(cudaStream_t on, char* data, int number = -1, std::size_t bytes = block) {
  return model::launch(on, {"read", number}, {{data, bytes}}, {});
}

void record(cudaEvent_t event, cudaStream_t on) {
  REQUIRE(cudaEventRecord(event, on) == cudaSuccess);
}
void wait(cudaStream_t on, cudaEvent_t event) {
  REQUIRE(cudaStreamWaitEvent(on, event, 0) == cudaSuccess);
}
void use_device(int device) { REQUIRE(cudaSetDevice(device) == cudaSuccess); }

/// Orders what `later` does next behind what `earlier` has done.
void order(cudaStream_t earlier, cudaStream_t later) {
  cudaEvent_t const event = new_event();
  record(event, earlier);
  wait(later, event);
}

void synchronize() { REQUIRE(cudaDeviceSynchronize() == cudaSuccess); }
void synchronize(cudaStream_t on) { REQUIRE(cudaStreamSynchronize(on) == cudaSuccess); }

void reset(std::uint64_t seed, model::mode order = model::mode::random) {
  model::options machine;
  machine.seed = seed;
  machine.order = order;
  model::reset(machine);
}

/// Runs the case under many interleavings and all three modes.
template <class Case>
void each_interleaving(model::options machine, Case const& one) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    for (auto order : {model::mode::random, model::mode::eager, model::mode::lazy}) {
      machine.seed = seed;
      machine.order = order;
      model::reset(machine);
      INFO("seed " << seed << " mode " << static_cast<int>(order));
      one();
    }
  }
}

template <class Case>
void each_interleaving(Case const& one) {
  each_interleaving({}, one);
}

/// Two ranks of one communicator, both driven by this thread.
struct pair {
  std::array<ncclComm_t, 2> comm{};

  /// @param devices  of the two ranks
  explicit pair(std::array<int, 2> devices = {0, 0}) {
    ncclUniqueId id;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    for (int rank = 0; rank < 2; ++rank) {
      ncclComm_t& made = comm[static_cast<std::size_t>(rank)];
      use_device(devices[static_cast<std::size_t>(rank)]);
      ncclResult_t const result = ncclCommInitRankConfig(&made, 2, id, rank, &config);
      REQUIRE(result == (rank == 0 ? ncclInProgress : ncclSuccess));
      if (rank == 0) CHECK(state(0) == ncclInProgress);
    }
    CHECK(state(0) == ncclSuccess);
    use_device(devices[0]);
  }

  ncclResult_t state(std::size_t rank) const {
    ncclResult_t result = ncclSuccess;
    REQUIRE(ncclCommGetAsyncError(comm[rank], &result) == ncclSuccess);
    return result;
  }

  /// Waits until the rank may go on.
  void settle(std::size_t rank) const {
    for (int polls = 0; state(rank) == ncclInProgress; ++polls) REQUIRE(polls < 1000);
  }

  void send(std::size_t rank, char* data, cudaStream_t on, std::size_t count = block) const {
    ncclResult_t const result =
        ncclSend(data, count, ncclInt8, 1 - static_cast<int>(rank), comm[rank], on);
    REQUIRE((result == ncclSuccess || result == ncclInProgress));
    settle(rank);
  }

  void receive(std::size_t rank, char* data, cudaStream_t on, std::size_t count = block) const {
    ncclResult_t const result =
        ncclRecv(data, count, ncclInt8, 1 - static_cast<int>(rank), comm[rank], on);
    REQUIRE((result == ncclSuccess || result == ncclInProgress));
    settle(rank);
  }
};

model::options one_gpu() {
  model::options machine;
  machine.duplicate_gpus = true;
  machine.lazy_connect = false;
  return machine;
}

// ---- streams and events ----

TEST_CASE("A stream runs its operations in order, whatever the interleaving") {
  each_interleaving([] {
    auto streams = new_streams<3>();
    std::array<std::vector<int>, 3> ran;
    for (int i = 0; i < 20; ++i)
      for (std::size_t on = 0; on < 3; ++on)
        model::launch(streams[on], {"note", i}, {}, {}, [&ran, on, i] { ran[on].push_back(i); });
    synchronize();
    for (std::vector<int> const& each : ran) {
      REQUIRE(each.size() == 20);
      CHECK(std::is_sorted(each.begin(), each.end()));
    }
    CHECK(model::pending() == 0);
    CHECK(all_faults().empty());
  });
}

TEST_CASE("Seeds give different interleavings, and the same seed the same one") {
  auto const run = [](std::uint64_t seed) {
    reset(seed);
    auto streams = new_streams<3>();
    std::string ran;
    for (int i = 0; i < 8; ++i) {
      for (std::size_t on = 0; on < 3; ++on) {
        model::launch(
            streams[on], "note", {}, {}, [&ran, on] { ran += static_cast<char>('a' + on); });
      }
    }
    synchronize();
    return ran;
  };
  std::vector<std::string> all;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    all.push_back(run(seed));
    REQUIRE(run(seed) == all.back());
  }
  std::sort(all.begin(), all.end());
  CHECK(std::unique(all.begin(), all.end()) - all.begin() > 40);
}

TEST_CASE("The lazy mode runs nothing before a synchronise, the eager one everything at once") {
  int ran = 0;
  reset(1, model::mode::lazy);
  cudaStream_t stream = new_stream();
  model::launch(stream, "count", {}, {}, [&] { ++ran; });
  CHECK(ran == 0);
  synchronize(stream);
  CHECK(ran == 1);
  reset(1, model::mode::eager);
  stream = new_stream();
  model::launch(stream, "count", {}, {}, [&] { ++ran; });
  CHECK(ran == 2);
}

TEST_CASE("A wait takes the last record before it; recording again does not move it") {
  each_interleaving([] {
    auto const [first, second] = new_streams<2>();
    cudaEvent_t const event = new_event(host_wait);
    int step = 0;
    int seen = -1;
    model::launch(first, "one", {}, {}, [&] { step = 1; });
    record(event, first);
    wait(second, event);
    model::launch(second, "see", {}, {}, [&] { seen = step; });
    cudaEvent_t const back = new_event();
    record(back, second);
    // Were the wait for this record, the two streams would wait for each other.
    wait(first, back);
    record(event, first);
    REQUIRE(cudaEventSynchronize(event) == cudaSuccess);
    CHECK(seen == 1);
    CHECK(all_faults().empty());
  });
}

TEST_CASE("Waiting for an event that was never recorded does not wait, and is a fault") {
  reset(1);
  cudaStream_t const stream = new_stream();
  REQUIRE(cudaStreamWaitEvent(stream, new_event(), 0) == cudaSuccess);
  synchronize(stream);
  CHECK(faults_of("unrecorded") == 1);
  CHECK(faults_of("") == 1);
}

TEST_CASE("An event is complete only when its last record has run") {
  reset(3, model::mode::lazy);
  cudaStream_t const stream = new_stream();
  cudaEvent_t const event = new_event(host_wait);
  CHECK(cudaEventQuery(event) == cudaSuccess);  // never recorded
  for (int i = 0; i < 4; ++i) write(stream, new_memory());
  record(event, stream);
  CHECK(cudaEventQuery(event) == cudaErrorNotReady);
  CHECK(cudaGetLastError() == cudaSuccess);  // not ready is no error
  REQUIRE(cudaEventSynchronize(event) == cudaSuccess);
  CHECK(cudaEventQuery(event) == cudaSuccess);
  CHECK(cudaStreamQuery(stream) == cudaSuccess);
}

TEST_CASE("A host that spins on an event is a fault, and one that sleeps is none") {
  model::reset({});
  cudaStream_t const stream = new_stream();
  for (unsigned const flags : {host_wait, 0U + cudaEventBlockingSync}) {
    cudaEvent_t const event = new_event(flags);
    record(event, stream);
    REQUIRE(cudaEventSynchronize(event) == cudaSuccess);
  }
  CHECK(all_faults().empty());
  for (unsigned const flags : {0U + cudaEventDisableTiming, 0U + cudaEventDefault}) {
    cudaEvent_t const event = new_event(flags);
    record(event, stream);
    REQUIRE(cudaEventSynchronize(event) == cudaSuccess);
  }
  CHECK(faults_of("handle: the host spins on event 2, ") == 1);
  CHECK(faults_of("handle: the host spins on event 3, ") == 1);
  CHECK(faults_of("") == 2);
}

TEST_CASE("Records of events that the host may block on interrupt it") {
  model::reset({});
  model::start_counting();
  cudaStream_t const stream = new_stream();
  for (int i = 0; i < 3; ++i) record(new_event(host_wait), stream);
  record(new_event(), stream);
  CHECK(model::interrupts() == 3);
  model::start_counting();
  CHECK(model::interrupts() == 0);
}

TEST_CASE("Polling makes progress in every mode") {
  each_interleaving([] {
    cudaStream_t const stream = new_stream();
    cudaEvent_t const event = new_event();
    for (int i = 0; i < 20; ++i) write(stream, new_memory());
    record(event, stream);
    int polls = 0;
    while (cudaEventQuery(event) == cudaErrorNotReady) REQUIRE(++polls < 100'000);
    CHECK(all_faults().empty());
  });
}

TEST_CASE("Virtual time is that of the longest path, in every interleaving") {
  each_interleaving([] {
    auto const [a, b] = new_streams<2>();
    cudaEvent_t const start = new_event(cudaEventDefault);
    cudaEvent_t const end = new_event(cudaEventBlockingSync);
    record(start, a);
    model::launch(a, "short", {}, {}, {}, 1'000'000);
    model::launch(b, "long", {}, {}, {}, 5'000'000);
    order(b, a);
    model::launch(a, "last", {}, {}, {}, 2'000'000);
    record(end, a);
    REQUIRE(cudaEventSynchronize(end) == cudaSuccess);
    float milliseconds = 0;
    REQUIRE(cudaEventElapsedTime(&milliseconds, start, end) == cudaSuccess);
    CHECK(milliseconds == 7.0F);
    CHECK(model::now_ns() == 7'000'000);
    CHECK(
        cudaEventElapsedTime(&milliseconds, start, new_event()) == cudaErrorInvalidResourceHandle);
  });
}

// ---- races ----

enum class touch { reads, writes };

void do_touch(cudaStream_t on, char* data, touch kind, int number) {
  (kind == touch::reads ? read : write)(on, data, number, block);
}

TEST_CASE("Two touches without an order are a race if one writes, in either order of issue") {
  for (touch first : {touch::reads, touch::writes}) {
    for (touch second : {touch::reads, touch::writes}) {
      each_interleaving([&] {
        auto const [a, b] = new_streams<2>();
        char* const data = new_memory();
        write(a, data, 0);
        synchronize();
        do_touch(a, data, first, 1);
        do_touch(b, data, second, 2);
        synchronize();
        bool const race = first == touch::writes || second == touch::writes;
        CHECK(faults_of("race") == (race ? 1U : 0U));
        CHECK(faults_of("") == (race ? 1U : 0U));
        if (race) {
          CHECK(has_fault(first == touch::reads ? "read(1)" : "write(1)"));
          CHECK(has_fault(second == touch::reads ? "read(2)" : "write(2)"));
        }
      });
    }
  }
}

TEST_CASE("An event orders them, so does a chain of events, and the host's synchronise") {
  for (touch first : {touch::reads, touch::writes}) {
    for (touch second : {touch::reads, touch::writes}) {
      for (int way = 0; way < 3; ++way) {
        each_interleaving([&] {
          auto const [a, b] = new_streams<2>();
          char* const data = new_memory();
          write(a, data, 0);
          do_touch(a, data, first, 1);
          if (way == 0) {
            order(a, b);
          } else if (way == 1) {
            auto const [middle, other] = new_streams<2>();
            order(a, middle);
            order(middle, other);
            order(other, b);
          } else {
            synchronize(a);
          }
          do_touch(b, data, second, 2);
          synchronize();
          CHECK(all_faults().empty());
        });
      }
    }
  }
}

TEST_CASE("An event recorded before the first touch does not order it") {
  each_interleaving([] {
    auto const [a, b] = new_streams<2>();
    char* const data = new_memory();
    order(a, b);
    write(a, data, 1);
    write(b, data, 2);
    synchronize();
    CHECK(faults_of("race") == 1);
  });
}

TEST_CASE("Only bytes that overlap race") {
  each_interleaving([] {
    auto const [a, b] = new_streams<2>();
    char* const data = new_memory(100);
    write(a, data, 1, 50);
    write(b, data + 50, 2, 50);
    synchronize();
    CHECK(all_faults().empty());
    read(a, data + 10, 3, 50);  // its bytes from 50 on are known to the host, hence to all
    write(b, data + 59, 4, 1);
    synchronize();
    CHECK(faults_of("race") == 1);
    CHECK(has_fault("[59, 60)"));
  });
}

TEST_CASE("The host's reads and writes of pinned memory are checked") {
  for (bool synchronised : {false, true}) {
    each_interleaving([&] {
      cudaStream_t const stream = new_stream();
      void* pinned = nullptr;
      REQUIRE(cudaHostAlloc(&pinned, block, cudaHostAllocDefault) == cudaSuccess);
      char* const data = new_memory();
      write(stream, data, 7);
      REQUIRE(cudaMemcpyAsync(pinned, data, block, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
      synchronize(stream);
      CHECK(static_cast<char*>(pinned)[block - 1] == 7);
      model::host_reads(pinned, block);
      CHECK(all_faults().empty());
      REQUIRE(cudaMemcpyAsync(data, pinned, block, cudaMemcpyHostToDevice, stream) == cudaSuccess);
      if (synchronised) synchronize(stream);
      model::host_writes(pinned, block);
      synchronize(stream);
      CHECK(faults_of("race") == (synchronised ? 0U : 1U));
    });
  }
}

TEST_CASE("A kernel writes memory of the host that is mapped, in order with the host's reads") {
  for (bool synchronised : {false, true}) {
    each_interleaving([&] {
      cudaStream_t const stream = new_stream();
      void* mapped = nullptr;
      void* unmapped = nullptr;
      REQUIRE(cudaHostAlloc(&mapped, block, cudaHostAllocMapped) == cudaSuccess);
      REQUIRE(cudaHostAlloc(&unmapped, block, cudaHostAllocDefault) == cudaSuccess);
      void* on_device = nullptr;
      CHECK(cudaHostGetDevicePointer(&on_device, unmapped, 0) == cudaErrorInvalidValue);
      CHECK(cudaHostGetDevicePointer(&on_device, new_memory(), 0) == cudaErrorInvalidValue);
      REQUIRE(cudaHostGetDevicePointer(&on_device, mapped, 0) == cudaSuccess);
      auto* const data = static_cast<char*>(on_device);
      write(stream, data, 5);
      synchronize(stream);
      CHECK(static_cast<char*>(mapped)[0] == 5);
      model::host_reads(mapped, block);
      CHECK(all_faults().empty());
      write(stream, data, 6);
      if (synchronised) synchronize(stream);
      model::host_reads(mapped, block);
      write(stream, static_cast<char*>(unmapped), 7);
      synchronize(stream);
      CHECK(faults_of("race") == (synchronised ? 0U : 1U));
      CHECK(faults_of("memory") == 1);
    });
  }
}

TEST_CASE("Random programs: the model finds a race exactly where the order has none") {
  // Independent: a matrix of what comes before what, closed over the edges.
  for (std::uint64_t trial = 0; trial < 300; ++trial) {
    ZBPP_SEEDED(rng, trial);
    reset(trial);
    constexpr std::size_t count = 4;
    std::array<cudaStream_t, count> streams{};
    for (cudaStream_t& each : streams) each = new_stream();
    auto data = new_pieces<3>();
    for (char* each : data) write(streams[0], each);
    synchronize();
    struct node {
      std::size_t data;
      bool writes;
    };
    std::vector<node> nodes;
    std::array<std::vector<bool>, count> known;  // by a stream
    for (std::vector<bool>& each : known) each.assign(64, false);
    bool race = false;
    for (int step = 0; step < 14; ++step) {
      auto const on = static_cast<std::size_t>(rng.integer(0, count - 1));
      if (rng.chance(0.55)) {
        auto const from = static_cast<std::size_t>(rng.integer(0, count - 1));
        if (from != on) {
          order(streams[from], streams[on]);
          for (std::size_t i = 0; i < nodes.size(); ++i)
            known[on][i] = known[on][i] || known[from][i];
        }
        continue;
      }
      auto const choice = static_cast<std::size_t>(rng.integer(0, 2));
      bool const writes = rng.chance(0.4);
      do_touch(streams[on], data[choice], writes ? touch::writes : touch::reads, step);
      for (std::size_t i = 0; i < nodes.size(); ++i)
        race = race || (nodes[i].data == choice && (nodes[i].writes || writes) && !known[on][i]);
      known[on][nodes.size()] = true;
      nodes.push_back({choice, writes});
    }
    synchronize();
    CHECK((faults_of("race") > 0) == race);
    CHECK(faults_of("") == faults_of("race"));
  }
}

// ---- memory and handles ----

TEST_CASE("Reading what nobody wrote is a fault, until someone has") {
  reset(1);
  cudaStream_t const stream = new_stream();
  char* const data = new_memory();
  write(stream, data, 1, block / 2);
  read(stream, data, 2, block / 2);
  synchronize(stream);
  CHECK(all_faults().empty());
  read(stream, data, 3, block);
  synchronize(stream);
  CHECK(faults_of("uninitialised") == 1);
  REQUIRE(cudaMemsetAsync(data, 0, block, stream) == cudaSuccess);
  read(stream, data, 4, block);
  synchronize(stream);
  CHECK(faults_of("") == 1);
  model::uninitialise(data, 1);
  read(stream, data, 5, block);
  synchronize(stream);
  CHECK(faults_of("uninitialised") == 2);
}

TEST_CASE("Memory that is not there is a fault, and its kernel does not run") {
  reset(1);
  cudaStream_t const stream = new_stream();
  char* const data = new_memory();
  write(stream, data, 1, block + 1);
  CHECK(faults_of("memory") == 1);
  std::array<char, block> nowhere{};
  write(stream, nowhere.data());
  CHECK(faults_of("memory") == 2);
  synchronize(stream);
  CHECK(nowhere[0] == 0);
  REQUIRE(cudaFree(data) == cudaSuccess);
  CHECK(faults_of("") == 2);
  write(stream, data);
  CHECK(faults_of("memory") == 3);
  CHECK(cudaFree(data) == cudaErrorInvalidValue);
  CHECK(faults_of("memory") == 4);
  CHECK(cudaMemcpyAsync(nowhere.data(), data, 1, cudaMemcpyDefault, stream) != cudaSuccess);
  CHECK(faults_of("memory") == 5);
}

TEST_CASE("Freeing memory before the host knows its work to be done is a fault in any order") {
  for (bool synchronised : {false, true}) {
    each_interleaving([&] {
      cudaStream_t const stream = new_stream();
      char* const data = new_memory();
      write(stream, data);
      if (synchronised) synchronize(stream);
      cudaFree(data);
      CHECK(faults_of("") == (synchronised ? 0U : 1U));
    });
  }
}

TEST_CASE("A copy with the wrong direction is a fault") {
  reset(1);
  cudaStream_t const stream = new_stream();
  auto const [from, to] = new_pieces<2>();
  write(stream, from);
  REQUIRE(cudaMemcpyAsync(to, from, block, cudaMemcpyDeviceToDevice, stream) == cudaSuccess);
  CHECK(all_faults().empty());
  cudaMemcpyAsync(to, from, block, cudaMemcpyDeviceToHost, stream);
  CHECK(faults_of("memory") == 1);
}

TEST_CASE("Destroyed handles, default streams and unfinished work are faults") {
  each_interleaving([] {
    cudaStream_t const stream = new_stream();
    cudaEvent_t const event = new_event();
    write(stream, new_memory());
    record(event, stream);
    REQUIRE(cudaEventDestroy(event) == cudaSuccess);
    CHECK(faults_of("handle") == 1);
    REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
    CHECK(faults_of("handle") == 2);
    CHECK(cudaEventRecord(event, stream) == cudaErrorInvalidResourceHandle);
    CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(faults_of("handle") == 3);
    for (cudaStream_t bad : {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread}) {
      model::take_faults();
      CHECK(write(bad, new_memory()) == cudaErrorInvalidResourceHandle);
      CHECK(faults_of("handle") == 1);
    }
  });
}

TEST_CASE("What is still alive is listed") {
  reset(1);
  CHECK(model::leaks().empty());
  cudaStream_t const stream = new_stream();
  cudaEvent_t const event = new_event();
  char* const data = new_memory();
  CHECK(model::leaks().size() == 3);
  write(stream, data);
  record(event, stream);
  synchronize(stream);
  REQUIRE(cudaFree(data) == cudaSuccess);
  REQUIRE(cudaEventDestroy(event) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
  CHECK(model::leaks().empty());
  CHECK(all_faults().empty());
}

TEST_CASE("Devices: streams, events, memory and peers belong to one") {
  model::options machine;
  machine.devices = 2;
  model::reset(machine);
  cudaStream_t const first = new_stream();
  char* const here = new_memory();
  use_device(1);
  CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
  CHECK(write(first, here) == cudaErrorInvalidResourceHandle);
  CHECK(faults_of("handle") == 1);
  cudaStream_t const second = new_stream();
  char* const there = new_memory();
  CHECK(cudaEventRecord(new_event(), first) == cudaErrorInvalidResourceHandle);
  model::take_faults();
  write(second, there);
  CHECK(cudaMemcpyPeerAsync(here, 0, there, 1, block, second) == cudaSuccess);
  CHECK(all_faults().empty());
  order(second, first);
  write(second, here);
  CHECK(faults_of("memory") == 1);  // no peer access
  int can = 0;
  REQUIRE(cudaDeviceCanAccessPeer(&can, 1, 0) == cudaSuccess);
  CHECK(can == 1);
  REQUIRE(cudaDeviceEnablePeerAccess(0, 0) == cudaSuccess);
  CHECK(cudaDeviceEnablePeerAccess(0, 0) == cudaErrorPeerAccessAlreadyEnabled);
  write(second, here);
  CHECK(faults_of("") == 1);
  synchronize(second);
}

TEST_CASE("An event is recorded on streams of its device alone, whichever device is current") {
  model::reset({.devices = 2});
  cudaStream_t const here = new_stream();
  cudaEvent_t const mine = new_event();
  use_device(1);
  cudaStream_t const there = new_stream();
  record(mine, here);
  CHECK(all_faults().empty());
  CHECK(cudaEventRecord(mine, there) == cudaErrorInvalidResourceHandle);
  CHECK(has_fault("handle: event 0 of device 0 is recorded on stream 1 of device 1"));
  CHECK(faults_of("") == 1);
  cudaEvent_t const other = new_event();
  REQUIRE(cudaStreamBeginCapture(there, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK(cudaEventRecord(mine, there) == cudaErrorInvalidResourceHandle);
  record(other, there);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(there, &graph) == cudaSuccess);  // which the error did not spoil
}

TEST_CASE("Waits, queries, synchronises and copies may cross devices, and launches may not") {
  model::reset({.devices = 2});
  cudaStream_t const here = new_stream();
  cudaEvent_t const mine = new_event(host_wait);
  char* const data = new_memory();
  REQUIRE(write(here, data) == cudaSuccess);
  record(mine, here);
  use_device(1);
  cudaStream_t const there = new_stream();
  wait(there, mine);
  char* const copy = new_memory();
  REQUIRE(cudaMemcpyPeerAsync(copy, 1, data, 0, block, there) == cudaSuccess);
  REQUIRE(cudaMemcpyPeerAsync(copy, 1, data, 0, block, there) == cudaSuccess);
  CHECK(cudaEventSynchronize(mine) == cudaSuccess);
  CHECK(cudaEventQuery(mine) == cudaSuccess);
  CHECK(cudaStreamQuery(here) == cudaSuccess);
  synchronize(here);
  synchronize(there);
  use_device(0);
  REQUIRE(cudaMemcpyPeerAsync(copy, 1, data, 0, block, there) == cudaSuccess);
  CHECK(all_faults().empty());
  CHECK(model::launch(there, {"far", 7}, {}, {}) == cudaErrorInvalidResourceHandle);
  CHECK(
      has_fault("handle: far(7) is launched into a stream of device 1 while device 0 is current"));
}

TEST_CASE("Time passes between two records of one device, of events that keep the time") {
  model::reset({.devices = 2});
  cudaStream_t const here = new_stream();
  cudaEvent_t const begin = new_event(cudaEventBlockingSync);
  cudaEvent_t const timeless = new_event();
  cudaEvent_t const unrecorded = new_event(cudaEventDefault);
  record(begin, here);
  record(timeless, here);
  REQUIRE(cudaEventSynchronize(begin) == cudaSuccess);
  use_device(1);
  cudaEvent_t const far = new_event(cudaEventDefault);
  record(far, new_stream());
  synchronize();
  float milliseconds = 0;
  auto const fails = [&](cudaEvent_t from, cudaEvent_t to, std::string const& why) {
    CHECK(cudaEventElapsedTime(&milliseconds, from, to) == cudaErrorInvalidResourceHandle);
    CHECK(
        model::take_faults() == std::vector<std::string>{"handle: cudaEventElapsedTime of " + why});
  };
  fails(begin, far, "event 0 of device 0 and event 3 of device 1");
  fails(begin, timeless, "event 1 of device 0, which was made with cudaEventDisableTiming");
  fails(timeless, begin, "event 1 of device 0, which was made with cudaEventDisableTiming");
  fails(unrecorded, begin, "event 2 of device 0, which was never recorded");
  CHECK(cudaEventElapsedTime(nullptr, begin, begin) == cudaErrorInvalidValue);
  CHECK(cudaEventElapsedTime(&milliseconds, begin, begin) == cudaSuccess);
  REQUIRE(cudaEventDestroy(begin) == cudaSuccess);
  fails(begin, far, "a destroyed event");
  CHECK(all_faults().empty());
}

TEST_CASE("Events and waits take the flags that CUDA knows") {
  reset(1);
  cudaEvent_t made = nullptr;
  CHECK(cudaEventCreateWithFlags(&made, 8) == cudaErrorInvalidValue);
  REQUIRE(cudaEventCreateWithFlags(&made, cudaEventDisableTiming) == cudaSuccess);
  cudaStream_t const stream = new_stream();
  record(made, stream);
  CHECK(cudaStreamWaitEvent(stream, made, cudaEventWaitExternal) == cudaErrorInvalidValue);
  wait(stream, made);
  CHECK(all_faults().empty());
}

TEST_CASE("Direct copies between devices get lost or garbled where a test says so") {
  for (auto const fate :
       {model::copy_fate::arrives, model::copy_fate::lost, model::copy_fate::garbled})
    for (bool const is_direct : {false, true}) {
      model::reset({.devices = 2, .direct_copies = [&](int from, int to) {
                      return from == 0 && to == 1 ? fate : model::copy_fate::arrives;
                    }});
      char* const here = new_memory();
      if (is_direct) REQUIRE(cudaDeviceEnablePeerAccess(1, 0) == cudaSuccess);
      use_device(1);
      cudaStream_t const on = new_stream();
      char* const there = new_memory();
      char* const back = new_memory();
      REQUIRE(cudaMemsetAsync(here, 1, block, on) == cudaSuccess);
      REQUIRE(cudaMemsetAsync(there, 2, block, on) == cudaSuccess);
      REQUIRE(cudaMemsetAsync(back, 3, block, on) == cudaSuccess);
      REQUIRE(cudaMemcpyPeerAsync(there, 1, here, 0, block, on) == cudaSuccess);
      REQUIRE(cudaMemcpyAsync(here, back, block, cudaMemcpyDefault, on) == cudaSuccess);
      synchronize(on);
      auto const right = static_cast<std::size_t>(std::count(there, there + block, 1));
      CHECK(
          right == (!is_direct || fate == model::copy_fate::arrives ? block
                    : fate == model::copy_fate::lost                ? 0
                                                                    : block - 1));
      CHECK(*std::min_element(here, here + block) == 3);
      CHECK(all_faults() == "");
    }
  CHECK(cudaDeviceDisablePeerAccess(0) == cudaErrorPeerAccessNotEnabled);
  use_device(0);
  CHECK(cudaDeviceDisablePeerAccess(1) == cudaSuccess);
  CHECK(cudaDeviceDisablePeerAccess(1) == cudaErrorPeerAccessNotEnabled);
  CHECK(cudaDeviceDisablePeerAccess(2) == cudaErrorInvalidDevice);
}

// ---- limits ----

TEST_CASE("A full hardware queue blocks the host until there is room, whichever stream fills it") {
  for (int const queues : {1, 2}) {
    model::reset({.order = model::mode::lazy, .connections = queues, .launch_depth = 4});
    auto const streams = new_streams<2>();
    std::size_t most = 0;
    for (int i = 0; i < 20; ++i) {
      for (cudaStream_t const stream : streams) {
        write(stream, new_memory());
        most = std::max(most, model::pending());
      }
    }
    CHECK(most == 4 * static_cast<std::size_t>(queues));
    CHECK(all_faults().empty());
  }
}

TEST_CASE("A full hardware queue blocks the host for streams whose own work could run") {
  for (int const queues : {1, 32}) {
    each_interleaving(
        {.connections = queues, .launch_depth = 4, .duplicate_gpus = true, .lazy_connect = false},
        [queues] {
          pair const link;
          auto const [waits, other] = new_streams<2>();
          link.receive(1, new_memory(), waits);
          cudaError_t result = cudaSuccess;
          for (int more = 0; more < 20 && result == cudaSuccess; ++more)
            result = model::launch(more < 2 ? waits : other, "more", {}, {});
          CHECK(result == (queues == 1 ? cudaErrorLaunchTimeout : cudaSuccess));
          CHECK(faults_of("deadlock") == (queues == 1 ? 1 : 0));
        });
  }
}

TEST_CASE("A full queue that cannot move is a deadlock, and so is polling for what cannot come") {
  for (bool polls : {false, true}) {
    model::options machine = one_gpu();
    machine.launch_depth = 4;
    machine.patience = std::chrono::milliseconds(1);
    each_interleaving(machine, [&] {
      pair const link;
      cudaStream_t const stream = new_stream();
      cudaEvent_t const event = new_event();
      link.receive(1, new_memory(), stream);
      record(event, stream);
      cudaError_t result = cudaSuccess;
      for (int calls = 0; result == cudaSuccess || result == cudaErrorNotReady; ++calls) {
        REQUIRE(calls < 10'000'000);
        result = polls ? cudaEventQuery(event) : model::launch(stream, "more", {}, {});
      }
      CHECK(result == cudaErrorLaunchTimeout);
      CHECK(faults_of("deadlock") == 1);
      CHECK(model::pending() == 0);
    });
  }
}

TEST_CASE("Making and freeing memory, and first launches, may wait for the device") {
  model::options machine = one_gpu();
  machine.drains = true;
  machine.patience = std::chrono::milliseconds(1);
  for (bool waits : {false, true}) {
    for (auto const* call : {"cudaMalloc", "cudaHostAlloc", "cudaFree", "cudaFreeHost", "launch"}) {
      INFO(call << ", while a receive " << (waits ? "waits" : "has ended"));
      each_interleaving(machine, [&] {
        pair const link;
        auto const [stream, other] = new_streams<2>();
        char* const data = new_memory();
        void* own = new_memory();
        void* pinned = nullptr;
        REQUIRE(cudaHostAlloc(&pinned, block, cudaHostAllocDefault) == cudaSuccess);
        write(other, data);
        synchronize(other);
        link.receive(1, new_memory(), stream);
        if (!waits) {
          write(other, data);  // not the first of its name
          link.send(0, data, other);
        }
        std::string_view const name = call;
        if (name == "cudaMalloc")
          cudaMalloc(&own, block);
        else if (name == "cudaHostAlloc")
          cudaHostAlloc(&pinned, block, cudaHostAllocDefault);
        else if (name == "cudaFree")
          cudaFree(own);
        else if (name == "cudaFreeHost")
          cudaFreeHost(pinned);
        else
          read(other, data);
        CHECK(faults_of("deadlock") == (waits ? 1 : 0));
        CHECK(faults_of("race") == 0);
      });
    }
  }
}

// ---- errors ----

TEST_CASE("The environment states hardware queues and late loading as it does to CUDA") {
  using zbpp::test::environment_variable;
  struct stated {
    char const* queues;
    int connections;
    char const* loading;
    bool waits;
  };
  for (stated const& each : std::initializer_list<stated>{
           {nullptr, 8, nullptr, true},
           {"1", 1, "EAGER", false},
           {"8", 8, "LAZY", true},
           {"32", 32, "EAGER", false},
           {"33", 32, "DEFAULT", true}}) {
    environment_variable const queues("CUDA_DEVICE_MAX_CONNECTIONS", each.queues);
    environment_variable const loading("CUDA_MODULE_LOADING", each.loading);
    auto const machine = model::as_in_environment({.seed = 7, .sm_count = 16});
    CHECK(machine.connections == each.connections);
    CHECK(machine.drains == each.waits);
    CHECK(machine.seed == 7);
    CHECK(machine.sm_count == 16);
  }
}

TEST_CASE("A failing call returns its error once; one that is sticky stays") {
  reset(1);
  cudaStream_t const stream = new_stream();
  cudaEvent_t const event = new_event();
  model::fail_next("cudaEventRecord", cudaErrorInvalidValue);
  CHECK(cudaEventRecord(event, stream) == cudaErrorInvalidValue);
  CHECK(cudaPeekAtLastError() == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(cudaEventRecord(event, stream) == cudaSuccess);
  model::fail_next("cudaEventRecord", cudaErrorIllegalAddress);
  CHECK(cudaEventRecord(event, stream) == cudaErrorIllegalAddress);
  CHECK(cudaEventRecord(event, stream) == cudaErrorIllegalAddress);
  CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
  CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
  CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
  int device = -1;
  CHECK(cudaGetDevice(&device) == cudaSuccess);
  CHECK(cudaEventDestroy(event) == cudaErrorIllegalAddress);
  CHECK(cudaStreamDestroy(stream) == cudaErrorIllegalAddress);
  CHECK(model::leaks().empty());
  CHECK(all_faults().empty());
  CHECK_THROWS_AS(model::fail_next("cudaNoSuchThing", 1), std::invalid_argument);
}

TEST_CASE("A kernel that faults poisons its device: nothing behind it runs, nothing hangs") {
  each_interleaving([] {
    auto const [stream, other] = new_streams<2>();
    cudaEvent_t const event = new_event();
    char* const data = new_memory();
    void* pinned = nullptr;
    REQUIRE(cudaHostAlloc(&pinned, block, cudaHostAllocDefault) == cudaSuccess);
    model::kernel_fault(3);
    write(stream, data);
    cudaMemcpyAsync(pinned, data, block, cudaMemcpyDeviceToHost, stream);
    int ran = 0;
    bool called = false;
    for (int i = 0; i < 5; ++i) model::launch(stream, {"count", i}, {}, {}, [&] { ++ran; });
    cudaLaunchHostFunc(
        stream, [](void* flag) { *static_cast<bool*>(flag) = true; }, &called);
    cudaEventRecord(event, stream);
    cudaStreamWaitEvent(other, event, 0);
    CHECK(cudaStreamSynchronize(other) == cudaErrorIllegalAddress);
    CHECK(cudaStreamSynchronize(stream) == cudaErrorIllegalAddress);
    CHECK(ran == 2);
    CHECK_FALSE(called);
    CHECK(model::pending() == 0);
    // Nothing of a dead device is under way any more, so all may go.
    cudaFree(data);
    cudaFreeHost(pinned);
    cudaEventDestroy(event);
    cudaStreamDestroy(stream);
    cudaStreamDestroy(other);
    CHECK(model::leaks().empty());
    CHECK(all_faults().empty());
  });
}

TEST_CASE("Host functions run in order and may not call CUDA nor throw") {
  each_interleaving([] {
    cudaStream_t const stream = new_stream();
    int value = 0;
    model::launch(stream, "set", {}, {}, [&] { value = 1; });
    cudaLaunchHostFunc(
        stream, [](void* data) { *static_cast<int*>(data) *= 10; }, &value);
    synchronize(stream);
    CHECK(value == 10);
    CHECK(all_faults().empty());
    cudaLaunchHostFunc(
        stream, [](void*) { cudaGetLastError(); }, nullptr);
    cudaLaunchHostFunc(
        stream, [](void*) { throw std::runtime_error("no"); }, nullptr);
    synchronize(stream);
    CHECK(faults_of("callback") == 2);
  });
}

// ---- counting and mutation ----

TEST_CASE("Calls are counted, and the heavy ones listed") {
  reset(1);
  cudaStream_t const stream = new_stream();
  cudaEvent_t const event = new_event();
  model::start_counting();
  cudaEventRecord(event, stream);
  cudaEventRecord(event, stream);
  CHECK(model::heavy_calls().empty());
  cudaStreamSynchronize(stream);
  cudaFree(nullptr);
  CHECK(model::count("cudaEventRecord") == 2);
  CHECK(model::count("cudaStreamWaitEvent") == 0);
  CHECK(model::heavy_calls() == std::vector<std::string>{"cudaStreamSynchronize 0", "cudaFree 0"});
  REQUIRE(model::calls().size() == 4);
  CHECK(model::calls()[1].function == "cudaEventRecord");
  CHECK(model::calls()[1].index == 1);
  CHECK_THROWS_AS(model::count("launches"), std::invalid_argument);
}

TEST_CASE("Removing either half of an edge is found in every interleaving") {
  for (std::string_view half : {"", "cudaEventRecord", "cudaStreamWaitEvent"}) {
    each_interleaving([&] {
      auto const [a, b] = new_streams<2>();
      char* const data = new_memory();
      cudaEvent_t const event = new_event();
      model::start_counting();
      if (!half.empty()) model::skip(half, 0);
      write(a, data);
      record(event, a);
      wait(b, event);
      write(b, data);
      synchronize();
      CHECK(faults_of("race") == (half.empty() ? 0U : 1U));
    });
  }
}

// ---- graphs ----

TEST_CASE("A captured graph does not run when captured, and runs in order when launched") {
  each_interleaving([] {
    auto const [stream, side] = new_streams<2>();
    char* const data = new_memory();
    int value = 1;
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    model::launch(stream, "add", {}, {{data, block}}, [&] { value += 1; });
    order(stream, side);
    model::launch(side, "double", {{data, block}}, {}, [&] { value *= 2; });
    order(side, stream);
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    cudaGraphExec_t exec = nullptr;
    REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
    synchronize(stream);
    CHECK(value == 1);
    REQUIRE(cudaGraphLaunch(exec, stream) == cudaSuccess);
    REQUIRE(cudaGraphLaunch(exec, stream) == cudaSuccess);
    synchronize(stream);
    CHECK(value == 10);
    CHECK(all_faults().empty());
    // Its accesses are checked like any others.
    REQUIRE(cudaGraphLaunch(exec, stream) == cudaSuccess);
    read(side, data);
    synchronize();
    CHECK(faults_of("race") == 1);
    REQUIRE(cudaGraphLaunch(exec, stream) == cudaSuccess);
    cudaFree(data);
    CHECK(faults_of("") == 2);
    synchronize(stream);
    REQUIRE(cudaGraphExecDestroy(exec) == cudaSuccess);
  });
}

TEST_CASE("Captured streams run side by side when a graph is launched, as events order them") {
  // The stream of the launch, and two that are captured with it: whether they meet is up to events.
  for (bool const is_ordered : {true, false}) {
    each_interleaving([&] {
      auto const [origin, left, right] = new_streams<3>();
      char* const data = new_memory();
      int value = 0;
      REQUIRE(cudaStreamBeginCapture(origin, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
      order(origin, left);
      order(origin, right);
      model::launch(left, "left", {}, {{data, block}}, [&] { value = 2 * value + 1; });
      if (is_ordered) order(left, right);
      model::launch(right, "right", {}, {{data, block}}, [&] { value *= 3; });
      order(left, origin);
      order(right, origin);
      cudaGraph_t graph = nullptr;
      REQUIRE(cudaStreamEndCapture(origin, &graph) == cudaSuccess);
      cudaGraphExec_t exec = nullptr;
      REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
      // Launches of one graph do not overlap, whatever stream they are in.
      REQUIRE(cudaGraphLaunch(exec, origin) == cudaSuccess);
      REQUIRE(cudaGraphLaunch(exec, right) == cudaSuccess);
      synchronize(right);
      CHECK(model::pending() == 0);
      CHECK(faults_of("race") == (is_ordered ? 0U : 2U));
      if (is_ordered) CHECK(value == 21);
      CHECK(faults_of("") == (is_ordered ? 0U : 2U));
    });
  }
}

TEST_CASE("What a capture forbids fails and spoils it") {
  reset(1);
  auto const [stream, side] = new_streams<2>();
  cudaGraph_t graph = nullptr;
  auto const begin = [&] {
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  };
  begin();
  CHECK(cudaStreamSynchronize(stream) == cudaErrorStreamCaptureUnsupported);
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
  CHECK(graph == nullptr);
  begin();
  void* data = nullptr;
  CHECK(cudaMalloc(&data, block) == cudaErrorStreamCaptureUnsupported);
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
  begin();
  cudaEvent_t const event = new_event();
  record(event, stream);
  CHECK(cudaEventSynchronize(event) == cudaErrorCapturedEvent);
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
  begin();
  cudaEvent_t const timed = new_event(cudaEventDefault);
  record(timed, stream);
  float milliseconds = 0;
  CHECK(cudaEventElapsedTime(&milliseconds, timed, timed) == cudaErrorCapturedEvent);
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
  record(event, side);
  begin();
  CHECK(cudaStreamWaitEvent(stream, event, 0) == cudaErrorStreamCaptureIsolation);
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
  begin();
  order(stream, side);
  model::launch(side, "lost", {}, {});
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureUnjoined);
  begin();
  order(stream, side);
  CHECK(cudaStreamSynchronize(side) == cudaErrorStreamCaptureUnsupported);
  CHECK(model::launch(stream, "late", {}, {}) == cudaErrorStreamCaptureInvalidated);
  CHECK(cudaEventRecord(event, stream) == cudaErrorStreamCaptureInvalidated);
  CHECK(cudaStreamEndCapture(side, &graph) == cudaErrorStreamCaptureUnmatched);
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
  begin();
  model::launch(stream, "fine", {}, {});
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
}

// ---- green contexts ----

template <class Function>
Function entry_point(char const* text, unsigned version) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult status{};
  REQUIRE(
      cudaGetDriverEntryPointByVersion(text, &address, version, cudaEnableDefault, &status) ==
      cudaSuccess);
  REQUIRE((status == cudaDriverEntryPointSuccess) == (address != nullptr));
  return reinterpret_cast<Function>(address);
}

TEST_CASE("132 SMs split as those of an H200 do") {
  reset(1);
  auto const get = entry_point<PFN_cuDeviceGetDevResource_v12040>("cuDeviceGetDevResource", 12040);
  auto const split =
      entry_point<PFN_cuDevSmResourceSplitByCount_v12040>("cuDevSmResourceSplitByCount", 12040);
  auto const describe =
      entry_point<PFN_cuDevResourceGenerateDesc_v12040>("cuDevResourceGenerateDesc", 12040);
  auto const create = entry_point<PFN_cuGreenCtxCreate_v12040>("cuGreenCtxCreate", 12040);
  auto const stream =
      entry_point<PFN_cuGreenCtxStreamCreate_v12050>("cuGreenCtxStreamCreate", 12050);
  auto const destroy = entry_point<PFN_cuGreenCtxDestroy_v12040>("cuGreenCtxDestroy", 12040);
  REQUIRE(get != nullptr);
  REQUIRE(split != nullptr);
  REQUIRE(describe != nullptr);
  REQUIRE(create != nullptr);
  REQUIRE(stream != nullptr);
  REQUIRE(destroy != nullptr);
  CUdevResource whole{};
  REQUIRE(get(0, &whole, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS);
  CHECK(whole.sm.smCount == 132);
  unsigned const sizes[][3] = {
      {2, 64, 64}, {4, 32, 32}, {8, 16, 16}, {16, 8, 8}, {16, 8, 1}, {3, 40, 34}};
  for (auto const& [parts, size, least] : sizes) {
    unsigned groups = 0;
    REQUIRE(split(nullptr, &groups, &whole, nullptr, 0, least) == CUDA_SUCCESS);
    CHECK(groups == parts);
    std::vector<CUdevResource> made(parts);
    CUdevResource rest{};
    REQUIRE(split(made.data(), &groups, &whole, &rest, 0, least) == CUDA_SUCCESS);
    CHECK(groups == parts);
    CHECK(made[parts - 1].sm.smCount == size);
    CHECK(rest.sm.smCount == 132 - parts * size);
  }
  std::array<CUdevResource, 2> halves{};
  std::array<CUdevResource, 2> others{};
  unsigned two = 2;
  REQUIRE(split(halves.data(), &two, &whole, nullptr, 0, 64) == CUDA_SUCCESS);
  REQUIRE(split(others.data(), &two, &whole, nullptr, 0, 64) == CUDA_SUCCESS);
  CHECK(split(nullptr, &two, halves.data(), nullptr, 0, 8) != CUDA_SUCCESS);
  std::array<CUdevResource, 2> mixed{halves[0], others[1]};
  CUdevResourceDesc desc = nullptr;
  CHECK(describe(&desc, mixed.data(), 2) == CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  std::array<CUgreenCtx, 2> contexts{};
  for (std::size_t at = 0; at < 2; ++at) {
    REQUIRE(describe(&desc, &halves[at], 1) == CUDA_SUCCESS);
    CHECK(create(&contexts[at], desc, 0, 0) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(create(&contexts[at], desc, 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_SUCCESS);
  }
  CHECK(all_faults().empty());
  CUstream made = nullptr;
  CHECK(stream(&made, contexts[0], 0, 0) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(stream(&made, contexts[0], CU_STREAM_NON_BLOCKING, -1) == CUDA_SUCCESS);
  write(made, new_memory());
  synchronize(made);
  CHECK(all_faults().empty());
  REQUIRE(destroy(contexts[1]) == CUDA_SUCCESS);
  destroy(contexts[0]);
  CHECK(faults_of("handle") == 1);  // its stream lives
  CHECK(cudaStreamQuery(made) == cudaErrorContextIsDestroyed);
  CHECK(write(made, new_memory()) == cudaErrorContextIsDestroyed);
  CHECK(cudaStreamDestroy(made) == cudaErrorContextIsDestroyed);
  CHECK(faults_of("handle") == 4);
  CHECK(has_fault("handle: cudaStreamDestroy on a stream whose green context is destroyed"));
  CUgreenCtx overlapping = nullptr;
  REQUIRE(describe(&desc, others.data(), 1) == CUDA_SUCCESS);
  REQUIRE(create(&overlapping, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_SUCCESS);
  CUgreenCtx again = nullptr;
  REQUIRE(create(&again, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_SUCCESS);
  CHECK(faults_of("green") == 1);
}

TEST_CASE("Where a test says so, streams of green contexts take no events but wait for them") {
  for (bool const takes_events : {true, false}) {
    model::reset({.green_events = takes_events});
    auto const get =
        entry_point<PFN_cuDeviceGetDevResource_v12040>("cuDeviceGetDevResource", 12040);
    auto const describe =
        entry_point<PFN_cuDevResourceGenerateDesc_v12040>("cuDevResourceGenerateDesc", 12040);
    auto const create = entry_point<PFN_cuGreenCtxCreate_v12040>("cuGreenCtxCreate", 12040);
    auto const make =
        entry_point<PFN_cuGreenCtxStreamCreate_v12050>("cuGreenCtxStreamCreate", 12050);
    CUdevResource whole{};
    CUdevResourceDesc desc = nullptr;
    CUgreenCtx context = nullptr;
    CUstream green = nullptr;
    REQUIRE(get(0, &whole, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS);
    REQUIRE(describe(&desc, &whole, 1) == CUDA_SUCCESS);
    REQUIRE(create(&context, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_SUCCESS);
    REQUIRE(make(&green, context, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    cudaStream_t const plain = new_stream();
    cudaEvent_t const event = new_event();
    auto const recorded = takes_events ? cudaSuccess : cudaErrorInvalidResourceHandle;
    CHECK(cudaEventRecord(event, green) == recorded);
    record(event, plain);
    wait(green, event);
    REQUIRE(cudaStreamBeginCapture(green, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(cudaEventRecord(event, green) == recorded);
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(green, &graph) == cudaSuccess);
    synchronize();
    CHECK(all_faults().empty());  // a program may ask whether it works
  }
}

TEST_CASE("An old driver lacks the green calls") {
  model::options machine;
  machine.green_contexts = false;
  model::reset(machine);
  void* address = nullptr;
  cudaDriverEntryPointQueryResult status{};
  REQUIRE(
      cudaGetDriverEntryPointByVersion("cuGreenCtxCreate", &address, 12040, 0, &status) ==
      cudaSuccess);
  CHECK(status == cudaDriverEntryPointSymbolNotFound);
  CHECK(address == nullptr);
  REQUIRE(
      cudaGetDriverEntryPointByVersion("cuDeviceGet", &address, 12040, 0, &status) == cudaSuccess);
  CHECK(status == cudaDriverEntryPointSuccess);
}

// ---- NCCL ----

TEST_CASE("The k-th send meets the k-th receive and carries order with it") {
  each_interleaving(one_gpu(), [] {
    pair const link;
    auto const [from, to] = new_streams<2>();
    std::array<char*, 4> sent{};
    std::array<char*, 4> received{};
    for (int i = 0; i < 4; ++i) {
      auto const at = static_cast<std::size_t>(i);
      sent[at] = new_memory();
      received[at] = new_memory();
      write(from, sent[at], i + 1);
      link.send(0, sent[at], from);
    }
    for (int i = 0; i < 4; ++i) {
      auto const at = static_cast<std::size_t>(i);
      link.receive(1, received[at], to);
      // The message is behind what the sender did, so this is no race.
      write(to, sent[at], 9);
    }
    synchronize(to);
    for (int i = 0; i < 4; ++i) CHECK(received[static_cast<std::size_t>(i)][block - 1] == i + 1);
    CHECK(faults_of("") == 0);
  });
}

/// Two ranks that share a GPU, each with a stream, and a message from the first to the second.
struct message_within_a_gpu {
  pair link;
  cudaStream_t from = new_stream();
  cudaStream_t to = new_stream();
  char* sent = new_memory();
  char* received = new_memory();

  void send() const { link.send(0, sent, from); }
  void receive() const { link.receive(1, received, to); }
};

TEST_CASE("A receive does not order the sender behind the receiver") {
  each_interleaving(one_gpu(), [] {
    auto const [link, from, to, sent, received] = message_within_a_gpu();
    char* const other = new_memory();
    write(from, sent, 1);
    link.send(0, sent, from);
    write(to, other, 1);
    link.receive(1, received, to);
    write(from, other, 2);
    synchronize();
    CHECK(faults_of("race") == 1);
  });
}

TEST_CASE("The receive writes its buffer: a reader without an order races") {
  each_interleaving(one_gpu(), [] {
    pair const link;
    auto const [from, to, reader] = new_streams<3>();
    auto const [sent, received] = new_pieces<2>();
    write(from, sent, 1);
    write(reader, received, 0);
    synchronize();
    link.send(0, sent, from);
    link.receive(1, received, to);
    read(reader, received);
    synchronize();
    CHECK(faults_of("race") >= 1);  // with its start, and with its end
  });
}

TEST_CASE("A receive may write from its start on, whatever the sender waits for") {
  each_interleaving(one_gpu(), [] {
    pair const link;
    auto const [from, to, owner] = new_streams<3>();
    auto const [sent, received] = new_pieces<2>();
    write(from, sent, 1);
    write(owner, received, 0);
    cudaEvent_t const done = new_event();
    record(done, owner);
    wait(from, done);
    link.send(0, sent, from);
    link.receive(1, received, to);
    synchronize();
    CHECK(faults_of("race") >= 1);
  });
}

/// Both ranks send first and receive then, each on a stream of its own a message.
void crossed(std::array<pair const*, 2> links) {
  auto out = new_streams<2>();
  auto in = new_streams<2>();
  auto data = new_pieces<4>();
  for (std::size_t rank = 0; rank < 2; ++rank) {
    write(out[rank], data[rank], 1);
    links[rank]->send(rank, data[rank], out[rank]);
  }
  for (std::size_t rank = 0; rank < 2; ++rank)
    links[1 - rank]->receive(rank, data[2 + rank], in[rank]);
}

TEST_CASE("Crossed sends over one communicator deadlock, whatever the streams; over two not") {
  each_interleaving(one_gpu(), [] {
    pair const one;
    crossed({&one, &one});
    CHECK(cudaDeviceSynchronize() == cudaErrorLaunchTimeout);
    REQUIRE(faults_of("deadlock") == 1);
    CHECK(has_fault("waits for the record on stream"));
    CHECK(has_fault("the receive of rank 1"));
  });
  each_interleaving(one_gpu(), [] {
    pair const first;
    pair const second;
    crossed({&first, &second});
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(all_faults().empty());
  });
}

TEST_CASE("In a group the two directions progress independently") {
  each_interleaving(one_gpu(), [] {
    pair const link;
    auto streams = new_streams<2>();
    auto data = new_pieces<4>();
    for (std::size_t rank = 0; rank < 2; ++rank) {
      write(streams[rank], data[rank], static_cast<int>(rank) + 1);
      REQUIRE(ncclGroupStart() == ncclSuccess);
      int const peer = 1 - static_cast<int>(rank);
      REQUIRE(
          ncclSend(data[rank], block, ncclInt8, peer, link.comm[rank], streams[rank]) ==
          ncclSuccess);
      REQUIRE(
          ncclRecv(data[2 + rank], block, ncclInt8, peer, link.comm[rank], streams[rank]) ==
          ncclSuccess);
      ncclGroupEnd();
      link.settle(rank);
    }
    synchronize();
    CHECK(data[2][0] == 2);
    CHECK(data[3][0] == 1);
    CHECK(all_faults().empty());
  });
}

TEST_CASE("All streams of a group join it: before and after") {
  each_interleaving(one_gpu(), [] {
    pair const link;
    auto streams = new_streams<2>();
    cudaStream_t const other = new_stream();
    auto data = new_pieces<4>();
    write(streams[0], data[0], 1);
    write(streams[1], data[1], 2);
    ncclGroupStart();
    ncclSend(data[0], block, ncclInt8, 1, link.comm[0], streams[0]);
    ncclSend(data[1], block, ncclInt8, 1, link.comm[0], streams[1]);
    ncclGroupEnd();
    link.settle(0);
    write(streams[1], data[0], 3);
    write(streams[0], data[1], 4);
    link.receive(1, data[2], other);
    CHECK(all_faults().empty());
    CHECK(cudaStreamSynchronize(other) == cudaSuccess);
    CHECK(data[2][0] == 1);
    link.receive(1, data[3], other);
    synchronize();
    CHECK(data[3][0] == 2);
    CHECK(all_faults().empty());
  });
}

/// Waits for the GPU. It deadlocks, and the model says why, or comes to its end.
void check_end(bool deadlocks, std::string const& why) {
  CHECK(cudaDeviceSynchronize() == (deadlocks ? cudaErrorLaunchTimeout : cudaSuccess));
  CHECK(faults_of("deadlock") == (deadlocks ? 1U : 0U));
  CHECK((has_fault(why)) == deadlocks);
}

TEST_CASE("Streams of one hardware queue block each other: aliasing can deadlock") {
  for (int connections : {1, 32}) {
    model::options machine = one_gpu();
    machine.connections = connections;
    each_interleaving(machine, [&] {
      message_within_a_gpu const message;
      write(message.from, message.sent, 1);
      message.send();
      // Stands in the queue until the send has met its receive, which stands behind it.
      write(message.from, message.sent, 2);
      message.receive();
      check_end(connections == 1, "in their hardware queue");
    });
  }
}

TEST_CASE("Messages that wait hold multiprocessors, and a kernel needs one") {
  for (int const sm_count : {1, 2}) {
    model::options machine = one_gpu();
    machine.sm_count = sm_count;
    each_interleaving(machine, [&] {
      message_within_a_gpu const message;
      write(message.from, message.sent, 1);
      synchronize(message.from);
      // Either end waits for the other with its block, and one device has both.
      message.receive();
      message.send();
      check_end(sm_count == 1, "waits for multiprocessors");
    });
  }
}

TEST_CASE("What stands in one queue runs in turn; the mapping says what does") {
  // Of 200 interleavings, those in which the second of two streams gets ahead of the first.
  auto const overtakings = [](model::queue_mapping mapping, int connections) {
    int count = 0;
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
      model::reset({.seed = seed, .connections = connections, .mapping = mapping});
      auto const streams = new_streams<2>();
      std::string ran;
      for (char const letter : {'a', 'b', 'c', 'd'})
        model::launch(
            streams[letter < 'c' ? 0 : 1], "note", {}, {}, [&ran, letter] { ran += letter; });
      synchronize();
      count += ran != "abcd";
    }
    return count;
  };
  using enum model::queue_mapping;
  CHECK(overtakings(in_turn, 1) == 0);
  CHECK(overtakings(in_turn, 2) > 50);
  CHECK(overtakings(one, 32) == 0);
  auto const sometimes = overtakings(random, 2);  // in half of the cases the two have one queue
  CHECK(sometimes > 20);
  CHECK(sometimes < overtakings(in_turn, 2));
}

/// Two ranks, each with a GPU of its own and two communicators with the other. Rank 0 sends by the
/// first and receives by the second; rank 1 does the same in either order. Each message has a
/// stream of its own, with nothing behind it there.
/// @param waits  for each call until its communicator is ready; else only when all are made
cudaError_t exchange(bool in_one_order, bool waits = true) {
  pair const first({0, 1});
  pair const second({0, 1});
  std::array<std::array<cudaStream_t, 2>, 2> streams{};
  std::array<std::array<char*, 2>, 2> data{};
  for (std::size_t rank = 0; rank < 2; ++rank) {
    use_device(static_cast<int>(rank));
    for (std::size_t message = 0; message < 2; ++message) {
      streams[rank][message] = new_stream();
      data[rank][message] = new_memory();
      if (rank == message) write(streams[rank][message], data[rank][message], 7);
    }
  }
  auto const call = [&](pair const& link, std::size_t rank, std::size_t message) {
    char* const bytes = data[rank][message];
    cudaStream_t const on = streams[rank][message];
    int const peer = 1 - static_cast<int>(rank);
    if (rank == message)
      ncclSend(bytes, block, ncclInt8, peer, link.comm[rank], on);
    else
      ncclRecv(bytes, block, ncclInt8, peer, link.comm[rank], on);
    if (waits) link.settle(rank);
  };
  call(first, 0, 0);
  call(second, 0, 1);
  for (bool const is_first : {in_one_order, !in_one_order})
    call(is_first ? first : second, 1, is_first ? 0 : 1);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    first.settle(rank);
    second.settle(rank);
  }
  for (int device : {0, 1}) {
    use_device(device);
    if (auto const error = cudaDeviceSynchronize(); error != cudaSuccess) return error;
  }
  CHECK(data[1][0][0] == 7);
  CHECK(data[0][1][0] == 7);
  return cudaSuccess;
}

TEST_CASE("NCCL's own streams hold a queue up until a message has met its other end") {
  for (bool const in_one_order : {true, false})
    for (auto const mapping : {model::queue_mapping::in_turn, model::queue_mapping::one}) {
      bool const is_safe = in_one_order || mapping == model::queue_mapping::in_turn;
      each_interleaving({.devices = 2, .mapping = mapping, .lazy_connect = false}, [&] {
        CHECK(exchange(in_one_order) == (is_safe ? cudaSuccess : cudaErrorLaunchTimeout));
        CHECK(faults_of("deadlock") == (is_safe ? 0U : 1U));
        CHECK((has_fault("behind record by NCCL")) == !is_safe);
        CHECK(faults_of("") == faults_of("deadlock"));
      });
    }
}

TEST_CASE("Launches of communicators come in another order where the host does not wait for them") {
  // In one queue, so that they deadlock unless both ranks launch them in one order.
  for (bool const waits : {true, false}) {
    int deadlocks = 0;
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      model::reset(
          {.seed = seed,
           .devices = 2,
           .mapping = model::queue_mapping::one,
           .lazy_connect = false});
      deadlocks += exchange(true, waits) == cudaSuccess ? 0 : 1;
      // A group that is not waited for is a fault by itself.
      CHECK(faults_of("") == faults_of("deadlock") + (waits ? 0U : faults_of("nccl")));
    }
    INFO("waits: " << waits << ", " << deadlocks << " of 100 deadlock");
    CHECK((deadlocks > 5) == !waits);
    CHECK(deadlocks < 95);
  }
}

TEST_CASE("Communicators of one group are launched in any order") {
  std::array<int, 2> came_first{};
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    model::options machine = one_gpu();
    machine.seed = seed;
    machine.mapping = model::queue_mapping::one;
    model::reset(machine);
    std::vector<pair> const links(2);
    REQUIRE(ncclGroupStart() == ncclSuccess);
    for (pair const& link : links)
      ncclRecv(new_memory(), block, ncclInt8, 0, link.comm[1], new_stream());
    ncclGroupEnd();
    for (pair const& link : links) link.settle(1);
    // What stands in front of all in the queue is what is waited for.
    CHECK(cudaDeviceSynchronize() == cudaErrorLaunchTimeout);
    REQUIRE(faults_of("deadlock") == 1);
    bool const is_first = has_fault("waits over communicator 1 (rank 1)");
    bool const is_second = has_fault("waits over communicator 3 (rank 1)");
    CHECK(is_first != is_second);
    ++came_first[is_first ? 0 : 1];
  }
  CHECK(came_first[0] > 5);
  CHECK(came_first[1] > 5);
}

TEST_CASE("A launch that waits for room holds up no host, and comes when there is some") {
  model::options machine = one_gpu();
  machine.launch_depth = 3;
  each_interleaving(machine, [] {
    auto const [link, from, to, sent, received] = message_within_a_gpu();
    cudaStream_t const blocks = new_stream();
    write(from, sent, 5);
    synchronize(from);
    pair const other;
    other.receive(1, new_memory(), blocks);
    order(blocks, from);
    for (int more = 1; more < 3; ++more)
      write(from, sent, 6);  // with the wait, all the room that there is
    REQUIRE(ncclSend(sent, block, ncclInt8, 1, link.comm[0], from) == ncclInProgress);
    link.receive(1, received, to);
    for (int polls = 0; polls < 20; ++polls) CHECK(link.state(0) == ncclInProgress);
    CHECK(all_faults().empty());
    cudaStream_t const last = new_stream();
    char* const own = new_memory();
    write(last, own, 1);
    other.send(0, own, last);
    link.settle(0);
    synchronize();
    CHECK(received[0] == 6);
    CHECK(all_faults().empty());
  });
}

TEST_CASE("A late launch comes when its communicator is polled, or when all else waits") {
  for (bool const polls : {true, false}) {
    model::options machine = one_gpu();
    machine.late_launches = true;
    each_interleaving(machine, [polls] {
      auto const [link, from, to, sent, received] = message_within_a_gpu();
      write(from, sent, 3);
      CHECK(ncclSend(sent, block, ncclInt8, 1, link.comm[0], from) == ncclInProgress);
      CHECK(ncclRecv(received, block, ncclInt8, 0, link.comm[1], to) == ncclInProgress);
      for (int i = 0; i < 20; ++i) CHECK(cudaGetLastError() == cudaSuccess);  // passes the time
      CHECK(model::pending() <= 1);
      if (polls) {
        CHECK(link.state(0) == ncclSuccess);
        CHECK(link.state(1) == ncclSuccess);
        synchronize(to);
        CHECK(received[0] == 3);
        CHECK(all_faults().empty());
      } else {
        synchronize(to);
        CHECK(faults_of("nccl") == 1);  // it cannot know what it would wait for
      }
    });
  }
}

TEST_CASE("Streams that NCCL makes take queues, also those that it leaves idle") {
  for (int connections : {6, 7}) {  // the two streams of the test, and five of NCCL
    model::options machine = one_gpu();
    machine.connections = connections;
    int overtakings = 0;
    for (machine.seed = 0; machine.seed < 40; ++machine.seed) {
      model::reset(machine);
      cudaStream_t const before = new_stream();
      pair const link;
      cudaStream_t const behind = new_stream();
      std::string ran;
      model::launch(before, "note", {}, {}, [&ran] { ran += 'a'; });
      model::launch(behind, "note", {}, {}, [&ran] { ran += 'b'; });
      synchronize();
      overtakings += ran == "ba";
      CHECK(model::leaks().size() == 4);  // two streams and two communicators
    }
    CHECK((overtakings > 0) == (connections == 7));
  }
}

/// Two ranks, each with a GPU, a stream and some numbers, which they add up.
struct sum_of_two {
  pair link{{0, 1}};
  std::array<cudaStream_t, 2> streams{};
  std::array<float*, 2> numbers{};

  sum_of_two() {
    for (int rank = 0; rank < 2; ++rank) {
      auto const at = static_cast<std::size_t>(rank);
      use_device(rank);
      streams[at] = new_stream();
      void* memory = nullptr;
      REQUIRE(cudaMalloc(&memory, block) == cudaSuccess);
      numbers[at] = static_cast<float*>(memory);
    }
  }
  void make(std::size_t rank) const {
    use_device(static_cast<int>(rank));
    auto* const to = numbers[rank];
    REQUIRE(model::launch(streams[rank], "make", {}, {{to, block}}, [to, rank] {
              std::fill_n(to, block / sizeof(float), static_cast<float>(rank + 1));
            }) == cudaSuccess);
  }
  void add_up(std::size_t rank, std::size_t count = block / sizeof(float)) const {
    use_device(static_cast<int>(rank));
    auto const result = ncclAllReduce(
        numbers[rank], numbers[rank], count, ncclFloat32, ncclSum, link.comm[rank], streams[rank]);
    REQUIRE((result == ncclSuccess || result == ncclInProgress));
    link.settle(rank);
  }
};

model::options two_gpus() {
  model::options machine;
  machine.devices = 2;
  machine.lazy_connect = false;
  return machine;
}

TEST_CASE("A sum has the numbers of all ranks, and orders each behind all") {
  each_interleaving(two_gpus(), [] {
    sum_of_two const all;
    for (std::size_t rank : {0U, 1U}) all.make(rank);
    for (std::size_t rank : {0U, 1U}) all.add_up(rank);
    for (std::size_t rank : {0U, 1U}) synchronize(all.streams[rank]);
    for (std::size_t rank : {0U, 1U}) CHECK(all.numbers[rank][block / sizeof(float) - 1] == 3);
    CHECK(all_faults().empty());
  });
}

TEST_CASE("A sum reads and writes its numbers from its start on") {
  each_interleaving(two_gpus(), [] {
    sum_of_two const all;
    for (std::size_t rank : {0U, 1U}) all.make(rank);
    all.add_up(1);
    use_device(0);
    cudaStream_t const reader = new_stream();
    order(all.streams[0], reader);
    read(reader, reinterpret_cast<char*>(all.numbers[0]));
    all.add_up(0);
    synchronize();
    CHECK(faults_of("race") >= 1);
  });
}

TEST_CASE("A sum of another size never ends, and a rank that does not come holds it up") {
  for (std::size_t const count : {block / sizeof(float) - 1, std::size_t{0}})
    each_interleaving(two_gpus(), [count] {
      sum_of_two const all;
      for (std::size_t rank : {0U, 1U}) all.make(rank);
      all.add_up(0);
      if (count > 0) all.add_up(1, count);
      use_device(0);
      CHECK(cudaStreamSynchronize(all.streams[0]) == cudaErrorLaunchTimeout);
      CHECK(has_fault("for the sums of all others, of 16"));
    });
  each_interleaving(two_gpus(), [] {
    sum_of_two const all;
    all.make(0);
    all.add_up(0);
    REQUIRE(ncclCommAbort(all.link.comm[0]) == ncclSuccess);
    CHECK(cudaStreamSynchronize(all.streams[0]) == cudaSuccess);
    CHECK(all_faults().empty());
  });
}

TEST_CASE("A message that nobody takes is a deadlock; aborting frees it") {
  each_interleaving(one_gpu(), [] {
    pair const link;
    cudaStream_t const from = new_stream();
    char* const sent = new_memory();
    write(from, sent, 1);
    link.send(0, sent, from);
    link.send(0, sent, from);
    REQUIRE(ncclCommAbort(link.comm[0]) == ncclSuccess);
    CHECK(cudaStreamSynchronize(from) == cudaSuccess);
    CHECK(all_faults().empty());
    ncclSend(sent, block, ncclInt8, 1, link.comm[0], from);
    CHECK(faults_of("handle") == 1);
    cudaStream_t const to = new_stream();
    link.receive(1, new_memory(), to);
    CHECK(cudaStreamSynchronize(to) == cudaErrorLaunchTimeout);
    CHECK(faults_of("deadlock") == 1);
  });
}

TEST_CASE("An abort waits for its launch, and that for room behind another communicator's kernel") {
  model::options machine = one_gpu();
  machine.launch_depth = 4;
  for (bool at_once : {false, true}) {
    // Where one thread can end what the other waits for, it may be long in coming.
    machine.patience = at_once ? std::chrono::seconds(30) : std::chrono::milliseconds(1);
    each_interleaving(machine, [&] {
      pair const spinning;
      pair const late;
      auto const [one, other] = new_streams<2>();
      spinning.receive(1, new_memory(), one);
      order(one, other);
      for (int more = 1; more < machine.launch_depth; ++more)  // with its wait, all its room
        REQUIRE(model::launch(other, "more", {}, {}) == cudaSuccess);
      CHECK(ncclRecv(new_memory(), block, ncclInt8, 0, late.comm[1], other) == ncclInProgress);
      if (at_once) {
        std::thread first([&] { ncclCommAbort(late.comm[1]); });
        std::thread second([&] { ncclCommAbort(spinning.comm[1]); });
        first.join();
        second.join();
      } else {  // a group does not help: each call waits for its own launch
        REQUIRE(ncclGroupStart() == ncclSuccess);
        ncclCommAbort(late.comm[1]);
        ncclCommAbort(spinning.comm[1]);
        REQUIRE(ncclGroupEnd() == ncclSuccess);
      }
      CHECK(faults_of("deadlock") == (at_once ? 0 : 1));
      CHECK(cudaDeviceSynchronize() == (at_once ? cudaSuccess : cudaErrorLaunchTimeout));
    });
  }
}

TEST_CASE("Revoking ends what is under way and refuses more") {
  model::reset(one_gpu());
  pair const link;
  cudaStream_t const to = new_stream();
  link.receive(1, new_memory(), to);
  ncclResult_t const revoked = ncclCommRevoke(link.comm[1], NCCL_REVOKE_DEFAULT);
  CHECK((revoked == ncclSuccess || revoked == ncclInProgress));
  link.settle(1);
  CHECK(cudaStreamSynchronize(to) == cudaSuccess);
  CHECK(ncclRecv(new_memory(), block, ncclInt8, 0, link.comm[1], to) == ncclInvalidUsage);
  REQUIRE(ncclCommDestroy(link.comm[1]) == ncclSuccess);
  REQUIRE(ncclCommDestroy(link.comm[0]) == ncclSuccess);
  CHECK(all_faults().empty());
}

TEST_CASE("Finalizing and revoking may take some polls, and then they are done") {
  for (bool revokes : {false, true}) {
    bool is_instant = false;
    bool takes_time = false;
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      model::options machine = one_gpu();
      machine.seed = seed;
      model::reset(machine);
      pair const link;
      ncclResult_t const result = revokes ? ncclCommRevoke(link.comm[0], NCCL_REVOKE_DEFAULT)
                                          : ncclCommFinalize(link.comm[0]);
      (result == ncclSuccess ? is_instant : takes_time) = true;
      link.settle(0);
      REQUIRE(ncclCommDestroy(link.comm[0]) == ncclSuccess);
      CHECK(all_faults().empty());
    }
    CHECK(is_instant);
    CHECK(takes_time);
  }
}

TEST_CASE("A failed communicator says so, and its messages hang until it is aborted") {
  model::reset(one_gpu());
  pair const link;
  cudaStream_t const from = new_stream();
  char* const sent = new_memory();
  write(from, sent);
  model::comm_fault(link.comm[0], ncclRemoteError);
  CHECK(link.state(0) == ncclRemoteError);
  CHECK(ncclSend(sent, block, ncclInt8, 1, link.comm[0], from) == ncclRemoteError);
  REQUIRE(ncclCommAbort(link.comm[0]) == ncclSuccess);
  CHECK(cudaStreamSynchronize(from) == cudaSuccess);
}

TEST_CASE("Messages of different sizes are a fault") {
  model::reset(one_gpu());
  pair const link;
  auto const [from, to] = new_streams<2>();
  char* const sent = new_memory();
  write(from, sent);
  link.send(0, sent, from, block);
  link.receive(1, new_memory(), to, block / 2);
  synchronize();
  CHECK(faults_of("nccl") == 1);
}

TEST_CASE("A message to oneself needs both ends in one group") {
  each_interleaving(one_gpu(), [] {
    ncclUniqueId id;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    ncclComm_t self = nullptr;
    REQUIRE(ncclCommInitRankConfig(&self, 1, id, 0, nullptr) == ncclSuccess);
    cudaStream_t const stream = new_stream();
    auto const [from, to] = new_pieces<2>();
    write(stream, from, 5);
    REQUIRE(ncclGroupStart() == ncclSuccess);
    REQUIRE(ncclSend(from, block, ncclInt8, 0, self, stream) == ncclSuccess);
    REQUIRE(ncclRecv(to, block, ncclInt8, 0, self, stream) == ncclSuccess);
    REQUIRE(ncclGroupEnd() == ncclSuccess);
    synchronize(stream);
    CHECK(to[3] == 5);
    CHECK(ncclSend(from, block, ncclInt8, 0, self, stream) == ncclInvalidUsage);
    CHECK(all_faults().empty());
    REQUIRE(ncclCommDestroy(self) == ncclSuccess);
  });
}

TEST_CASE("The first message to a peer is in progress until the peer has asked for its own") {
  model::options machine = one_gpu();
  machine.lazy_connect = true;
  each_interleaving(machine, [] {
    auto const [link, from, to, sent, received] = message_within_a_gpu();
    write(from, sent, 3);
    CHECK(ncclSend(sent, block, ncclInt8, 1, link.comm[0], from) == ncclInProgress);
    CHECK(link.state(0) == ncclInProgress);
    link.receive(1, received, to);
    link.settle(0);
    synchronize(to);
    CHECK(received[0] == 3);
    link.send(0, sent, from);  // connected now
    link.receive(1, received, to);
    synchronize();
    CHECK(all_faults().empty());
    CHECK(ncclRecv(sent, block, ncclInt8, 1, link.comm[0], from) == ncclInProgress);
    write(from, sent, 4);
    CHECK(faults_of("nccl") == 1);  // the stream is not to be touched yet
  });
}

TEST_CASE("NCCL 2.28 refuses two ranks on one device") {
  reset(1);
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  std::array<ncclComm_t, 2> comm{};
  CHECK(ncclCommInitRankConfig(&comm[0], 2, id, 0, &config) == ncclInProgress);
  CHECK(ncclCommInitRankConfig(&comm[1], 2, id, 1, &config) == ncclInvalidUsage);
  ncclResult_t state = ncclSuccess;
  REQUIRE(ncclCommGetAsyncError(comm[0], &state) == ncclSuccess);
  CHECK(state == ncclInvalidUsage);
}

// ---- messages in graphs ----

/// Captures what `issue(stream)` does on a stream and on those that it makes wait.
template <class Issue>
cudaGraphExec_t captured(cudaStream_t origin, Issue issue) {
  REQUIRE(cudaStreamBeginCapture(origin, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  issue(origin);
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamEndCapture(origin, &graph) == cudaSuccess);
  cudaGraphExec_t exec = nullptr;
  REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
  REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  return exec;
}

TEST_CASE("Messages that were captured together meet in each launch; others are a fault") {
  each_interleaving(one_gpu(), [] {
    auto const [link, from, to, sent, received] = message_within_a_gpu();
    write(from, sent, 3);
    auto const sends = captured(from, [&](cudaStream_t on) { link.send(0, sent, on); });
    auto const receives = captured(to, [&](cudaStream_t on) { link.receive(1, received, on); });
    for (int launch = 0; launch < 3; ++launch) {
      write(from, sent, launch);
      REQUIRE(cudaGraphLaunch(receives, to) == cudaSuccess);
      REQUIRE(cudaGraphLaunch(sends, from) == cudaSuccess);
      // Issued messages stand behind them on the communicator.
      link.receive(1, received, to);
      link.send(0, sent, from);
      synchronize();
      CHECK(received[0] == launch);
    }
    CHECK(all_faults().empty());
    REQUIRE(cudaGraphLaunch(receives, to) == cudaSuccess);
    link.send(0, sent, from);
    synchronize();
    CHECK(has_fault("only one of them was captured"));
    auto const again = captured(from, [&](cudaStream_t on) { link.send(0, sent, on); });
    REQUIRE(cudaGraphLaunch(receives, to) == cudaSuccess);
    REQUIRE(cudaGraphLaunch(again, from) == cudaSuccess);
    synchronize();
    CHECK(has_fault("they were not captured together"));
  });
}

TEST_CASE("A group is captured whole or not at all") {
  model::reset(one_gpu());
  pair const link;
  auto const [captured_one, other] = new_streams<2>();
  char* const data = new_memory();
  REQUIRE(cudaStreamBeginCapture(captured_one, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  REQUIRE(ncclGroupStart() == ncclSuccess);
  ncclSend(data, block, ncclInt8, 1, link.comm[0], captured_one);
  ncclSend(data, block, ncclInt8, 1, link.comm[0], other);
  CHECK(ncclGroupEnd() == ncclInvalidUsage);
}

TEST_CASE("A capture may end between two calls that launch a group, whose rest is lost") {
  int spoilt = 0;
  for (int calls = 0; calls < 8; ++calls) {
    each_interleaving(one_gpu(), [&] {
      auto const [link, from, to, sent, received] = message_within_a_gpu();
      write(from, sent, 3);
      REQUIRE(cudaStreamBeginCapture(from, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
      ncclSend(sent, block, ncclInt8, 1, link.comm[0], from);
      for (int i = 0; i < calls; ++i) CHECK(cudaGetLastError() == cudaSuccess);  // passes the time
      cudaGraph_t graph = nullptr;
      if (cudaStreamEndCapture(from, &graph) == cudaSuccess)
        REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
      else
        ++spoilt;
      REQUIRE(ncclCommAbort(link.comm[0]) == ncclSuccess);
      synchronize(from);
      CHECK(all_faults().empty());
    });
  }
  CHECK(spoilt > 0);
}

TEST_CASE("Memory of captured messages stays until their graph is destroyed") {
  for (bool const is_gone : {false, true}) {
    model::reset(one_gpu());
    pair const link;
    cudaStream_t const to = new_stream();
    char* const received = new_memory();
    auto const receives = captured(to, [&](cudaStream_t on) { link.receive(1, received, on); });
    if (is_gone) REQUIRE(cudaGraphExecDestroy(receives) == cudaSuccess);
    cudaFree(received);
    CHECK(faults_of("nccl") == (is_gone ? 0 : 1));
  }
}

TEST_CASE("Graphs of two ranks deadlock where messages are branches, and not in a chain") {
  for (bool const is_chain : {true, false}) {
    int stalls = 0;
    model::options machine;
    machine.devices = 2;
    machine.mapping = model::queue_mapping::one;
    machine.lazy_connect = false;
    machine.check_uninitialised = false;
    for (machine.seed = 0; machine.seed < 40; ++machine.seed) {
      model::reset(machine);
      pair const there({0, 1});
      pair const back({0, 1});
      std::array<cudaGraphExec_t, 2> graphs{};
      std::array<cudaStream_t, 2> origins{};
      for (int rank : {0, 1}) {
        auto const at = static_cast<std::size_t>(rank);
        use_device(rank);
        cudaStream_t const side = new_stream();
        auto const [data, more] = new_pieces<2>();
        origins[at] = new_stream();
        graphs[at] = captured(origins[at], [&](cudaStream_t on) {
          order(on, side);
          if (rank == 0)
            there.send(0, data, on);
          else
            there.receive(1, data, on);
          if (is_chain) order(on, side);
          if (rank == 0)
            back.receive(0, more, side);
          else
            back.send(1, more, side);
          order(side, on);
        });
      }
      for (int rank : {0, 1}) {
        use_device(rank);
        auto const at = static_cast<std::size_t>(rank);
        REQUIRE(cudaGraphLaunch(graphs[at], origins[at]) == cudaSuccess);
      }
      for (int rank : {0, 1}) {
        cudaSetDevice(rank);
        cudaDeviceSynchronize();
      }
      stalls += faults_of("deadlock") > 0 ? 1 : 0;
    }
    CHECK((stalls > 0) == !is_chain);
  }
}

TEST_CASE(
    "Communicators are not aborted, finalized or destroyed before graphs with their messages") {
  for (bool const aborts : {true, false}) {
    for (bool const is_first : {true, false}) {  // whether the graph goes first
      INFO(aborts << is_first);
      model::options machine = one_gpu();
      machine.patience = std::chrono::milliseconds(1);
      model::reset(machine);
      pair const link;
      auto const [to, from] = new_streams<2>();
      auto const [data, received] = new_pieces<2>();
      write(from, data);
      auto const receives = captured(to, [&](cudaStream_t on) { link.receive(1, received, on); });
      REQUIRE(cudaGraphLaunch(receives, to) == cudaSuccess);
      if (!aborts) {
        auto const sends = captured(from, [&](cudaStream_t on) { link.send(0, data, on); });
        REQUIRE(cudaGraphLaunch(sends, from) == cudaSuccess);
        synchronize();
      }
      // One that runs goes when it ends.
      if (is_first) REQUIRE(cudaGraphExecDestroy(receives) == cudaSuccess);
      if (aborts) {
        ncclCommAbort(link.comm[1]);
      } else {
        ncclCommFinalize(link.comm[1]);
        if (!is_first) CHECK(link.state(1) == ncclInProgress);
        ncclCommDestroy(link.comm[1]);
      }
      CHECK(faults_of("deadlock") == (is_first ? 0 : 1));
    }
  }
}

// ---- threads ----

TEST_CASE("Ranks as threads: a host that waits waits for the others, and a deadlock is found") {
  for (bool answered : {true, false}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      model::options machine;
      machine.seed = seed;
      machine.devices = 2;
      machine.hosts = 0;  // the registered ones only
      model::reset(machine);
      ncclUniqueId id;
      REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
      std::array<cudaError_t, 2> results{};
      std::array<char, 2> last{};
      std::array<std::optional<model::host_thread>, 2> hosts;
      hosts[0].emplace();
      hosts[1].emplace();
      auto const rank = [&](int self) {
        cudaSetDevice(self);
        ncclComm_t comm = nullptr;
        ncclCommInitRankConfig(&comm, 2, id, self, nullptr);
        cudaStream_t stream = nullptr;
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        void* memory = nullptr;
        cudaMalloc(&memory, block);
        char* const data = static_cast<char*>(memory);
        for (int i = 0; i < 10; ++i) {
          if (self == 0) {
            write(stream, data, i);
            ncclSend(data, block, ncclInt8, 1, comm, stream);
          } else {
            ncclRecv(data, block, ncclInt8, 0, comm, stream);
          }
        }
        if (!answered && self == 0) ncclSend(data, block, ncclInt8, 1, comm, stream);
        auto const at = static_cast<std::size_t>(self);
        results[at] = cudaStreamSynchronize(stream);
        if (!answered && self == 1) {
          // The other waits for ever; only when this one waits too is that known.
          void* more = nullptr;
          cudaMalloc(&more, block);
          ncclRecv(more, block, ncclInt8, 0, comm, stream);
          ncclRecv(more, block, ncclInt8, 0, comm, stream);
          results[at] = cudaStreamSynchronize(stream);
        }
        last[at] = data[0];
        ncclCommAbort(comm);
        hosts[at].reset();
      };
      std::thread other([&] { rank(1); });
      rank(0);
      other.join();
      CHECK(results[0] == cudaSuccess);
      CHECK(results[1] == (answered ? cudaSuccess : cudaErrorLaunchTimeout));
      CHECK(last[1] == 9);
      CHECK(faults_of("deadlock") == (answered ? 0U : 1U));
    }
  }
}

}  // namespace

}  // namespace test_cuda_model

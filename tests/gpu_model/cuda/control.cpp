// SPDX-License-Identifier: Apache-2.0
#include "cuda_model.hpp"
#include "entry.hpp"
#include "machine.hpp"

#include <stdexcept>
#include <utility>

namespace zbpp::cuda_model {

namespace {

function function_named(std::string_view text) {
  for (std::size_t i = 0; i < function_count; ++i)
    if (function_facts[i].name == text) return static_cast<function>(i);
  throw std::invalid_argument(
      "the model of CUDA defines no function '" + std::string(text) +
      "'; functions.hpp lists what it has");
}

std::size_t at(function call) { return static_cast<std::size_t>(call); }

template <class Objects>
void list_alive(std::vector<std::string>& into, char const* text, Objects const& objects) {
  for (std::size_t i = 0; i < objects.size(); ++i)
    if (objects[i].alive) into.push_back(std::string(text) + " " + std::to_string(i));
}

}  // namespace

// ---- the way in ----

admission admit(machine& in, function call) {
  std::size_t const index = at(call);
  std::uint64_t const number = in.counts_[index]++;
  if (in.counting_) in.log_.emplace_back(call, number);
  if (int const error = std::exchange(in.failing_[index], 0); error != 0) return {false, error};
  for (machine::skipped const& each : in.skips_)
    if (each.call == call && each.index == number) return {false, 0};
  return {};
}

void refuse_callback(machine& in, host_state& self, function call) {
  std::string text = "callback: " + std::string(fact_of(call).name) +
                     " is called from inside a host function or a kernel";
  if (self.inside == host_state::callback::locked) {
    in.fault(std::move(text));
    return;
  }
  std::lock_guard lock(in.mutex());
  in.fault(std::move(text));
}

bool sees_sticky(function call) {
  switch (call) {
    case function::cudaGetDevice:
    case function::cudaSetDevice:
    case function::cudaGetDeviceCount:
    case function::cudaRuntimeGetVersion:
    case function::cudaDriverGetVersion: return false;
    default: return true;
  }
}

bool is_sticky(int error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorECCUncorrectable:
    case cudaErrorAssert: return true;
    default: return false;
  }
}

// ---- the control API ----

void reset(options const& machine_options) {
  if (machine_options.devices < 1 || machine_options.connections < 1 ||
      machine_options.launch_depth < 1 || machine_options.hosts < 0) {
    throw std::invalid_argument(
        "cuda_model::reset: devices, connections and launch_depth must be at least 1");
  }
  machine::the().reset(machine_options);
}

cudaError_t launch(
    cudaStream_t handle,
    name label,
    std::span<range const> reads,
    std::span<range const> writes,
    std::function<void()> body,
    std::int64_t ns) {
  return enter(function::launch, [&](machine& in, host_state& self) {
    stream* on = in.find(handle, "a launch");
    if (on == nullptr) return in.error_of(handle);
    if (on->device != self.device) {
      in.fault(
          "handle: " + text_of(label) + " is launched into a stream of device " +
          std::to_string(on->device) + " while device " + std::to_string(self.device) +
          " is current");
      return cudaErrorInvalidResourceHandle;
    }
    operation& one = in.make(kind::kernel, label, *on);
    bool right = true;
    for (range const& each : reads) right = in.touches(one, each.data, each.bytes, false) && right;
    for (range const& each : writes) right = in.touches(one, each.data, each.bytes, true) && right;
    if (right)  // else the body would touch what is not there
      one.body = std::move(body);
    one.ns = ns;
    if (cudaError_t const error = in.load(label, on->device); error != cudaSuccess) {
      in.discard(one);
      return error;
    }
    return in.append(one);
  });
}

void host_reads(void const* data, std::size_t bytes) {
  machine& in = machine::the();
  std::lock_guard lock(in.mutex());
  byte_access found;
  if (locate(in, "host_reads", data, bytes, false, found)) in.host_touches(found, "host_reads");
}

void host_writes(void* data, std::size_t bytes) {
  machine& in = machine::the();
  std::lock_guard lock(in.mutex());
  byte_access found;
  if (locate(in, "host_writes", data, bytes, true, found)) in.host_touches(found, "host_writes");
}

void uninitialise(void const* data, std::size_t bytes) {
  machine& in = machine::the();
  std::lock_guard lock(in.mutex());
  byte_access found;
  if (locate(in, "uninitialise", data, bytes, true, found)) in.memory_.uninitialise(found);
}

std::vector<std::string> faults() {
  machine& in = machine::the();
  std::lock_guard lock(in.mutex());
  std::vector<std::string> all = in.faults_;
  if (in.unreported_ > 0) all.push_back("and " + std::to_string(in.unreported_) + " faults more");
  return all;
}

std::vector<std::string> take_faults() {
  std::vector<std::string> all = faults();
  machine& in = machine::the();
  std::lock_guard lock(in.mutex());
  in.faults_.clear();
  in.unreported_ = 0;
  return all;
}

std::vector<std::string> leaks() {
  machine& in = machine::the();
  std::lock_guard lock(in.mutex());
  std::vector<std::string> all;
  for (std::size_t i = 0; i < in.streams_.size(); ++i)
    if (in.streams_[i].alive)
      all.push_back(
          (in.streams_[i].green < 0 ? "stream " : "stream of a green context ") +
          std::to_string(i));
  list_alive(all, "event", in.events_);
  list_alive(all, "graph", in.graphs_);
  list_alive(all, "executable graph", in.execs_);
  list_alive(all, "green context", in.greens_);
  list_alive(all, "communicator", in.communicators_);
  for (allocation const& one : in.memory_.all()) {
    if (!one.freed)
      all.push_back(
          "allocation " + std::to_string(in.memory_.index_of(one)) + " of " +
          std::to_string(one.bytes) + " bytes");
  }
  return all;
}

std::size_t pending() {
  machine& in = machine::the();
  std::lock_guard lock(in.mutex());
  return in.pending_;
}

void fail_next(std::string_view name, int error) {
  machine& in = machine::the();
  std::lock_guard lock(in.mutex());
  in.failing_[at(function_named(name))] = error;
}

void hold_groups() {
  machine& in = machine::the();
  std::lock_guard lock(in.mutex());
  in.holds_groups_ = true;
}

void kernel_fault(std::uint64_t n, cudaError_t error) {
  machine& in = machine::the();
  std::lock_guard lock(in.mutex());
  in.kernel_fault_in_ = static_cast<std::int64_t>(n);
  in.kernel_fault_error_ = error;
}

void stop_device(int device) {
  machine& in = machine::the();
  std::lock_guard lock(in.mutex());
  in.poison(device, cudaErrorLaunchFailure);
  // Over sockets NCCL may see first that a peer is gone.
  auto const is_there = [device](communicator const* each) {
    return each != nullptr && each->device == device;
  };
  for (communicator& one : in.communicators_) {
    auto const& all = one.of->members;
    if (!one.alive || one.device == device || std::none_of(all.begin(), all.end(), is_there) ||
        in.random() % 2 == 0)
      continue;
    one.broken = true;
    one.failure = ncclRemoteError;
  }
}

void comm_fault(void* comm, int error) {
  machine& in = machine::the();
  std::lock_guard lock(in.mutex());
  communicator* one = in.find_in(in.communicators_, communicator_tag, comm);
  if (one == nullptr)
    throw std::invalid_argument("cuda_model::comm_fault: this is no communicator");
  one->broken = true;
  one->failure = static_cast<ncclResult_t>(error);
}

void skip(std::string_view name, std::uint64_t index) {
  machine& in = machine::the();
  std::lock_guard lock(in.mutex());
  in.skips_.push_back({function_named(name), index});
}

void start_counting() {
  machine& in = machine::the();
  std::lock_guard lock(in.mutex());
  in.counts_.fill(0);
  in.interrupts_ = 0;
  in.connections_ = 0;
  in.skips_.clear();
  in.log_.clear();
  in.counting_ = true;
}

std::uint64_t count(std::string_view name) {
  machine& in = machine::the();
  std::lock_guard lock(in.mutex());
  return in.counts_[at(function_named(name))];
}

std::uint64_t interrupts() {
  machine& in = machine::the();
  std::lock_guard lock(in.mutex());
  return in.interrupts_;
}

std::vector<int> ctas_of_communicators() {
  machine& in = machine::the();
  std::lock_guard lock(in.mutex());
  std::vector<int> all;
  for (communicator const& one : in.communicators_)
    if (one.alive) all.push_back(one.ctas);
  return all;
}

std::uint64_t connections() {
  machine& in = machine::the();
  std::lock_guard lock(in.mutex());
  return in.connections_;
}

std::vector<called> calls() {
  machine& in = machine::the();
  std::lock_guard lock(in.mutex());
  std::vector<called> all;
  for (auto const& [name, index] : in.log_) all.push_back({fact_of(name).name, index});
  return all;
}

bool is_synchronising(std::string_view name) {
  return fact_of(function_named(name)).kind == call_kind::synchronises;
}

bool is_allocating(std::string_view name) {
  return fact_of(function_named(name)).kind == call_kind::makes;
}

std::vector<std::string> heavy_calls() {
  std::vector<std::string> all;
  for (called const& each : calls())
    if (is_synchronising(each.function) || is_allocating(each.function))
      all.push_back(std::string(each.function) + " " + std::to_string(each.index));
  return all;
}

std::int64_t now_ns() {
  machine& in = machine::the();
  std::lock_guard lock(in.mutex());
  return in.host_ns_;
}

host_thread::host_thread() {
  machine& in = machine::the();
  std::lock_guard lock(in.mutex());
  ++in.registered_hosts_;
}

host_thread::~host_thread() {
  machine& in = machine::the();
  std::lock_guard lock(in.mutex());
  --in.registered_hosts_;
  in.wake_hosts();  // those that waited for this thread look again
}

}  // namespace zbpp::cuda_model

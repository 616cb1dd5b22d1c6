// SPDX-License-Identifier: Apache-2.0
//
// Tries the lines of a program such as bench/cuda/contact.cpp on models of CUDA: each line works
// whatever CUDA may run first, and where something is broken just those lines fail that rely on it.
#include <gpu_model/cuda/cuda_model.hpp>
#include <support/thinned.hpp>

#include <nccl.h>

#include <algorithm>
#include <bench/cuda/alone.hpp>
#include <bench/cuda/contact_lines.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace model = zbpp::cuda_model;
using zbpp::bench::ending;
using zbpp::bench::line;

bool all_good = true;

// Lines, and what each is to say, or part of it.
using sayings = std::map<std::string_view, std::string_view>;

// Something that is broken, or not there; all lines that are not named here work.
struct harm {
  char const* name;
  model::options machine;
  sayings failed = {};
  std::function<void()> begin = [] {};
  // Where waits end early, lines that work may fail on a busy machine, so they are left out.
  bool is_for_all_lines = true;
  sayings untried = {};
};

model::options two_devices() { return {.devices = 2, .hosts = 0}; }

template <class Change>
model::options changed(Change change) {
  auto machine = two_devices();
  change(machine);
  return machine;
}

model::options with_fate(model::copy_fate fate) {
  return changed(
      [fate](auto& machine) { machine.direct_copies = [fate](int, int) { return fate; }; });
}

model::options impatient(bool drains) {
  return changed([drains](auto& machine) {
    machine.drains = drains;
    machine.patience = std::chrono::milliseconds(100);
  });
}

sayings const of_parts{
    {"parts of a GPU are disjoint", "12.4"},
    {"an event on a part, and its time", "12.4"},
    {"a wait from part to part", "12.4"},
    {"capture and replay on a part", "12.4"},
    {"cuBLASLt: a product on a part of a GPU", "12.4"}};

std::vector<harm> const harms{
    {.name = "one device",
     .machine = changed([](auto& machine) {
       machine.devices = 1;
       machine.duplicate_gpus = true;
     }),
     .untried = {{"a copy to another GPU", "there is one GPU"}}},
    {.name = "copies that are lost",
     .machine = with_fate(model::copy_fate::lost),
     .failed = {{"a copy to another GPU", "other data arrived than was written"}}},
    {.name = "copies that are garbled",
     .machine = with_fate(model::copy_fate::garbled),
     .failed = {{"a copy to another GPU", "other data arrived than was written"}}},
    {.name = "GPUs that do not reach each other",
     .machine = changed([](auto& machine) { machine.peer_access = false; })},
    {.name = "a driver without green contexts",
     .machine = changed([](auto& machine) { machine.green_contexts = false; }),
     .failed = of_parts},
    {.name = "first launches that wait for the device",
     .machine = impatient(true),
     .failed = {{"NCCL: a first launch beside a receive", "LaunchTimeout"}},
     .is_for_all_lines = false},
    {.name = "a first kernel that does nothing",
     .machine = two_devices(),
     .failed =
         {{"parts of a GPU are disjoint", "uninitialised"},
          {"cuBLASLt: a product", "element 0"},
          {"cuBLASLt: bias", "element 0"},
          {"cuBLASLt: bias and GELU", "input of GELU 0"},
          {"cuBLASLt: slope of GELU", "element 0"},
          {"cuBLASLt: row sums", "element"},
          {"cuBLASLt: a batch of products", "element 0"},
          {"cuBLASLt: products on two streams at once", "the bits are not those"},
          {"cuBLASLt: a product in a graph", "element"},
          {"cuBLASLt: a product on a part of a GPU", "element 0"}},
     .begin = [] { model::skip("launch", 0); }},
    {.name = "NCCL that does not start",
     .machine = two_devices(),
     .failed =
         {{"NCCL: a message between two ranks", "rank 0: "},
          {"NCCL: two communicators at once", "rank 0: "},
          {"NCCL: a first launch beside a receive", "rank 0: "},
          {"NCCL: captured messages", "rank 0: "},
          {"NCCL: an abort in time", "rank 0: "},
          {"NCCL: a revoke in time", "rank 0: "}},
     .begin = [] { model::fail_next("ncclGetUniqueId", ncclSystemError); }},
    {.name = "an abort that does nothing",
     .machine = impatient(false),
     .failed = {{"NCCL: an abort in time", ""}},  // a wait or a leak, whichever shows first
     .begin = [] { model::skip("ncclCommAbort", 0); },
     .is_for_all_lines = false},
    {.name = "a revoke that is refused",
     .machine = two_devices(),
     .failed = {{"NCCL: a revoke in time", "rank "}},
     .begin = [] { model::fail_next("ncclCommRevoke", ncclInvalidUsage); }}};

void expect(
    std::string const& name, ending const& found, ending::kind result, std::string_view text) {
  if (found.result == result && found.text.find(text) != std::string::npos) return;
  all_good = false;
  std::printf("FAILED, %s: it says '%s'\n", name.c_str(), found.text.c_str());
}

ending tried_on(
    model::options const& machine, line const& each, std::function<void()> const& begin) {
  return zbpp::bench::run_alone(std::chrono::seconds(60), [&] {
    model::reset(machine);
    begin();
    return each.tried();
  });
}

void try_with(harm const& with, line const& each) {
  auto const failure = with.failed.find(each.name);
  auto const excuse = with.untried.find(each.name);
  bool const fails = failure != with.failed.end();
  if (!fails && !with.is_for_all_lines) return;
  auto const found = tried_on(with.machine, each, with.begin);
  auto const name = std::string(with.name) + ", " + each.name;
  if (fails)
    expect(name, found, ending::kind::bad, failure->second);
  else if (excuse != with.untried.end())
    expect(name, found, ending::kind::not_here, excuse->second);
  else
    expect(name, found, ending::kind::good, "");
}

// What the model finds wrong in a process, and what is left there, is a failure.
void check_faults() {
  auto const alone = [](std::function<std::string()> const& body) {
    return zbpp::bench::run_alone(std::chrono::seconds(60), body);
  };
  auto const found_leak = alone([] {
    void* memory = nullptr;
    zbpp::cuda::check(cudaMalloc(&memory, 16));
    return std::string();
  });
  expect("memory that is left", found_leak, ending::kind::bad, "it leaves allocation 0");
  auto const found_stream = alone([] {
    cudaStream_t stream = nullptr;
    zbpp::cuda::check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0));
    return std::string();
  });
  expect("a stream that is left", found_stream, ending::kind::bad, "it leaves stream 0");
  auto const found_fault = alone([] {
    float value = 0;
    model::host_reads(&value, sizeof(value));
    return std::string();
  });
  expect("a fault", found_fault, ending::kind::bad, "memory: host_reads");
}

// Names the library of a line, which stands before a colon; nothing for CUDA. A program has one.
std::string_view library_of(std::string_view name) {
  auto const colon = name.find(':');
  return colon == std::string_view::npos ? "" : name.substr(0, colon);
}

// Each line that a harm names is there, if its program is this one.
void check_names() {
  auto const& all = zbpp::bench::lines();
  auto const here = library_of(all.front().name);
  for (auto const& each : harms)
    for (auto const* sayings_of : {&each.failed, &each.untried})
      for (auto const& [name, text] : *sayings_of) {
        if (library_of(name) != here ||
            std::ranges::any_of(all, [&](line const& one) { return one.name == name; }))
          continue;
        all_good = false;
        std::printf("FAILED, %s: there is no line '%s'\n", each.name, std::string(name).c_str());
      }
}

}  // namespace

int main() {
  constexpr std::uint64_t seeds = zbpp::test::thinned(20, 4);
  for (auto const& each : zbpp::bench::lines()) {
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      auto const machine = changed([seed](auto& of) { of.seed = seed; });
      expect(
          each.name + std::string(", seed ") + std::to_string(seed),
          tried_on(machine, each, [] {}),
          ending::kind::good,
          "");
    }
    for (auto const& each_harm : harms) try_with(each_harm, each);
  }
  check_names();
  check_faults();
  return all_good ? 0 : 1;
}

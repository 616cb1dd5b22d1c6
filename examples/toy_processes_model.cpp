// SPDX-License-Identifier: Apache-2.0
//
// Runs a program with a process for each GPU on the tests' model of CUDA, which is one process: a
// thread stands for each, with an environment of its own, and runs the program's main().
#include <gpu_model/cuda/cuda_model.hpp>
#include <gpu_model/cuda/environment.hpp>

#include <algorithm>
#include <arpa/inet.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <netinet/in.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

int main_of_rank();

namespace {

namespace model = zbpp::cuda_model;

thread_local std::map<std::string, std::string, std::less<>> own_environment;

char* find_variable(std::string_view name) {
  if (auto const own = own_environment.find(name); own != own_environment.end())
    return own->second.data();
  for (char** each = environ; *each != nullptr; ++each)
    if (std::string_view const entry(*each);
        entry.starts_with(name) && entry.substr(name.size()).starts_with('='))
      return *each + name.size() + 1;
  return nullptr;
}

// A port that nobody listens on, below those that the kernel gives away.
int free_port() {
  for (int port = 20'000 + ::getpid() % 12'000;; ++port) {
    int const tried = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(static_cast<std::uint16_t>(port));
    bool const is_free = ::bind(tried, reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0;
    ::close(tried);
    if (is_free) return port;
  }
}

int run_all(int ranks) {
  model::reset(model::as_in_environment({.devices = ranks, .hosts = ranks}));
  auto const port = std::to_string(free_port());
  std::vector<int> statuses(static_cast<std::size_t>(ranks), 1);
  std::vector<std::thread> processes;
  for (int r = 0; r < ranks; ++r)
    processes.emplace_back([=, &statuses] {
      own_environment = {
          {"RANK", std::to_string(r)},
          {"LOCAL_RANK", std::to_string(r)},
          {"WORLD_SIZE", std::to_string(ranks)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", port},
          {"ZBPP_TOKEN", "a token for the model only"}};
      statuses[static_cast<std::size_t>(r)] = main_of_rank();
    });
  for (auto& each : processes) each.join();
  auto wrong = model::faults();
  auto const left = model::leaks();
  wrong.insert(wrong.end(), left.begin(), left.end());
  for (auto const& line : wrong) std::fprintf(stderr, "%s\n", line.c_str());
  return wrong.empty() ? *std::ranges::max_element(statuses) : 1;
}

}  // namespace

// Stands for the C library's, which has one environment.
extern "C" char* getenv(char const* name) noexcept { return find_variable(name); }

int main() {
  char const* const told = find_variable("WORLD_SIZE");
  return run_all(told == nullptr ? TOY_DEVICES : std::atoi(told));
}

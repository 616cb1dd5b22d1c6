// SPDX-License-Identifier: Apache-2.0
//
// A process that saves checkpoints is killed at each of its system calls: what remains is always
// whole, holds what it was when that step was saved, and the next process goes on from there.
#include <zbpp/checkpoint/run_folder.hpp>

#include <support/catch.hpp>
#include <support/checkpointed.hpp>
#include <support/scratch_folder.hpp>
#include <support/thinned.hpp>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

namespace test_checkpoint_kills {

namespace fs = std::filesystem;
using namespace zbpp::test;

namespace {

constexpr std::size_t entries = 4;

/// Says how a process ended.
enum class ending { killed, done, failed, not_traced };

/// Does some work in a process of its own, and kills that at its stop number `stop`: it stops where
/// each system call begins and where it ends.
template <class Work>
ending kill_at(int stop, Work const& work) {
  auto const child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(60);  // whatever happens, it does not outlive the test
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(77);
    ::raise(SIGSTOP);
    int status = 1;
    try {
      work();
      status = 0;
    } catch (...) {
    }
    ::_exit(status);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  for (int i = 0; i < stop && WIFSTOPPED(status); ++i) {
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    ::waitpid(child, &status, 0);
  }
  if (WIFSTOPPED(status)) {
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    return ending::killed;
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) == 1) return ending::failed;
  return WEXITSTATUS(status) == 77 ? ending::not_traced : ending::done;
}

/// @return the step of the newest checkpoint, whose numbers all have to be that step
std::int64_t newest_step(fs::path const& path) {
  checkpointed_model model(entries, -1);
  auto const step = folder_of(path, 1).load(model.all()).steps;
  CHECK((step == 0 || model.is_filled_with(static_cast<float>(step))));
  return step;
}

void save_next(fs::path const& path, std::int64_t step, int ranks) {
  auto run = folder_of(path, ranks);
  checkpointed_model model(entries, -1);
  if (run.resume(model.all()).steps != step - 1) throw 1;
  model.fill(static_cast<float>(step));
  if (!save(run, step, model, ranks)) throw 1;
}

}  // namespace

TEST_CASE("a kill at any system call costs the checkpoint at hand at most", "[checkpoint]") {
  // In memory nothing waits for a disk, and what a kill leaves is the same.
  bool const has_memory = ::access("/dev/shm", W_OK) == 0;
  scratch_folder const folder(has_memory ? fs::path("/dev/shm") : fs::temp_directory_path());
  std::int64_t saved = 0;
  while (saved < 3) save_next(folder.path(), ++saved, 2);  // so that the next makes an old one go
  int kills = 0;
  for (int stop = 1;; stop += thinned(1, 11)) {
    INFO("stop " << stop);
    auto const ranks = 1 + stop % 3;
    auto const end = kill_at(stop, [&] { save_next(folder.path(), saved + 1, ranks); });
    if (end == ending::not_traced) {
      WARN("nothing is killed: this machine lets no process trace another");
      return;
    }
    REQUIRE(end != ending::failed);
    auto const newest = newest_step(folder.path());
    REQUIRE(saved <= newest);
    REQUIRE(newest <= saved + 1);
    if (end == ending::done) break;
    ++kills;
    saved = newest + 1;
    save_next(folder.path(), saved, 2);  // also removes what the dead process left
  }
  CHECK(kills > 20);
  int folders = 0;
  for (auto const& entry : fs::directory_iterator(folder.path())) folders += entry.is_directory();
  CHECK(folders == 2);
}

}  // namespace test_checkpoint_kills

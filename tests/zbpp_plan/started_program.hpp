// SPDX-License-Identifier: Apache-2.0
//
// Starts zbpp-plan in a folder of its own and keeps what it answers.
#pragma once

#include <zbpp/io/file.hpp>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace zbpp::test {

/// Is a folder that goes when the test is over.
class scratch_folder {
 public:
  scratch_folder() {
    auto name = (std::filesystem::temp_directory_path() / "zbpp_plan.XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~scratch_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  scratch_folder(scratch_folder const&) = delete;
  scratch_folder& operator=(scratch_folder const&) = delete;

  [[nodiscard]] std::string operator/(std::string const& name) const {
    return (path_ / name).string();
  }
  [[nodiscard]] std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }
  /// Writes a file. @return its path
  std::string write(std::string const& name, std::string_view text) const {
    write_file(path_ / name, text);
    return *this / name;
  }

 private:
  std::filesystem::path path_;
};

/// Holds how a program ended.
struct ended_program {
  int status = -1;  ///< of its exit; -1 when a signal ended it
  std::string out;
  std::string err;
};

/// Says how a program is started.
struct start_options {
  std::string in = "/dev/null";  ///< file for standard input
  std::string out = {};          ///< file for standard output; empty: it is kept
  std::string terminal = {};     ///< terminal for standard error; empty: it is kept
  rlim_t largest_file = RLIM_INFINITY;
  std::string program = ZBPP_PLAN;
};

/// Starts a program. Standard output and error go to `folder`. @return its process
inline pid_t start(
    scratch_folder const& folder,
    std::vector<std::string> arguments,
    start_options const& options = {}) {
  auto const out = options.out.empty() ? folder / ".out" : options.out;
  auto const err = options.terminal.empty() ? folder / ".err" : options.terminal;
  arguments.insert(arguments.begin(), options.program);
  std::vector<char*> texts;
  for (auto& argument : arguments) texts.push_back(argument.data());
  texts.push_back(nullptr);
  auto const child = ::fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child > 0) return child;
  auto const redirect = [](std::string const& path, int to, int flags) {
    auto const file = ::open(path.c_str(), flags | O_NOCTTY, 0600);
    if (file < 0 || ::dup2(file, to) < 0) ::_exit(99);
  };
  redirect(options.in, STDIN_FILENO, O_RDONLY);
  redirect(out, STDOUT_FILENO, O_WRONLY | O_CREAT | O_TRUNC);
  redirect(err, STDERR_FILENO, O_WRONLY | O_CREAT | O_TRUNC);
  if (options.largest_file != RLIM_INFINITY) {
    rlimit const limit{options.largest_file, options.largest_file};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  std::signal(SIGXFSZ, SIG_DFL);
  std::signal(SIGINT, SIG_DFL);  // whoever started the tests may ignore it
  ::execv(texts.front(), texts.data());
  ::_exit(99);
}

/// Waits for a process. @return its exit status; -1 when a signal ended it
inline int wait_for(pid_t child) {
  int flags = 0;
  while (::waitpid(child, &flags, 0) < 0)
    if (errno != EINTR) throw std::runtime_error("waitpid failed");
  return WIFEXITED(flags) ? WEXITSTATUS(flags) : -1;
}

/// Runs a program, zbpp-plan if the options name no other, to its end.
inline ended_program run(
    scratch_folder const& folder,
    std::vector<std::string> arguments,
    start_options const& options = {}) {
  ended_program result;
  result.status = wait_for(start(folder, std::move(arguments), options));
  if (options.out.empty()) result.out = read_file(folder / ".out");
  if (options.terminal.empty()) result.err = read_file(folder / ".err");
  std::filesystem::remove(folder / ".out");
  std::filesystem::remove(folder / ".err");
  return result;
}

/// Is a terminal with nobody but the test in front of it.
class pseudo_terminal {
 public:
  pseudo_terminal() : master_(::posix_openpt(O_RDWR | O_NOCTTY)) {
    if (master_ < 0 || ::grantpt(master_) != 0 || ::unlockpt(master_) != 0) return;
    auto const* const name = ::ptsname(master_);
    if (name != nullptr && ::access(name, W_OK) == 0) name_ = name;
  }
  ~pseudo_terminal() { ::close(master_); }
  pseudo_terminal(pseudo_terminal const&) = delete;
  pseudo_terminal& operator=(pseudo_terminal const&) = delete;

  /// @return its file; empty where this machine has no pseudo terminals
  [[nodiscard]] std::string const& name() const noexcept { return name_; }

  /// Reads until a text has been shown. @return everything shown so far
  /// @throws std::runtime_error when everybody who had it open has ended without
  std::string const& read_until(std::string_view text) {
    while (shown_.find(text) == std::string::npos) {
      std::array<char, 4096> block{};
      auto const got = ::read(master_, block.data(), block.size());
      if (got <= 0) throw std::runtime_error("the terminal shows: " + shown_);
      shown_.append(block.data(), static_cast<std::size_t>(got));
    }
    return shown_;
  }

 private:
  int master_;
  std::string name_;
  std::string shown_;
};

}  // namespace zbpp::test

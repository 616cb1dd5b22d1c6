// SPDX-License-Identifier: Apache-2.0
//
// peak_memory FILE PROGRAM [ARGUMENT...]: runs a program and writes to a file how many KiB it had
// in memory at most. Ends as the program does.
#include <cstdio>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  auto const child = ::fork();
  if (child == 0) {
    ::execvp(argv[2], argv + 2);
    ::_exit(127);
  }
  int status = 0;
  rusage used{};
  if (child < 0 || ::wait4(child, &status, 0, &used) != child) return 1;
  auto* const file = std::fopen(argv[1], "w");
  if (file == nullptr) return 1;
  bool const is_written = std::fprintf(file, "%ld\n", used.ru_maxrss) > 0;
  if (std::fclose(file) != 0 || !is_written) return 1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

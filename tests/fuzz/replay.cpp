// SPDX-License-Identifier: Apache-2.0
//
// Hands every file of a folder to a fuzz target, in the order of their names: what a fuzzer found
// once stays found, with any compiler.
#include "round_trip.hpp"
#include <zbpp/io/file.hpp>

#include <algorithm>
#include <filesystem>
#include <vector>

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", arguments[0]);
    return 2;
  }
  std::vector<std::filesystem::path> files;
  for (auto const& entry : std::filesystem::directory_iterator(arguments[1]))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (auto const& file : files) {
    std::printf("%s\n", file.filename().c_str());
    std::fflush(stdout);  // the last name stands there when a target ends the process
    auto const text = zbpp::read_file(file);
    LLVMFuzzerTestOneInput(reinterpret_cast<std::uint8_t const*>(text.data()), text.size());
  }
  if (files.empty()) std::fprintf(stderr, "%s: there is no file\n", arguments[1]);
  return files.empty() ? 1 : 0;
}

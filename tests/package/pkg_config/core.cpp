// SPDX-License-Identifier: Apache-2.0
//
// As little as needs all that the component brings: its headers and a thread.
#include <zbpp/model/placement.hpp>

#include <thread>

int main() {
  int ranks = 0;
  std::thread([&] { ranks = zbpp::placement::linear(2).ranks(); }).join();
  return ranks == 2 ? 0 : 1;
}

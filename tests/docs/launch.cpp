// SPDX-License-Identifier: Apache-2.0
//
// The C++ block of docs/launch.md.

// [launches
#include <zbpp/asio/launch.hpp>

// launches]
namespace docs_launch {

void launches() {
  // [launches
  auto const me = zbpp::asio::find_launch();                          // from the environment
  auto const one = zbpp::asio::find_launch({.rank = 1, .ranks = 4});  // from arguments
  // launches]
}

}  // namespace docs_launch

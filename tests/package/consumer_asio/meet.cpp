// SPDX-License-Identifier: Apache-2.0
//
// A run of one process that meets itself: as little as needs all that the component links.
#include <zbpp/asio/rendezvous.hpp>

int main() {
  auto const start =
      zbpp::asio::find_launch({.rank = 0, .ranks = 1, .host = "127.0.0.1", .port = 0});
  zbpp::asio::rendezvous const run(
      start, {}, zbpp::asio::run_token::from_text("of this test alone"));
  return run.ranks() == 1 ? 0 : 1;
}

// SPDX-License-Identifier: Apache-2.0
//
// As little as needs all that the component brings: Asio's headers, a thread and OpenSSL.
#include <zbpp/asio/io_loop.hpp>
#include <zbpp/asio/token.hpp>

#include <array>
#include <cstddef>

int main() {
  zbpp::asio::io_loop const loop;
  auto const token = zbpp::asio::run_token::from_text("of this test alone");
  std::array<std::byte, 3> const message{};
  return zbpp::asio::equal(token.sign(message), token.sign(message)) ? 0 : 1;
}

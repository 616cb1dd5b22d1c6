// SPDX-License-Identifier: Apache-2.0
//
// The secret that the ranks of one run share: where it is read from, and what is signed with it.
// It is never printed, never part of a message, and wiped when nobody needs it.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

namespace zbpp::asio {

/// What a token signs a message with: HMAC-SHA-256.
using signature = std::array<std::byte, 32>;
/// A random number that is used once.
using challenge = std::array<std::byte, 32>;

namespace detail {

class secret;

}  // namespace detail

/// Holds the secret of a run. Copies share it; any thread may use one. Cannot be printed.
class run_token {
 public:
  run_token(run_token const&) = default;
  run_token& operator=(run_token const&) = default;  // no moves: a token is never empty
  ~run_token() = default;

  /// Takes the text of ZBPP_TOKEN; where that is not set, of the file that ZBPP_TOKEN_FILE names.
  /// @throws error (bad_argument) when neither is set, or as `from_text` and `from_file`
  [[nodiscard]] static run_token from_environment();

  /// Reads a token from a file; one line end after it does not count. A symbolic link is followed:
  /// what counts is the file that was opened.
  /// @throws error (bad_argument) unless it is a regular file of this user that nobody else may
  /// read, write or execute, with 16 to 4096 bytes; error (io_failed) when it cannot be read
  [[nodiscard]] static run_token from_file(std::filesystem::path const& path);

  /// Takes a token that the caller has from somewhere else.
  /// @throws error (bad_argument) unless it has 16 to 4096 bytes
  [[nodiscard]] static run_token from_text(std::string_view text);

  /// Signs a message. @throws error (io_failed) when OpenSSL refuses
  [[nodiscard]] signature sign(std::span<std::byte const> message) const;

 private:
  explicit run_token(std::shared_ptr<detail::secret const> kept) : secret_(std::move(kept)) {}

  std::shared_ptr<detail::secret const> secret_;
};

/// Compares signatures in a time that does not depend on what they are.
[[nodiscard]] bool equal(signature const& one, signature const& other) noexcept;

/// Makes a random number that cannot be predicted.
/// @throws error (io_failed) when OpenSSL has no randomness
[[nodiscard]] challenge make_challenge();

}  // namespace zbpp::asio

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/asio/impl/token.ipp>
#endif

// SPDX-License-Identifier: Apache-2.0
//
// The secret that the ranks of one run share: where it is read from, and what is signed with it.
// It is never printed, never part of a message, and wiped when nobody needs it.
#pragma once

#include <zbpp/error.hpp>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <span>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace zbpp::asio {

/// Is what a token signs a message with: HMAC-SHA-256.
using signature = std::array<std::byte, 32>;
/// Is a random number that is used once.
using challenge = std::array<std::byte, 32>;

namespace detail {

inline constexpr std::size_t least_token = 16;
inline constexpr std::size_t most_token = 4096;
inline constexpr char const* make_a_token =
    "; make one for all ranks by ZBPP_TOKEN=$(openssl rand -hex 32)";

// The bytes of a token, in one place, which is wiped.
class secret {
 public:
  secret() = default;
  secret(secret const&) = delete;
  secret& operator=(secret const&) = delete;
  ~secret() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

  // One byte more than a token may have, so that a reader notices.
  [[nodiscard]] std::span<char> room() noexcept { return bytes_; }
  void set_size(std::size_t size) noexcept { size_ = size; }
  [[nodiscard]] std::string_view text() const noexcept { return {bytes_.data(), size_}; }

 private:
  std::array<char, most_token + 1> bytes_{};
  std::size_t size_ = 0;
};

// A file that is closed.
class descriptor {
 public:
  explicit descriptor(int number) noexcept : number_(number) {}
  descriptor(descriptor const&) = delete;
  descriptor& operator=(descriptor const&) = delete;
  ~descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  [[nodiscard]] int number() const noexcept { return number_; }

 private:
  int number_;
};

}  // namespace detail

/// Holds the secret of a run. Copies share it; any thread may use one. Cannot be printed.
class run_token {
 public:
  run_token(run_token const&) = default;
  run_token& operator=(run_token const&) = default;  // no moves: a token is never empty
  ~run_token() = default;

  /// Takes the text of ZBPP_TOKEN; where that is not set, of the file that ZBPP_TOKEN_FILE names.
  /// @throws error (bad_argument) when neither is set, or as `from_text` and `from_file`
  [[nodiscard]] static run_token from_environment() {
    if (char const* const text = std::getenv("ZBPP_TOKEN")) return make(text, "ZBPP_TOKEN");
    if (char const* const path = std::getenv("ZBPP_TOKEN_FILE")) return from_file(path);
    throw error(
        errc::bad_argument,
        std::string("this run has no token: neither ZBPP_TOKEN nor ZBPP_TOKEN_FILE is set") +
            detail::make_a_token);
  }

  /// Reads a token from a file; one line end behind it does not count. A symbolic link is followed:
  /// what counts is the file that was opened.
  /// @throws error (bad_argument) unless it is a regular file of this user that nobody else may
  /// read, write or execute, with 16 to 4096 bytes; error (io_failed) when it cannot be read
  [[nodiscard]] static run_token from_file(std::filesystem::path const& path) {
    // Not blocking: opening a pipe must not hang.
    detail::descriptor const file(
        ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    struct ::stat facts {};
    if (file.number() < 0 || ::fstat(file.number(), &facts) != 0) cannot_read(path);
    check(path, facts);

    auto const kept = std::make_shared<detail::secret>();
    auto const room = kept->room();
    std::size_t size = 0;
    while (size < room.size()) {
      auto const got = ::read(file.number(), room.data() + size, room.size() - size);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) cannot_read(path);
      if (got == 0) break;
      size += static_cast<std::size_t>(got);
    }
    if (size > 0 && room[size - 1] == '\n') --size;
    if (size > 0 && room[size - 1] == '\r') --size;
    check_size(size, "the token file " + path.string());
    kept->set_size(size);
    return run_token(kept);
  }

  /// Takes a token that the caller has from somewhere else.
  /// @throws error (bad_argument) unless it has 16 to 4096 bytes
  [[nodiscard]] static run_token from_text(std::string_view text) {
    return make(text, "the token");
  }

  /// Signs a message. @throws error (io_failed) when OpenSSL refuses
  [[nodiscard]] signature sign(std::span<std::byte const> message) const {
    signature result{};
    unsigned size = 0;
    auto const key = secret_->text();
    auto const* const done = ::HMAC(
        ::EVP_sha256(),
        key.data(),
        static_cast<int>(key.size()),
        reinterpret_cast<unsigned char const*>(message.data()),
        message.size(),
        reinterpret_cast<unsigned char*>(result.data()),
        &size);
    if (done == nullptr || size != result.size())
      throw error(errc::io_failed, "OpenSSL did not compute an HMAC-SHA-256");
    return result;
  }

 private:
  explicit run_token(std::shared_ptr<detail::secret const> kept) : secret_(std::move(kept)) {}

  static run_token make(std::string_view text, std::string const& whose) {
    check_size(text.size(), whose);
    auto const kept = std::make_shared<detail::secret>();
    text.copy(kept->room().data(), text.size());
    kept->set_size(text.size());
    return run_token(kept);
  }

  [[noreturn]] static void cannot_read(std::filesystem::path const& path) {
    std::error_code const reason(errno, std::generic_category());
    throw error(
        errc::io_failed,
        "the token file " + path.string() + " cannot be read: " + reason.message());
  }

  static void check(std::filesystem::path const& path, struct ::stat const& facts) {
    std::string wrong;
    if (!S_ISREG(facts.st_mode))
      wrong = " is not a regular file; put the token into one";
    else if (facts.st_uid != ::geteuid())
      wrong = " belongs to user " + std::to_string(facts.st_uid) + ", and this process runs as " +
              std::to_string(::geteuid()) + "; the token must be in a file of your own";
    else if ((facts.st_mode & (S_IRWXG | S_IRWXO)) != 0)
      wrong = " is open to other users; close it by chmod 600";
    if (!wrong.empty()) throw error(errc::bad_argument, "the token file " + path.string() + wrong);
  }

  static void check_size(std::size_t size, std::string const& whose) {
    if (size < detail::least_token)
      throw error(
          errc::bad_argument,
          whose + " has " + std::to_string(size) + " bytes; it must have at least " +
              std::to_string(detail::least_token) + detail::make_a_token);
    if (size > detail::most_token)
      throw error(
          errc::bad_argument,
          whose + " has more than " + std::to_string(detail::most_token) + " bytes" +
              detail::make_a_token);
  }

  std::shared_ptr<detail::secret const> secret_;
};

/// Compares signatures in a time that does not depend on what they are.
[[nodiscard]] inline bool equal(signature const& one, signature const& other) noexcept {
  return ::CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

/// Makes a random number that nobody can foresee.
/// @throws error (io_failed) when OpenSSL has no randomness
[[nodiscard]] inline challenge make_challenge() {
  challenge result{};
  auto* const bytes = reinterpret_cast<unsigned char*>(result.data());
  if (::RAND_bytes(bytes, static_cast<int>(result.size())) != 1)
    throw error(errc::io_failed, "OpenSSL has no random bytes");
  return result;
}

}  // namespace zbpp::asio

// SPDX-License-Identifier: Apache-2.0
//
// Reads tokens, and signs with them by OpenSSL.
#pragma once

#include <zbpp/asio/token.hpp>
#include <zbpp/config.hpp>
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

namespace zbpp::asio {

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

[[noreturn]] ZBPP_INLINE void cannot_read_token(std::filesystem::path const& path) {
  std::error_code const reason(errno, std::generic_category());
  throw error(errc::io_failed) + "the token file " + path.string() +
      " cannot be read: " + reason.message();
}

ZBPP_INLINE void check_token_file(std::filesystem::path const& path, struct ::stat const& facts) {
  std::string wrong;
  if (!S_ISREG(facts.st_mode))
    wrong = " is not a regular file; put the token into one";
  else if (facts.st_uid != ::geteuid())
    wrong = zbpp::detail::joined(" belongs to user ") + facts.st_uid +
            ", and this process runs as " + ::geteuid() +
            "; the token must be in a file of your own";
  else if ((facts.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    wrong = " is open to other users; close it by chmod 600";
  if (!wrong.empty()) throw error(errc::bad_argument) + "the token file " + path.string() + wrong;
}

ZBPP_INLINE void check_token_size(std::size_t size, std::string const& owner) {
  if (size < least_token)
    throw error(errc::bad_argument) + owner + " has " + size + " bytes; it must have at least " +
        least_token + make_a_token;
  if (size > most_token)
    throw error(errc::bad_argument) + owner + " has more than " + most_token + " bytes" +
        make_a_token;
}

[[nodiscard]] ZBPP_INLINE std::shared_ptr<secret const> secret_of_text(
    std::string_view text, std::string const& owner) {
  check_token_size(text.size(), owner);
  auto const kept = std::make_shared<secret>();
  text.copy(kept->room().data(), text.size());
  kept->set_size(text.size());
  return kept;
}

[[nodiscard]] ZBPP_INLINE std::shared_ptr<secret const> secret_of_file(
    std::filesystem::path const& path) {
  // Not blocking: opening a pipe must not hang.
  descriptor const file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  struct ::stat facts {};
  if (file.number() < 0 || ::fstat(file.number(), &facts) != 0) cannot_read_token(path);
  check_token_file(path, facts);

  auto const kept = std::make_shared<secret>();
  auto const room = kept->room();
  std::size_t size = 0;
  while (size < room.size()) {
    auto const got = ::read(file.number(), room.data() + size, room.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) cannot_read_token(path);
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (size > 0 && room[size - 1] == '\n') --size;
  if (size > 0 && room[size - 1] == '\r') --size;
  check_token_size(size, "the token file " + path.string());
  kept->set_size(size);
  return kept;
}

}  // namespace detail

ZBPP_INLINE run_token run_token::from_environment() {
  if (char const* const text = std::getenv("ZBPP_TOKEN"))
    return run_token(detail::secret_of_text(text, "ZBPP_TOKEN"));
  if (char const* const path = std::getenv("ZBPP_TOKEN_FILE")) return from_file(path);
  throw error(errc::bad_argument) +
      "this run has no token: neither ZBPP_TOKEN nor ZBPP_TOKEN_FILE is set" + detail::make_a_token;
}

ZBPP_INLINE run_token run_token::from_file(std::filesystem::path const& path) {
  return run_token(detail::secret_of_file(path));
}

ZBPP_INLINE run_token run_token::from_text(std::string_view text) {
  return run_token(detail::secret_of_text(text, "the token"));
}

ZBPP_INLINE signature run_token::sign(std::span<std::byte const> message) const {
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

ZBPP_INLINE bool equal(signature const& one, signature const& other) noexcept {
  return ::CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

ZBPP_INLINE challenge make_challenge() {
  challenge result{};
  auto* const bytes = reinterpret_cast<unsigned char*>(result.data());
  if (::RAND_bytes(bytes, static_cast<int>(result.size())) != 1)
    throw error(errc::io_failed, "OpenSSL has no random bytes");
  return result;
}

}  // namespace zbpp::asio

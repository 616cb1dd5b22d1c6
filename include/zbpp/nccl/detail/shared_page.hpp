// SPDX-License-Identifier: Apache-2.0
//
// A page of memory that two processes of one host share, and their devices too. It has no name in
// any file system: the second process opens it by way of the first one, so nothing is left behind
// however a process ends.
#pragma once

#include <zbpp/cuda/error.hpp>

#include <cuda_runtime_api.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fcntl.h>
#include <random>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace zbpp::nccl::detail {

/// Says where a process finds a page of another one; a plain value, as ranks exchange it.
struct page_name {
  std::int32_t process = 0;
  std::int32_t file = -1;
  std::array<std::uint32_t, 4> id{};  ///< random, so that no other file is taken for it

  /// @return what the system calls the file
  [[nodiscard]] std::string text() const {
    static constexpr char digits[] = "0123456789abcdef";
    std::string result = "zbpp-";
    for (auto const word : id)
      for (int shift = 28; shift >= 0; shift -= 4) result += digits[(word >> shift) & 15U];
    return result;
  }
};

/// Maps such a page, all zeros at first.
class shared_page {
 public:
  static constexpr std::size_t size = 4096;

  /// Makes one. @throws std::system_error; cuda_error
  shared_page() {
    std::random_device random;
    for (auto& word : name_.id) word = random();
    name_.process = ::getpid();
    file_ = checked(::memfd_create(name_.text().c_str(), MFD_CLOEXEC), "memfd_create");
    name_.file = file_;
    or_close([&] {
      checked(::ftruncate(file_, static_cast<off_t>(size)), "ftruncate");
      map();
    });
  }
  /// Opens that of another process. @throws std::system_error when that is on another host, or out
  /// of reach; cuda_error
  explicit shared_page(page_name const& of) : name_(of) {
    auto const path = "/proc/" + std::to_string(of.process) + "/fd/" + std::to_string(of.file);
    // Opening whatever lies there might have consequences, so see what it is.
    std::array<char, 128> found{};
    auto const length = ::readlink(path.c_str(), found.data(), found.size());
    auto const expected = "/memfd:" + of.text() + " (deleted)";
    if (length < 0 || std::string(found.data(), static_cast<std::size_t>(length)) != expected)
      throw std::system_error(ENOENT, std::system_category(), path);
    file_ = checked(::open(path.c_str(), O_RDWR | O_CLOEXEC), path.c_str());
    or_close([this] { map(); });
    close_file();
  }
  shared_page(shared_page const&) = delete;
  shared_page& operator=(shared_page const&) = delete;
  ~shared_page() {
    cudaHostUnregister(memory_);
    ::munmap(memory_, size);
    close_file();
  }

  /// @return how another process finds it, until `close_file`
  [[nodiscard]] page_name const& name() const noexcept { return name_; }
  /// @return its first byte
  [[nodiscard]] void* data() const noexcept { return memory_; }
  /// @return the same for devices
  [[nodiscard]] void* on_device() const noexcept { return on_device_; }
  /// Lets no other process open it from now on.
  void close_file() noexcept {
    if (file_ >= 0) ::close(std::exchange(file_, -1));
  }

 private:
  static int checked(int result, char const* call) {
    if (result < 0) throw std::system_error(errno, std::system_category(), call);
    return result;
  }
  template <class Work>
  void or_close(Work const& work) {
    try {
      work();
    } catch (...) {
      close_file();
      throw;
    }
  }

  void map() {
    auto* const mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (mapped == MAP_FAILED) checked(-1, "mmap");
    bool is_registered = false;
    try {
      cuda::check(
          cudaHostRegister(mapped, size, cudaHostRegisterMapped | cudaHostRegisterPortable));
      is_registered = true;
      cuda::check(cudaHostGetDevicePointer(&on_device_, mapped, 0));
    } catch (...) {
      if (is_registered) cudaHostUnregister(mapped);
      ::munmap(mapped, size);
      throw;
    }
    memory_ = mapped;
  }

  page_name name_;
  int file_ = -1;
  void* memory_ = nullptr;
  void* on_device_ = nullptr;
};

}  // namespace zbpp::nccl::detail

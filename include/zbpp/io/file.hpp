// SPDX-License-Identifier: Apache-2.0
//
// Reads and writes whole texts. A file is written beside its place and then renamed into it, so
// that nobody ever sees half of one, whatever goes wrong.
#pragma once

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

namespace zbpp {

/// Reads what is left of an open stream, such as `stdin`; `name` says in messages which one it is.
/// @throws error (io_failed) with the name and the reason, or when there are more than `most` bytes
[[nodiscard]] std::string read_stream(
    std::FILE* from, std::string const& name, std::size_t most = std::string::npos);

/// Reads all of a file, or of a pipe or device that somebody writes to.
/// @throws error (io_failed) with the path and the reason, or when there are more than `most` bytes
[[nodiscard]] std::string read_file(
    std::filesystem::path const& path, std::size_t most = std::string::npos);

/// Writes all of a text to an open stream, such as `stdout`; messages call it `name`.
/// @throws error (io_failed) with the name and the reason
void write_stream(std::FILE* to, std::string const& name, std::string_view text);

/// Writes all of a file: whoever reads it meanwhile sees the old text or the new one. What a
/// symbolic link points to is written, the link stays; a device or pipe is written as it is.
/// @throws error (io_failed) with the path and the reason; an old file is then as it was
void write_file(std::filesystem::path const& path, std::string_view text);

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/io/impl/file.ipp>
#endif

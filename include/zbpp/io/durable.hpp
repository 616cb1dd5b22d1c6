// SPDX-License-Identifier: Apache-2.0
//
// Files that outlive the program and the machine, as those of checkpoints must: they appear under
// their name as a whole, and only when the disk has them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>

namespace zbpp {

/// Puts on the disk which files a folder has; an empty path is the current one.
/// @throws error (io_failed) with the path and the reason
void sync_folder(std::filesystem::path const& folder);

/// Writes a file from pieces: aside first, under its name with `.tmp`, to its disk, and then into
/// its place, where it replaces a link, or an old file with its permissions. Its folder still has
/// to be synced.
/// @param between  called before each piece; what it throws ends the work
/// @throws error (io_failed) with the path and the reason, or what `between` does; nothing is then
///         left of it, and an old file is as it was
void write_durably(
    std::filesystem::path const& path,
    std::span<std::span<std::byte const> const> pieces,
    std::function<void()> const& between = [] {});

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/io/impl/durable.ipp>
#endif

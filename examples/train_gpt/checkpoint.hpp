// SPDX-License-Identifier: Apache-2.0
//
// A folder of checkpoints, DIR/step-000020/{rank-0.bin, ..., manifest.txt}. Whenever the program or
// the machine dies, the newest one with a manifest is whole; what has none does not count.
#pragma once

#include "manifest.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace gpt {

/// Writes and reads the checkpoints of one run. To write one: `begin` on one rank, then `write` on
/// each, then `finish` on one.
class checkpoints {
 public:
  /// @param folder  exists, and nobody else writes to it
  /// @param split   of what is written; what is read may have another
  checkpoints(std::filesystem::path folder, std::vector<run_setting> settings, run_split split)
      : folder_(std::move(folder)), settings_(std::move(settings)), split_(std::move(split)) {}

  /// @return the name of the checkpoint of a step
  [[nodiscard]] static std::string name(std::int64_t step) {
    std::array<char, 32> digits{};
    std::snprintf(digits.data(), digits.size(), "step-%06lld", static_cast<long long>(step));
    return digits.data();
  }
  /// @return where the checkpoint of a step lies
  [[nodiscard]] std::filesystem::path path(std::int64_t step) const { return folder_ / name(step); }

  /// @return the steps of all that have a manifest, ascending
  /// @throws zbpp::error (io_failed) where the folder cannot be read
  [[nodiscard]] std::vector<std::int64_t> finished() const { return list(true); }

  /// Refuses what no run leaves under the name of a checkpoint or in one, such as a pipe or a link
  /// to nothing: reading it might never end, and whoever put it there may want it.
  /// @throws setting_error that names it; zbpp::error (io_failed)
  void check() const {
    for_each_step([](std::int64_t, std::filesystem::path const& path) {
      std::error_code fault;
      if (!std::filesystem::is_directory(path, fault)) refuse(path, "a folder");
      fault.clear();
      std::filesystem::directory_iterator entry(path, fault);
      for (; !fault && entry != std::filesystem::directory_iterator(); entry.increment(fault)) {
        std::error_code none;
        if (!entry->is_regular_file(none)) refuse(entry->path(), "a regular file");
      }
      if (fault) failed(path, "cannot be read", fault);
    });
  }

  /// Makes room for a checkpoint and removes what dead programs left unfinished.
  /// @param step  of which there is no finished one
  /// @throws zbpp::error (io_failed)
  void begin(std::int64_t step) const {
    for (auto const unfinished : list(false)) remove(unfinished);
    std::error_code fault;
    std::filesystem::create_directory(path(step), fault);
    if (fault) failed(path(step), "cannot be made", fault);
  }

  /// Writes the part of a rank.
  /// @param arrays   all that the rank has
  /// @param between  called between pieces of it
  /// @throws zbpp::error (io_failed); what `between` throws
  [[nodiscard]] file_record write(
      std::int64_t step,
      int rank,
      std::span<named_array const> arrays,
      interruption const& between) const {
    try {
      return write_rank_file(file_of(step, rank), id_of(step, split_.ranks, rank), arrays, between);
    } catch (zbpp::error const& wrong) {
      std::error_code none;
      if (wrong.code() != zbpp::errc::io_failed || std::filesystem::exists(path(step), none)) throw;
      throw zbpp::error(
          zbpp::errc::io_failed,
          std::string(wrong.what()) + "; rank 0 has made the folder, and it is not here: " +
              "--checkpoint has to name a folder that all machines share");
    }
  }

  /// Makes a checkpoint count, and then removes all but it and the one before.
  /// @param files  what `write` returned, by rank
  /// @throws zbpp::error (io_failed)
  void finish(zbpp::training_state const& state, std::vector<file_record> files) const {
    auto const step = state.steps;
    auto const text = to_text(manifest{state, split_, std::move(files)}, settings_);
    sync_folder(path(step));
    std::array<std::span<std::byte const>, 1> const all{std::as_bytes(std::span(text))};
    write_durably(path(step) / manifest::file_name, all);
    sync_folder(path(step));
    sync_folder(folder_);
    auto old = finished();
    old.resize(old.size() - std::min<std::size_t>(old.size(), 2));
    for (auto const o : old) remove(o);
  }

  /// Reads the manifest of a checkpoint.
  /// @throws setting_error when it is damaged or of another run; zbpp::error (io_failed)
  [[nodiscard]] manifest read_manifest(std::int64_t step) const {
    auto const path_of = path(step) / manifest::file_name;
    auto const all = regular_file(path_of).read(manifest::most_bytes);
    line_reader reader(all);
    manifest result;
    std::string differences;
    try {
      if (auto const damage = reader.find_damage()) throw setting_error(*damage);
      if (auto const title = reader.next_line(); title != manifest::title)
        throw setting_error(
            "begins with \"" + std::string(title) + "\"; this program reads \"" + manifest::title +
            "\": go on with the program that wrote it");
      auto& state = result.state;
      state.steps = static_cast<std::int64_t>(line_reader::number(reader.value("step")));
      if (state.steps != step)
        throw setting_error("is the one of step " + std::to_string(state.steps));
      state.updates = static_cast<std::int64_t>(line_reader::number(reader.value("updates")));
      state.amended = line_reader::number(reader.value("amended steps"), 16);
      differences = differences_in(reader);
      if (differences.empty()) {
        auto& split = result.split;
        split.ranks = static_cast<int>(line_reader::number(reader.value("--ranks")));
        split.policy = reader.value("--policy");
        split.placement = reader.value("placement");
        for (int r = 0; r < split.ranks; ++r) {
          auto const says = reader.value(rank_file_name(static_cast<std::size_t>(r)));
          auto const [size, sum] = line_reader::sized("bytes", says);
          result.files.push_back({size, sum});
        }
        if (to_text(result, settings_) != all)
          throw setting_error("has lines or signs that do not belong there");
      }
    } catch (setting_error const& wrong) {
      throw setting_error(path_of.string() + " " + wrong.what() + advice(step));
    }
    if (differences.empty()) return result;
    throw setting_error(
        path(step).string() + " is of another run: " + differences +
        "; resume with the settings it began with, or give --checkpoint another folder");
  }

  /// Reads arrays, whichever ranks wrote them. None is changed unless all of them are right.
  /// @throws setting_error when a file is torn, or not the one that belongs there, or an array is
  ///         in none of them; zbpp::error (io_failed)
  void read(manifest const& of, std::span<named_array const> to) const {
    auto const step = of.state.steps;
    try {
      std::deque<rank_file> files;
      for (int r = 0; r < of.split.ranks; ++r)
        files.emplace_back(
            file_of(step, r),
            id_of(step, of.split.ranks, r),
            of.files[static_cast<std::size_t>(r)]);
      auto const found = index_of(files);
      std::vector<std::vector<float>> read;
      for (auto const& a : to) {
        auto const at = found.find(a.name);
        if (at == found.end())
          throw setting_error(path(step).string() + " has no \"" + a.name + "\" in its files");
        auto const& [file, record] = at->second;
        if (record->count != a.values.size())
          file->refuse(
              "has " + std::to_string(record->count) + " floats of \"" + a.name +
              "\", here belong " + std::to_string(a.values.size()));
        file->read(*record, read.emplace_back(a.values.size()));
      }
      for (std::size_t i = 0; i < to.size(); ++i) std::ranges::copy(read[i], to[i].values.begin());
    } catch (setting_error const& wrong) {
      throw setting_error(wrong.what() + advice(step));
    }
  }

 private:
  [[nodiscard]] std::filesystem::path file_of(std::int64_t step, int rank) const {
    return path(step) / rank_file_name(static_cast<std::size_t>(rank));
  }
  [[nodiscard]] rank_file_id id_of(std::int64_t step, int ranks, int rank) const {
    return {checksum_of(std::string_view(to_text(settings_))), step, ranks, rank};
  }

  /// Says where an array is.
  struct place {
    rank_file const* file;
    array_record const* record;
  };
  /// @throws setting_error when two files have the same array
  [[nodiscard]] static std::map<std::string_view, place> index_of(
      std::deque<rank_file> const& files) {
    std::map<std::string_view, place> all;
    for (auto const& file : files)
      for (auto const& record : file.arrays())
        if (!all.emplace(record.name, place{&file, &record}).second)
          file.refuse("has \"" + record.name + "\", which stands elsewhere, too");
    return all;
  }

  /// Reads the settings of a manifest and says which are not those of this run.
  [[nodiscard]] std::string differences_in(line_reader& reader) const {
    std::string list;
    for (auto const& s : settings_)
      if (auto const was = reader.value(s.name); was != s.value)
        list +=
            (list.empty() ? "" : "; ") + s.name + " was " + std::string(was) + " and is " + s.value;
    return list;
  }

  [[noreturn]] static void failed(
      std::filesystem::path const& what, char const* how, std::error_code const& why) {
    throw zbpp::error(zbpp::errc::io_failed, what.string() + ": " + how + ": " + why.message());
  }

  [[noreturn]] static void refuse(std::filesystem::path const& path, char const* right) {
    namespace fs = std::filesystem;
    std::error_code none;
    auto const what = fs::symlink_status(path, none);
    auto const* const is = fs::is_fifo(what) ? "a pipe, not "
                           : fs::is_symlink(what) && !fs::exists(path, none)
                               ? "a link to nothing, not "
                               : "not ";
    throw setting_error(
        path.string() + " is " + is + right +
        ", as it belongs to a checkpoint; move it out of the folder");
  }

  /// Calls `work(step, path)` for all in the folder that is called like a checkpoint. Whatever else
  /// lies there is somebody's, and left alone.
  template <class Work>
  void for_each_step(Work const& work) const {
    std::error_code fault;
    std::filesystem::directory_iterator entry(folder_, fault);
    for (; !fault && entry != std::filesystem::directory_iterator(); entry.increment(fault)) {
      auto const is_called = entry->path().filename().string();
      std::int64_t step = -1;
      if (is_called.starts_with("step-"))
        std::from_chars(is_called.data() + 5, is_called.data() + is_called.size(), step);
      if (step >= 0 && is_called == name(step)) work(step, entry->path());
    }
    if (fault) failed(folder_, "cannot be read", fault);
  }

  /// Lists the steps of checkpoints that have a manifest, or of those that have none; ascending.
  [[nodiscard]] std::vector<std::int64_t> list(bool with_manifest) const {
    std::vector<std::int64_t> steps;
    for_each_step([&](std::int64_t step, std::filesystem::path const& at) {
      std::error_code fault;
      if (!std::filesystem::is_directory(at, fault)) return;
      // A link to nothing, too, has the name: it is refused by who reads it, and not removed.
      auto const found = std::filesystem::symlink_status(at / manifest::file_name, fault);
      if (found.type() == std::filesystem::file_type::none) failed(at, "cannot be read", fault);
      if (std::filesystem::exists(found) == with_manifest) steps.push_back(step);
    });
    std::sort(steps.begin(), steps.end());
    return steps;
  }

  /// Removes a checkpoint, its manifest first: half of it must not count.
  void remove(std::int64_t step) const {
    std::error_code fault;
    std::filesystem::remove(path(step) / manifest::file_name, fault);
    if (!fault) sync_folder(path(step));
    if (!fault) std::filesystem::remove_all(path(step), fault);
    if (fault) failed(path(step), "cannot be removed", fault);
  }

  /// Says what to do about one that cannot be used. It is never skipped without a word.
  [[nodiscard]] std::string advice(std::int64_t step) const {
    auto const all = finished();
    auto const older = std::lower_bound(all.begin(), all.end(), step);
    auto const then = older == all.begin() ? "begin anew" : "resume from " + name(*(older - 1));
    return "; remove " + path(step).string() + " to " + then;
  }

  std::filesystem::path folder_;
  std::vector<run_setting> settings_;
  run_split split_;
};

}  // namespace gpt

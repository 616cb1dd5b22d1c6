// SPDX-License-Identifier: Apache-2.0
//
// How a checkpoint is written so that it is whole or does not count, and read so that nothing wrong
// is taken for it.
#pragma once

#include <zbpp/checkpoint/detail/files.hpp>
#include <zbpp/checkpoint/detail/together.hpp>
#include <zbpp/checkpoint/impl/stored_model.ipp>
#include <zbpp/checkpoint/run_folder.hpp>
#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/io/checksum.hpp>
#include <zbpp/io/durable.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace zbpp::checkpoint {

namespace detail {

/// @return whether no number has the largest exponent, in its last two bytes, as inf and nan do
/// @source IEEE 754, binary interchange formats
[[nodiscard]] ZBPP_INLINE bool is_finite(array const& of) {
  std::uint16_t exponent = 0;
  switch (of.type) {
    case number_type::f64: exponent = 0x7FF0; break;
    case number_type::f32:
    case number_type::bf16: exponent = 0x7F80; break;
    case number_type::f16: exponent = 0x7C00; break;
    default: return true;
  }
  for (auto end = size_of(of.type); end <= of.bytes.size(); end += size_of(of.type)) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, of.bytes.data() + end - sizeof bits, sizeof bits);
    if ((bits & exponent) == exponent) return false;
  }
  return true;
}

/// Lists what the metadata of a rank's file says: which file of which checkpoint it is.
[[nodiscard]] ZBPP_INLINE std::array<setting, 4> file_identity(
    run_description const& run, std::int64_t step, std::size_t ranks, std::size_t rank) {
  auto const settings = to_text(run.settings);
  return {
      {{"run", hex_text(checksum_of(std::string_view(settings)))},
       {"step", std::to_string(step)},
       {"ranks", std::to_string(ranks)},
       {"rank", std::to_string(rank)}}};
}

/// Refuses an array that does not lie in the whole one that it is a part of.
ZBPP_INLINE void check_part(array const& of) {
  if (fits(of.shape, of.part)) return;
  throw error(errc::bad_argument) + "'" + of.name + "' is " + describe(of.type, of.shape) +
      " from " + of.part.first + " of " + of.part.whole + " along axis " + of.part.axis +
      ", which does not lie in the whole array; give array_part the axis, and the place and "
      "size along it";
}

/// Makes a folder where there is none, and those above it, and puts them on the disk.
ZBPP_INLINE void make_folder(std::filesystem::path const& path) {
  std::error_code fault;
  if (std::filesystem::exists(path, fault)) return;
  auto const above = std::filesystem::absolute(path).parent_path();
  make_folder(above);
  std::filesystem::create_directory(path, fault);
  if (fault) fail(path, "cannot be made", fault);
  sync_folder(above);
}

/// Refuses what no run leaves under the name of a part of a checkpoint.
[[noreturn]] ZBPP_INLINE void refuse_stranger(
    std::filesystem::path const& path, char const* right) {
  namespace fs = std::filesystem;
  std::error_code none;
  auto const status = fs::symlink_status(path, none);
  auto const* const kind = fs::is_fifo(status) ? "a pipe, not "
                           : fs::is_symlink(status) && !fs::exists(path, none)
                               ? "a link to nothing, not "
                               : "not ";
  throw error(errc::bad_argument) + path.string() + ": is " + kind + right +
      ", as it belongs to a checkpoint; move it out of the folder";
}

}  // namespace detail

ZBPP_INLINE std::vector<int> process_group::own_ranks(int ranks) const {
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

ZBPP_INLINE std::vector<std::vector<std::byte>> process_group::all_gather(
    std::span<std::byte const> own) {
  return {{own.begin(), own.end()}};
}

ZBPP_INLINE run_folder::run_folder(
    std::filesystem::path folder, run_description run, std::unique_ptr<process_group> processes)
    : folder_(std::move(folder)), run_(std::move(run)), processes_(std::move(processes)) {
  zbpp::detail::require(
      run_.ranks > 0 && run_.keep > 0 && processes_ != nullptr,
      "a run_folder needs a rank, a checkpoint to keep and a process_group at least");
  auto const own = processes_->own_ranks(run_.ranks);
  zbpp::detail::require(!own.empty(), "a process has a rank of its run_folder at least");
  first_rank_ = own.front();
  for (auto const* list : {&run_.settings, &run_.split})
    for (auto const& [name, value] : *list)
      if ((name + value).find('\n') != std::string::npos || name.find(": ") != std::string::npos)
        throw error(errc::bad_argument) + "the setting '" + name +
            "' of a run_folder is no line of a name and a value; write it "
            "without ends of lines, and its name without ': '";
}

ZBPP_INLINE std::string run_folder::name(std::int64_t step) {
  std::array<char, 32> digits{};
  std::snprintf(digits.data(), digits.size(), "step-%06lld", static_cast<long long>(step));
  return digits.data();
}

ZBPP_INLINE std::filesystem::path run_folder::path() const {
  return last_ == 0 ? std::filesystem::path() : folder_ / name(last_);
}

ZBPP_INLINE void run_folder::begin() {
  hold();
  on_first([&] { refuse_since(0); });
}

ZBPP_INLINE training_state run_folder::resume(std::span<array const> arrays) {
  hold();
  training_state state;
  together([&](std::string&) { state = load(arrays); });
  require_alike(last_ == 0 ? "no checkpoint" : name(last_));
  return state;
}

ZBPP_INLINE training_state run_folder::load(std::span<array const> arrays) {
  for (auto const& each : arrays) {
    detail::check_part(each);
    zbpp::detail::require(
        size_of(each.type, each.shape) == each.bytes.size(), "an array has the bytes of its shape");
  }
  auto const all = list(true);
  if (all.empty()) return {};
  auto const path = folder_ / name(all.back());
  std::string differences;
  try {
    auto newest = read_manifest(path, all.back(), differences);
    if (differences.empty()) {
      auto const model = open_all(newest);
      std::vector<std::vector<std::byte>> read;  // before anything is changed
      for (auto const& each : arrays) read.push_back(model.read(each));
      for (std::size_t i = 0; i < arrays.size(); ++i)
        std::ranges::copy(read[i], arrays[i].bytes.begin());
      last_ = newest.state.steps;
      split_ = std::move(newest.split);
      return newest.state;
    }
  } catch (error const& wrong) {
    auto const then = all.size() == 1 ? "begin anew" : "resume from " + name(*(all.end() - 2));
    throw error(errc::bad_format) + wrong.what() + "; remove " + path.string() + " to " + then;
  }
  throw error(errc::bad_format) + path.string() + ": is of another run: " + differences +
      "; resume with the settings it began with, or choose another folder";
}

ZBPP_INLINE bool run_folder::save(
    training_state const& state, std::function<std::vector<array>(int rank)> const& arrays_of) {
  require_alike(name(state.steps));
  std::map<int, std::vector<array>> own;
  auto const finite = by_rank([&](int rank) {
    zbpp::detail::require(
        state.steps > last_, "a checkpoint is saved after more steps than the one before");
    auto const& arrays = own[rank] = arrays_of(rank);
    std::ranges::for_each(arrays, detail::check_part);
    return file_record{.size = std::ranges::all_of(arrays, detail::is_finite)};
  });
  if (std::ranges::find(finite, 0U, &file_record::size) != finite.end()) return false;
  on_first([&] { make_room(state.steps); });
  auto files = by_rank([&](int rank) { return write(state, rank, own[rank]); });
  on_first([&] { finish(state, std::move(files)); });
  last_ = state.steps;
  split_ = run_.split;
  return true;
}

ZBPP_INLINE std::vector<std::string> run_folder::together(
    std::function<void(std::string& answer)> const& work) {
  return detail::together([&](auto own) { return processes_->all_gather(own); }, work);
}

// The others wait for what the first does for all.
ZBPP_INLINE void run_folder::on_first(std::function<void()> const& work) {
  together([&](std::string&) {
    if (first_rank_ == 0) work();
  });
}

// Does some work for each rank, in the one process that has it.
ZBPP_INLINE std::vector<file_record> run_folder::by_rank(
    std::function<file_record(int rank)> const& work) {
  auto const answers = together([&](std::string& own) {
    for (int const rank : processes_->own_ranks(run_.ranks)) try {
        auto const [size, checksum] = work(rank);
        own += zbpp::detail::joined(rank, " ", size, " ", checksum, " ");
      } catch (error& wrong) {
        if (wrong.code() == errc::bad_argument) wrong.locate({.rank = rank});
        throw;
      }
  });
  std::multimap<int, file_record> found;
  for (auto const& text : answers) {
    std::istringstream numbers(text);
    int rank = 0;
    file_record each;
    while (numbers >> rank >> each.size >> each.checksum) found.emplace(rank, each);
  }
  std::vector<file_record> all;
  std::string ranks;
  bool is_right = std::ssize(found) == run_.ranks;
  for (auto const& [rank, each] : found) {
    is_right = is_right && rank == static_cast<int>(all.size());
    ranks.append(" ").append(std::to_string(rank));
    all.push_back(each);
  }
  if (is_right) return all;
  throw error(errc::no_agreement) + folder_.string() + ": is for " + run_.ranks +
      " ranks, and its processes have rank" + ranks + "; give each rank one process";
}

// Refuses processes that differ in what they have to have alike.
ZBPP_INLINE void run_folder::require_alike(std::string const& text) {
  std::string const rank = zbpp::detail::joined(" at rank ", first_rank_);
  auto const all = together([&](std::string& own) { own += text + rank; });
  auto const value_of = [](std::string const& answer) {
    return answer.substr(0, answer.rfind(" at "));
  };
  for (auto const& each : all)
    if (value_of(each) != value_of(all.front()))
      throw error(errc::no_agreement) + folder_.string() + ": has " + all.front() + " and " + each +
          "; give all ranks the same run, and a folder that all machines share";
}

ZBPP_INLINE void run_folder::hold() {
  on_first([&] {
    detail::make_folder(folder_);
    if (!lock_) lock_.emplace(folder_);
    refuse_strangers();
  });
  require_alike(zbpp::detail::joined(run_.ranks, " ranks, ", run_.settings.size(), " settings"));
  for (auto const& [name, value] : run_.settings) require_alike(name + ": " + value);
  by_rank([](int) { return file_record(); });  // refuses ranks that are missing or there twice
}

ZBPP_INLINE void run_folder::refuse_since(std::int64_t step) const {
  if (auto const all = list(true); !all.empty() && all.back() >= step)
    throw error(errc::bad_argument) + folder_.string() + ": has " + name(all.back()) +
        "; resume from there, or choose another folder to begin anew";
}

ZBPP_INLINE std::vector<std::filesystem::path> run_folder::skipped() const {
  std::vector<std::filesystem::path> all;
  for (auto const step : list(false))
    if (step > last_) all.push_back(folder_ / name(step));
  return all;
}

// Reading such might never end, and whoever put it there may want it.
ZBPP_INLINE void run_folder::refuse_strangers() const {
  for (auto const step : steps()) {
    auto const path = folder_ / name(step);
    std::error_code fault;
    if (!std::filesystem::is_directory(path, fault)) detail::refuse_stranger(path, "a folder");
    for (auto const& entry : detail::entries_of(path))
      if (!entry.is_regular_file(fault)) detail::refuse_stranger(entry.path(), "a regular file");
  }
}

// All that is called like a checkpoint; what else lies there is somebody's, and left alone.
ZBPP_INLINE std::vector<std::int64_t> run_folder::steps() const {
  std::vector<std::int64_t> all;
  for (auto const& entry : detail::entries_of(folder_)) {
    auto const file = entry.path().filename().string();
    std::int64_t step = -1;
    if (file.starts_with("step-"))
      std::from_chars(file.data() + 5, file.data() + file.size(), step);
    if (step >= 0 && file == name(step)) all.push_back(step);
  }
  std::ranges::sort(all);
  return all;
}

// The steps of checkpoints that have a manifest, or of those that have none.
ZBPP_INLINE std::vector<std::int64_t> run_folder::list(bool finished) const {
  auto all = steps();
  std::erase_if(all, [&](std::int64_t step) {
    auto const path = folder_ / name(step);
    std::error_code fault;
    if (!std::filesystem::is_directory(path, fault)) return true;
    // A link to nothing, too, has the name: it is refused by who reads it, and not removed.
    auto const found = std::filesystem::symlink_status(path / detail::manifest::file_name, fault);
    if (found.type() == std::filesystem::file_type::none)
      detail::fail(path, "cannot be read", fault);
    return std::filesystem::exists(found) != finished;
  });
  return all;
}

// The manifest goes first: half of a checkpoint must not count.
ZBPP_INLINE void run_folder::remove(std::int64_t step) const {
  auto const path = folder_ / name(step);
  std::error_code fault;
  std::filesystem::remove(path / detail::manifest::file_name, fault);
  if (!fault) sync_folder(path);
  if (!fault) std::filesystem::remove_all(path, fault);
  if (fault) detail::fail(path, "cannot be removed", fault);
}

// Removes what dead programs left unfinished, too.
ZBPP_INLINE void run_folder::make_room(std::int64_t step) const {
  detail::make_folder(folder_);
  refuse_since(step);
  for (auto const unfinished : list(false)) remove(unfinished);
  detail::make_folder(folder_ / name(step));
}

ZBPP_INLINE file_record
run_folder::write(training_state const& state, int rank, std::span<array const> arrays) {
  auto const folder = folder_ / name(state.steps);
  if (std::error_code fault; !std::filesystem::exists(folder, fault))
    throw error(errc::io_failed) + folder.string() +
        ": rank 0 has made it, and it is not there at rank " + rank +
        "; name a folder that all machines share";
  auto const place = static_cast<std::size_t>(rank);
  std::map<std::string, std::string> metadata{{training_key, to_text(state)}};
  for (auto const& each :
       detail::file_identity(run_, state.steps, static_cast<std::size_t>(run_.ranks), place))
    metadata.emplace(each.name, each.value);
  for (auto const& each : arrays) {
    processes_->check();
    metadata.emplace(
        detail::checksum_key(each.name),
        hex_text(checksum_of(std::span<std::byte const>(each.bytes))));
    if (each.part.whole > 0)
      metadata.emplace(detail::part_key(each.name), detail::to_text(each.part));
  }
  return write_arrays(
      folder / detail::rank_file_name(place), arrays, metadata, [&] { processes_->check(); });
}

// What makes it count is the name of the manifest, once the disk has all else.
ZBPP_INLINE void run_folder::finish(
    training_state const& state, std::vector<file_record> files) const {
  auto const path = folder_ / name(state.steps);
  detail::manifest const made{state, run_.split, std::move(files)};
  auto const text = detail::to_text(made, run_.settings);
  try {
    zbpp::detail::require(
        text.size() <= detail::manifest::largest_size,
        "the manifest of a checkpoint has more than 1 MiB; give the run_folder shorter settings");
    auto const model = open_all(made);
    for (auto const& [name, each] : model.arrays()) model.require(each);
  } catch (...) {
    remove(state.steps);
    throw;
  }
  sync_folder(path);
  std::array<std::span<std::byte const>, 1> const pieces{std::as_bytes(std::span(text))};
  write_durably(path / detail::manifest::file_name, pieces);
  sync_folder(path);
  sync_folder(folder_);
  auto old = list(true);
  old.resize(old.size() - std::min<std::size_t>(old.size(), static_cast<std::size_t>(run_.keep)));
  for (auto const step : old) remove(step);
}

ZBPP_INLINE detail::manifest run_folder::read_manifest(
    std::filesystem::path const& of, std::int64_t step, std::string& differences) const {
  detail::regular_file const file(of / detail::manifest::file_name);
  auto const text = file.text(0, std::min(file.size(), detail::manifest::largest_size));
  auto const path = file.path().string();
  auto made = detail::read_manifest(text, path, run_.settings, differences);
  if (made.state.steps != step)
    throw error(errc::bad_format) + path + ": is the one of step " + made.state.steps;
  return made;
}

// Loading and saving judge the files of all ranks by this alone. What a file says of itself is
// believed once its checksum is that of the manifest.
ZBPP_INLINE stored_model run_folder::open_all(detail::manifest const& of) const {
  auto const path = folder_ / name(of.state.steps);
  std::deque<stored_file> files;
  for (std::size_t rank = 0; rank < of.files.size(); ++rank) {
    auto const& file = files.emplace_back(path / detail::rank_file_name(rank));
    if (file.record() == of.files[rank]) continue;
    std::string reason = "its header has another checksum than in the manifest";
    for (auto const& each : detail::file_identity(run_, of.state.steps, of.files.size(), rank)) {
      auto const found = file.header().metadata.find(each.name);
      if (found != file.header().metadata.end() && found->second != each.value)
        reason = "its " + each.name + " is " + found->second + ", here belongs " + each.value;
    }
    detail::refuse_file(file, "is damaged, or of another checkpoint or rank: " + reason);
  }
  return {path, std::move(files)};
}

}  // namespace zbpp::checkpoint

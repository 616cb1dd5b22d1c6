// SPDX-License-Identifier: Apache-2.0
//
// Folders of checkpoints: each damage is refused by name with what to do, and nothing that is not a
// checkpoint's is read, counted or removed.
#include <zbpp/checkpoint/metadata.hpp>
#include <zbpp/checkpoint/run_folder.hpp>
#include <zbpp/io/file.hpp>

#include <support/catch.hpp>
#include <support/checkpointed.hpp>
#include <support/refusal.hpp>
#include <support/scratch_folder.hpp>
#include <support/thinned.hpp>
#include <support/thread_meeting.hpp>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace test_checkpoint_folder {

namespace fs = std::filesystem;
using namespace zbpp::test;
using zbpp::errc;
using zbpp::training_state;
using zbpp::checkpoint::array;
using zbpp::checkpoint::number_type;
using zbpp::checkpoint::run_folder;

namespace {

constexpr std::size_t entries = 5;

std::string text_of(fs::path const& path) { return zbpp::read_file(path); }
void write_text(fs::path const& path, std::string const& text) { zbpp::write_file(path, text); }

/// @return what a run is refused with that loads the newest checkpoint; empty when it is not
std::string refusal_to_load(fs::path const& path, std::string const& width = "32") {
  checkpointed_model model(entries, 9);
  auto const before = model;
  try {
    static_cast<void>(folder_of(path, 1, width).load(model.all()));
    return {};
  } catch (zbpp::error const& refused) {
    CHECK(refused.code() == errc::bad_format);
    CHECK(model == before);
    return refused.what();
  }
}

/// Saves step 6 and 7 as two ranks do.
void save_two(fs::path const& path, std::string const& width = "32") {
  auto folder = folder_of(path, 2, width);
  for (int step = 6; step <= 7; ++step) {
    checkpointed_model model(entries, step);
    REQUIRE(save(folder, step, model, 2));
  }
}

/// Changes a file of the newest checkpoint, and checks that it is refused with all of some words.
class damages {
 public:
  explicit damages(fs::path file) : file_(std::move(file)), whole_(text_of(file_)) {}
  damages(damages const&) = delete;
  damages& operator=(damages const&) = delete;
  ~damages() { write_text(file_, whole_); }

  [[nodiscard]] std::string const& whole() const { return whole_; }
  void check(std::string const& changed, std::string const& word = {}) const {
    write_text(file_, changed);
    auto const newest = file_.parent_path();
    auto const text = refusal_to_load(newest.parent_path());
    CHECK_THAT(text, Catch::StartsWith(file_.string() + ": "));
    CHECK_THAT(text, Catch::Contains(word));
    CHECK_THAT(
        text, Catch::EndsWith("; remove " + newest.string() + " to resume from step-000006"));
  }
  /// Flips a bit of bytes, and cuts the file off before them.
  void check_bytes(std::string const& word = {}) const {
    for (std::size_t at = 0; at < whole_.size(); at += thinned(1, 7)) {
      INFO("byte " << at);
      auto changed = whole_;
      changed[at] = static_cast<char>(changed[at] ^ (1 << (at % 8)));
      check(changed, word);
      check(whole_.substr(0, at), word);
    }
  }

 private:
  fs::path file_;
  std::string whole_;
};

}  // namespace

TEST_CASE("a folder of version 6ed9a29 is loaded, and written as before", "[checkpoint]") {
  auto const stored = fs::path(ZBPP_TEST_DATA_DIR) / "6ed9a29/run";
  checkpointed_model model(entries, 9);
  std::vector<double> divided(6);
  auto all = model.all();
  all.push_back(zbpp::checkpoint::array_of("divided", std::span(divided), {3, 2}));
  CHECK(folder_of(stored, 1).load(all) == training_state{.steps = 7, .updates = 7});
  CHECK(model == checkpointed_model(entries, 7));
  CHECK(divided == std::vector<double>{1, 4, 2, 5, 3, 6});

  scratch_folder const folder;
  std::vector<std::vector<double>> parts{{1, 2, 3}, {4, 5, 6}};
  auto run = folder_of(folder.path(), 2);
  REQUIRE(run.save({.steps = 7, .updates = 7}, [&](int rank) {
    auto own = model.of_rank(rank, 2);
    own.push_back(zbpp::checkpoint::array_of(
        "divided",
        std::span(parts[static_cast<std::size_t>(rank)]),
        {3, 1},
        {.axis = 1, .first = rank, .whole = 2}));
    return own;
  }));
  for (char const* const name : {"manifest.txt", "rank-0.safetensors", "rank-1.safetensors"})
    CHECK(text_of(run.path() / name) == text_of(stored / "step-000007" / name));
}

TEST_CASE("a training state is written as text and read again", "[checkpoint]") {
  using zbpp::checkpoint::to_text;
  using zbpp::checkpoint::to_training;
  training_state state{
      .steps = 9, .updates = 7, .loss_scale = 0.1, .finite_steps = 3, .amended = 5};
  CHECK(to_text(state) == "9 7 0.1 3 5 0");
  for (std::int64_t accumulated : {0, 2})
    for (std::int64_t unagreed : {0, 4}) {
      state.accumulated = accumulated;
      state.unagreed = unagreed;
      CHECK(to_training(to_text(state)) == zbpp::checkpoint::saved_training{state, true});
    }
  CHECK(to_text(state) == "9 7 0.1 3 5 2 4");
  for (std::string const wrong : {"", "9 7 0.1 3", "9 7 0.1 3 5 2 4 1", "9 7 0.1 3 5 2 x"})
    CHECK(to_training(wrong) == std::nullopt);
}

TEST_CASE("a rank loads its part of a checkpoint alone", "[checkpoint]") {
  scratch_folder const folder;
  save_two(folder.path());
  checkpointed_model saved(entries, 7);
  checkpointed_model loaded(entries, 0);
  for (int rank = 0; rank < 4; ++rank) {
    auto from = folder_of(folder.path(), 4);
    CHECK(from.load(loaded.of_rank(rank, 4)) == training_state{.steps = 7, .updates = 7});
    CHECK(from.last() == 7);
    CHECK(from.path() == folder / "step-000007");
    CHECK(from.split().front() == zbpp::checkpoint::setting{"--ranks", "2"});
  }
  CHECK(loaded == saved);
}

TEST_CASE("each damage of a checkpoint is refused by name", "[checkpoint]") {
  scratch_folder const folder;
  save_two(folder.path());
  auto const newest = folder / "step-000007";
  auto const older = folder / "step-000006";
  CHECK(refusal_to_load(folder.path()).empty());
  {
    damages const of(newest / "manifest.txt");
    auto const& whole = of.whole();
    of.check_bytes("is damaged or torn");
    of.check(whole + "\n", "torn");
    of.check(text_of(older / "manifest.txt"), "is the one of step 6");
    // What sums up, and is not as it is written.
    auto const with_checksum = zbpp::checkpoint::detail::with_checksum;
    auto const lines = whole.substr(0, whole.rfind("checksum: "));
    of.check(with_checksum(lines.substr(0, lines.find("rank-1"))), "do not belong");
    of.check(with_checksum(lines + "rank-2.safetensors: 8 bytes\n"), "do not belong");
    of.check(
        with_checksum("zbpp train_gpt checkpoint, version 3\nstep: 7\n"),
        "begins with \"zbpp train_gpt checkpoint, version 3\"; this program reads \"zbpp "
        "checkpoint, version 1\": go on with the program that wrote it");
  }
  for (char const* const name : {"rank-0.safetensors", "rank-1.safetensors"}) {
    damages const of(newest / name);
    of.check_bytes();
    of.check(of.whole() + "12345678", "it is cut off, or not whole");
    of.check(text_of(older / name), "its step is 6, here belongs 7");
  }
  damages(newest / "rank-0.safetensors")
      .check(text_of(newest / "rank-1.safetensors"), "its rank is 1, here belongs 0");
  {
    scratch_folder const other;  // the same step, saved by another number of ranks
    auto saved = folder_of(other.path(), 4);
    checkpointed_model model(entries, 7);
    REQUIRE(save(saved, 7, model, 4));
    damages(newest / "rank-1.safetensors")
        .check(text_of(other / "step-000007/rank-1.safetensors"), "its ranks is 4, here belongs 2");
  }
  {
    scratch_folder const other;  // of a run with other settings
    save_two(other.path(), "64");
    damages(newest / "rank-1.safetensors")
        .check(text_of(other / "step-000007/rank-1.safetensors"), "its run is ");
  }
  CHECK(refusal_to_load(folder.path()).empty());

  CHECK(
      refusal_to_load(folder.path(), "64") ==
      newest.string() +
          ": is of another run: --width was 32 and is 64; resume with the settings it began with, "
          "or choose another folder");
  fs::remove(newest / "manifest.txt");
  checkpointed_model model(entries, 0);
  auto run = folder_of(folder.path(), 2);
  CHECK(run.load(model.all()).steps == 6);  // what has no manifest does not count
  fs::remove(older / "manifest.txt");
  CHECK(run.load(model.all()).steps == 0);
}

TEST_CASE("what is in the place of a file is refused, and not waited for", "[checkpoint]") {
  scratch_folder const folder;
  save_two(folder.path());
  auto const newest = folder / "step-000007";
  for (char const* const name : {"manifest.txt", "rank-0.safetensors"}) {
    auto const at = newest / name;
    auto const check = [&](std::string const& text) {
      CHECK_THAT(
          refusal_to_load(folder.path()),
          Catch::StartsWith(at.string() + ": " + text) && Catch::Contains("remove "));
      fs::remove(at);
    };
    fs::rename(at, folder / "away");
    if (at.extension() != ".txt")  // without it, there is no checkpoint
      check("cannot be read: No such file or directory");
    REQUIRE(::mkfifo(at.c_str(), 0666) == 0);
    check("cannot be read: it is not a regular file");
    fs::create_symlink("nowhere", at);
    check("cannot be read: it is a link to nothing");
    write_text(at, "");
    fs::resize_file(at, std::uintmax_t{1} << 43U);  // more than there is memory
    check("");
    fs::rename(folder / "away", at);
  }
  CHECK(refusal_to_load(folder.path()).empty());
}

TEST_CASE("a checkpoint that lacks what a model has is refused", "[checkpoint]") {
  scratch_folder const folder;
  save_two(folder.path());
  auto const check = [&](std::vector<array> const& all, std::string const& text) {
    auto run = folder_of(folder.path(), 1);
    REQUIRE(run.save({.steps = 8}, [&](int) { return all; }));
    CHECK_THAT(refusal_to_load(folder.path()), Catch::Contains(text));
    fs::remove_all(folder / "step-000008");
  };
  checkpointed_model other(entries, 3);
  auto fewer = other.all();
  fewer.pop_back();
  check(fewer, "step-000008: has no 'block.4.weight', here belongs F32 of 7");
  auto changed = other.all();
  std::vector<float> longer(8);
  changed.back() = zbpp::checkpoint::array_of("block.4.weight", std::span(longer));
  check(changed, "has 'block.4.weight' as F32 of 8, here belongs F32 of 7");
  std::vector<std::int32_t> integers(7);
  changed.back() = zbpp::checkpoint::array_of("block.4.weight", std::span(integers));
  check(changed, "has 'block.4.weight' as I32 of 7, here belongs F32 of 7");
  CHECK(refusal_to_load(folder.path()).empty());
}

TEST_CASE("what no run leaves in a folder is named, and nothing is removed", "[checkpoint]") {
  scratch_folder const folder;
  save_two(folder.path());
  auto const names = [&] {
    std::vector<fs::path> all;
    for (auto const& entry : fs::recursive_directory_iterator(folder.path()))
      if (entry.path().extension() != ".lock") all.push_back(entry.path());
    std::ranges::sort(all);
    return all;
  };
  auto const check = [&](fs::path const& at, std::string const& kind) {
    auto const before = names();
    checkpointed_model model(entries, 0);
    auto const right =
        at.string() + ": is " + kind + ", as it belongs to a checkpoint; move it out of the folder";
    CHECK(refusal([&] { folder_of(folder.path(), 2).begin(); }) == right);
    CHECK(refusal([&] {
            static_cast<void>(folder_of(folder.path(), 2).resume(model.all()));
          }) == right);
    CHECK(names() == before);
    fs::remove(at);
  };
  for (auto const& [at, right] :
       {std::pair(folder / "step-000003", std::string("not a folder")),
        std::pair(folder / "step-000007/rank-2.safetensors", std::string("not a regular file"))}) {
    REQUIRE(::mkfifo(at.c_str(), 0666) == 0);
    check(at, "a pipe, " + right);
    fs::create_symlink("nowhere", at);
    check(at, "a link to nothing, " + right);
  }
  write_text(folder / "step-000003", "notes");
  check(folder / "step-000003", "not a folder");
  fs::create_directory(folder / "step-000007/notes");
  check(folder / "step-000007/notes", "not a regular file");
  auto const lock = folder / "checkpoint.lock";
  fs::remove(lock);
  fs::create_symlink("nowhere", lock);
  CHECK(refusal([&] {
          folder_of(folder.path(), 2).begin();
        }) == lock.string() + ": is a link, and a lock belongs there; move it away");
}

TEST_CASE("the newest checkpoints stay, and no two runs share a folder", "[checkpoint]") {
  scratch_folder const folder;
  fs::create_directory(folder / "step-000099");  // what a dead program left
  write_text(folder / "step-000099/rank-0.safetensors", "half");
  fs::create_directory(folder / "step-5");
  write_text(folder / "notes", "mine");
  checkpointed_model model(entries, 1);
  {
    auto run = folder_of(folder.path(), 2);
    run.begin();
    for (int step = 1; step < 6; ++step) CHECK(save(run, step, model, 2));
    CHECK(refusal([&] {
            static_cast<void>(save(run, 5, model, 2));
          }) == "rank 0: a checkpoint is saved after more steps than the one before");
    auto second = folder_of(folder.path(), 2);
    for (auto const& text : {refusal([&] { second.begin(); }), refusal([&] {
                               static_cast<void>(second.resume(model.all()));
                             })})
      CHECK_THAT(
          text,
          Catch::StartsWith(
              folder.path().string() + ": is in use by another run, process " +
              std::to_string(::getpid()) + " on ") &&
              Catch::EndsWith("; wait until that has ended, or choose another folder"));
  }
  std::vector<std::string> names;
  for (auto const& entry : fs::directory_iterator(folder.path()))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  CHECK(
      names ==
      std::vector<std::string>{"checkpoint.lock", "notes", "step-000004", "step-000005", "step-5"});
  CHECK(
      refusal([&] { folder_of(folder.path(), 2).begin(); }) ==
      folder.path().string() +
          ": has step-000005; resume from there, or choose another folder to begin anew");
  CHECK(folder_of(folder.path(), 2).resume(model.all()).steps == 5);
  run_folder one(folder.path(), {.settings = {{"--width", "32"}, {"--seed", "1"}}, .keep = 1});
  CHECK(one.resume(model.all()).steps == 5);
  CHECK(save(one, 6, model, 1));
  CHECK_FALSE(fs::exists(folder / "step-000005"));
}

TEST_CASE("numbers that are not finite do not become the newest checkpoint", "[checkpoint]") {
  scratch_folder const folder;
  save_two(folder.path());
  checkpointed_model model(entries, 8);
  auto run = folder_of(folder.path(), 2);
  CHECK(run.load(checkpointed_model(entries).all()).steps == 7);
  auto const infinity = std::numeric_limits<float>::infinity();
  for (float const wrong : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
    auto const right = std::exchange(model.entries.back().back(), wrong);
    CHECK_FALSE(save(run, 8, model, 2));
    model.entries.back().back() = right;
  }
  for (auto const& [type, bits] : std::vector<std::pair<number_type, std::uint64_t>>{
           {number_type::f64, 0x7FF0000000000001U},
           {number_type::f16, 0xFC00U},
           {number_type::bf16, 0x7F80U}}) {
    auto number = bits;
    array const wrong{
        "x", type, {}, std::as_writable_bytes(std::span(&number, 1)).first(size_of(type))};
    CHECK_FALSE(run.save({.steps = 8}, [&](int) { return std::vector{wrong}; }));
  }
  CHECK(run.last() == 7);
  CHECK_FALSE(fs::exists(folder / "step-000008"));
  CHECK(save(run, 8, model, 2));
}

TEST_CASE("a full disk costs the checkpoint at hand and no other", "[checkpoint]") {
  scratch_folder const folder;
  save_two(folder.path());
  checkpointed_model model(entries, 8);
  auto run = folder_of(folder.path(), 2);
  auto const handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  for (rlim_t const room : {0U, 100U, 300U}) {
    rlimit limit = before;
    limit.rlim_cur = room;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    auto const text = refusal(errc::io_failed, [&] { static_cast<void>(save(run, 8, model, 2)); });
    ::setrlimit(RLIMIT_FSIZE, &before);
    CHECK_THAT(
        text,
        Catch::StartsWith(
            (folder / "step-000008/rank-0.safetensors").string() + ": cannot be written"));
    CHECK(folder_of(folder.path(), 2).load(checkpointed_model(entries).all()).steps == 7);
  }
  std::signal(SIGXFSZ, handler);
  CHECK(save(run, 8, model, 2));
}

TEST_CASE("a setting that is no line is refused", "[checkpoint]") {
  for (auto const& wrong :
       {zbpp::checkpoint::setting{"a: b", "c"}, zbpp::checkpoint::setting{"a", "b\nc"}})
    CHECK_THAT(
        refusal([&] { run_folder const made("folder", {.settings = {wrong}}); }),
        Catch::StartsWith("the setting '" + wrong.name + "' of a run_folder is no line"));
}

namespace {

/// @return the folder of a process of its own for one rank
template <class End>
run_folder apart(fs::path const& path, int ranks, End& end, std::string const& seed = "1") {
  return {
      path,
      {.settings = {{"--width", "32"}, {"--seed", seed}}, .ranks = ranks},
      std::make_unique<zbpp::checkpoint::ranks_apart<End>>(end)};
}

/// Is an end that says it is rank 1, too, where it is rank 2.
struct twin_of_rank_1 : thread_rendezvous {
  [[nodiscard]] int rank() const { return own == 2 ? 1 : own; }
};

/// @return what each rank is refused with
template <class Act>
std::vector<std::string> refusals(int ranks, errc code, Act const& act) {
  std::vector<std::string> told(static_cast<std::size_t>(ranks));
  in_threads(ranks, [&](thread_rendezvous& end) {
    told[static_cast<std::size_t>(end.rank())] = refusal(code, [&] { act(end); });
  });
  return told;
}

}  // namespace

TEST_CASE("ranks apart save one checkpoint, and notice that they see two folders", "[checkpoint]") {
  constexpr int ranks = 3;
  scratch_folder const folder;
  scratch_folder const other;
  checkpointed_model model(entries, 4);
  std::vector<int> saved(ranks);
  in_threads(ranks, [&](thread_rendezvous& end) {
    auto run = apart(folder.path(), ranks, end);
    run.begin();
    saved[static_cast<std::size_t>(end.rank())] =
        run.save({.steps = 4}, [&](int r) { return model.of_rank(r, ranks); });
  });
  CHECK(saved == std::vector{1, 1, 1});
  checkpointed_model loaded(entries, 0);
  CHECK(folder_of(folder.path(), 1).load(loaded.all()).steps == 4);
  CHECK(loaded == model);

  auto const refused = refusals(ranks, errc::no_agreement, [&](thread_rendezvous& end) {
    auto run = apart(end.rank() == 2 ? other.path() : folder.path(), ranks, end);
    static_cast<void>(run.resume({}));
  });
  for (int rank = 0; rank < ranks; ++rank)
    CHECK(
        refused[static_cast<std::size_t>(rank)] ==
        (rank == 2 ? other : folder).path().string() +
            ": has step-000004 at rank 0 and no checkpoint at rank 2; give all ranks the same run, "
            "and a folder that all machines share");
}

TEST_CASE("ranks apart that differ are refused on all of them", "[checkpoint]") {
  constexpr int ranks = 3;
  scratch_folder const folder;
  checkpointed_model model(entries, 4);
  auto const check = [&](std::string const& right, auto const& act) {
    for (auto const& text : refusals(ranks, errc::no_agreement, act))
      CHECK(text == folder.path().string() + ": " + right);
    CHECK(folder_of(folder.path(), 1).load({}).steps == 0);
  };
  auto const save_as = [&](run_folder run, std::int64_t step) {
    static_cast<void>(run.save({.steps = step}, [&](int rank) {
      return rank < ranks ? model.of_rank(rank, ranks) : std::vector<array>();
    }));
  };
  auto const advice =
      std::string("; give all ranks the same run, and a folder that all machines share");
  check("has --seed: 1 at rank 0 and --seed: 7 at rank 1" + advice, [&](thread_rendezvous& end) {
    apart(folder.path(), ranks, end, end.rank() == 1 ? "7" : "1").begin();
  });
  check(
      "has 3 ranks, 2 settings at rank 0 and 4 ranks, 2 settings at rank 2" + advice,
      [&](thread_rendezvous& end) {
        static_cast<void>(apart(folder.path(), end.rank() == 2 ? 4 : 3, end).resume({}));
      });
  check(
      "has step-000004 at rank 0 and step-000005 at rank 2" + advice, [&](thread_rendezvous& end) {
        save_as(apart(folder.path(), ranks, end), end.rank() == 2 ? 5 : 4);
      });
  auto const have = [](int count, std::string const& own) {
    return "is for " + std::to_string(count) + " ranks, and its processes have rank " + own +
           "; give each rank one process";
  };
  for (int const count : {2, 4})
    for (bool const begins : {false, true})
      check(have(count, "0 1 2"), [&](thread_rendezvous& end) {
        auto run = apart(folder.path(), count, end);
        if (begins)
          run.begin();
        else
          save_as(std::move(run), 4);
      });
  check(have(ranks, "0 1 1"), [&](thread_rendezvous& end) {
    twin_of_rank_1 twin{end};
    save_as(apart(folder.path(), ranks, twin), 4);
  });
}

TEST_CASE(
    "a folder is made where there is none, and all ranks learn why it cannot", "[checkpoint]") {
  constexpr int ranks = 3;
  scratch_folder const folder;
  checkpointed_model model(entries, 4);
  auto const deep = folder / "a/b/checkpoints/";
  in_threads(ranks, [&](thread_rendezvous& end) {
    auto run = apart(deep, ranks, end);
    if (run.resume({}).steps == 0)
      static_cast<void>(run.save({.steps = 4}, [&](int r) { return model.of_rank(r, ranks); }));
  });
  CHECK(folder_of(deep, 1).load(checkpointed_model(entries).all()).steps == 4);
  {
    auto alone = folder_of(folder / "c/d", 1);
    REQUIRE(save(alone, 1, model, 1));  // without `begin`
    CHECK(refusal(errc::io_failed, [&] {
            static_cast<void>(folder_of(folder / "e", 1).load({}));
          }) == (folder / "e").string() + ": cannot be read: No such file or directory");
    CHECK_FALSE(fs::exists(folder / "e"));
  }
  auto const check = [&](errc code, std::string const& right, auto const& act) {
    for (auto const& text : refusals(ranks, code, act)) CHECK_THAT(text, Catch::StartsWith(right));
  };
  write_text(folder / "notes", "mine");
  check(
      errc::io_failed,
      (folder / "notes/a").string() + ": cannot be made: Not a directory",
      [&](thread_rendezvous& end) { apart(folder / "notes/a/b", ranks, end).begin(); });
  check(
      errc::io_failed,
      (folder / "away").string() + ": cannot be read: No such file or directory",
      [&](thread_rendezvous& end) {
        static_cast<void>(apart(end.rank() == 1 ? folder / "away" : deep, ranks, end).resume({}));
      });
  check(
      errc::io_failed,
      (folder / "away/step-000005").string() +
          ": rank 0 has made it, and it is not there at rank 1; name a folder that all machines "
          "share",
      [&](thread_rendezvous& end) {
        auto run = apart(end.rank() == 1 ? folder / "away" : deep, ranks, end);
        static_cast<void>(run.save({.steps = 5}, [&](int r) { return model.of_rank(r, ranks); }));
      });
  check(
      errc::bad_argument, deep.string() + ": has step-000004; resume", [&](thread_rendezvous& end) {
        apart(deep, ranks, end).begin();
      });
  auto holder = folder_of(deep, 1);
  static_cast<void>(holder.resume({}));
  check(
      errc::bad_argument,
      deep.string() + ": is in use by another run, process ",
      [&](thread_rendezvous& end) { static_cast<void>(apart(deep, ranks, end).resume({})); });
  // What one rank asks for, and what it throws.
  auto const other = folder / "other";
  fs::copy(deep, other, fs::copy_options::recursive);
  check(
      errc::bad_format,
      (other / "step-000004").string() + ": has no 'x', here belongs F32 of 1",
      [&](thread_rendezvous& end) {
        float number = 0;
        std::vector<array> wanted;
        if (end.rank() == 2)
          wanted.push_back(zbpp::checkpoint::array_of("x", std::span(&number, 1)));
        static_cast<void>(apart(other, ranks, end).resume(wanted));
      });
  std::vector<std::string> thrown(ranks);
  in_threads(ranks, [&](thread_rendezvous& end) {
    try {
      static_cast<void>(
          apart(other, ranks, end).save({.steps = 9}, [](int rank) -> std::vector<array> {
            if (rank == 1) throw std::runtime_error("no memory of rank 1");
            return {};
          }));
    } catch (std::exception const& wrong) {
      thrown[static_cast<std::size_t>(end.rank())] = wrong.what();
    }
  });
  CHECK(thrown == std::vector<std::string>(ranks, "no memory of rank 1"));
}

TEST_CASE("a checkpoint without a manifest is skipped, and that is told", "[checkpoint]") {
  scratch_folder const folder;
  save_two(folder.path());
  checkpointed_model model(entries, 0);
  CHECK(folder_of(folder.path(), 2).skipped().empty());
  fs::create_directory(folder / "step-000003");  // what is older is not in its place
  fs::remove(folder / "step-000007/manifest.txt");
  {
    auto run = folder_of(folder.path(), 2);
    CHECK(run.resume(model.all()).steps == 6);
    CHECK(run.skipped() == std::vector{folder / "step-000007"});
  }
  fs::remove(folder / "step-000006/manifest.txt");
  auto run = folder_of(folder.path(), 2);
  run.begin();
  CHECK(
      run.skipped() ==
      std::vector{folder / "step-000003", folder / "step-000006", folder / "step-000007"});
  CHECK(save(run, 1, model, 2));
  CHECK(run.skipped().empty());
  CHECK_FALSE(fs::exists(folder / "step-000007"));
}

}  // namespace test_checkpoint_folder

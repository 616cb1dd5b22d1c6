// SPDX-License-Identifier: Apache-2.0
//
// Checks checkpoints: going on from any of them gives the bits of a run that never stopped, on as
// many ranks or on others; each damage is refused by name; neither SIGKILL nor a full disk costs
// more than the steps since the last one. Exit status 1 and a line for each fault. ZBPP_SEED=...
// repeats the random part.
#include "runs.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace gpt {
namespace {

namespace fs = std::filesystem;

int faults = 0;

/// Counts a fault unless `good`, and prints it.
void expect(bool good, std::string const& what) {
  if (good) return;
  ++faults;
  std::printf("FAILED  %s\n", what.c_str());
}

/// Is a new folder that goes with the object.
class scratch_folder {
 public:
  scratch_folder() {
    auto name = (fs::temp_directory_path() / "zbpp-checkpoints-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no scratch folder: " + name);
    path_ = name;
  }
  scratch_folder(scratch_folder const&) = delete;
  scratch_folder& operator=(scratch_folder const&) = delete;
  ~scratch_folder() {
    std::error_code none;
    fs::remove_all(path_, none);
  }

  [[nodiscard]] fs::path const& path() const { return path_; }

 private:
  fs::path path_;
};

constexpr std::int64_t steps = 7;
#ifdef ZBPP_SLOW_BUILD  // a sanitizer, which makes each of them ten times as dear
constexpr std::uint64_t kills = 10;
constexpr std::size_t apart = 7;
#else
constexpr std::uint64_t kills = 40;
constexpr std::size_t apart = 1;  // bytes from one that is damaged to the next
#endif

training settings(optimizer_kind kind = optimizer_kind::adam) {
  training how;
  how.model = {.layers = 4, .width = 32, .context = 16, .sequences = 1};
  how.optimizer.kind = kind;
  how.optimizer.learning_rate = default_rate(kind);
  how.optimizer.steps = steps;
  how.microbatches = 3;
  return how;
}

/// Settings with all that the parameters of one stage may need of others.
training tied_and_clipped() {
  auto how = settings();
  how.model.is_tied = true;
  how.optimizer.needs_norm = true;
  how.optimizer.clip = 1.0;  // that some norms are over
  return how;
}

text make_text() {
  std::vector<std::uint8_t> bytes;
  for (std::uint64_t i = 0; i < 500; ++i)
    bytes.push_back(static_cast<std::uint8_t>(random_bits(7, i / 3) % 7 * 31 + i % 3));
  return text(std::move(bytes));
}

text const learned = make_text();

/// Says how a model is split, and in which order its ranks work.
struct shape {
  char const* policy;
  zbpp::placement where;
};

shape const& v_of_two() {
  static shape const v{"zb_v", zbpp::placement::v_shape(2)};
  return v;
}

/// Is one run with its stages, as `train_gpt` has it.
struct example_run {
  explicit example_run(
      fs::path const& folder,
      training const& settings = gpt::settings(),
      shape const& split = v_of_two())
      : how(settings),
        cut(split),
        stages(make_stages(how, learned, cut.where)),
        save(folder, settings_of(how, learned), 1, cut.policy, cut.where) {}

  /// Trains on, to the end unless `until` says less, and keeps a checkpoint every few steps.
  run_record train(zbpp::training_state const& state, bool keeps, std::int64_t until = gpt::steps) {
    std::vector<zbpp::stage_costs> costs;
    for (auto const& s : stages) {
      costs.push_back(s.sizes());
      costs.back().forward = costs.back().backward_input = costs.back().backward_weight = 1;
    }
    auto const planned = zbpp::make_plan(
        zbpp::find_policy(zbpp::builtin_policies(), cut.policy),
        zbpp::problem(cut.where, how.microbatches, costs),
        {.step = how.optimizer.needs_norm ? zbpp::step_kind::post_validated
                                          : zbpp::step_kind::unchecked});
    return run_pipeline(planned, how, stages, state, until, keeps ? &save : nullptr);
  }

  training how;
  shape cut;
  std::vector<chunk_stage> stages;
  saver save;
};

/// Stops a run after some of its steps and after its last, and lets another one go on.
void check_resuming(training const& how) {
  scratch_folder const none;
  auto const whole = example_run(none.path(), how).train({}, false);
  expect(whole.done() == steps && whole.parameters != 0, "a run takes its steps");
  expect(fs::is_empty(none.path()), "nothing is saved unless asked for");
  for (std::int64_t stop = 1; stop <= steps; stop += 2) {
    scratch_folder const folder;
    auto const at = "stop after step " + std::to_string(stop);
    {
      example_run first(folder.path(), how);
      static_cast<void>(first.train({}, true, stop));
      expect(first.save.last() == stop, at + ": saved at the end");
    }
    example_run second(folder.path(), how);
    auto const from = second.save.resume(second.stages);
    expect(from.steps == stop, at + ": resumed there");
    auto const rest = second.train(from, false);
    bool const same_losses = std::equal(
        rest.losses.begin(),
        rest.losses.end(),
        whole.losses.begin() + stop,
        whole.losses.end(),
        same_bits);
    expect(same_losses, at + ": same losses");
    expect(rest.parameters == whole.parameters, at + ": same parameters");
  }
}

/// Clips some steps and not others: a run goes on after either, with the same bits.
void check_resuming_amended_steps() {
  scratch_folder const none;
  auto how = settings();
  how.optimizer.needs_norm = true;
  how.optimizer.clip = 1e9;
  auto const free = example_run(none.path(), how).train({}, false);
  expect(free.counts.amended == 0, "no norm is over so high a limit");
  how.optimizer.clip = quantile(free.norms);
  auto const clipped = example_run(none.path(), how).train({}, false);
  expect(
      0 < clipped.counts.amended && clipped.counts.amended < clipped.counts.early,
      "some steps are amended");
  check_resuming(how);
}

/// Lets runs of many shapes go on from each other's checkpoints, each by one step.
void check_shapes(training how) {
  how.model.layers = 8;
  using zbpp::placement;
  std::vector<shape> const shapes{
      {"one_f_one_b", placement::linear(1)},
      {"zb_v", placement::v_shape(4)},
      {"zb_h1", placement::linear(2)},
      {"zb_h2", placement::linear(8)},
      {"zb_h1", placement::linear(3)},  // 3, 3 and 2 layers
      {"one_f_one_b", placement::linear(4)},
      {"zb_v", placement::v_shape(2)}};
  scratch_folder const none;
  auto const whole = example_run(none.path(), how, shapes[2]).train({}, false);
  bool const clips = how.optimizer.clip > 0.0;
  expect(!clips || whole.counts.amended > 0, "some steps are clipped");
  auto const expect_same = [&](run_record const& part, std::string const& at) {
    expect(same_losses(part, whole), at + ": same losses");
    expect(part.done() < steps || part.parameters == whole.parameters, at + ": same parameters");
  };
  // One after the other in one folder: each has to read what all before it made of the numbers.
  scratch_folder const folder;
  std::int64_t done = 0;
  for (auto const& cut : shapes) {
    example_run run(folder.path(), how, cut);
    auto const from = run.save.begin(run.stages, true);
    auto const at =
        std::to_string(cut.where.ranks()) + " ranks, after step " + std::to_string(done);
    expect(from.steps == done, at + ": resumed there");
    expect_same(run.train(from, true, ++done), at);
  }
  // From one shape to each other.
  for (auto const& first : shapes) {
    scratch_folder const one;
    static_cast<void>(example_run(one.path(), how, first).train({}, true, steps - 1));
    for (auto const& second : shapes) {
      example_run run(one.path(), how, second);
      auto const from = run.save.resume(run.stages);
      auto const at = std::to_string(first.where.ranks()) + " ranks and then " +
                      std::to_string(second.where.ranks());
      expect(from.steps == steps - 1, at + ": resumed");
      expect_same(run.train(from, false), at);
    }
  }
}

std::string read(fs::path const& path) { return zbpp::read_file(path); }
void write(fs::path const& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// @return what a run says that is asked to resume; empty when it does
std::string refusal(example_run& run) {
  try {
    static_cast<void>(run.save.resume(run.stages));
    return {};
  } catch (setting_error const& refused) {
    return refused.what();
  }
}

/// Expects a refusal that names all of some words.
void expect_refused(
    std::string const& what, std::string const& says, std::vector<std::string> const& words) {
  expect(!says.empty(), what + " is refused");
  for (auto const& w : words)
    expect(says.find(w) != std::string::npos, what + ": \"" + w + "\" is not in \"" + says + "\"");
}

/// @return the digest of the parameters of a run
std::uint64_t digest_of(example_run const& run) {
  std::uint64_t sum = 0;
  for (auto const& s : run.stages) sum += digest(s.model().parameters());
  return sum;
}

/// @return how many bytes of a rank's file are before its arrays
std::size_t header_size(std::string const& file) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  return static_cast<std::size_t>(sizeof(length) + length);
}

/// Changes a file, expects a refusal, and puts the file back.
void check_damage(
    example_run& run,
    fs::path const& file,
    std::string const& what,
    std::string const& bytes,
    std::vector<std::string> words) {
  auto const whole = read(file);
  write(file, bytes);
  words.push_back("remove " + file.parent_path().string() + " to resume from step-000006");
  words.push_back(file.filename().string());
  expect_refused(file.filename().string() + " " + what, refusal(run), words);
  write(file, whole);
}

std::string with_flipped_bit(std::string bytes, std::size_t at) {
  bytes[at] = static_cast<char>(bytes[at] ^ (1 << (at % 8)));
  return bytes;
}

/// Damages each region of a checkpoint: all of the small ones, samples of the arrays.
void check_damages() {
  scratch_folder const scratch;
  auto const& folder = scratch.path();
  static_cast<void>(example_run(folder).train({}, true));
  example_run run(folder);
  auto const newest = folder / "step-000007";
  auto const older = folder / "step-000006";
  expect(refusal(run).empty(), "a whole checkpoint is taken");

  auto const list = newest / "manifest.txt";
  auto const lines = read(list);
  for (std::size_t at = 0; at < lines.size(); at += apart) {
    check_damage(run, list, "byte " + std::to_string(at), with_flipped_bit(lines, at), {});
    check_damage(run, list, "cut at " + std::to_string(at), lines.substr(0, at), {"torn"});
  }
  check_damage(run, list, "longer", lines + "\n", {"torn"});
  check_damage(run, list, "of another step", read(older / "manifest.txt"), {"step 6"});
  // One that sums up, and is not as the program writes it.
  auto const cut = lines.substr(0, lines.find("rank-1.bin"));
  check_damage(run, list, "without a rank", with_checksum(cut), {"rank-1.bin"});
  auto const more = lines.substr(0, lines.rfind("checksum: ")) + "rank-2.bin: 8 bytes\n";
  check_damage(run, list, "with a rank too many", with_checksum(more), {"do not belong"});
  check_damage(
      run,
      list,
      "of another version",
      with_checksum("zbpp train_gpt checkpoint, version 2\nstep: 7\n"),
      {"version 2", "version 3", "the program that wrote it"});

  for (char const* const name : {"rank-0.bin", "rank-1.bin"}) {
    auto const file = newest / name;
    auto const bytes = read(file);
    auto const header = header_size(bytes);
    std::vector<std::size_t> places;
    for (std::size_t at = 0; at < 300; at += apart) places.push_back(at);
    for (std::size_t at = header - 50; at < header + 16; at += apart) places.push_back(at);
    for (std::uint64_t i = 0; i < 40; i += apart)
      places.push_back(static_cast<std::size_t>(random_bits(3, i) % bytes.size()));
    for (std::size_t back = 1; back <= 16; ++back) places.push_back(bytes.size() - back);
    for (auto const at : places) {
      auto const place = std::to_string(at);
      check_damage(run, file, "byte " + place, with_flipped_bit(bytes, at), {"damaged"});
      check_damage(run, file, "cut at " + place, bytes.substr(0, at), {"torn"});
    }
    check_damage(run, file, "longer", bytes + "12345678", {"torn"});
    check_damage(run, file, "empty", "", {"torn"});
    check_damage(run, file, "of another step", read(older / name), {"step is 6, here belongs 7"});
    check_damage(run, file, "without its arrays", bytes.substr(0, header), {"torn"});
    fs::rename(file, folder / "away");
    expect_refused("without a file", refusal(run), {file.string() + " is missing", "step-000006"});
    fs::rename(folder / "away", file);
  }

  auto const zero = newest / "rank-0.bin";
  auto const one = newest / "rank-1.bin";
  check_damage(run, zero, "of another rank", read(one), {"rank is 1, here belongs 0"});
  {  // the same step, saved by another number of ranks
    scratch_folder const other;
    shape const line{"zb_h1", zbpp::placement::linear(4)};
    static_cast<void>(example_run(other.path(), settings(), line).train({}, true));
    check_damage(
        run,
        one,
        "of another split",
        read(other.path() / "step-000007" / "rank-1.bin"),
        {"ranks is 4, here belongs 2"});
  }
  {  // the same step of a run with another seed, whose files have the same sizes
    scratch_folder const other;
    auto how = settings();
    how.seed = 99;
    static_cast<void>(example_run(other.path(), how).train({}, true));
    check_damage(
        run, one, "of another run", read(other.path() / "step-000007" / "rank-1.bin"), {"run"});
  }
  expect(refusal(run).empty(), "the checkpoint is whole again");

  auto how = settings();
  how.model.width = 64;
  how.seed = 5;
  example_run another(folder, how);
  expect_refused(
      "another run",
      refusal(another),
      {"--width was 32 and is 64", "--seed was 1 and is 5", newest.string()});

  fs::remove(list);
  expect(run.save.resume(run.stages).steps == 6, "a folder without a manifest does not count");
  fs::remove(older / "manifest.txt");
  expect(run.save.resume(run.stages).steps == 0, "without any, a run begins anew");
}

/// Gives checkpoints files that are whole, and have not what the model has: a run says what and
/// where, and has then changed nothing.
void check_misfits() {
  scratch_folder const scratch;
  example_run run(scratch.path());
  static_cast<void>(run.train({}, true));
  checkpoints const to(
      scratch.path(), settings_of(run.how, learned), split_of("zb_h1", zbpp::placement::linear(2)));
  auto const all = arrays_of(run.stages, [](int) { return true; });
  auto const before = digest_of(run);
  auto const expect_misfit = [&](std::string const& what,
                                 std::vector<named_array> const& first,
                                 std::vector<named_array> const& second,
                                 std::vector<std::string> const& words) {
    to.begin(steps + 1);
    auto const nothing = [] {};
    std::vector<file_record> files{to.write(steps + 1, 0, first, nothing)};
    files.push_back(to.write(steps + 1, 1, second, nothing));
    to.finish({.steps = steps + 1}, files);
    expect_refused(what, refusal(run), words);
    expect(digest_of(run) == before, what + ": nothing is changed");
    fs::remove_all(scratch.path() / "step-000008");
  };
  // The numbers are others, so that what is read early would be seen.
  std::vector<std::vector<float>> numbers;
  std::vector<named_array> others;
  for (auto const& a : all) others.push_back({a.name, numbers.emplace_back(a.values.size(), 3.0F)});
  std::vector<named_array> const none;
  auto fewer = others;
  fewer.pop_back();
  auto const& name = all.back().name;
  expect_misfit("an array missing", fewer, none, {"step-000008 has no \"" + name + "\""});
  expect_misfit(
      "an array twice", others, {others.back()}, {"rank-1.bin has \"" + name, "elsewhere, too"});
  auto larger = others;
  numbers.emplace_back(larger.back().values.size() + 1);
  larger.back().values = numbers.back();
  expect_misfit(
      "an array of another size",
      larger,
      none,
      {"rank-0.bin has " + std::to_string(larger.back().values.size()) + " floats of \"" + name,
       "here belong " + std::to_string(all.back().values.size())});
  expect(refusal(run).empty(), "the checkpoint before is whole");
}

/// @return what a run says that is to begin; empty when it does
std::string refusal_to_begin(fs::path const& folder, bool resumes) {
  try {
    example_run run(folder);
    static_cast<void>(run.save.begin(run.stages, resumes));
    return {};
  } catch (setting_error const& refused) {
    return refused.what();
  }
}

/// Puts into the folder what no run leaves there: it is named, and nothing is removed.
void check_strangers() {
  scratch_folder const scratch;
  auto const& folder = scratch.path();
  static_cast<void>(example_run(folder).train({}, true));
  auto const newest = folder / "step-000007";
  auto const names = [&] {
    std::vector<fs::path> all;
    for (auto const& entry : fs::recursive_directory_iterator(folder))
      if (entry.path().filename() != folder_lock::file_name) all.push_back(entry.path());
    std::sort(all.begin(), all.end());
    return all;
  };
  auto const expect_named = [&](fs::path const& at, std::string const& what) {
    auto const before = names();
    for (bool const resumes : {false, true})
      expect_refused(what, refusal_to_begin(folder, resumes), {at.string() + " is " + what});
    expect(names() == before, what + ": nothing was removed");
    fs::remove(at);
  };
  for (auto const& at : {folder / "step-000003", newest / "rank-2.bin"}) {
    expect(::mkfifo(at.c_str(), 0666) == 0, "a pipe is made");
    expect_named(at, "a pipe");
    fs::create_symlink("nowhere", at);
    expect_named(at, "a link to nothing");
  }
  write(folder / "step-000003", "mine");
  expect_named(folder / "step-000003", "not a folder");
  fs::create_directory(newest / "mine");
  expect_named(newest / "mine", "not a regular file");

  // In the place of the files themselves, which were whole when the run began.
  example_run run(folder);
  for (char const* const name : {"manifest.txt", "rank-0.bin"}) {
    auto const at = newest / name;
    fs::rename(at, folder / "away");
    expect(::mkfifo(at.c_str(), 0666) == 0, "a pipe is made");
    expect_refused("a pipe", refusal(run), {at.string() + " is not a regular file"});
    fs::remove(at);
    fs::create_symlink("nowhere", at);
    expect_refused("a link", refusal(run), {at.string() + " is a link to nothing"});
    fs::remove(at);
    write(at, "");
    fs::resize_file(at, std::uintmax_t{1} << 43U);  // more than there is memory
    expect_refused("a sparse file", refusal(run), {at.string(), "torn"});
    fs::remove(at);
    fs::rename(folder / "away", at);
  }
  expect(refusal(run).empty(), "the checkpoint is whole again");
}

/// Trains until the numbers are none: the last good checkpoints stay.
void check_divergence() {
  scratch_folder const scratch;
  example_run run(scratch.path());
  static_cast<void>(run.train({}, true));
  for (float const value : {std::numeric_limits<float>::quiet_NaN(), HUGE_VALF, -HUGE_VALF})
    for (bool const is_mean : {false, true}) {
      auto const all = run.stages.back().state();
      auto& one = (is_mean ? all.mean : all.parameters).back();
      auto const was = std::exchange(one, value);
      for (std::int64_t step = steps + 1; step < steps + 4; ++step)
        expect(
            run.save.save({.steps = step}, run.stages).find("nan or infinite") != std::string::npos,
            "it is told that there is no checkpoint");
      one = was;
    }
  expect(run.save.last() == steps, "the last good checkpoint is the newest");
  expect(fs::exists(scratch.path() / "step-000006"), "and the one before is there, too");
  expect(refusal(run).empty(), "training can go on from there");
}

/// Checks which folders stay, and that no two runs share one.
void check_keeping() {
  scratch_folder const scratch;
  auto const& folder = scratch.path();
  fs::create_directory(folder / "step-000099");
  write(folder / "step-000099" / "rank-0.bin", "half");
  fs::create_directory(folder / "step-5");
  write(folder / "notes", "mine");
  {
    example_run run(folder);
    static_cast<void>(run.save.begin(run.stages, false));
    static_cast<void>(run.train({}, true));
    for (bool const resumes : {false, true})
      expect_refused(
          "a second run",
          refusal_to_begin(folder, resumes),
          {folder.string() + " is in use", "process " + std::to_string(::getpid()) + " on "});
  }
  std::vector<std::string> names;
  for (auto const& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  expect(
      names ==
          std::vector<std::string>{
              "notes", "step-000006", "step-000007", "step-5", "train_gpt.lock"},
      "two checkpoints stay, and what is not ours");
  expect_refused("a new run among checkpoints", refusal_to_begin(folder, false), {"step-000007"});
  expect(refusal_to_begin(folder, true).empty(), "an ended run holds no folder");
}

/// Reads what one rank needs into the stages of that rank alone, as its own process would.
void check_one_rank() {
  scratch_folder const scratch;
  example_run run(scratch.path());
  auto const trained = run.train({}, true);
  std::uint64_t parameters = 0;
  auto const line = zbpp::placement::linear(4);
  checkpoints const from(scratch.path(), settings_of(run.how, learned), split_of("zb_h1", line));
  auto const newest = from.read_manifest(steps);
  expect(newest.split == split_of("zb_v", v_of_two().where), "the manifest tells who saved it");
  for (int rank = 0; rank < line.ranks(); ++rank) {
    auto own = make_stages(run.how, learned, line, rank);
    expect(own.size() == 1, "a rank has its chunk and no other");
    from.read(newest, arrays_of(own, [](int) { return true; }));
    for (auto const& s : own) parameters += digest(s.model().parameters());
  }
  expect(parameters == trained.parameters, "digests of ranks add up to that of the model");
  sequential_trainer whole(run.how, learned);
  for (std::int64_t i = 0; i < steps; ++i) static_cast<void>(whole.step());
  expect(
      digest(whole.model().parameters()) == trained.parameters, "so does that of the whole model");
}

/// Fills the disk while a file of a checkpoint is written.
void check_full_disk() {
  scratch_folder const scratch;
  example_run run(scratch.path());
  static_cast<void>(run.train({}, true));
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  for (rlim_t const room : {0U, 100U, 100'000U}) {
    rlimit limit = before;
    limit.rlim_cur = room;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::string says;
    try {
      static_cast<void>(run.save.save({.steps = 8}, run.stages));
    } catch (zbpp::error const& failed) {
      says = failed.what();
    }
    ::setrlimit(RLIMIT_FSIZE, &before);
    expect_refused("a full disk", says, {(scratch.path() / "step-000008" / "rank-0.bin").string()});
    example_run next(scratch.path());
    expect(next.save.resume(next.stages).steps == 7, "the checkpoint before is whole");
    expect(next.save.last() == 7, "the one that failed does not count");
  }
  static_cast<void>(run.save.save({.steps = 8}, run.stages));
  expect(run.save.last() == 8, "with room again, the next one is written");
}

/// Waits; a random time is what a kill at a random point needs.
void pause(std::uint64_t nanoseconds) {
  timespec const time{0, static_cast<long>(nanoseconds)};
  ::nanosleep(&time, nullptr);
}

/// Writes one checkpoint after the other, filled with their step, and tells each to a pipe.
[[noreturn]] void save_until_killed(fs::path const& folder, shape const& split, int told) noexcept {
  ::alarm(60);  // whatever happens, it does not outlive the test
  example_run run(folder, settings(), split);
  for (auto step = run.save.resume(run.stages).steps + 1;; ++step) {
    for (auto const& array : arrays_of(run.stages, [](int) { return true; }))
      std::ranges::fill(array.values, static_cast<float>(step));
    static_cast<void>(run.save.save({.steps = step}, run.stages));
    if (::write(told, &step, sizeof(step)) != sizeof(step)) ::_exit(1);
  }
}

/// Starts a program that saves, and kills it some saves and a random time later.
/// @return the last step that it told, or `before`
std::int64_t kill_one(
    fs::path const& folder, shape const& split, std::uint64_t random, std::int64_t before) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) throw std::runtime_error("no pipe");
  auto const child = ::fork();
  if (child < 0) throw std::runtime_error("no process");
  if (child == 0) save_until_killed(folder, split, ends[1]);
  ::close(ends[1]);
  auto told = before;
  auto const hear = [&] { return ::read(ends[0], &told, sizeof(told)) == sizeof(told); };
  for (auto saves = random % 4; saves > 0; --saves)
    expect(hear(), "a run saves until it is killed");
  pause(random_bits(random) % 6'000'000);  // a save takes about so long
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "it ran until it was killed");
  while (hear()) {
  }
  ::close(ends[0]);
  return told;
}

/// Kills programs that write checkpoints, each with another split, at random points: what remains
/// is always whole, and holds what it was when that step was saved.
void check_kills(std::uint64_t seed) {
  scratch_folder const scratch;
  std::vector<shape> const shapes{
      v_of_two(), {"zb_h1", zbpp::placement::linear(4)}, {"zb_h1", zbpp::placement::linear(1)}};
  std::int64_t saved = 0;
  for (std::uint64_t kill = 0; kill < kills; ++kill) {
    auto const& split = shapes[static_cast<std::size_t>(kill % shapes.size())];
    auto const told = kill_one(scratch.path(), split, random_bits(seed, kill), saved);
    example_run next(scratch.path());
    auto const at = "kill " + std::to_string(kill);
    auto const says = refusal(next);
    expect(says.empty(), at + ": " + says);
    saved = next.save.last();
    expect(told <= saved && saved <= told + 1, at + ": at most the step at hand is lost");
    for (auto const& array : arrays_of(next.stages, [](int) { return true; }))
      expect(
          saved == 0 || std::ranges::count(array.values, static_cast<float>(saved)) ==
                            std::ssize(array.values),
          at + ": " + array.name + " is of that step");
  }
  std::printf(
      "%d kills, %lld checkpoints\n", static_cast<int>(kills), static_cast<long long>(saved));
}

}  // namespace
}  // namespace gpt

int main() {
  auto const* const given = std::getenv("ZBPP_SEED");
  auto const seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 20241117ULL;
  std::printf("ZBPP_SEED=%llu\n", seed);
  std::fflush(stdout);
  try {
    gpt::check_kills(seed);  // first: there are no threads yet that a fork would lose
    gpt::check_resuming(gpt::settings(gpt::optimizer_kind::adam));
    gpt::check_resuming(gpt::settings(gpt::optimizer_kind::sgd));
    gpt::check_resuming_amended_steps();
    gpt::check_shapes(gpt::settings(gpt::optimizer_kind::sgd));
    gpt::check_shapes(gpt::tied_and_clipped());
    gpt::check_damages();
    gpt::check_misfits();
    gpt::check_one_rank();
    gpt::check_keeping();
    gpt::check_strangers();
    gpt::check_divergence();
    gpt::check_full_disk();
  } catch (std::exception const& failed) {
    gpt::expect(false, failed.what());
  }
  std::printf(
      "%s\n", gpt::faults == 0 ? "checkpoints: all as it should be" : "checkpoints: faults");
  return gpt::faults == 0 ? 0 : 1;
}

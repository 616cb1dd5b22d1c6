// SPDX-License-Identifier: Apache-2.0
//
// Checks checkpoints of the trainer: going on from any of them gives the bits of a run that never
// stopped, on as many ranks or on others. What zbpp's checkpoints promise is tested in tests/, and
// what the program does with them in check.sh. Exit status 1 and a line for each fault.
#include "runs.hpp"
#include <zbpp/plan.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <unistd.h>
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

training settings(optimizer_kind kind) {
  training how;
  how.model = {.layers = 8, .width = 32, .context = 16, .sequences = 1};
  how.optimizer.kind = kind;
  how.optimizer.learning_rate = default_rate(kind);
  how.optimizer.steps = steps;
  how.microbatches = 3;
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

std::vector<shape> const shapes{
    {"one_f_one_b", zbpp::placement::linear(1)},
    {"zb_v", zbpp::placement::v_shape(4)},
    {"zb_h1", zbpp::placement::linear(2)},
    {"zb_h2", zbpp::placement::linear(8)},
    {"zb_h1", zbpp::placement::linear(3)},  // 3, 3 and 2 layers
    {"one_f_one_b", zbpp::placement::linear(4)},
    {"zb_v", zbpp::placement::v_shape(2)}};
// Where the head is divided into two shards.
std::vector<shape> const shapes_with_shards{
    {"zb_v", zbpp::placement::v_shape(2)}, {"interleaved_zb", zbpp::placement::looped(2, 2)}};

/// Is one run with its stages, as `train_gpt` has it.
struct example_run {
  example_run(fs::path const& folder, training const& settings, shape const& split)
      : how(settings),
        cut(split),
        stages(make_stages(how, learned, cut.where)),
        save(folder, how, settings_of(how, learned), 1, cut.policy, cut.where) {}

  /// Trains on, and keeps a checkpoint of each step.
  run_record train(zbpp::training_state const& state, bool keeps, std::int64_t until = gpt::steps) {
    std::vector<zbpp::stage_costs> costs;
    for (auto const& s : stages) {
      costs.push_back(s.sizes());
      costs.back().forward = costs.back().backward_input = costs.back().backward_weight = 1;
    }
    auto const planned = zbpp::make_plan(
        zbpp::find_policy(cut.policy),
        zbpp::problem(cut.where, how.microbatches, costs),
        {.step = how.optimizer.needs_norm ? zbpp::step_kind::post_validated
                                          : zbpp::step_kind::unchecked});
    return run_pipeline(
        planned, how, zbpp::threads{}, stages, state, until, keeps ? &save : nullptr);
  }

  training how;
  shape cut;
  std::vector<chunk_stage> stages;
  saver save;
};

/// Runs to the end without a stop, and saves nothing.
run_record run_whole(training const& how, shape const& cut = shapes[2]) {
  scratch_folder const folder;
  auto whole = example_run(folder.path(), how, cut).train({}, false);
  expect(whole.done() == steps && whole.parameters != 0, "a run takes its steps");
  expect(fs::is_empty(folder.path()), "nothing is saved unless asked for");
  return whole;
}

/// Gives settings with all that the parameters of one stage may need of others; some steps are
/// clipped, and some are not.
training tied_and_clipped() {
  auto how = settings(optimizer_kind::adam);
  how.model.is_tied = true;
  how.optimizer.needs_norm = true;
  how.optimizer.clip = 1e9;
  auto const free = run_whole(how);
  expect(free.counts.amended == 0, "no norm is over so high a limit");
  how.optimizer.clip = 0.95 * *std::ranges::max_element(free.norms);
  auto const clipped = run_whole(how);
  expect(
      0 < clipped.counts.amended && clipped.counts.amended < clipped.counts.early,
      "some steps are amended");
  return how;
}

training with_shards() {
  auto how = settings(optimizer_kind::adam);
  how.model.shards = 2;
  return how;
}

/// Lets runs of many shapes go on from each other's checkpoints.
void check_shapes(training const& how, std::vector<shape> const& cuts = shapes) {
  auto const whole = run_whole(how, cuts.back());
  auto const go_on = [&](fs::path const& folder,
                         shape const& cut,
                         std::int64_t done,
                         bool keeps,
                         std::int64_t until) {
    example_run run(folder, how, cut);
    auto const from = run.save.begin(run.stages, true);
    auto const at =
        std::to_string(cut.where.ranks()) + " ranks, after step " + std::to_string(done);
    expect(from.steps == done, at + ": resumed there");
    auto const part = run.train(from, keeps, until);
    expect(part.done() == until && same_losses(part, whole), at + ": same losses");
    expect(until < steps || part.parameters == whole.parameters, at + ": same parameters");
    expect(!keeps || run.save.last() == until, at + ": saved at the end");
  };
  // One after the other in one folder: each has to read what all before it made of the numbers.
  scratch_folder const folder;
  for (std::int64_t done = 0; done < steps; ++done)
    go_on(folder.path(), cuts[static_cast<std::size_t>(done) % cuts.size()], done, true, done + 1);
  go_on(folder.path(), cuts.front(), steps, true, steps);
  // From one shape to each.
  for (auto const& first : cuts) {
    scratch_folder const one;
    go_on(one.path(), first, 0, true, steps - 1);
    for (auto const& second : cuts) go_on(one.path(), second, steps - 1, false, steps);
  }
}

/// Reads what one rank needs into the stages of that rank alone, as its own process would.
void check_one_rank() {
  scratch_folder const scratch;
  auto const how = settings(optimizer_kind::adam);
  auto const trained = example_run(scratch.path(), how, shapes.back()).train({}, true);
  std::uint64_t parameters = 0;
  auto const line = zbpp::placement::linear(4);
  for (int rank = 0; rank < line.ranks(); ++rank) {
    auto own = make_stages(how, learned, line, zbpp::grid_coordinates{.pipeline = rank});
    expect(own.size() == 1, "a rank has its chunk and no other");
    saver from(scratch.path(), how, settings_of(how, learned), 1, "zb_h1", line);
    expect(from.begin(own, true).steps == steps, "it finds the newest checkpoint");
    expect(
        from.resumed_text().ends_with("step-000007, of --ranks 2 --policy zb_v"),
        "it tells who saved it: " + from.resumed_text());
    parameters += digest(own);
  }
  expect(parameters == trained.parameters, "digests of ranks add up to that of the model");
  sequential_trainer whole(how, learned);
  for (std::int64_t i = 0; i < steps; ++i) static_cast<void>(whole.step());
  expect(
      digest(whole.model().parameters()) == trained.parameters, "so does that of the whole model");
}

}  // namespace
}  // namespace gpt

int main() {
  try {
    gpt::check_shapes(gpt::settings(gpt::optimizer_kind::sgd));
    gpt::check_shapes(gpt::tied_and_clipped());
    gpt::check_shapes(gpt::with_shards(), gpt::shapes_with_shards);
    gpt::check_one_rank();
  } catch (std::exception const& failed) {
    gpt::expect(false, failed.what());
  }
  std::printf(
      "%s\n", gpt::faults == 0 ? "checkpoints: all as it should be" : "checkpoints: faults");
  return gpt::faults == 0 ? 0 : 1;
}

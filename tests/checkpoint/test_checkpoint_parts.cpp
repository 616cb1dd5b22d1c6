// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints whose arrays ranks have in parts: however the members of a tensor group divide them,
// and whichever replica keeps a moment, any other grid loads the same bits; parts that are missing,
// or do not fit each other, are refused by name, when they are saved as when they are loaded.
#include <zbpp/checkpoint/metadata.hpp>
#include <zbpp/checkpoint/run_folder.hpp>
#include <zbpp/checkpoint/stored_model.hpp>
#include <zbpp/io/checksum.hpp>
#include <zbpp/io/file.hpp>
#include <zbpp/optim/adamw.hpp>
#include <zbpp/runtime/in_process_grid.hpp>
#include <zbpp/zbpp.hpp>

#include <support/catch.hpp>
#include <support/checked_model.hpp>
#include <support/refusal.hpp>
#include <support/scratch_folder.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>
#include <support/thread_meeting.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace test_checkpoint_parts {

using namespace zbpp::test;
using zbpp::errc;
using zbpp::grid_place;
using zbpp::in_process_grid;
using zbpp::pipeline;
using zbpp::threads;
using zbpp::training_state;
using zbpp::checkpoint::array;
using zbpp::checkpoint::array_part;
using zbpp::checkpoint::number_type;
using zbpp::checkpoint::run_folder;

namespace {

// An array of the model, all of it.
struct whole_array {
  std::string name;
  number_type type;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

// A part of it, with bytes of its own.
struct own_array {
  std::vector<std::byte> bytes;
  array described;
};

std::int64_t count_of(std::vector<std::int64_t> const& shape) {
  std::int64_t count = 1;
  for (auto const length : shape) count *= length;
  return count;
}

// Takes the elements of a part one by one.
own_array cut(whole_array const& from, int axis, std::int64_t first, std::int64_t count) {
  own_array part;
  auto shape = from.shape;
  auto const a = static_cast<std::size_t>(axis);
  shape[a] = count;
  auto const size = zbpp::checkpoint::size_of(from.type);
  auto const inner = count_of({from.shape.begin() + axis + 1, from.shape.end()});
  for (std::int64_t i = 0; i < count_of(from.shape); ++i) {
    auto const along = i / inner % from.shape[a];
    if (along < first || along >= first + count) continue;
    auto const at = from.bytes.begin() + i * static_cast<std::int64_t>(size);
    part.bytes.insert(part.bytes.end(), at, at + static_cast<std::int64_t>(size));
  }
  part.described = {from.name, from.type, shape, {}, {axis, first, from.shape[a]}};
  return part;
}

own_array all_of(whole_array const& from) {
  return {from.bytes, {from.name, from.type, from.shape, {}}};
}

array view_of(own_array& of) {
  auto described = of.described;
  described.bytes = of.bytes;
  return described;
}

template <class Random>
whole_array random_array(Random& random, std::string name, std::int64_t least = 1) {
  whole_array made{.name = std::move(name), .type = {}, .shape = {}, .bytes = {}};
  made.type = static_cast<number_type>(random.integer(8, 11));  // integers
  for (auto axes = random.integer(1, 4); axes > 0; --axes)
    made.shape.push_back(random.integer(least, 6));
  made.bytes.resize(
      static_cast<std::size_t>(count_of(made.shape)) * zbpp::checkpoint::size_of(made.type));
  for (auto& byte : made.bytes) byte = static_cast<std::byte>(random.integer(0, 255));
  return made;
}

// Divides an array among some of the ranks, one of which may get nothing of it.
template <class Random>
void divide(Random& random, whole_array const& from, std::vector<std::vector<own_array>>& by_rank) {
  auto const ranks = static_cast<std::int64_t>(by_rank.size());
  auto const some_rank = [&] { return static_cast<std::size_t>(random.integer(0, ranks - 1)); };
  if (from.bytes.empty() || random.integer(0, 2) == 0)
    return by_rank[some_rank()].push_back(all_of(from));
  auto const axis =
      static_cast<int>(random.integer(0, static_cast<std::int64_t>(from.shape.size()) - 1));
  auto const length = from.shape[static_cast<std::size_t>(axis)];
  std::vector<std::int64_t> cuts{0, length};
  for (auto more = random.integer(0, ranks - 1); more > 0; --more)
    cuts.push_back(random.integer(0, length));
  std::ranges::sort(cuts);
  auto const first = some_rank();
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
    by_rank[(first + i) % by_rank.size()].push_back(
        cut(from, axis, cuts[i], cuts[i + 1] - cuts[i]));
}

std::vector<zbpp::checkpoint::setting> const settings{{"a", "b"}};

run_folder folder_for(
    std::filesystem::path const& path,
    int ranks,
    std::unique_ptr<zbpp::checkpoint::process_group> processes =
        std::make_unique<zbpp::checkpoint::process_group>()) {
  return {path, {.settings = settings, .ranks = ranks}, std::move(processes)};
}

std::vector<array> views_of(std::vector<own_array>& all) {
  std::vector<array> views;
  for (auto& each : all) views.push_back(view_of(each));
  return views;
}

// Saves what ranks have as the next step.
void save(
    std::filesystem::path const& path,
    std::int64_t step,
    std::vector<std::vector<own_array>> by_rank) {
  auto folder = folder_for(path, static_cast<int>(by_rank.size()));
  REQUIRE(folder.save({.steps = step}, [&](int rank) {
    return views_of(by_rank[static_cast<std::size_t>(rank)]);
  }));
}

using parts = std::vector<std::vector<own_array>>;  // by rank

// Writes what ranks have as a checkpoint, which nothing judges.
void forge(std::filesystem::path const& path, std::int64_t step, parts by_rank) {
  namespace detail = zbpp::checkpoint::detail;
  auto const folder = path / run_folder::name(step);
  std::filesystem::create_directories(folder);
  detail::manifest made{{.steps = step}, {}, {}};
  for (auto& own : by_rank) {
    std::map<std::string, std::string> metadata;
    for (auto const& [bytes, described] : own) {
      auto const& name = described.name;
      auto const sum = zbpp::checksum_of(std::span<std::byte const>(bytes));
      metadata[detail::checksum_key(name)] = zbpp::hex_text(sum);
      auto const& part = described.part;
      if (part.whole > 0) metadata[detail::part_key(name)] = detail::to_text(part);
    }
    made.files.push_back(
        write_arrays(folder / detail::rank_file_name(made.files.size()), views_of(own), metadata));
  }
  zbpp::write_file(folder / detail::manifest::file_name, detail::to_text(made, settings));
}

std::vector<own_array> blank(std::vector<whole_array> const& model) {
  std::vector<own_array> all;
  for (auto const& each : model) {
    all.push_back(all_of(each));
    std::ranges::fill(all.back().bytes, std::byte{0xA5});
  }
  return all;
}

// What is thrown in a thread, too: tests assert in one alone.
std::string text_of_refusal(std::function<void()> const& act) {
  try {
    act();
  } catch (zbpp::error const& refused) {
    return refused.what();
  }
  return "<nothing was refused>";
}

// @return what a run is refused with that loads all arrays of a checkpoint, without what to do
std::string refusal_to_load(
    std::filesystem::path const& path, std::int64_t step, std::vector<whole_array> const& model) {
  auto all = blank(model);
  auto const text = refusal(
      errc::bad_format, [&] { static_cast<void>(folder_for(path, 1).load(views_of(all))); });
  auto const before = blank(model);
  for (std::size_t i = 0; i < all.size(); ++i) CHECK((all[i].bytes == before[i].bytes));
  auto const advice = text.find("; remove " + (path / run_folder::name(step)).string() + " to ");
  CHECK(advice != std::string::npos);
  return text.substr(0, advice);
}

std::map<std::string, std::string> files_below(std::filesystem::path const& path) {
  std::map<std::string, std::string> all;
  for (auto const& entry : std::filesystem::recursive_directory_iterator(path))
    if (entry.path().extension() != ".lock")
      all[entry.path().string()] = entry.is_directory() ? "" : zbpp::read_file(entry.path());
  return all;
}

// Lets ranks save as the next step, in one process and apart; returns what each is told.
std::vector<std::string> refusals_to_save(
    std::filesystem::path const& path, std::int64_t step, parts by_rank) {
  auto const ranks = static_cast<int>(by_rank.size());
  auto const save_as = [&](run_folder to) {
    return text_of_refusal([&] {
      static_cast<void>(to.save({.steps = step}, [&](int rank) {
        return views_of(by_rank[static_cast<std::size_t>(rank)]);
      }));
    });
  };
  std::vector<std::string> told(by_rank.size());
  in_threads(ranks, [&](thread_rendezvous& end) {
    told[static_cast<std::size_t>(end.rank())] = save_as(folder_for(
        path, ranks, std::make_unique<zbpp::checkpoint::ranks_apart<thread_rendezvous>>(end)));
  });
  told.push_back(save_as(folder_for(path, ranks)));
  return told;
}

// Checks that parts are refused by who loads them, and with the same text by who saves them, on all
// ranks alike, and that all in the folder stays.
std::string check_refused(
    std::filesystem::path const& path,
    std::int64_t step,
    parts const& by_rank,
    std::vector<whole_array> const& model) {
  auto const before = files_below(path);
  forge(path, step, by_rank);
  auto const text = refusal_to_load(path, step, model);
  std::filesystem::remove_all(path / run_folder::name(step));
  for (auto const& told : refusals_to_save(path, step, by_rank)) CHECK(told == text);
  CHECK((files_below(path) == before));
  return text;
}

}  // namespace

TEST_CASE("parts of arrays are saved and loaded as any ranks divide them", "[checkpoint]") {
  ZBPP_SEEDED(random, 7);
  for (int trial = 0; trial < thinned(60, 15); ++trial) {
    scratch_folder const folder;
    std::vector<whole_array> model;
    for (auto count = random.integer(1, 6); count > 0; --count)
      model.push_back(random_array(random, "layer/" + std::to_string(count), 0));
    std::vector<std::vector<own_array>> saved(static_cast<std::size_t>(random.integer(1, 5)));
    for (auto const& each : model) divide(random, each, saved);
    save(folder.path(), 1, saved);

    std::vector<std::vector<own_array>> right(static_cast<std::size_t>(random.integer(1, 5)));
    for (auto const& each : model) divide(random, each, right);
    for (auto const& of_rank : right) {
      auto loaded = of_rank;
      for (auto& each : loaded) std::ranges::fill(each.bytes, std::byte{0xA5});
      auto from = folder_for(folder.path(), static_cast<int>(right.size()));
      CHECK(from.load(views_of(loaded)) == training_state{.steps = 1});
      for (std::size_t i = 0; i < loaded.size(); ++i) {
        INFO("trial " << trial << ", " << loaded[i].described.name);
        CHECK((loaded[i].bytes == of_rank[i].bytes));
      }
    }
  }
}

TEST_CASE("parts that are missing or do not fit are refused", "[checkpoint]") {
  ZBPP_SEEDED(random, 8);
  scratch_folder const folder;
  auto whole = random_array(random, "w");
  whole.type = number_type::u8;
  whole.shape = {6, 4};
  whole.bytes.resize(24);
  auto const refused = [&](std::vector<std::vector<own_array>> const& by_rank) {
    return check_refused(folder.path(), 5, by_rank, {whole});
  };
  CHECK_THAT(
      refused({{cut(whole, 0, 0, 2)}, {cut(whole, 0, 3, 3)}}),
      Catch::EndsWith("step-000005: has 'w' in parts, of which some are missing: "
                      "rank-0.safetensors has 2 of 6 along axis 0 from 0, rank-1.safetensors has 3 "
                      "of 6 along axis 0 from 3"));
  CHECK_THAT(
      refused({{cut(whole, 0, 0, 4)}, {cut(whole, 0, 3, 3)}}),
      Catch::EndsWith("rank-1.safetensors: has 'w', which stands elsewhere, too: "
                      "rank-1.safetensors has 3 of 6 along axis 0 from 3, rank-0.safetensors has 4 "
                      "of 6 along axis 0 from 0; one rank saves what several have"));
  CHECK_THAT(
      refused({{cut(whole, 0, 0, 3)}, {cut(whole, 1, 0, 2)}}),
      Catch::Contains("rank-1.safetensors has 2 of 4 along axis 1 from 0, rank-0"));
  CHECK_THAT(
      refused({{cut(whole, 0, 0, 3)}, {all_of(whole)}}),
      Catch::Contains("rank-1.safetensors has all of it, rank-0.safetensors has 3 of 6"));
  auto longer = cut(whole, 0, 3, 3);
  longer.described.part.whole = 7;
  CHECK_THAT(
      refused({{cut(whole, 0, 0, 3)}, {longer}}),
      Catch::EndsWith("rank-1.safetensors: has a part of 'w' as U8 of 7 x 4, and "
                      "rank-0.safetensors one as U8 of 6 x 4"));
  for (array_part const wrong :
       {array_part{2, 0, 6}, {-1, 0, 6}, {0, 4, 6}, {0, -1, 6}, {1, 0, 3}, {0, 1, 0}, {1, 0, 0}}) {
    auto part = cut(whole, 0, 3, 3);
    part.described.part = wrong;
    INFO("axis " << wrong.axis << ", first " << wrong.first << ", whole " << wrong.whole);
    for (bool const loads : {false, true})
      CHECK_THAT(
          refusal(
              errc::bad_argument,
              [&] {
                auto to = folder_for(folder.path(), 1);
                std::vector const own{view_of(part)};
                if (loads)
                  static_cast<void>(to.load(own));
                else
                  static_cast<void>(to.save({.steps = 9}, [&](int) { return own; }));
              }),
          Catch::StartsWith((loads ? "" : "rank 0: ") + std::string("'w' is U8 of 3 x 4 from ")) &&
              Catch::Contains("which does not lie in the whole array; give array_part the axis"));
  }
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("whatever loading refuses, saving refuses with the same text", "[checkpoint][long]") {
  ZBPP_SEEDED(random, 9);
  constexpr int ranks = 4;
  auto const below = [&](std::size_t end) {
    return static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(end) - 1));
  };
  for (int trial = 0; trial < thinned(60, 12); ++trial) {
    scratch_folder const folder;
    // One array in several parts, one that a rank has whole, and some more.
    auto divided = random_array(random, "divided");
    auto const axis = static_cast<int>(below(divided.shape.size()));
    auto& length = divided.shape[static_cast<std::size_t>(axis)];
    length = random.integer(ranks - 1, 2 * ranks);
    divided.bytes.assign(
        static_cast<std::size_t>(count_of(divided.shape)) * zbpp::checkpoint::size_of(divided.type),
        std::byte{5});
    std::vector const model{divided, random_array(random, "whole"), random_array(random, "more")};
    parts good(ranks);
    divide(random, model[2], good);
    good[below(ranks)].push_back(all_of(model[1]));
    // Rank `without` has none of it, the others have about as much.
    auto const without = below(ranks);
    std::vector<own_array*> own(ranks);
    std::int64_t first = 0;
    std::int64_t others = 0;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (rank == without) continue;
      auto const end = ++others * length / (ranks - 1);
      good[rank].insert(good[rank].begin(), cut(divided, axis, first, end - first));
      first = end;
    }
    save(folder.path(), 1, good);
    save(folder.path(), 2, good);

    auto const victim = (without + 1 + below(ranks - 1)) % ranks;
    auto const other = (victim + 1 + below(ranks - 1)) % ranks;
    auto const part = [&](parts& of) -> own_array& { return of[victim].front(); };
    auto const& place = good[victim].front().described;
    auto const place_first = place.part.first;
    auto const place_count = place.shape[static_cast<std::size_t>(axis)];
    std::vector<std::pair<std::string, std::function<void(parts&)>>> const mutations{
        {"a part is left out", [&](parts& of) { of[victim].erase(of[victim].begin()); }},
        {"a part is there twice", [&](parts& of) { of[without].push_back(part(of)); }},
        {"a part is there whole, too", [&](parts& of) { of[without].push_back(all_of(divided)); }},
        {"a part is too long",
         [&](parts& of) {
           auto const back = place_first > 0 ? 1 : 0;
           part(of) = cut(divided, axis, place_first - back, place_count + 1);
         }},
        {"a part is too short",
         [&](parts& of) { part(of) = cut(divided, axis, place_first, place_count - 1); }},
        {"a part lies elsewhere",
         [&](parts& of) { part(of).described.part.first = place_first > 0 ? place_first - 1 : 1; }},
        {"a part has another type",
         [&](parts& of) {
           auto& type = part(of).described.type;
           type = type == number_type::i8    ? number_type::u8
                  : type == number_type::u8  ? number_type::i8
                  : type == number_type::i16 ? number_type::u16
                                             : number_type::i16;
         }},
        {"a part has another whole", [&](parts& of) { ++part(of).described.part.whole; }},
        {"a part has another number of axes",
         [&](parts& of) { part(of).described.shape.push_back(1); }},
        {"a part is along another axis",
         [&](parts& of) {
           part(of).described.shape.push_back(1);
           part(of).described.part = {static_cast<int>(divided.shape.size()), 0, 2};
         }},
        {"an array is there twice",
         [&](parts& of) {
           std::erase_if(
               of[other], [](auto const& each) { return each.described.name == "whole"; });
           std::erase_if(
               of[victim], [](auto const& each) { return each.described.name == "whole"; });
           of[other].push_back(all_of(model[1]));
           of[victim].push_back(all_of(model[1]));
         }},
        {"nothing of an array is there, too", [&](parts& of) {
           of[without].push_back(cut(divided, axis, 0, 0));
           for (std::size_t rank = 0; rank < ranks; ++rank)
             if (rank != without) of[rank].erase(of[rank].begin());
         }}};
    for (auto const& [name, mutate] : mutations) {
      INFO("trial " << trial << ": " << name);
      auto wrong = good;
      mutate(wrong);
      auto const text = check_refused(folder.path(), 3, wrong, model);
      CHECK_THAT(text, Catch::Contains("'divided'") || Catch::Contains("'whole'"));
      auto loaded = blank(model);
      CHECK(folder_for(folder.path(), 1).load(views_of(loaded)).steps == 2);
      for (std::size_t i = 0; i < model.size(); ++i) CHECK((loaded[i].bytes == model[i].bytes));
    }
    save(folder.path(), 3, good);
    auto loaded = blank(model);
    CHECK(folder_for(folder.path(), 1).load(views_of(loaded)).steps == 3);
  }
}

TEST_CASE("what a file or manifest would not give back is refused on all ranks", "[checkpoint]") {
  ZBPP_SEEDED(random, 10);
  scratch_folder const folder;
  std::vector const model{random_array(random, "a"), random_array(random, "b")};
  parts const good{{all_of(model[0])}, {all_of(model[1])}, {}};
  save(folder.path(), 1, good);
  save(folder.path(), 2, good);
  auto const before = files_below(folder.path());
  auto const check = [&](own_array const& more, std::string const& right) {
    auto wrong = good;
    wrong[1].push_back(more);
    for (auto const& told : refusals_to_save(folder.path(), 3, wrong)) CHECK(told == right);
    std::filesystem::remove_all(folder / "step-000003");  // has no manifest
    CHECK((files_below(folder.path()) == before));
  };
  // test_checkpoint_file.cpp has all that a file refuses.
  own_array more{{std::byte{2}}, {"c", number_type::boolean, {1}, {}}};
  check(more, "rank 1: 'c' has a byte of a bool that is neither 0 nor 1; save it as another type");
  more.described.type = number_type::u8;
  more.described.name = "b";
  check(
      more,
      "rank 1: two entries of a checkpoint are 'b'; give each the name that it has in the whole "
      "model");

  run_folder long_one(
      folder.path(),
      {.settings = {{"a", "b"}, {"c", std::string(std::size_t{1} << 20U, 'x')}}, .ranks = 1});
  CHECK(
      refusal([&] {
        static_cast<void>(long_one.save({.steps = 3}, [](int) { return std::vector<array>(); }));
      }) ==
      "the manifest of a checkpoint has more than 1 MiB; give the run_folder shorter settings");
  CHECK((files_below(folder.path()) == before));
  for (std::int64_t const step : {1, 2})
    CHECK(
        refusal([&] {
          static_cast<void>(folder_for(folder.path(), 1).save({.steps = step}, [](int) {
            return std::vector<array>();
          }));
        }) == folder.path().string() +
                  ": has step-000002; resume from there, or choose another folder to begin anew");
  CHECK((files_below(folder.path()) == before));
}

TEST_CASE("the text of a part is read again, and no other text", "[checkpoint]") {
  using zbpp::checkpoint::detail::to_part;
  for (array_part const part : {array_part{0, 0, 1}, {3, 1'000'000'000'000, 2'000'000'000'000}})
    CHECK(to_part(zbpp::checkpoint::detail::to_text(part)) == part);
  for (std::string const wrong :
       {"", "0", "0 1", "0 1 2 3", "0 1 x", "0 1 0", "0 1 -2", " 0 1 2", "0  1 2", "0 1 2 "})
    CHECK_FALSE(to_part(wrong));
}

namespace {

// A replica of a model whose optimizers tell which moments they keep.
class replica {
 public:
  replica(int stages, int number) {
    for (int s = 0; s < stages; ++s) {
      auto& maths = *maths_.emplace_back(std::make_unique<checked::stage_maths>(
          checked::model_settings{.stages = stages, .first_batch = 100 * number}, s));
      auto& steps = *steps_.emplace_back(std::make_unique<zbpp::optim::adamw>(maths.optimized()));
      stages_.emplace_back(maths, steps);
    }
  }
  [[nodiscard]] auto& stages() { return stages_; }
  // Lists the weights of a stage, where asked for, and the moments that are here.
  [[nodiscard]] std::vector<array> arrays_of(int stage, bool has_weights, bool has_moments) {
    using zbpp::checkpoint::array_of;
    std::vector<array> all;
    auto& steps = *steps_[static_cast<std::size_t>(stage)];
    for (int k = 0; k < steps.layers(); ++k) {
      auto const name = std::to_string(stage) + "." + std::to_string(k);
      auto const weights = steps.at(k).weights;
      if (has_weights) all.push_back(array_of(name + ".weight", weights));
      if (!has_moments || !steps.has_moments(k)) continue;
      auto const own = [&](std::span<float> moments) {
        return moments.subspan(steps.first_moment(k), weights.size());
      };
      all.push_back(array_of(name + ".mean", own(steps.mean())));
      all.push_back(array_of(name + ".mean square", own(steps.mean_square())));
    }
    return all;
  }

 private:
  std::vector<std::unique_ptr<checked::stage_maths>> maths_;
  std::vector<std::unique_ptr<zbpp::optim::adamw>> steps_;
  std::vector<checked::optimized_stage> stages_;
};

constexpr int stages = 4;  // two of them have two layers
constexpr int ranks = 2;
constexpr int replicas = 2;

zbpp::plan plan_of(bool is_sharded) {
  auto const alone = checked::make_problem(zbpp::placement::v_shape(ranks), ranks + 1, 87, {});
  return zbpp::make_plan(
      zbpp::zb_v{},
      with_replicas(alone, {.count = replicas, .shards_optimizer = is_sharded}),
      {.step = zbpp::step_kind::synchronous});
}

// Goes on from the newest checkpoint in a grid of new replicas, and saves the next one.
void train(std::filesystem::path const& path, bool is_sharded, int steps) {
  auto const planned = plan_of(is_sharded);
  auto const& placement = planned.problem().placement();
  std::vector<std::unique_ptr<replica>> all;
  for (int n = 0; n < replicas; ++n) all.push_back(std::make_unique<replica>(stages, n));
  auto const of_rank = [&](int n, int rank, bool has_weights, bool has_moments) {
    std::vector<array> arrays;
    for (int const s : placement.stages_of(rank)) {
      auto more = all[static_cast<std::size_t>(n)]->arrays_of(s, has_weights, has_moments);
      arrays.insert(arrays.end(), more.begin(), more.end());
    }
    return arrays;
  };
  std::vector<training_state> states(replicas);
  in_process_grid grid({.pipeline = ranks, .data = replicas});
  grid.run([&](grid_place const& at) {
    auto const n = static_cast<std::size_t>(at.data());
    pipeline pipe(
        planned, threads{.place = at}, all[n]->stages(), zbpp::training_options{.clip = 0.7});
    std::vector<array> own;
    for (int rank = 0; rank < ranks; ++rank)
      for (auto& each : of_rank(at.data(), rank, true, true)) own.push_back(each);
    pipe.resume(folder_for(path, ranks * replicas).load(own));
    pipe.run(steps);
    states[n] = pipe.state();
  });
  // All replicas have the weights, and where they do not share the steps, all moments.
  auto to = folder_for(path, ranks * replicas);
  std::vector<array> none;
  static_cast<void>(to.load(none));
  REQUIRE(to.save(states.front(), [&](int rank) {
    auto const n = rank / ranks;
    return of_rank(n, rank % ranks, n == 0, n == 0 || is_sharded);
  }));
}

}  // namespace

TEST_CASE("replicas go on from what others saved, sharing their steps or not", "[checkpoint]") {
  constexpr int steps = 3;
  auto const bits = [](std::filesystem::path const& path) {
    replica whole(stages, 0);
    std::vector<array> all;
    for (int s = 0; s < stages; ++s)
      for (auto& each : whole.arrays_of(s, true, true)) all.push_back(each);
    CHECK(folder_for(path, 1).load(all).steps == 2 * steps);
    std::vector<std::byte> bytes;
    for (auto const& each : all) bytes.insert(bytes.end(), each.bytes.begin(), each.bytes.end());
    return bytes;
  };
  scratch_folder const folder;
  train(folder.path(), false, 2 * steps);
  auto const right = bits(folder.path());
  CHECK(right.size() > 1000);
  for (bool const first : {false, true})
    for (bool const second : {false, true}) {
      INFO("sharded first: " << first << ", then: " << second);
      scratch_folder const other;
      train(other.path(), first, steps);
      train(other.path(), second, steps);
      CHECK((bits(other.path()) == right));
    }
}

}  // namespace test_checkpoint_parts

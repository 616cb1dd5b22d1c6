// SPDX-License-Identifier: Apache-2.0
#include <zbpp/error.hpp>
#include <zbpp/json/problem.hpp>

#include <support/catch.hpp>
#include <support/random_problem.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>

#include <string>
#include <utility>
#include <vector>

namespace test_json_layers {

using namespace zbpp;
using json::read_problem;
using json::write_problem;

namespace {

std::string const costs = R"("forward": 1, "backward_input": 2, "backward_weight": 1, )"
                          R"("activation": 8, "weight_gradient_input": 2)";

// Three layers for two ranks; the layers, and the object, end with what is given.
std::string text_with(std::string const& in_layer, std::string const& at_end = "") {
  return R"({"ranks": 2, "microbatches": 4, "layers": [{)" + costs + R"(}, {"count": 2, )" + costs +
         in_layer + "}]" + at_end + "}";
}

std::string refusal(std::string const& text) {
  return test::refusal(errc::bad_format, [&] { static_cast<void>(read_problem(text)); });
}

problem random_model(test::seeded_random& values) {
  auto const placement = test::random_placement(values);
  std::vector<layer_costs> layers;
  while (layers.size() < detail::index(placement.stages()) || values.chance(0.7)) {
    auto const layer = test::random_costs(values);
    layers.insert(layers.end(), detail::index(values.integer(1, 3)), layer);
  }
  step_setup setup{
      .ranks = placement.ranks(),
      .microbatches = static_cast<int>(values.integer(1, 9)),
      .transfer = test::random_transfer(values, placement.ranks())};
  if (values.chance(0.5)) setup.memory_limits.push_back(test::random_magnitude(values, 12));
  for (int rank = 0; rank < placement.ranks() && values.chance(0.9); ++rank)
    setup.rank_speeds.push_back(  // none makes times too large
        1 + static_cast<double>(values.integer(0, 1 << 20)) / 1049.0);
  if (setup.rank_speeds.size() != detail::index(placement.ranks())) setup.rank_speeds.clear();
  auto model = with_placement(problem(layers, setup), placement);
  if (values.chance(0.3)) model = with_replicas(std::move(model), {.count = 3});
  if (values.chance(0.3))
    model = with_microbatch_factors(
        std::move(model), std::vector<double>(detail::index(model.microbatches()), values.real()));
  return model;
}

// The same layers, cut anywhere; stages recompute that can.
problem cut_anywhere(problem const& model, test::seeded_random& values) {
  std::vector<int> first;
  std::vector<bool> recompute;
  for (int s = 0; s < model.stages(); ++s) first.push_back(s);
  for (auto s = first.size(); s-- > 1;) {
    auto const end = s + 1 < first.size() ? first[s + 1] : static_cast<int>(model.layers().size());
    first[s] = static_cast<int>(values.integer(first[s], end - 1));
  }
  for (std::size_t s = 0; s < first.size(); ++s)
    recompute.push_back(
        model.layers()[detail::index(first[s])].recompute.has_value() && values.chance(0.5));
  return with_cut(model, first, recompute);
}

}  // namespace

TEST_CASE("a file of layers says what the format says", "[json]") {
  auto unit = time_unit::seconds;
  auto const model = read_problem(text_with(R"(, "edge": 3)", R"(, "transfer": 0.5)"), "m", &unit);
  CHECK(unit == time_unit::milliseconds);
  layer_costs const first{
      .forward = 1'000'000,
      .backward_input = 2'000'000,
      .backward_weight = 1'000'000,
      .activation = 8,
      .weight_gradient_input = 2};
  auto second = first;
  second.edge = 3;
  problem const expected(
      {first, second, second}, {.ranks = 2, .microbatches = 4, .transfer = 500'000});
  CHECK(model == expected);
  CHECK(write_problem(model) == R"({
  "ranks": 2,
  "microbatches": 4,
  "placement": "linear",
  "time_unit": "ms",
  "layers": [
    {"forward": 1, "backward_input": 2, "backward_weight": 1, "activation": 8, "weight_gradient_input": 2},
    {"count": 2, "forward": 1, "backward_input": 2, "backward_weight": 1, "activation": 8, "weight_gradient_input": 2, "edge": 3}
  ],
  "transfer": 0.5,
  "memory_limit": null
}
)");
}

TEST_CASE("random layers read back to the same value in every unit, however cut", "[json]") {
  int moved = 0;
  for (int trial = 0; trial < 200; ++trial) {
    ZBPP_SEEDED(values, trial);
    auto const even = random_model(values);
    for (auto const& model : {even, cut_anywhere(even, values)})
      for (auto unit : {time_unit::nanoseconds, time_unit::milliseconds, time_unit::seconds}) {
        auto const text = write_problem(model, unit);
        CAPTURE(text);
        auto found = time_unit::microseconds;
        CHECK(read_problem(text, "problem", &found) == model);
        CHECK(found == unit);
        bool const says_cut = text.find("first_layer") != std::string::npos;
        CHECK(says_cut == (model != even));
        CHECK(says_cut == (text.find("\"recompute\": [") != std::string::npos));
        moved += says_cut ? 1 : 0;
      }
  }
  CHECK(moved > 100);
}

TEST_CASE("a cut is read beside layers, and without R where that is left out", "[json]") {
  auto const model = read_problem(text_with(R"(, "recompute": 3)"));
  auto const cut = [&](std::string const& keys) {
    return read_problem(text_with(R"(, "recompute": 3)", ", " + keys));
  };
  CHECK(cut(R"("first_layer": [0, 1])") == with_cut(model, {0, 1}));
  CHECK(
      cut(R"("first_layer": [0, 2], "recompute": [false, true])") ==
      with_cut(model, {0, 2}, {false, true}));
  auto const on_v = R"("placement": "v")";
  auto const one_rank = R"({"ranks": 1, "microbatches": 4, )" + std::string(on_v) +
                        R"(, "layers": [{"count": 3, )" + costs + R"(}], "first_layer": [0, 2]})";
  CHECK(read_problem(one_rank).first_layer().back() == 2);
}

TEST_CASE("keys of layers are none of stages", "[json]") {
  CHECK(
      refusal(text_with("", R"(, "stages": [])")) ==
      "problem: found the key 'stages'; expected 'layers' in its place, which are cut into stages");
  auto const text = write_problem(problem(placement::v_shape(2), 3, stage_costs{1000, 1000, 1000}));
  for (std::string const key : {"rank_speeds", "first_layer", "recompute"})
    CHECK(refusal(text.substr(0, text.rfind('}')) + ", \"" + key + "\": [1, 1]}")
              .starts_with("problem: found the key '" + key + "'; expected "));
  CHECK(refusal("[]") == "problem: found an array of 0; expected an object");
}

TEST_CASE("every malformed file of layers is refused at its key", "[json]") {
  std::vector<std::pair<std::string, std::string>> const faults{
      {R"({"ranks": 2, "microbatches": 4, "layers": {}})",
       "layers: found an object; expected an array of layers from the input on"},
      {R"({"ranks": 2, "microbatches": 4, "layers": []})", "layers: found an array of 0; expected"},
      {R"({"ranks": 4, "microbatches": 4, "layers": [{"count": 3, )" + costs + "}]}",
       "there are 3 layers for 4 stages; each stage needs at least 1"},
      {text_with(R"(, "count": 1)"), "layers[1].count: found the key twice; expected it once"},
      {text_with(R"(, "speed": 1)"),
       "layers[1].speed: found a key that is unknown here; expected forward, backward_input"},
      {text_with(R"(, "offload": 1)"), "layers[1].offload: found 1; expected nothing of it"},
      {text_with(R"(, "recompute_input": 9)"),
       "layer 1: recompute_input is more than activation; R adds what F did not keep"},
      {text_with("", R"(, "placement": "looped", "chunks": 2)"), "there are 3 layers for 4 stages"},
      {text_with("", R"(, "rank_speeds": 0.5)"),
       "rank_speeds: found 0.5; expected an array of 2, one speed for each rank"},
      {text_with("", R"(, "rank_speeds": [1, 1, 1])"),
       "rank_speeds: found an array of 3; expected"},
      {text_with("", R"(, "rank_speeds": [1, "fast"])"), "rank_speeds[1]: found "},
      {text_with("", R"(, "rank_speeds": [1, 0])"),
       "rank 1: the speed is not from 0.001 to 1000; at 0.5 all takes twice as long"},
      {text_with("", R"(, "x": 1)"),
       "x: found a key that is unknown here; expected ranks, microbatches, layers"},
      {text_with("", R"(, "microbatch_factors": [1, 2])"), "microbatch_factors: found an array of"},
      {text_with("", R"(, "first_layer": [0, 3])"),
       "stage 1: has the layers from 3 to before 3; give it at least one of the 3"},
      {text_with("", R"(, "first_layer": [1, 2])"), "first_layer: found "},
      {text_with("", R"(, "first_layer": [0])"), "first_layer: found "},
      {text_with("", R"(, "first_layer": 0)"), "first_layer: found "},
      {text_with("", R"(, "recompute": [false, false])"),
       "recompute: found an array of 2; expected 'first_layer' beside 'recompute'"},
      {text_with("", R"(, "first_layer": [0, 1], "recompute": [false])"),
       "recompute: found an array of 1; expected an array of 2, true or false for each stage"},
      {text_with("", R"(, "first_layer": [0, 1], "recompute": [false, 1])"),
       "recompute[1]: found 1; expected true or false"},
      {text_with("", R"(, "first_layer": [0, 1], "recompute": [false, true])"),
       "stage 1: is to recompute, but none of its layers says how long that takes"}};
  for (auto const& [text, message] : faults) {
    CAPTURE(text);
    auto const refused = refusal(text);
    CHECK(refused.starts_with("problem: " + message));
  }
  for (std::string const count : {"0", "-1", "1.5", "4097", "\"2\"", "null", "1e9"}) {
    auto const text =
        R"({"ranks": 1, "microbatches": 1, "layers": [{"count": )" + count + ", " + costs + "}]}";
    CHECK(refusal(text).starts_with("problem: layers[0].count: found "));
    CHECK(refusal(text).ends_with("; expected a whole number from 1 to 4096"));
  }
  auto const many = R"({"ranks": 1, "microbatches": 1, "layers": [{"count": 4096, )" + costs +
                    "}, {" + costs + "}]}";
  CHECK(
      refusal(many) == "problem: layers: found more than 4096 layers; expected at most that many");
  CHECK(test::refusal(errc::bad_format, [&] {
          static_cast<void>(read_problem(
              R"({"ranks": 1, "microbatches": 1, "stages": [{"count": 1, )" + costs + "}]}"));
        }).starts_with("problem: stages[0].count: found a key that is unknown here"));
}

}  // namespace test_json_layers

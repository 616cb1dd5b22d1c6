// SPDX-License-Identifier: Apache-2.0
#include <zbpp/error.hpp>
#include <zbpp/json/layers.hpp>
#include <zbpp/json/problem.hpp>

#include <support/catch.hpp>
#include <support/random_problem.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>

#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace test_json_layers {

using namespace zbpp;
using json::read_layers;
using json::write_layers;

namespace {

std::string const costs = R"("forward": 1, "backward_input": 2, "backward_weight": 1, )"
                          R"("activation": 8, "weight_gradient_input": 2)";

// Three layers for two ranks; the layers, and the object, end with what is given.
std::string text_with(std::string const& in_layer, std::string const& at_end = "") {
  return R"({"ranks": 2, "microbatches": 4, "layers": [{)" + costs + R"(}, {"count": 2, )" + costs +
         in_layer + "}]" + at_end + "}";
}

std::string refusal(std::string const& text) {
  return test::refusal(errc::bad_format, [&] { static_cast<void>(read_layers(text)); });
}

layered_problem random_model(test::seeded_random& values) {
  auto const placement = test::random_placement(values);
  std::vector<layer_costs> layers;
  while (layers.size() < detail::index(placement.stages()) || values.chance(0.7)) {
    auto const layer = test::random_costs(values);
    layers.insert(layers.end(), detail::index(values.integer(1, 3)), layer);
  }
  std::vector<bytes> limits;
  if (values.chance(0.5)) limits.push_back(test::random_magnitude(values, 12));
  std::vector<double> speeds;  // none that makes times too large
  for (int rank = 0; rank < placement.ranks() && values.chance(0.9); ++rank)
    speeds.push_back(1 + static_cast<double>(values.integer(0, 1 << 20)) / 1049.0);
  if (speeds.size() != detail::index(placement.ranks())) speeds.clear();
  return {
      placement,
      static_cast<int>(values.integer(1, 9)),
      std::move(layers),
      test::random_transfer(values, placement.ranks()),
      std::move(limits),
      std::move(speeds)};
}

}  // namespace

TEST_CASE("a file of layers says what the format says", "[json]") {
  auto unit = time_unit::seconds;
  auto const model = read_layers(text_with(R"(, "edge": 3)", R"(, "transfer": 0.5)"), "m", &unit);
  CHECK(unit == time_unit::milliseconds);
  layer_costs const first{
      .forward = 1'000'000,
      .backward_input = 2'000'000,
      .backward_weight = 1'000'000,
      .activation = 8,
      .weight_gradient_input = 2};
  auto second = first;
  second.edge = 3;
  layered_problem const expected(placement::linear(2), 4, {first, second, second}, 500'000);
  CHECK(model == expected);
  CHECK(write_layers(model) == R"({
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

TEST_CASE("random layers read back to the same value in every unit", "[json]") {
  for (int trial = 0; trial < 200; ++trial) {
    ZBPP_SEEDED(values, trial);
    auto const model = random_model(values);
    for (auto unit : {time_unit::nanoseconds, time_unit::milliseconds, time_unit::seconds}) {
      auto const text = write_layers(model, unit);
      CAPTURE(text);
      auto found = time_unit::microseconds;
      CHECK(read_layers(text, "problem", &found) == model);
      CHECK(found == unit);
    }
  }
}

TEST_CASE("stages and layers are told apart, and read by one call", "[json]") {
  auto const layers = text_with("");
  CHECK(std::get<layered_problem>(json::read_stages_or_layers(layers)) == read_layers(layers));
  problem const stages(placement::v_shape(2), 3, stage_costs{1000, 1000, 1000});
  auto unit = time_unit::seconds;
  auto const text = json::write_problem(stages, time_unit::microseconds);
  CHECK(std::get<problem>(json::read_stages_or_layers(text, "p", &unit)) == stages);
  CHECK(unit == time_unit::microseconds);
  CHECK(
      refusal(text) ==
      "problem: found the key 'stages'; expected 'layers' in its place, which are cut into stages");
  CHECK(
      test::refusal(errc::bad_format, [&] { static_cast<void>(json::read_problem(layers)); }) ==
      "problem: found the key 'layers'; expected 'stages' in its place: only a plan for layers "
      "takes layers");
  auto const shared = layers.substr(0, layers.rfind('}')) + R"(, "replicas": {"count": 3}})";
  CHECK(json::read_layers(shared).replicas().count == 3);
  CHECK(
      json::read_layers(json::write_layers(json::read_layers(shared))) ==
      json::read_layers(shared));
  auto const with_factors =
      layers.substr(0, layers.rfind('}')) + R"(, "microbatch_factors": [1, 2]})";
  CHECK(
      test::refusal(errc::bad_format, [&] {
        static_cast<void>(json::read_layers(with_factors));
      }).starts_with("problem: found the key 'microbatch_factors'; expected microbatches of one"));
  auto const with_speeds = text.substr(0, text.rfind('}')) + R"(, "rank_speeds": [1, 1]})";
  CHECK(
      test::refusal(
          errc::bad_format, [&] { static_cast<void>(json::read_problem(with_speeds)); }) ==
      "problem: found the key 'rank_speeds'; expected stages with what they take on their ranks");
  CHECK(refusal(text_with("", R"(, "stages": [])")).starts_with("problem: found the key 'stages'"));
  CHECK(refusal("[]") == "problem: found an array of 0; expected an object");
}

TEST_CASE("every malformed file of layers is refused at its key", "[json]") {
  std::vector<std::pair<std::string, std::string>> const faults{
      {"{}", "found no key 'ranks'; expected ranks, microbatches, layers, placement"},
      {R"({"ranks": 2, "microbatches": 4})", "found no key 'layers'; expected ranks"},
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
      {text_with("", R"(, "first_layer": [0, 1])"),
       "first_layer: found a key that is unknown here; expected ranks, microbatches, layers"}};
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
          static_cast<void>(json::read_problem(
              R"({"ranks": 1, "microbatches": 1, "stages": [{"count": 1, )" + costs + "}]}"));
        }).starts_with("problem: stages[0].count: found a key that is unknown here"));
}

}  // namespace test_json_layers

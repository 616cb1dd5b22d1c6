// SPDX-License-Identifier: Apache-2.0
#include <zbpp/io/file.hpp>
#include <zbpp/json/detail/fields.hpp>
#include <zbpp/json/problem.hpp>
#include <zbpp/model/costs.hpp>

#include <support/catch.hpp>
#include <support/random_problem.hpp>
#include <support/refusal.hpp>
#include <support/seeded.hpp>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace test_json_problem {

using namespace zbpp;
using json::read_problem;
using json::write_problem;

namespace {

constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();

std::vector<time_unit> const all_units{
    time_unit::nanoseconds, time_unit::microseconds, time_unit::milliseconds, time_unit::seconds};

std::string const costs =
    R"({"forward": 1, "backward_input": 1, "backward_weight": 1, "activation": 8, )"
    R"("weight_gradient_input": 2)";

// A problem of two stages whose only stage entry, and whose object, end with what is given.
std::string text_with(std::string const& in_stage, std::string const& at_end = "") {
  return R"({"ranks": 2, "microbatches": 4, "stages": [)" + costs + in_stage + "}]" + at_end + "}";
}

// What the reader says of a text that it refuses.
std::string refusal(std::string const& text) {
  return test::refusal(errc::bad_format, [&] { static_cast<void>(read_problem(text)); });
}

// The time that a file with this decimal means.
ticks time_of(std::string const& decimal, std::string const& unit) {
  return read_problem(text_with("", R"(, "time_unit": ")" + unit + R"(", "transfer": )" + decimal))
      .transfer()
      .latency()
      .front();
}

}  // namespace

TEST_CASE("a problem file says what the format says", "[json]") {
  auto const text = read_file(std::filesystem::path(ZBPP_TEST_DATA_DIR) / "problem.json");
  auto unit = time_unit::seconds;
  auto const model = read_problem(text, "problem.json", &unit);
  CHECK(unit == time_unit::milliseconds);
  stage_costs const plain{
      .forward = 18'522'000,
      .backward_input = 18'086'000,
      .backward_weight = 9'337'000,
      .activation = 1000,
      .weight_gradient_input = 500};
  auto full = plain;
  full.backward_fused = 25'000'000;
  full.overlapped = 30'000'000;
  full.overlapped_fused = 40'000'000;
  full.recompute = 17'000'001;
  full.weight_gradient_input = 1200;
  full.output_gradient = 700;
  full.recompute_input = 20;
  full.edge = 16;
  full.static_memory = 4000;
  full.workspace = 32;
  stage_costs const bare{.backward_input = 1'000'000'000, .backward_weight = 1, .recompute = 0};
  problem const expected(
      placement::custom({1, 0, 0, 1}),
      24,
      {plain, full, bare, plain},
      {2, {0, 601'000, 250'000, 0}, {0, 0.33, 1.25, 0}},
      {64000, 48000});
  CHECK(model == expected);
  CHECK(write_problem(model, unit) == text);
}

TEST_CASE("a NUL byte is refused wherever it stands", "[json]") {
  auto const text = text_with("");
  auto const nul = std::string(1, '\0');
  auto const message = ": found a NUL byte; expected JSON, which has none";
  CHECK(
      refusal(text + nul + "{]") ==
      "problem: line 1, column " + std::to_string(text.size() + 1) + message);
  CHECK(refusal(text + "\n\n " + nul) == "problem: line 3, column 2" + std::string(message));
  CHECK(refusal(nul + text) == "problem: line 1, column 1" + std::string(message));
  CHECK(refusal("{\"ra" + nul + "nks\": 2}") == "problem: line 1, column 5" + std::string(message));
}

TEST_CASE("a byte order mark is read, and moves no place of a message", "[json]") {
  auto const text = text_with("");
  std::string const mark = "\xEF\xBB\xBF";
  CHECK(read_problem(mark + text) == read_problem(text));
  CHECK(read_problem(mark + "\r\n" + text + "\r\n") == read_problem(text));
  CHECK(refusal(mark + "{]") == refusal("{]"));
}

TEST_CASE("another encoding than UTF-8 is refused by its name", "[json]") {
  auto const expected =
      "; expected UTF-8, as `iconv -t UTF-8` makes it, or an editor that saves it so";
  for (bool is_little : {true, false}) {
    for (bool has_mark : {true, false}) {
      std::string text = !has_mark ? "" : is_little ? "\xFF\xFE" : "\xFE\xFF";
      for (char c : text_with("")) {
        if (!is_little) text += '\0';
        text += c;
        if (is_little) text += '\0';
      }
      CHECK(refusal(text) == "problem: line 1: found UTF-16" + std::string(expected));
    }
  }
}

TEST_CASE("a compressed text is refused as such", "[json]") {
  using namespace std::string_literals;
  for (auto const& [begin, name] :
       {std::pair{"\x1F\x8B\x08\0"s, "gzip"},
        {"\x28\xB5\x2F\xFD\0"s, "zstd"},
        {"\xFD\x37zXZ\0"s, "xz"},
        {"BZh91AY"s, "bzip2"},
        {"PK\x03\x04\x14"s, "zip"}})
    CHECK(
        refusal(begin + text_with("")) ==
        "problem: line 1: found a text compressed by "s + name +
            "; expected the text itself; decompress the file first");
}

TEST_CASE("texts and numbers have a bound, which the message names", "[json]") {
  auto const transfer = [](std::size_t size) {
    return text_with("", ",\n \"transfer\": 0." + std::string(size - 3, '0') + "1");
  };
  CHECK(refusal(transfer(1000)) == "<nothing was refused>");
  CHECK(
      refusal(transfer(1001)) ==
      "problem: line 2, column 14: found a number of more than 1000 characters; expected at most "
      "that many");
  CHECK(
      refusal(std::string(largest_text + 1, ' ')) ==
      "problem: found 268435457 bytes; expected at most 268435456");
}

TEST_CASE("what is left out has a default", "[json]") {
  auto unit = time_unit::seconds;
  auto const model = read_problem(text_with(""), "problem", &unit);
  CHECK(unit == time_unit::milliseconds);
  CHECK(
      model == problem(
                   placement::linear(2),
                   4,
                   stage_costs{
                       .forward = 1'000'000,
                       .backward_input = 1'000'000,
                       .backward_weight = 1'000'000,
                       .activation = 8,
                       .weight_gradient_input = 2}));
  CHECK(read_problem(text_with("", R"(, "memory_limit": null, "transfer": 0)")) == model);
  CHECK(read_problem(text_with("", R"(, "transfer": {"latency": 0})")) == model);
}

TEST_CASE("placements are read by name or as a list", "[json]") {
  auto position = [](std::string const& placement) {
    return read_problem(text_with("", ", \"placement\": " + placement)).placement();
  };
  CHECK(position(R"("linear")") == placement::linear(2));
  CHECK(position(R"("linear", "chunks": 1)") == placement::linear(2));
  CHECK(position(R"("v")") == placement::v_shape(2));
  CHECK(position(R"("v", "chunks": 2)") == placement::v_shape(2));
  CHECK(position(R"("looped", "chunks": 3)") == placement::looped(2, 3));
  CHECK(position("[1, 0, 0]") == placement::custom({1, 0, 0}));
}

TEST_CASE("one number stands for every pair of ranks", "[json]") {
  auto hops = [](std::string const& transfer) {
    return read_problem(text_with("", ", \"time_unit\": \"us\", \"transfer\": " + transfer))
        .transfer();
  };
  CHECK(hops("0.5") == transfer_costs(500));
  CHECK(hops("[[0, 1], [2, 0]]") == transfer_costs(2, {0, 1000, 2000, 0}));
  CHECK(
      hops(R"({"latency": 1, "time_per_size": 0.002})") ==
      transfer_costs(2, {1000, 1000, 1000, 1000}, {2, 2, 2, 2}));
  CHECK(
      hops(R"({"latency": 1, "time_per_size": [[0, 1], [2, 0]]})") ==
      transfer_costs(2, {1000, 1000, 1000, 1000}, {0, 1000, 2000, 0}));
}

TEST_CASE("times are rounded to the nearest nanosecond", "[json]") {
  CHECK(time_of("0.0000005", "ms") == 1);
  CHECK(time_of("0.00000049999999999999999999999999999999999", "ms") == 0);
  CHECK(time_of("1e-7", "ms") == 0);
  CHECK(time_of("5.5e-7", "ms") == 1);
  CHECK(time_of("0.1e1", "us") == 1000);
  CHECK(time_of("-0", "us") == 0);
  CHECK(time_of("-0.0e5", "us") == 0);
  CHECK(time_of("0e999999999999999999999", "s") == 0);
  CHECK(time_of("7e-999999999999999999999", "s") == 0);
  CHECK(time_of("9007199254740993", "ns") == 9007199254740993);  // no double is that
  CHECK(time_of("36028797018963.969", "us") == (ticks{1} << 55) + 1);
  CHECK(time_of("36028797.018963969000", "s") == (ticks{1} << 55) + 1);
  CHECK(time_of("0.000003602879701896396900e+13", "s") == (ticks{1} << 55) + 1);
}

TEST_CASE("every time is written so that it reads back to the tick", "[json]") {
  ZBPP_SEEDED(values, 0);
  std::vector<ticks> times{0, 1, 999, 1000, 1001, 999'999'999, 1'000'000'001, most - 1, most};
  for (int i = 0; i < 5000; ++i) times.push_back(test::random_magnitude(values, 18));
  for (auto unit : all_units)
    for (auto time : times) {
      auto const text = number_text(time, unit);
      auto const back = json::detail::scaled(text, json::detail::power_of(unit));
      CAPTURE(text);
      REQUIRE(back.has_value());
      CHECK((back->value == time && back->exact));
    }
}

TEST_CASE("every rate is written so that it reads back to the bit", "[json]") {
  ZBPP_SEEDED(values, 0);
  for (int i = 0; i < 5000; ++i) {
    auto rate = values.real();
    for (auto scale = values.integer(-300, 9); scale != 0; scale += scale < 0 ? 1 : -1)
      rate *= scale < 0 ? 0.1 : 10;
    for (auto unit : all_units) {
      auto const power = json::detail::power_of(unit);
      auto const text = json::detail::scaled_text(rate, power);
      CAPTURE(text);
      CHECK(json::detail::scaled_real(text, power) == rate);
    }
  }
  auto const least = std::numeric_limits<double>::denorm_min();
  for (auto rate : {0.0, least, 1e9})
    CHECK(json::detail::scaled_real(json::detail::scaled_text(rate, 9), 9) == rate);
}

TEST_CASE("random problems read back to the same value in every unit", "[json][long]") {
  for (int trial = 0; trial < 500; ++trial) {
    ZBPP_SEEDED(values, trial);
    auto const problem = test::random_problem(values);
    for (auto unit : all_units) {
      auto const text = write_problem(problem, unit);
      CAPTURE(text);
      auto found = time_unit::nanoseconds;
      CHECK(read_problem(text, "problem", &found) == problem);
      CHECK(found == unit);
    }
  }
}

TEST_CASE("factors of microbatches read back to the bit, and factors of 1 are none", "[json]") {
  auto const alike = read_problem(text_with(""));
  CHECK(write_problem(alike, time_unit::milliseconds).find("factors") == std::string::npos);
  for (int trial = 0; trial < 100; ++trial) {
    ZBPP_SEEDED(values, trial);
    std::vector<double> factors;
    for (int m = 0; m < alike.microbatches(); ++m)
      factors.push_back(values.chance(0.3) ? 1 : values.real(1e-9, 4));
    auto const problem = with_microbatch_factors(alike, factors);
    for (auto unit : all_units) CHECK(read_problem(write_problem(problem, unit)) == problem);
  }
  CHECK(read_problem(text_with("", R"(, "microbatch_factors": [1, 1.0, 1, 1e0])")) == alike);
  CHECK(
      read_problem(text_with("", R"(, "microbatch_factors": [1, 0.5, 0.25, 2])")) ==
      with_microbatch_factors(alike, {1, 0.5, 0.25, 2}));
}

TEST_CASE("each cost of a stage is written by its key and reads back", "[json]") {
  stage_costs const usual{
      .forward = 40,
      .backward_input = 30,
      .backward_weight = 30,
      .activation = 10,
      .weight_gradient_input = 8};
  for (auto const& field : zbpp::detail::cost_fields) {
    auto one = usual;
    bool const is_joint = field.kind == zbpp::detail::cost_kind::joint;
    field.set(one, is_joint ? 60 : field.of(one).value_or(0) + 1);
    problem const changed(placement::linear(2), 4, one);
    auto const text = write_problem(changed, time_unit::nanoseconds);
    CHECK(
        text.find(zbpp::detail::joined("\"", field.key(), "\": ", *field.of(one))) !=
        std::string::npos);
    CHECK(read_problem(text) == changed);
  }
}

TEST_CASE("replicas read back to the bit, and one replica is not written", "[json]") {
  auto const alone = read_problem(text_with(R"(, "gradients": 4096, "optimizer_state": 8192)"));
  CHECK(alone.costs(0).optimizer_state == 8192);
  CHECK(alone.costs(0).gradients == 4096);
  CHECK(write_problem(alone, time_unit::milliseconds).find("replicas") == std::string::npos);
  for (int trial = 0; trial < 100; ++trial) {
    ZBPP_SEEDED(values, trial);
    auto const problem = with_replicas(
        alone,
        {.count = static_cast<int>(values.integer(2, 1000)),
         .latency = values.integer(0, 1'000'000),
         .time_per_byte = values.real(0, 2),
         .shards_optimizer = trial % 2 == 1});
    for (auto unit : all_units) CHECK(read_problem(write_problem(problem, unit)) == problem);
  }
  CHECK(
      read_problem(text_with("", R"(, "replicas": {"count": 8})")).replicas() ==
      zbpp::replica_costs{.count = 8});
}

TEST_CASE("a text that is not JSON is refused with line and column", "[json]") {
  CHECK(refusal("{\n  \"ranks\": 2,,\n}").starts_with("problem: line 2, column 14: "));
  CHECK(refusal("").starts_with("problem: line 1, column 1: "));
  CHECK(refusal(text_with("") + " {}").find("expected end of input") != std::string::npos);
  for (std::string const text :
       {"nul",
        "{\"ranks\": NaN}",
        "{\"ranks\": Infinity}",
        "{\"ranks\": 1e999}",
        "{\"ranks\": 01}",
        "{\"ranks\": +1}",
        "{\"ranks\": .5}",
        "{\"ranks\": 0x10}",
        "{\"ranks\": 2,}",
        "{ranks: 2}",
        "{'ranks': 2}",
        "{} // comment",
        "{\"ranks\xff\": 1}",
        "\"open"}) {
    CAPTURE(text);
    CHECK(refusal(text).starts_with("problem: line 1, column "));
  }
  auto const long_one = refusal("\"" + std::string(100'000, 'x'));
  CHECK(long_one.size() < 400);
}

TEST_CASE("the name of what was read stands in front", "[json]") {
  auto const text =
      test::refusal(errc::bad_format, [] { static_cast<void>(read_problem("[]", "costs.json")); });
  CHECK(text == "costs.json: found an array of 0; expected an object");
}

TEST_CASE("every malformed problem is refused at its key", "[json]") {
  std::vector<std::pair<std::string, std::string>> const faults{
      {"{}", "found no key 'ranks'; expected ranks, microbatches, stages"},
      {R"({"ranks": 2, "ranks": 2})", "ranks: found the key twice; expected it once"},
      {text_with(R"(, "forward": 1)"), "stages[0].forward: found the key twice; expected it once"},
      {text_with(R"(, "forwards": 1)"),
       "stages[0].forwards: found a key that is unknown here; expected forward, backward_input"},
      {text_with("", R"(, "x": 1)"), "x: found a key that is unknown here; expected ranks"},
      {text_with("", R"(, "replicas": {"latency": 1})"), "replicas: found no key 'count'"},
      {text_with("", R"(, "replicas": {"count": 2, "shards_optimizer": 1})"),
       "replicas.shards_optimizer: found 1; expected true or false"},
      {text_with("", R"(, "replicas": {"count": 0})"), "replicas.count: found 0; expected"},
      {text_with("", R"(, "replicas": {"count": 2, "latency": -1})"), "replicas.latency: found -1"},
      {text_with("", R"(, "microbatch_factors": 0.5)"),
       "microbatch_factors: found 0.5; expected an array of 4, one factor for each microbatch"},
      {text_with("", R"(, "microbatch_factors": [1, 1])"),
       "microbatch_factors: found an array of 2; expected an array of 4"},
      {text_with("", R"(, "microbatch_factors": [1, 1, 1, "long"])"),
       "microbatch_factors[3]: found "},
      {text_with("", R"(, "microbatch_factors": [1, 0, 1, 1])"),
       "microbatch 1: the microbatch factor is 0.000000; a factor is above 0 and at most 10^6"},
      {text_with("", R"(, "time_unit": "m")"),
       "time_unit: found 'm'; expected 'ns', 'us', 'ms' or"},
      {text_with("", R"(, "time_unit": 1)"), "time_unit: found 1; expected 'ns'"},
      {text_with("", R"(, "placement": "zigzag")"),
       "placement: found 'zigzag'; expected 'linear', 'looped', 'v' or the rank of every stage"},
      {text_with("", R"(, "placement": {})"), "placement: found an object; expected 'linear'"},
      {text_with("", R"(, "placement": "looped")"), "placement: found 'looped'; expected chunks"},
      {text_with("", R"(, "placement": "looped", "chunks": 0)"),
       "chunks: found 0; expected a whole number from 1 to 32768"},
      {text_with("", R"(, "chunks": 2)"), "chunks: found 2; expected 1"},
      {text_with("", R"(, "placement": "v", "chunks": 1)"), "chunks: found 1; expected 2"},
      {text_with("", R"(, "placement": [0, 1], "chunks": 1)"),
       "chunks: found 1; expected no chunks"},
      {text_with("", R"(, "placement": [0, 2])"),
       "placement[1]: found 2; expected a whole number from 0 to 1"},
      {text_with("", R"(, "placement": [0, 0])"), "ranks: found 2; expected 1, as in placement"},
      {text_with("", R"(, "placement": [1, 1])"), "placement: placement: rank 0 has no stage"},
      {text_with("", R"(, "placement": [])"), "placement: the placement is empty"},
      {text_with("", R"(, "transfer": -1)"), "transfer: found -1; expected a time from 0"},
      {text_with("", R"(, "transfer": "1")"), "transfer: found '1'; expected a time from 0"},
      {text_with("", R"(, "transfer": null)"), "transfer: found null; expected a time from 0"},
      {text_with("", R"(, "transfer": [[0, 1]])"),
       "transfer: found an array of 1; expected an array of 2 arrays, one for each sending rank"},
      {text_with("", R"(, "transfer": [[0, 1], [0]])"),
       "transfer[1]: found an array of 1; expected an array of 2, one for each receiving rank"},
      {text_with("", R"(, "transfer": [[0, 1], [0, true]])"),
       "transfer[1][1]: found true; expected a time from 0"},
      {text_with("", R"(, "transfer": {})"), "transfer: found no key 'latency'"},
      {text_with("", R"(, "transfer": {"latency": 1, "time_per_size": -1})"),
       "transfer.time_per_size: found -1; expected a time per size, a number of at least 0"},
      {text_with("", R"(, "transfer": {"latency": 1, "time_per_size": 1e-400})"),
       "transfer.time_per_size: found 1e-400; expected a time per size"},
      {text_with("", R"(, "transfer": {"latency": 1, "time_per_size": 1e5})"),
       "transfer: transfer: 100000000000.000000 ns per byte; a rate lies between"},
      {text_with("", R"(, "memory_limit": [1])"),
       "memory_limit: found an array of 1; expected an array of 2, one number for each rank"},
      {text_with("", R"(, "memory_limit": 1.5)"),
       "memory_limit: found 1.5; expected a whole number from 0 to 9223372036854775807"},
      {text_with("", R"(, "memory_limit": 9223372036854775808)"),
       "memory_limit: found 9223372036854775808; expected a whole number"},
      {text_with("", R"(, "memory_limit": 1e19)"),
       "memory_limit: found 1e19; expected a whole number"},
      {text_with("", R"(, "memory_limit": -1)"), "memory_limit: found -1; expected a whole number"},
      {text_with(R"(, "offload": 1)"),
       "stages[0].offload: found 1; expected nothing of it: moving activations to host memory is "
       "not planned yet"},
      {text_with(R"(, "reload": 1)"), "stages[0].reload: found 1; expected nothing of it"},
      {text_with(R"(, "edge": 0.5)"), "stages[0].edge: found 0.5; expected a whole number"},
      {text_with(R"(, "recompute": 9223372036855)"),
       "stages[0].recompute: found 9223372036855; expected a time from 0 to 9223372036854 ms"},
      {text_with(R"(, "recompute": 1e300)"), "stages[0].recompute: found 1e300; expected a time"},
      {text_with(R"(, "recompute": 9e12)"), "times or sizes add up to more than 2^62"},
      {text_with(R"(, "recompute_input": 9)"), "stage 0: recompute_input is more than activation"},
      {text_with(R"(, "backward_fused": 3)"), "stage 0: backward_fused must lie between"},
      {text_with(R"(, "overlapped": 900)"), "stage 0: overlapped must lie between"},
      {text_with(R"(, "overlapped_fused": 900)"), "stage 0: overlapped_fused must lie between"},
      {R"({"ranks": 2, "microbatches": 4, "stages": []})",
       "stages: found an array of 0; expected an array of 1 for all stages, or of 2"},
      {R"({"ranks": 2, "microbatches": 4, "stages": [1]})",
       "stages[0]: found 1; expected an object"},
      {R"({"ranks": 2, "microbatches": 4, "stages": [{}]})",
       "stages[0]: found no key 'forward'; expected forward, backward_input, backward_weight"},
      {R"({"ranks": 2, "microbatches": 4, "stages": [)" + costs + "}, " + costs + "}, " + costs +
           "}]}",
       "stages: found an array of 3; expected an array of 1 for all stages, or of 2"},
      {R"({"ranks": 0, "microbatches": 4, "stages": []})",
       "ranks: found 0; expected a whole number from 1 to 65536"},
      {R"({"ranks": "2", "microbatches": 4, "stages": []})", "ranks: found '2'; expected a whole"},
      {R"({"ranks": 2, "microbatches": 0, "stages": []})",
       "microbatches: found 0; expected a whole number from 1 to 134217728"},
  };
  for (auto const& [text, expected] : faults) {
    CAPTURE(text);
    auto const found = refusal(text);
    CAPTURE(found, expected);
    CHECK(found.starts_with("problem: " + expected));
  }
}

TEST_CASE("a short text cannot ask for much memory", "[json]") {
  auto sized = [](std::string const& ranks, std::string const& rest) {
    return refusal(
        R"({"ranks": )" + ranks + R"(, "microbatches": 1, "stages": [)" + costs + "}]" + rest +
        "}");
  };
  CHECK(
      sized("2000000000", "") ==
      "problem: ranks: found 2000000000; expected a whole number from 1 to 65536");
  CHECK(
      sized("65536", R"(, "placement": "looped", "chunks": 2)") ==
      "problem: chunks: found 2; expected 1");
  CHECK(
      sized("32769", R"(, "placement": "v")") ==
      "problem: ranks: found 32769; expected at most 32768 for a v-shape");
  CHECK(
      sized("1025", R"(, "transfer": {"latency": 1, "time_per_size": 1})") ==
      "problem: transfer.latency: found 1; expected an array for each rank; one number stands for "
      "1024 ranks at most");
  CHECK(
      refusal(std::string(1'000'000, '[')) ==
      "problem: found more than 8 brackets within each other; expected at most that many");
  CHECK(
      read_problem(R"({"ranks": 65536, "microbatches": 1, "stages": [)" + costs + "}]}").ranks() ==
      65536);
}

TEST_CASE("what a message shows of a file is short and harmless", "[json]") {
  auto const found = refusal("{\"\\u001b[31m" + std::string(9999, 'x') + "\": 1}");
  CHECK(found.find('\x1b') == std::string::npos);
  CHECK(found.size() < 300);
}

TEST_CASE("a problem that no file may hold is not written", "[json]") {
  problem const large(placement::linear(65537), 1, stage_costs{});
  CHECK(test::refusal([&] {
          static_cast<void>(write_problem(large));
        }) == "a file holds at most 65536 stages, not 65537");
}

}  // namespace test_json_problem

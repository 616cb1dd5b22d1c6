// SPDX-License-Identifier: Apache-2.0
//
// Files of named arrays: what is written comes back to the bit, and what is no such file is refused
// with what is wrong.
#include <zbpp/checkpoint/safetensors.hpp>
#include <zbpp/io/file.hpp>

#include <support/catch.hpp>
#include <support/damaged_texts.hpp>
#include <support/refusal.hpp>
#include <support/scratch_folder.hpp>
#include <support/seeded.hpp>
#include <support/thinned.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace test_checkpoint_file {

namespace fs = std::filesystem;
using namespace zbpp::test;
using zbpp::errc;
using zbpp::checkpoint::array;
using zbpp::checkpoint::array_of;
using zbpp::checkpoint::number_type;
using zbpp::checkpoint::stored_file;
using zbpp::checkpoint::write_arrays;

namespace {

std::string text_of(fs::path const& path) { return zbpp::read_file(path); }

void write_text(fs::path const& path, std::string const& text) { zbpp::write_file(path, text); }

/// Puts the length of a header in front of it, and some bytes of data behind.
std::string file_with(std::string const& header, std::size_t data = 0) {
  auto const length = static_cast<std::uint64_t>(header.size());
  std::string text(sizeof length, ' ');
  std::memcpy(text.data(), &length, sizeof length);
  return text + header + std::string(data, '\0');
}

std::vector<std::byte> bytes_of(stored_file const& file, std::string const& name) {
  auto const& stored = file.header().arrays.at(name);
  std::vector<std::byte> bytes(static_cast<std::size_t>(stored.end - stored.begin));
  file.read(stored, bytes);
  return bytes;
}

}  // namespace

TEST_CASE("arrays of any name, type and shape come back", "[checkpoint]") {
  scratch_folder const folder;
  auto const path = folder / "a.safetensors";
  ZBPP_SEEDED(random, 1);
  for (int trial = 0; trial < thinned(50, 10); ++trial) {
    std::vector<std::vector<std::byte>> numbers;
    std::vector<array> arrays;
    for (auto count = random.integer(0, 12); count > 0; --count) {
      auto const type = static_cast<number_type>(random.integer(0, 12));
      std::vector<std::int64_t> shape;
      auto size = zbpp::checkpoint::size_of(type);
      for (auto lengths = random.integer(0, 4); lengths > 0; --lengths) {
        shape.push_back(random.integer(0, 5));
        size *= static_cast<std::size_t>(shape.back());
      }
      auto& bytes = numbers.emplace_back(size);
      for (auto& each : bytes)
        each = static_cast<std::byte>(random.integer(0, type == number_type::boolean ? 1 : 255));
      arrays.push_back({std::to_string(count) + "/\"\\\n\x01 \xC3\xA9", type, shape, bytes});
    }
    std::map<std::string, std::string> const metadata{
        {"a \"key\"", "a\tvalue"}, {"trial", std::to_string(trial)}};
    auto const record = write_arrays(path, arrays, metadata);
    stored_file const file(path);
    CHECK(file.record() == record);
    CHECK(record.size == fs::file_size(path));
    CHECK(file.header().metadata == metadata);
    CHECK(file.header().arrays.size() == arrays.size());
    for (auto const& each : arrays) {
      auto const& stored = file.header().arrays.at(each.name);
      CHECK(stored.type == each.type);
      CHECK(stored.shape == each.shape);
      CHECK(stored.begin % zbpp::checkpoint::size_of(each.type) == 0);
      CHECK(std::ranges::equal(bytes_of(file, each.name), each.bytes));
    }
  }
}

TEST_CASE("the types of C++ have the types of the format", "[checkpoint]") {
  auto const type_of = [](auto number) { return array_of("x", std::span(&number, 1)).type; };
  CHECK(type_of(1.0) == number_type::f64);
  CHECK(type_of(1.0F) == number_type::f32);
  CHECK(type_of(std::int64_t{1}) == number_type::i64);
  CHECK(type_of(std::uint32_t{1}) == number_type::u32);
  CHECK(type_of(std::int16_t{1}) == number_type::i16);
  CHECK(type_of(std::uint8_t{1}) == number_type::u8);
  CHECK(type_of(true) == number_type::boolean);
  CHECK(to_string(number_type::bf16) == "BF16");
  float number = 1;
  CHECK(array_of("x", std::span(&number, 1)).shape == std::vector<std::int64_t>{1});
}

TEST_CASE("files of the format that others wrote are read", "[checkpoint]") {
  scratch_folder const folder;
  auto const path = folder / "other.safetensors";
  // As the format's own library writes it.
  write_text(
      path,
      file_with(
          R"({"__metadata__":{"made by":"another \"library\"\n"},"b":{"dtype":"F32","shape":[2,1],)"
          R"("data_offsets":[8,16]},"a":{"dtype":"I64","shape":[],"data_offsets":[0,8]}}   )") +
          std::string("\x07\0\0\0\0\0\0\0\0\0\x80\x3f\0\0\0\x40", 16));
  stored_file const file(path);
  CHECK(file.header().metadata.at("made by") == "another \"library\"\n");
  std::int64_t a = 0;
  file.read(file.header().arrays.at("a"), std::as_writable_bytes(std::span(&a, 1)));
  CHECK(a == 7);
  std::vector<float> b(2);
  file.read(file.header().arrays.at("b"), std::as_writable_bytes(std::span(b)));
  CHECK(b == std::vector<float>{1, 2});
}

TEST_CASE("a header that is none is refused with what is wrong", "[checkpoint]") {
  scratch_folder const folder;
  auto const path = folder / "a.safetensors";
  auto const entry = [](std::string const& type, std::string const& shape, std::string const& at) {
    return R"("w":{"dtype":)" + type + R"(,"shape":)" + shape + R"(,"data_offsets":)" + at + "}";
  };
  auto const whole = entry("\"F32\"", "[2]", "[0,8]");
  auto const typed = [&](std::string const& type) { return entry(type, "[2]", "[0,8]"); };
  auto const shaped = [&](std::string const& shape) { return entry("\"F32\"", shape, "[0,8]"); };
  auto const placed = [&](std::string const& at) { return entry("\"F32\"", "[2]", at); };
  auto const metadata = [](std::string const& of) { return "\"__metadata__\":" + of; };
  auto const begin = path.string() + ": is not a valid safetensors file: its header: ";
  auto const refused = [&](std::string const& header, std::string const& wrong) {
    INFO(header);
    write_text(path, file_with(header, 8));
    auto const text = refusal(errc::bad_format, [&] { stored_file const file(path); });
    CHECK_THAT(text, Catch::StartsWith(begin + wrong));
    CHECK_THAT(text, Catch::EndsWith("; take another copy of it"));
  };
  for (auto const& [wrong, members] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"the entry \"w\" stands there twice", {whole + "," + whole}},
           {"the entry \"a\" stands there twice", {metadata(R"({"a":"","a":""})")}},
           {"the entry \"__metadata__\" stands there", {metadata("{},") + metadata("{}")}},
           {"the entry 'w' has the type \"F8\", which is not known", {typed("\"F8\"")}},
           {"the entry 'w' has a dtype that is no string",
            {typed("7"), typed("null"), typed("[\"F32\"]")}},
           {"the entry 'w' has a shape that is no list of whole numbers",
            {shaped("[-2]"),
             shaped("[2.0]"),
             shaped("[2e0]"),
             shaped("[18446744073709551615]"),
             shaped("2"),
             shaped("null"),
             shaped("{}"),
             shaped("[null]"),
             shaped("[{}]")}},
           {"it has lists in lists", {shaped("[[2]]")}},
           {"the entry 'w' has a data_offsets that is no list of whole numbers", {placed("null")}},
           {"the entry 'w' has data_offsets that are not a begin and an end",
            {placed("[8,0]"), placed("[0]")}},
           {"the data of the entry 'w' is not F32 of 3", {shaped("[3]")}},
           {"the data of the entry 'w' is not F32 of 4611686018427387904 x 4",
            {shaped("[4611686018427387904,4]")}},
           {"the data of two entries overlaps, or a gap is left",
            {entry("\"U8\"", "[4]", "[4,8]")}},
           {"the entry 'w' is no object of dtype, shape and data_offsets",
            {R"("w":{"dtype":"F32","shape":[2]})",
             R"("w":{"dtype":"F32","dtype":"F32","shape":[2]})",
             R"("w":7)",
             R"("w":null)",
             R"("w":[])",
             R"("w":{})"}},
           {"its __metadata__ is no object of strings",
            {metadata("null"),
             metadata("false"),
             metadata("0"),
             metadata("\"\""),
             metadata("[]"),
             metadata("[\"a\"]"),
             metadata(R"({"a":1})"),
             metadata(R"({"a":null})"),
             metadata(R"({"a":[]})"),
             metadata(R"({"a":{}})")}}})
    for (auto const& each : members) refused("{" + each + "}", wrong);
  for (auto const& header : {"null", "[1]", ""}) refused(header, "it is no object");
  for (auto const* const before : {" ", "\xEF\xBB\xBF"})
    refused(before + ("{" + whole + "}"), "it is no object: it does not begin with '{'");
  std::string ones = "[1";
  for (int i = 1; i < 65; ++i) ones += ",1";
  refused("{" + entry("\"U8\"", ones + "]", "[0,1]") + "}", "a list has more than 64 numbers");
  for (auto const& [header, place] : std::vector<std::pair<std::string, std::string>>{
           {"{\"w\":", "line 1, column 6"},
           {"{" + std::string(100'000, '['), "line 1, column 2"},
           {"{\"w\":" + std::string(100'000, '['), "more than 8 brackets"}}) {
    write_text(path, file_with(header));
    auto const text = refusal(errc::bad_format, [&] { stored_file const file(path); });
    CHECK_THAT(text, Catch::Contains(place) && Catch::EndsWith("; take another copy of it"));
  }
}

TEST_CASE("no part of a file is taken for all of it, nor another file", "[checkpoint]") {
  scratch_folder const folder;
  auto const path = folder / "a.safetensors";
  std::vector<float> numbers{1, 2, 3};
  bool is_there = true;
  write_arrays(
      path,
      std::vector{array_of("w", std::span(numbers)), array_of("is", std::span(&is_there, 1), {})},
      {{"step", "12"}});
  auto const text = text_of(path);
  check_damaged_texts(text, [&](std::string const& changed) {
    write_text(path, changed);
    try {
      stored_file const file(path);
      for (auto const& [name, stored] : file.header().arrays)
        static_cast<void>(bytes_of(file, name));
    } catch (zbpp::error const& wrong) {
      CHECK(wrong.code() == errc::bad_format);
      CHECK_THAT(wrong.what(), Catch::StartsWith(path.string() + ": "));
      return true;
    }
    return false;
  });
}

TEST_CASE("what a file cannot have is refused before it is written", "[checkpoint]") {
  scratch_folder const folder;
  auto const path = folder / "a.safetensors";
  std::vector<float> numbers{1, 2, 3};
  std::byte two{2};
  auto const byte_of = [&](number_type type, std::vector<std::int64_t> shape) {
    return array{"c", type, std::move(shape), std::span(&two, 1)};
  };
  auto const named = [&](std::string name, std::vector<std::int64_t> shape = {}) {
    return array_of(std::move(name), std::span(numbers), std::move(shape));
  };
  for (auto const& each : std::vector<std::pair<std::vector<array>, std::string>>{
           {{named("w"), named("w")},
            "two entries of a checkpoint are 'w'; give each the name that it has in the whole "
            "model"},
           {{named("w", {2, 2})}, "'w' has 12 bytes, which are not F32 of 2 x 2"},
           {{named("w", {-3})}, "'w' has 12 bytes, which are not F32 of -3"},
           {{byte_of(number_type::boolean, {1})},
            "'c' has a byte of a bool that is neither 0 nor 1; save it as another type"},
           {{byte_of(number_type::u8, std::vector<std::int64_t>(65, 1))},
            "'c' has more than 64 axes; join some"},
           {{named("__metadata__")},
            "an entry of a checkpoint is '__metadata__', which the format has for itself; give it "
            "another name"},
           {{named("\xFF")}, "a name in a checkpoint is not valid UTF-8; give it another one"}}) {
    CHECK(refusal([&] { write_arrays(path, each.first); }) == each.second);
    CHECK_FALSE(fs::exists(path));
  }
}

}  // namespace test_checkpoint_file

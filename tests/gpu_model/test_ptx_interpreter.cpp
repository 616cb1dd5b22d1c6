// SPDX-License-Identifier: Apache-2.0
#include <gpu_model/ptx/launch.hpp>
#include <gpu_model/ptx/parse.hpp>
#include <support/catch.hpp>
#include <support/seeded.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace test_ptx_interpreter {
namespace {

using namespace zbpp::test;
using namespace zbpp::test::ptx;

// A kernel with one parameter, the array `out`, whose element %rd3 points to for each lane.
[[nodiscard]] kernel with_body(std::string const& body) {
  auto const text = R"(
.visible .entry test(
  .param .u64 test_param_0
)
{
  .reg .b64 %rd<4>;
  .shared .align 4 .b8 kept[256];
  ld.param.u64 %rd1, [test_param_0];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.s64 %rd3, %rd1, %rd2;
)" + body + " ret;\n}\n";
  return parse(text).at(0);
}

struct outcome {
  std::vector<std::uint32_t> out;
  std::string fault;  // empty: none
};

// Runs a body for some lanes; `out` holds 0, 1, ..., unless nothing was written there.
[[nodiscard]] outcome run(
    std::string const& body,
    launch_size size = {1, 32},
    std::size_t count = 32,
    bool is_written = true) {
  ZBPP_SEEDED(random, size.blocks * 1000 + size.lanes);
  outcome all{std::vector<std::uint32_t>(count), {}};
  std::iota(all.out.begin(), all.out.end(), 0U);
  auto* const first = all.out.data();
  memory global;
  auto const address = std::bit_cast<std::uint64_t>(first);
  global.add("out", address, std::as_writable_bytes(std::span(all.out)), is_written);
  auto const made = with_body(body);
  try {
    launch(made, size, arguments(made, first), global, random);
  } catch (fault const& found) {
    all.fault = found.what();
  }
  return all;
}

void check_fault(outcome const& of, std::string const& text) {
  CHECK_THAT(of.fault, Catch::Contains(text));
}

TEST_CASE("lanes compute, branch and use their memory") {
  auto const doubled = run(R"(
  ld.global.u32 %r2, [%rd3];
  setp.lt.u32 %p1, %r1, 4;
  @%p1 bra small;
  shl.b32 %r2, %r2, 1;
small:
  @!%p1 add.s32 %r2, %r2, 1;
  st.global.u32 [%rd3], %r2;
)");
  CHECK(doubled.fault == "");
  for (std::uint32_t i = 0; i < 32; ++i) CHECK(doubled.out[i] == (i < 4 ? i : 2 * i + 1));
}

TEST_CASE("vectors are loaded, packed, unpacked and stored") {
  auto const swapped = run(
      R"(
  mul.wide.u32 %rd2, %r1, 16;
  add.s64 %rd3, %rd1, %rd2;
  ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd3];
  mov.b64 %rd4, {%r2, %r5};
  mov.b64 {%r6, %r7}, %rd4;
  st.global.v2.u32 [%rd3+8], {%r7, %r6};
)",
      {1, 8});
  CHECK(swapped.fault == "");
  CHECK(
      std::vector(swapped.out.begin() + 4, swapped.out.begin() + 8) == std::vector{4U, 5U, 7U, 4U});
}

TEST_CASE("signed numbers keep their sign, and a shift by too much leaves it") {
  auto const all = run(
      R"(
  mov.u32 %r2, -7;
  div.s32 %r3, %r2, 2;
  st.global.u32 [%rd1], %r3;
  rem.s32 %r3, %r2, 4;
  st.global.u32 [%rd1+4], %r3;
  shr.s32 %r3, %r2, 40;
  st.global.u32 [%rd1+8], %r3;
  shr.u32 %r3, %r2, 40;
  st.global.u32 [%rd1+12], %r3;
  cvt.s64.s32 %rd4, %r2;
  shr.u64 %rd4, %rd4, 32;
  st.global.u32 [%rd1+16], %rd4;
  cvt.u64.u32 %rd4, %r2;
  shr.u64 %rd4, %rd4, 32;
  st.global.u32 [%rd1+20], %rd4;
  mul.hi.s32 %r3, %r2, 1073741824;
  st.global.u32 [%rd1+24], %r3;
)",
      {1, 1});
  CHECK(all.fault == "");
  constexpr auto minus = [](int i) { return static_cast<std::uint32_t>(-i); };
  CHECK(
      std::vector(all.out.begin(), all.out.begin() + 7) ==
      std::vector{minus(3), minus(3), minus(1), 0U, minus(1), 0U, minus(2)});
}

TEST_CASE("floats compare, convert and round as PTX says") {
  operation_table const operations;
  auto const on = [&](char const* name, float a, float b = 0, float c = 0) {
    return operations[name](bits_of(a), bits_of(b), bits_of(c));
  };
  float const nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(on("setp.ne.f32", nan, 1) == 0);
  CHECK(on("setp.neu.f32", nan, 1) == 1);
  CHECK(on("setp.ltu.f32", nan, 1) == 1);
  CHECK(on("setp.lt.f32", nan, 1) == 0);
  CHECK(on("max.f32", nan, 1) == bits_of(1.0F));
  CHECK(on("cvt.sat.f32.f32", nan) == bits_of(0.0F));
  CHECK(on("cvt.sat.f32.f32", 3) == bits_of(1.0F));
  // 1 and 3 halves of the last place of a bf16: ties go to even.
  CHECK(on("cvt.rn.bf16.f32", 1 + 0x1p-8F) == 0x3f80);
  CHECK(on("cvt.rn.bf16.f32", 1 + 3 * 0x1p-8F) == 0x3f82);
  CHECK(on("cvt.rn.bf16x2.f32", 1, -2) == 0x3f80c000);
  // What lies between two floats is rounded down, also below 0.
  CHECK(on("fma.rm.f32", 1, 1, 0x1p-30F) == bits_of(1.0F));
  CHECK(on("fma.rm.f32", -1, 1, -0x1p-30F) == bits_of(std::nextafter(-1.0F, -2.0F)));
  CHECK(on("fma.rn.f32", -1, 1, -0x1p-30F) == bits_of(-1.0F));
  CHECK(on("ex2.approx.ftz.f32", 0x1p-140F) == bits_of(1.0F));
  CHECK(on("ex2.approx.ftz.f32", -140) == bits_of(0.0F));
}

TEST_CASE("shuffles read from other lanes of a segment") {
  auto const shuffled =
      [](std::string const& how, std::string const& by, std::string const& limits) {
        auto const all =
            run("shfl.sync." + how + ".b32 %r2|%p1, %r1, " + by + ", " + limits + ", -1;\n" +
                "@!%p1 add.s32 %r2, %r2, 100;\nst.global.u32 [%rd3], %r2;\n");
        CHECK(all.fault == "");
        return all.out;
      };
  auto const down = shuffled("down", "3", "31");
  auto const up = shuffled("up", "3", "0");
  auto const within_eight = shuffled("down", "3", "6175");  // (32 - 8) << 8 | 31
  auto const flipped = shuffled("bfly", "5", "31");
  auto const second = shuffled("idx", "1", "6175");
  for (std::uint32_t l = 0; l < 32; ++l) {
    CHECK(down[l] == (l < 29 ? l + 3 : l + 100));
    CHECK(up[l] == (l >= 3 ? l - 3 : l + 100));
    CHECK(within_eight[l] == (l % 8 < 5 ? l + 3 : l + 100));
    CHECK(flipped[l] == (l ^ 5));
    CHECK(second[l] == l / 8 * 8 + 1);
  }
}

TEST_CASE("votes count the lanes of their mask") {
  auto const voted = [](std::string const& how, std::string const& least, std::string const& then) {
    auto const all =
        run("setp.ge.u32 %p1, %r1, " + least + ";\nvote.sync." + how + ", %p1, -1;\n" + then +
            "st.global.u32 [%rd3], %r2;\n");
    CHECK(all.fault == "");
    return all.out;
  };
  std::string const as_number = "selp.u32 %r2, 1, 0, %p2;\n";
  CHECK(voted("ballot.b32 %r2", "30", "") == std::vector(32, 0xc0000000U));
  CHECK(voted("all.pred %p2", "0", as_number) == std::vector(32, 1U));
  CHECK(voted("all.pred %p2", "1", as_number) == std::vector(32, 0U));
  CHECK(voted("any.pred %p2", "31", as_number) == std::vector(32, 1U));
  CHECK(voted("any.pred %p2", "32", as_number) == std::vector(32, 0U));
}

// Each lane writes to shared memory, and reads what the next one wrote.
[[nodiscard]] std::string passing_on(std::string const& between) {
  return R"(
  shl.b32 %r2, %r1, 2;
  mov.u32 %r3, kept;
  add.s32 %r3, %r3, %r2;
  st.shared.u32 [%r3], %r1;
)" + between +
         R"(
  add.s32 %r4, %r2, 4;
  and.b32 %r4, %r4, 255;
  ld.shared.u32 %r5, [%r4];
  st.global.u32 [%rd3], %r5;
)";
}

TEST_CASE("a barrier orders what lanes write and read") {
  auto const all = run(passing_on("bar.sync 0;\n"), {1, 64}, 64);
  CHECK(all.fault == "");
  for (std::uint32_t l = 0; l < 64; ++l) CHECK(all.out[l] == (l + 1) % 64);
}

TEST_CASE("without the barrier it is a race, or nothing was written yet") {
  auto const all = run(passing_on(""), {1, 64}, 64);
  CHECK_THAT(all.fault, Catch::Contains("another lane") || Catch::Contains("nobody wrote"));
}

TEST_CASE("a barrier that not all lanes come to is found") {
  check_fault(run("setp.lt.u32 %p1, %r1, 3;\n@%p1 bar.sync 0;\n"), "wait for each other");
  check_fault(
      run("setp.lt.u32 %p1, %r1, 3;\n@%p1 bra low;\nbar.sync 0;\n "
          "ret;\nlow:\nbar.sync 0;\n"),
      "wait for each other");
}

TEST_CASE("a race between lanes or blocks is found, and the same value is none") {
  std::string const to_first = "st.global.u32 [%rd1], %r1;\n";
  check_fault(run(to_first), "writes what another lane writes in out");
  CHECK(run(to_first, {1, 1}).fault == "");
  CHECK(run("st.global.u32 [%rd1], 7;\n", {3, 64}).fault == "");
  std::string const of_block = "  mov.u32 %r2, %ctaid.x;\nst.global.u32 [%rd3], %r2;\n";
  check_fault(run(of_block, {2, 32}), "writes what another lane writes in out");
  std::string const reads_first = "ld.global.u32 %r2, [%rd1];\n";
  CHECK(run(reads_first, {2, 32}).fault == "");
  check_fault(run(reads_first + "st.global.u32 [%rd3], 9;\n"), "another lane");
}

TEST_CASE("all lanes may read what one of them then writes behind a barrier, in one block only") {
  std::string const body = "ld.global.u32 %r2, [%rd1];\nbar.sync 0;\n"
                           "setp.eq.s32 %p1, %r1, 0;\n@%p1 st.global.u32 [%rd1], 5;\n";
  CHECK(run(body).fault == "");
  check_fault(run(body, {2, 32}), "another lane");
}

TEST_CASE("an access that is out of bounds or not aligned is found") {
  check_fault(run("st.global.u32 [%rd3], 1;\n", {1, 32}, 31), "4 bytes are not within out");
  check_fault(run("ld.global.u32 %r2, [%rd1+-4];\n"), "an address is below all arrays");
  check_fault(run("ld.global.u32 %r2, [%rd1+2];\n"), "4 bytes of out are not aligned");
  check_fault(run("ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd1+8];\n"), "not aligned");
  check_fault(run("ld.shared.u32 %r2, [kept+256];\n"), "4 bytes are not within shared memory");
  check_fault(run("ld.param.u64 %rd2, [test_param_0+8];\n"), "not within the parameters");
}

TEST_CASE("a read of what was never written is found") {
  std::string const read = "ld.global.u32 %r2, [%rd3];\n";
  check_fault(run(read, {1, 32}, 32, false), "reads what nobody wrote in out");
  CHECK(run("st.global.u32 [%rd3], 1;\n" + read, {1, 32}, 32, false).fault == "");
  check_fault(run("ld.shared.u32 %r2, [kept];\n"), "reads what nobody wrote in shared memory");
}

TEST_CASE("a wrong mask is found") {
  auto const masked = [](std::string const& mask, launch_size size = {1, 32}) {
    return run("shfl.sync.down.b32 %r2|%p1, %r1, 1, 31, " + mask + ";\n", size);
  };
  CHECK(masked("-1").fault == "");
  check_fault(masked("2147483647"), "leaves");
  check_fault(masked("-1", {1, 31}), "names lanes that are not there");
  check_fault(
      run("  mov.u32 %r3, 15;\nsetp.ge.u32 %p2, %r1, 2;\n@%p2 mov.u32 "
          "%r3, 12;\n"
          "setp.ge.u32 %p3, %r1, 4;\n@%p3 ret;\n"
          "shfl.sync.down.b32 %r2|%p1, %r1, 1, 31, %r3;\n"),
      "different masks");
  check_fault(
      run("setp.ge.u32 %p2, %r1, 4;\n@%p2 ret;\n"
          "shfl.sync.down.b32 %r2|%p1, %r1, 1, 31, 15;\n"),
      "a lane that its mask leaves out");
  check_fault(
      run("setp.ge.u32 %p2, %r1, 4;\n@%p2 bar.sync 0;\n"
          "shfl.sync.down.b32 %r2|%p1, %r1, 1, 31, -1;\n"),
      "wait for each other");
}

TEST_CASE("what cannot be computed, does not end or is not known is refused with its line") {
  check_fault(run("again:\n  bra again;\n", {1, 1}), "lane 0, line 13: does not end");
  check_fault(run("div.u32 %r2, %r1, 0;\n"), "line 12: divides by 0");
  CHECK_THROWS_WITH(with_body("brev.b32 %r2, %r1;\n"), "line 12: the interpreter has no brev.b32");
  CHECK_THROWS_WITH(with_body("bra nowhere;\n"), "line 14: there is no label nowhere");
  auto const made = with_body("");
  CHECK_THROWS_WITH(arguments(made, 4), "test has other parameters");
  CHECK_THROWS_WITH(arguments(made), "test has more parameters");
}

}  // namespace
}  // namespace test_ptx_interpreter

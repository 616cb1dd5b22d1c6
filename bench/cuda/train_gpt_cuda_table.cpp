// SPDX-License-Identifier: Apache-2.0
//
// Prints a table of the kernels of train_gpt_cuda, and one of its products, at the default sizes:
// registers as ptxas says, bytes as the kernels declare them, and the least time that the memory
// of an H100 takes for those. Nothing is run. The argument is a file with what
// `nvcc -Xptxas -v` printed.
#include "train_gpt_cuda/rows.hpp"

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

namespace gpt::cuda {
namespace {

// @source NVIDIA H100 SXM5 data sheet: 3.35 TB/s, and 989 TFLOP/s of dense bf16
constexpr double bytes_per_microsecond = 3.35e6;
constexpr double operations_per_microsecond = 989e6;
constexpr shape s;

/// Gives an address that nobody reads.
template <class Value>
Value* some() {
  return reinterpret_cast<Value*>(std::uintptr_t{4096});
}

/// Is what ptxas printed.
class resources {
 public:
  explicit resources(char const* file) {
    std::ifstream from(file);
    text_.assign(std::istreambuf_iterator<char>(from), {});
    if (text_.empty()) throw setting_error(std::string(file) + " is empty or cannot be read");
  }

  /// @return the number before `unit`, in the lines about the first kernel whose name has `part`
  [[nodiscard]] int of(std::string const& part, std::string const& unit) const {
    auto const name = text_.find(part);
    auto const used = text_.find("Used ", name);
    if (name == std::string::npos || used == std::string::npos)
      throw setting_error("ptxas tells nothing of " + part);
    auto const line = text_.substr(used, text_.find('\n', used) - used);
    auto const at = line.find(unit);
    if (at == std::string::npos) return 0;  // shared memory, where there is none
    auto const first = line.find_last_not_of("0123456789", at - 2);
    return std::stoi(line.substr(first + 1, at - first - 2));
  }

 private:
  std::string text_;
};

void print(
    resources const& compiled,
    char const* name,
    std::string const& entry,
    char const* launches,
    double bytes,
    double operations) {
  std::printf(
      "| %s | %s | %d | %d | %.2f | %.2f | %.2f |\n",
      name,
      launches,
      compiled.of(entry, "registers"),
      compiled.of(entry, "bytes smem"),
      bytes * 1e-6,
      operations / bytes,
      bytes / bytes_per_microsecond);
}

/// @param type  as it is written
/// @param each  operations for each of `elements`; e^x is one
template <class Rows>
void print(
    resources const& compiled,
    Rows const& what,
    std::string const& type,
    char const* launches,
    index elements,
    double each) {
  touching touched;
  what.touches(touched);
  std::size_t bytes = 0;
  for (auto const* const all : {&touched.read, &touched.written})
    for (auto const& range : *all) bytes += range.bytes;
  print(
      compiled,
      Rows::name,
      "run_rowsINS0_" + std::to_string(type.size()) + type + "E",
      launches,
      static_cast<double>(bytes),
      each * static_cast<double>(elements));
}

void print_kernels(resources const& compiled) {
  std::printf("| kernel | launches | registers | shared bytes | MB moved | operations a byte | "
              "least us by memory |\n|---|---|---|---|---|---|---|\n");
  constexpr auto in = [] { return some<bf16 const>(); };
  constexpr auto out = [] { return some<bf16>(); };
  constexpr auto wide_in = [] { return some<float const>(); };
  constexpr auto wide_out = [] { return some<float>(); };
  index const rows = s.row_elements();
  index const tokens = s.tokens();
  index const scores = s.score_rows() * (s.context + s.causal_block()) / 2;
  sequences_of const of{
      some<std::uint8_t const>(), 0, some<std::int64_t const>(), s.sequences, s.context};
  print(
      compiled,
      norm{tokens, s.width, in(), wide_in(), wide_in(), out(), wide_out(), out()},
      "norm",
      "2 a layer, F",
      rows,
      8);
  print(
      compiled,
      causal_softmax{s.score_rows(), s.context, s.causal_block(), out()},
      "causal_softmax",
      "1 a layer, F",
      scores,
      7);
  print(
      compiled,
      norm_backward{tokens, s.width, in(), wide_in(), in(), wide_in(), in(), out()},
      "norm_backward",
      "2 a layer, B",
      rows,
      11);
  print(
      compiled,
      causal_softmax_backward{s.score_rows(), s.context, s.causal_block(), 1.0F, in(), out()},
      "causal_softmax_backward",
      "1 a layer, B",
      scores,
      5);
  print(
      compiled,
      norm_weights{
          tokens, s.width, in(), in(), wide_in(), wide_in(), out(), wide_out(), wide_out()},
      "norm_weights",
      "2 a layer, W",
      rows,
      5);
  auto const runs = token_runs{tokens}.count();
  add_sums of_block{};
  for (index const width : {s.width, s.width, s.hidden(), 3 * s.width})
    of_block.items[of_block.count++] = {wide_in(), 1, width, wide_out()};
  for (int i = 0; i < 4; ++i)
    of_block.items[of_block.count++] = {wide_in(), runs, s.width, wide_out()};
  print(compiled, of_block, "add_sums", "1 a layer, W", 4 * runs * s.width, 1);
  print(
      compiled,
      column_sums{tokens, s.hidden(), in(), wide_out()},
      "column_sums",
      "0 to 4 a layer, W",
      tokens * s.hidden(),
      1);
  print(compiled, embed{of, s.width, wide_in(), wide_in(), out()}, "embed", "1, F", rows, 1);
  index const logits = tokens * vocabulary;
  print(
      compiled,
      cross_entropy{of, 1.0F, wide_in(), wide_in(), out(), wide_out()},
      "cross_entropy",
      "1, F",
      logits,
      10);
  print(compiled, mean_loss{tokens, wide_in(), wide_out()}, "mean_loss", "1, F", tokens, 1);
  print(
      compiled,
      embed_token_backward{of, s.width, in(), wide_out()},
      "embed_token_backward",
      "1, W",
      rows,
      1);
  print(
      compiled,
      embed_position_backward{s.sequences, s.width, s.context, in(), wide_out()},
      "embed_position_backward",
      "1, W",
      rows,
      1);
  index const weights = 12 * s.width * s.width;  // of a layer
  // Weights, gradients and two means are read and written; gradients are cleared.
  print(
      compiled,
      "AdamW, a layer's weights",
      "rule_given",
      "1 a stage and step",
      32.0 * static_cast<double>(weights),
      15.0 * static_cast<double>(weights));
  print(
      compiled,
      "the same, with `--replay step`",
      "rule_scheduled",
      "1 a stage and step",
      32.0 * static_cast<double>(weights),
      15.0 * static_cast<double>(weights));
  print(
      compiled,
      round_weights{weights, wide_in(), out()},
      "round_weights",
      "1 a stage and step",
      weights,
      0);
}

void print_products() {
  std::printf("\n| product | launches | MB moved | operations a byte | least us by memory | "
              "least us by tensor cores |\n|---|---|---|---|---|---|\n");
  auto const print = [](char const* name,
                        char const* launches,
                        index rows,
                        index columns,
                        index inner,
                        index batch,
                        index more) {
    auto const bytes = static_cast<double>(
        batch * (2 * (rows * inner + inner * columns) + 2 * rows * columns) + more);
    auto const operations = 2.0 * static_cast<double>(batch * rows * columns * inner);
    std::printf(
        "| %s | %s | %.1f | %.0f | %.1f | %.1f |\n",
        name,
        launches,
        bytes * 1e-6,
        operations / bytes,
        bytes / bytes_per_microsecond,
        operations / operations_per_microsecond);
  };
  index const t = s.tokens();
  index const c = s.width;
  index const h = s.hidden();
  index const row_bytes = 2 * t * c;
  print("qkv, bias", "1 a layer, F", t, 3 * c, c, 1, 0);
  print("attention out, bias, residual", "1 a layer, F", t, c, c, 1, row_bytes);
  print("MLP up, bias, GELU", "1 a layer, F", t, h, c, 1, 4 * row_bytes);
  print("MLP down, bias, residual", "1 a layer, F", t, c, h, 1, row_bytes);
  print("MLP down, slope of GELU", "1 a layer, B", t, h, c, 1, 4 * row_bytes);
  print("MLP up", "1 a layer, B", t, c, h, 1, 0);
  print("attention out", "1 a layer, B", t, c, c, 1, 0);
  print("qkv", "1 a layer, B", t, c, 3 * c, 1, 0);
  print("MLP up or down, weights", "2 a layer, W", c, h, t, 1, 6 * c * h);
  print("attention out, weights", "1 a layer, W", c, c, t, 1, 6 * c * c);
  print("qkv, weights", "1 a layer, W", 3 * c, c, t, 1, 6 * 3 * c * c);
  // Blocks of keys differ: the last one, which is the largest.
  index const queries = s.causal_block();
  index const batch = s.sequences * s.heads;
  print("scores, last block", "1 F, 1 B of 4 a layer", queries, s.context, s.head(), batch, 0);
  print("values, last block", "1 F, 3 B of 4 a layer", queries, s.head(), s.context, batch, 0);
}

}  // namespace
}  // namespace gpt::cuda

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "train_gpt_cuda_table: name a file with what nvcc -Xptxas -v printed\n");
    return 2;
  }
  try {
    gpt::cuda::print_kernels(gpt::cuda::resources(argv[1]));
    gpt::cuda::print_products();
    return 0;
  } catch (gpt::setting_error const& wrong) {
    std::fprintf(stderr, "train_gpt_cuda_table: %s\n", wrong.what());
    return 2;
  }
}

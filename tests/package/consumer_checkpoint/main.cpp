// SPDX-License-Identifier: Apache-2.0
#include <zbpp/checkpoint/checkpoint.hpp>

#include <span>
#include <vector>

int main() {
  std::vector<float> weights{1, 2, 3};
  std::vector const arrays{zbpp::checkpoint::array_of("weights", std::span(weights))};
  zbpp::checkpoint::write_arrays("weights.safetensors", arrays);
  zbpp::checkpoint::stored_file const file("weights.safetensors");
  weights = {0, 0, 0};
  file.read(file.header().arrays.at("weights"), arrays.front().bytes);
  return weights == std::vector<float>{1, 2, 3} ? 0 : 1;
}

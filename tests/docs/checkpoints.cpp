// SPDX-License-Identifier: Apache-2.0
#include <zbpp/checkpoint/checkpoint.hpp>
#include <zbpp/zbpp.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace docs_checkpoints {

struct layer {
  std::string name;
  std::vector<float> weights;
  std::vector<float> momentum;
};

// [arrays
std::vector<zbpp::checkpoint::array> arrays_of(std::vector<layer>& layers) {
  using zbpp::checkpoint::array_of;
  std::vector<zbpp::checkpoint::array> all;
  for (auto& each : layers) {
    all.push_back(array_of(each.name + ".weight", std::span(each.weights)));
    all.push_back(array_of(each.name + ".momentum", std::span(each.momentum)));
  }
  return all;
}
// arrays]

zbpp::checkpoint::array part_of(
    std::span<float> rows, std::int64_t columns, std::int64_t member, std::int64_t members) {
  // [part
  using zbpp::checkpoint::array_of;
  auto const own = std::ssize(rows) / columns;  // this member has as many rows as each other one
  return array_of(
      "mlp.up.weight",
      rows,
      {own, columns},
      {.axis = 0, .first = member * own, .whole = members * own});
  // part]
}

void add_moments(
    std::vector<zbpp::checkpoint::array>& all,
    zbpp::optim::adamw& steps,
    std::vector<std::string> const& names) {
  using zbpp::checkpoint::array_of;
  // [moments
  for (int k = 0; k < steps.layers(); ++k) {
    if (!steps.has_moments(k)) continue;  // another replica steps the layer
    auto const moments = steps.mean().subspan(steps.first_moment(k), steps.at(k).weights.size());
    all.push_back(array_of(names[std::size_t(k)] + ".mean", moments));
  }
  // moments]
}

template <class Pipeline>
void train(
    Pipeline& pipe,
    std::vector<std::vector<layer>>& layers_of_rank,
    std::vector<layer>& all_layers,
    bool resumes) {
  constexpr std::int64_t steps = 1000;
  // [run
  zbpp::checkpoint::run_folder folder(
      "checkpoints",
      {.settings = {{"--width", "768"}, {"--seed", "1"}},   // have to stay the same
       .split = {{"--ranks", "4"}, {"--policy", "zb_h1"}},  // may change
       .ranks = 4});
  if (resumes)
    pipe.resume(folder.resume(arrays_of(all_layers)));
  else
    folder.begin();
  while (pipe.state().steps < steps) {
    pipe.run(50);
    bool const is_saved = folder.save(pipe.state(), [&](int rank) {
      return arrays_of(layers_of_rank[static_cast<std::size_t>(rank)]);
    });
    if (!is_saved) break;  // a number is nan or infinite: the last good checkpoints stay
  }
  // run]
}

template <class Rendezvous>
zbpp::checkpoint::run_folder join(
    Rendezvous& meeting, std::filesystem::path const& path, zbpp::checkpoint::run_description run) {
  // [apart
  return {path, run, std::make_unique<zbpp::checkpoint::ranks_apart<Rendezvous>>(meeting)};
  // apart]
}

void look(std::filesystem::path const& path) {
  // [file
  zbpp::checkpoint::stored_model const file(path);
  for (auto const& [name, array] : file.arrays()) {
    std::vector<std::byte> const bytes = file.read(array);  // of array.type and array.shape
  }
  // file]
}

}  // namespace docs_checkpoints

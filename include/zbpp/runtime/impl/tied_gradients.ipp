// SPDX-License-Identifier: Apache-2.0
//
// How the gradients of tied weights are added up.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/detail/tied_gradients.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace zbpp::detail {

ZBPP_INLINE tied_gradients::tied_gradients(rank_setup const& setup) {
  auto const& program = setup.program;
  auto const rank = setup.rank;
  auto const row = program.instructions(rank);
  if (std::none_of(row.begin(), row.end(), [](instruction const& i) { return i.is_of_tied(); }))
    return;
  auto const& placement = program.placement();
  state_map const map(program);
  for (int s : tied_stages(program)) {
    auto const from = placement.rank_of(s);
    if (from == rank) {
      sources_.push_back({placement.chunk_of(s), state_map::none});
      continue;
    }
    sources_.push_back({0, map.between(from, rank)});
    auto const channel = map.between(rank, from);
    if (std::none_of(receivers_.begin(), receivers_.end(), [&](receiver const& known) {
          return known.channel == channel;
        }))
      receivers_.push_back(
          {channel, setup.problem.transfer()(rank, from, setup.problem.tied_size())});
  }
  for (auto const& stage : setup.stages) optimizers_.push_back(stage.optimizer());
  own_.resize(optimizers_.size());
  weights_ = index(setup.problem.tied_size()) / sizeof(float);
  sum_.resize(weights_);
}

ZBPP_INLINE std::span<std::byte const> tied_gradients::read(int chunk, pass_context ctx) {
  auto& from = *optimizers_[index(chunk)];
  auto& own = own_[index(chunk)];
  own.resize(weights_ * index(tied_layers(from)));
  from.read_tied(own, ctx);
  return std::as_bytes(std::span(own));
}

ZBPP_INLINE void tied_gradients::add(std::span<std::byte const> gradients) {
  auto const size = weights_ * sizeof(float);
  if (gradients.empty() || gradients.size() % size != 0)
    throw error(errc::no_agreement) + "another rank sent " + gradients.size() +
        " bytes of tied gradients, which are not those of layers of " + size +
        "; give the tied layers of all ranks the same size";
  if (next_ == 0) {
    std::memcpy(sum_.data(), gradients.data(), size);
    gradients = gradients.subspan(size);
  }
  std::array<float, 1024> some{};
  for (; !gradients.empty(); gradients = gradients.subspan(size))
    for (std::size_t i = 0; i < weights_; i += some.size()) {
      auto const count = std::min(some.size(), weights_ - i);
      std::memcpy(some.data(), gradients.data() + i * sizeof(float), count * sizeof(float));
      for (std::size_t k = 0; k < count; ++k) sum_[i + k] += some[k];
    }
}

ZBPP_INLINE void tied_gradients::write(int chunk, pass_context ctx) const {
  optimizers_[index(chunk)]->write_tied(sum_, ctx);
}

}  // namespace zbpp::detail

// SPDX-License-Identifier: Apache-2.0
//
// How states of generators are read and written.
#pragma once

#include <zbpp/torch/detail/generator_states.hpp>

#include <algorithm>
#include <mutex>

namespace zbpp::torch::detail {

inline void generator_states::read() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  {
    std::lock_guard const lock(generator.mutex());
    auto* const cpu = at::check_generator<at::CPUGeneratorImpl>(generator);
    cpu_ = cpu->engine().data();
    float_sample_ = cpu->next_float_normal_sample();
    double_sample_ = cpu->next_double_normal_sample();
  }
  for (auto& [other, state] : others_) {
    std::lock_guard const lock(other.mutex());
    state = other.get_state();
  }
}

inline void generator_states::write() const {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  {
    std::lock_guard const lock(generator.mutex());
    auto* const cpu = at::check_generator<at::CPUGeneratorImpl>(generator);
    at::mt19937 engine;
    engine.set_data(cpu_);
    cpu->set_engine(engine);
    cpu->set_next_float_normal_sample(float_sample_);
    cpu->set_next_double_normal_sample(double_sample_);
  }
  for (auto const& [other, state] : others_) {
    at::Generator to = other;
    std::lock_guard const lock(to.mutex());
    to.set_state(state);
  }
}

inline bool operator==(generator_states const& a, generator_states const& b) {
  auto const& x = a.cpu_;
  auto const& y = b.cpu_;
  return x.left_ == y.left_ && x.next_ == y.next_ && x.seed_ == y.seed_ && x.state_ == y.state_ &&
         a.float_sample_ == b.float_sample_ && a.double_sample_ == b.double_sample_ &&
         std::equal(
             a.others_.begin(),
             a.others_.end(),
             b.others_.begin(),
             b.others_.end(),
             [](auto const& of_a, auto const& of_b) {
               return of_a.first == of_b.first && of_a.second.equal(of_b.second);
             });
}

}  // namespace zbpp::torch::detail

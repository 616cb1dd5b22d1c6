// SPDX-License-Identifier: Apache-2.0
//
// How states of LibTorch's default generators are read, put back and followed.
#pragma once

#include <zbpp/torch/detail/random_draws.hpp>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <algorithm>
#include <functional>
#include <iterator>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

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

/// @return what all draws of the process that are recorded or made again hold
[[nodiscard]] inline std::mutex& draw_mutex() {
  static std::mutex mutex;
  return mutex;
}

/// Names operations for GPUs that draw from the default generator and take no other.
inline constexpr std::string_view drawing_operations[] = {
    "aten::native_dropout",
    "aten::_cudnn_rnn",
    "aten::_flash_attention_forward",
    "aten::_efficient_attention_forward",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention"};

/// @return whether an operation, or an overload of it that it may call, can draw from a generator
[[nodiscard]] inline bool can_draw(at::RecordFunction const& operation) {
  auto const schema = operation.operator_schema();
  if (!schema) return false;
  auto const& drawing = drawing_operations;
  if (std::ranges::find(drawing, std::string_view(schema->name())) != std::end(drawing))
    return true;
  if (c10::Dispatcher::singleton().findSchema({schema->name(), "generator"})) return true;
  auto const& arguments = schema->arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](auto const& each) {
    auto const type = each.type()->str();
    return type == "Generator" || type == "Generator?";
  });
}

[[nodiscard]] inline bool draws_from_default(at::RecordFunction const& operation) {
  struct hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  // Schemas are copied to be read, so each name is looked up once.
  static thread_local std::unordered_map<std::string, bool, hash, std::equal_to<>> known;
  std::string_view const name = operation.name();
  auto found = known.find(name);
  if (found == known.end()) found = known.emplace(name, can_draw(operation)).first;
  if (!found->second) return false;
  auto const& inputs = inputs_of(operation);
  return std::none_of(
      inputs.begin(), inputs.end(), [](auto const& each) { return each.isGenerator(); });
}

inline bool draw_turns::begin(at::RecordFunction const& operation) {
  if (drawing_ || !draws_from_default(operation)) return false;
  drawing_ = std::unique_lock(draw_mutex());
  return true;
}

inline bool draw_recorder::begin(at::RecordFunction const& operation) {
  if (drawing_ || !draws_from_default(operation)) return false;
  std::unique_lock lock(draw_mutex());
  generator_states const now(*in_);
  if (count_ == 0 || !(now == last_)) draws_->turns.push_back({count_, now});
  drawing_ = std::move(lock);
  return true;
}

inline void draw_recorder::end() noexcept {
  last_ = generator_states(*in_);
  ++count_;
  drawing_ = {};
}

inline bool draw_replay::begin(at::RecordFunction const& operation) {
  auto const& turns = draws_->turns;
  if (drawing_ || turns.empty() || !draws_from_default(operation)) return false;
  std::unique_lock lock(draw_mutex());
  outside_ = generator_states(*in_);
  bool const is_turn = turn_ < turns.size() && turns[turn_].draw == count_;
  (is_turn ? turns[turn_++].states : last_).write();
  drawing_ = std::move(lock);
  return true;
}

inline void draw_replay::end() noexcept {
  last_ = generator_states(*in_);
  outside_.write();
  ++count_;
  drawing_ = {};
}

}  // namespace zbpp::torch::detail

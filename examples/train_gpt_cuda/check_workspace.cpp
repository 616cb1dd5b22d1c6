// SPDX-License-Identifier: Apache-2.0
//
// Under the model of CUDA: products that share a workspace race on two streams without an order;
// with one, or with a workspace each, they do not. Exit status 1 where that is otherwise.
#include "products.hpp"
#include "weights.hpp"
#include <zbpp/cuda/handles.hpp>

#include <gpu_model/cuda/cuda_model.hpp>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace gpt::cuda {
namespace {

/// Multiplies on two streams, to different results.
/// @return what the model found
std::vector<std::string> faults_of(bool has_order, bool shares_workspace) {
  zbpp::cuda_model::reset({.check_uninitialised = false});  // any factors do
  constexpr index side = 8;
  using zbpp::cuda::stream_priority;
  zbpp::cuda::stream const first(stream_priority::usual);
  zbpp::cuda::stream const second(stream_priority::usual);
  zbpp::cuda::event const between(zbpp::cuda::event_kind::order);
  device_array<bf16> const factors(side * side);
  device_array<float> const results(2 * side * side);
  products const one(1);
  products const other = shares_workspace ? one : products(1);
  auto const to = [&](index which) {
    return product{
        .rows = side,
        .columns = side,
        .inner = side,
        .a = {factors.data(), side},
        .b = {factors.data(), side},
        .to = {results.data() + which * side * side, side}};
  };
  one(first.view(), to(0));
  if (has_order) {
    first.view().record(between);
    second.view().wait(between);
  }
  other(second.view(), to(1));
  first.view().synchronize();
  second.view().synchronize();
  return zbpp::cuda_model::faults();
}

bool is_wrong(bool has_order, bool shares_workspace) {
  auto const faults = faults_of(has_order, shares_workspace);
  for (auto const& fault : faults) std::printf("%s\n", fault.c_str());
  bool const races = !has_order && shares_workspace;
  return faults.size() != (races ? 1U : 0U) || (races && !faults[0].starts_with("race: product"));
}

}  // namespace
}  // namespace gpt::cuda

int main() {
  try {
    for (bool const has_order : {false, true})
      for (bool const shares_workspace : {false, true})
        if (gpt::cuda::is_wrong(has_order, shares_workspace)) return 1;
    return 0;
  } catch (std::exception const& failed) {
    std::fprintf(stderr, "check_workspace: %s\n", failed.what());
    return 1;
  }
}

// SPDX-License-Identifier: Apache-2.0
//
// Passes of a chunk outside a pipeline, on rows of zeros: to load every kernel before the first
// step.
#pragma once

#include "sequential.hpp"

#include <cstddef>

namespace gpt::cuda {

/// Gets a chunk ready on the current device, and runs every kernel and product that its passes
/// have, so that no step has to load one. Parameters and gradients are afterwards as they were.
/// @throws zbpp::error (device_failed)
inline void get_ready(chunk& of, zbpp::cuda::stream_ref stream, int sm_count) {
  of.prepare(stream, sm_count);
  device_array<std::byte> const zeros(of.row_bytes());
  zeros.clear(stream);
  device_array<float> const loss(1);
  reused_memory memory;
  chunk_saved<reused_memory::tensor> keep;
  directly const how{stream};
  auto const* const x = reinterpret_cast<bf16 const*>(zeros.data());
  static_cast<void>(of.forward(memory, how, keep, {0, 0}, x, loss.data()));
  static_cast<void>(of.backward_input(memory, how, keep, {zeros.data()}));
  of.backward_weight(how, keep);
  of.parameters().clear_gradients(stream);
  stream.synchronize();
}

}  // namespace gpt::cuda

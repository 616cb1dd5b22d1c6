// SPDX-License-Identifier: Apache-2.0
//
// All of component torch but auto_pipeline.hpp, which brings the planner: modules as stages,
// LibTorch's autograd in B and W, and random numbers by place.
#pragma once

#include <zbpp/torch/checkpoint.hpp>
#include <zbpp/torch/generator.hpp>
#include <zbpp/torch/host_memory.hpp>
#include <zbpp/torch/layer.hpp>
#include <zbpp/torch/measure_layers.hpp>
#include <zbpp/torch/module_stage.hpp>
#include <zbpp/torch/named_tensor.hpp>
#include <zbpp/torch/optimizer_state.hpp>
#include <zbpp/torch/optimizer_steps.hpp>
#include <zbpp/torch/parameters.hpp>
#include <zbpp/torch/split_backward.hpp>
#include <zbpp/torch/tensors.hpp>

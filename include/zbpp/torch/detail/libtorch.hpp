// SPDX-License-Identifier: Apache-2.0
//
// The headers of LibTorch, in an order in which clang takes those of LibTorch 1.13 as C++20.
#pragma once

// clang-format off
#include <ATen/core/ivalue.h>  // first: others have members of vectors of it, which clang wants complete
// clang-format on
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

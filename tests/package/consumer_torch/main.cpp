// SPDX-License-Identifier: Apache-2.0
//
// Finds the headers of the component and of LibTorch, and links LibTorch. It includes none of the
// large ones: what they hold is tested elsewhere, and each program that includes them takes long to
// compile.
#include <zbpp/error.hpp>

#include <c10/util/Backtrace.h>
#include <torch/version.h>

#if !__has_include(<zbpp/torch/torch.hpp>)
#error "the headers of component torch are not installed"
#endif

int main() { return TORCH_VERSION_MAJOR >= 1 && !c10::get_backtrace().empty() ? 0 : 1; }

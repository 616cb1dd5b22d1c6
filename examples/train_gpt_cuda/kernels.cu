// SPDX-License-Identifier: Apache-2.0
//
// kernels.cpp for a GPU.
#include "kernels.cpp"

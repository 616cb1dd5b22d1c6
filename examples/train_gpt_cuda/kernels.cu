// SPDX-License-Identifier: Apache-2.0
//
// kernels.cpp and optimizer.cpp for a GPU.
#include "kernels.cpp"
#include "optimizer.cpp"

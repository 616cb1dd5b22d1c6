// SPDX-License-Identifier: Apache-2.0
//
// optimizers.cpp for a GPU.
#include "optimizers.cpp"

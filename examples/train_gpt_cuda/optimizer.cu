// SPDX-License-Identifier: Apache-2.0
//
// optimizer.cpp for a GPU.
#include "optimizer.cpp"

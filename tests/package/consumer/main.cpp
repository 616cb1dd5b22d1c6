// SPDX-License-Identifier: Apache-2.0
#include <zbpp/backend.hpp>
#include <zbpp/plan.hpp>
#include <zbpp/zbpp.hpp>

int main() { return ZBPP_VERSION > 0 ? 0 : 1; }

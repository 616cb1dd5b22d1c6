// SPDX-License-Identifier: Apache-2.0
#include <zbpp/zbpp.hpp>

int main() { return ZBPP_VERSION > 0 ? 0 : 1; }

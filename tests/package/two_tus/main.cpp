// SPDX-License-Identifier: Apache-2.0
#include <zbpp/zbpp.hpp>

int version_in_other_unit();

int main() { return version_in_other_unit() == ZBPP_VERSION ? 0 : 1; }

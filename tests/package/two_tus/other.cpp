// SPDX-License-Identifier: Apache-2.0
#include <zbpp/zbpp.hpp>

int version_in_other_unit();

int version_in_other_unit() { return ZBPP_VERSION; }

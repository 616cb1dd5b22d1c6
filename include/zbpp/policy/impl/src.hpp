// SPDX-License-Identifier: Apache-2.0
//
// All that stands in policy/impl.
#pragma once

// SPDX-License-Identifier: Apache-2.0
//
// All that stands in model/impl.
#pragma once


// SPDX-License-Identifier: Apache-2.0
//
// All that stands in policy/impl.
#pragma once

#include <zbpp/policy/impl/dualpipe_v.ipp>
#include <zbpp/policy/impl/fixed_zb_v.ipp>
#include <zbpp/policy/impl/interleaved.ipp>
#include <zbpp/policy/impl/one_chunk.ipp>

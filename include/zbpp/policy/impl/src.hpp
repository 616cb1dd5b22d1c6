// SPDX-License-Identifier: Apache-2.0
//
// All that stands in policy/impl.
#pragma once

#include <zbpp/policy/impl/dualpipe_v.ipp>
#include <zbpp/policy/impl/interleaved.ipp>
#include <zbpp/policy/impl/one_chunk.ipp>
#include <zbpp/policy/impl/stp.ipp>
#include <zbpp/policy/impl/zb_v.ipp>

// SPDX-License-Identifier: Apache-2.0
//
// Names passes for NVIDIA's profilers when ZBPP_NVTX is defined; does nothing otherwise.
#pragma once

#include <zbpp/model/pass.hpp>

#ifdef ZBPP_NVTX
#include <nvtx3/nvToolsExt.h>
#include <string>
#endif

namespace zbpp::cuda {

/// Marks the pass that the host is issuing as a range; ranges of different ranks may overlap.
class nvtx_range {
 public:
#ifdef ZBPP_NVTX
  /// Opens the range of a pass, named as in `2F5`.
  void open(pass const& of) {
    close();
    id_ = nvtxRangeStartA(to_string(of).c_str());
    is_open_ = true;
  }
  /// Closes the range, if one is open.
  void close() noexcept {
    if (is_open_) nvtxRangeEnd(id_);
    is_open_ = false;
  }

 private:
  nvtxRangeId_t id_ = 0;
  bool is_open_ = false;
#else
  static constexpr void open(pass const&) noexcept {}
  static constexpr void close() noexcept {}
#endif
};

}  // namespace zbpp::cuda

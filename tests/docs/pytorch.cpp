// SPDX-License-Identifier: Apache-2.0
// [pytorch_files
#include <zbpp/plan.hpp>

#include <iostream>
#include <string>

// pytorch_files]

namespace docs_pytorch {

// [pytorch_files
// The forms `compute_only` and `compute_comms`.
std::string compute_only(zbpp::schedule const& order) {
  return zbpp::to_csv(order, {.for_pytorch = true});
}
std::string compute_comms(zbpp::schedule const& order) {
  auto const code = zbpp::lower(order, {.layout = zbpp::channel_layout::one_per_rank});
  return zbpp::to_csv(code, {.for_pytorch = true});
}

// Says what is wrong with a file of PyTorch in the form `compute_comms`. The other one has no
// transfers yet: lower what `schedule_from_csv` makes of it.
bool is_right(std::string const& text) {
  auto const code = zbpp::program_from_csv(text);
  for (auto const& left_out : zbpp::ignored_actions_in_csv(text))
    std::cout << left_out.count << ' ' << left_out.name << " left out\n";
  bool right = true;
  for (auto const& found : zbpp::verify(code)) {
    std::cout << to_string(found) << '\n';
    right = right && is_remark(found.fault);  // another order of sums, other last bits
  }
  return right;
}
// pytorch_files]

}  // namespace docs_pytorch

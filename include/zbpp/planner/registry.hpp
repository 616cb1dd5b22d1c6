// SPDX-License-Identifier: Apache-2.0
//
// The policies that come with the library, and policies by name: of these, and of whatever a
// program adds to its own list. The list is a value that the program holds; nothing registers
// itself.
#pragma once

#include <zbpp/error.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/schedule.hpp>
#include <zbpp/planner/chunk_policies.hpp>
#include <zbpp/planner/greedy_auto.hpp>
#include <zbpp/planner/search.hpp>
#include <zbpp/policy/handcrafted.hpp>
#include <zbpp/policy/policy.hpp>

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zbpp {

/// Holds a policy of any type together with its names.
class any_policy {
 public:
  /// Takes a policy by value, settings included.
  template <policy Policy>
  any_policy(Policy policy)
      : name_(Policy::name),
        title_(Policy::title),
        summary_(Policy::summary),
        searches_(requires { policy.search; }),
        make_([policy = std::move(policy)](problem const& problem, search_settings const* search) {
          if constexpr (requires { policy.search; }) {
            if (search != nullptr) {
              auto with_search = policy;
              with_search.search = *search;
              return with_search(problem);
            }
          }
          return policy(problem);
        }) {}

  /// @return the identifier, such as `zb_h1`
  [[nodiscard]] std::string_view name() const noexcept { return name_; }
  /// @return the name as people write it, such as `ZB-H1`
  [[nodiscard]] std::string_view title() const noexcept { return title_; }
  [[nodiscard]] std::string_view summary() const noexcept { return summary_; }
  /// @return whether it searches, and so has a budget, tells of its progress and can be stopped
  [[nodiscard]] bool searches() const noexcept { return searches_; }
  [[nodiscard]] schedule operator()(problem const& problem) const {
    return make_(problem, nullptr);
  }
  /// Makes a schedule with other settings than its own, if it searches.
  [[nodiscard]] schedule operator()(problem const& problem, search_settings const& search) const {
    return make_(problem, &search);
  }
  /// Asks the policy for equal times and no limits, so that it is the placement and the number of
  /// microbatches that it may refuse.
  /// @return why it refuses them; empty where it takes them
  [[nodiscard]] std::string refusal(placement const& placement, int microbatches) const;

 private:
  std::string_view name_;
  std::string_view title_;
  std::string_view summary_;
  bool searches_;
  // The settings are its own where there are none.
  std::function<schedule(problem const&, search_settings const*)> make_;
};

/// Calls a function with each policy that comes with the library: with those that search nothing,
/// and then with those that have a member `search`.
template <class Call>
void for_each_policy(Call const& call) {
  for_each_handcrafted(call);
  call(interleaved_zb{});
  call(v_half{});
  call(v_min{});
  call(greedy_auto{});
}

/// @return the policies that come with the library, with their default settings
[[nodiscard]] std::vector<any_policy> builtin_policies();

/// Finds a policy by its name or title.
/// @throws error (bad_argument) listing the names there are
[[nodiscard]] any_policy find_policy(
    std::string_view name, std::vector<any_policy> const& policies = builtin_policies());

}  // namespace zbpp

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/planner/impl/registry.ipp>
#endif

// SPDX-License-Identifier: Apache-2.0
//
// No setting is ignored: each field of a struct of settings, set to something else, has an effect
// or is refused. A field that is added fails to compile until a test says what it does.
#pragma once

#include <zbpp/error.hpp>

#include <support/catch.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>

namespace zbpp::test {

/// @return how many fields an aggregate has: the most initializers that it takes
template <class Settings>
[[nodiscard]] consteval std::size_t count_of_fields() {
  static_assert(std::is_aggregate_v<Settings>);
  // clang-format off
#define ZBPP_TRY_FIELDS(count, ...) if constexpr (requires { Settings{__VA_ARGS__}; }) return count; else
  ZBPP_TRY_FIELDS(19, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
  ZBPP_TRY_FIELDS(18, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
  ZBPP_TRY_FIELDS(17, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
  ZBPP_TRY_FIELDS(16, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
  ZBPP_TRY_FIELDS(15, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
  ZBPP_TRY_FIELDS(14, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
  ZBPP_TRY_FIELDS(13, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
  ZBPP_TRY_FIELDS(12, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
  ZBPP_TRY_FIELDS(11, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
  ZBPP_TRY_FIELDS(10, {}, {}, {}, {}, {}, {}, {}, {}, {}, {})
  ZBPP_TRY_FIELDS(9, {}, {}, {}, {}, {}, {}, {}, {}, {})
  ZBPP_TRY_FIELDS(8, {}, {}, {}, {}, {}, {}, {}, {})
  ZBPP_TRY_FIELDS(7, {}, {}, {}, {}, {}, {}, {})
  ZBPP_TRY_FIELDS(6, {}, {}, {}, {}, {}, {})
  ZBPP_TRY_FIELDS(5, {}, {}, {}, {}, {})
  ZBPP_TRY_FIELDS(4, {}, {}, {}, {})
  ZBPP_TRY_FIELDS(3, {}, {}, {})
  ZBPP_TRY_FIELDS(2, {}, {})
  ZBPP_TRY_FIELDS(1, {})
  return 0;
#undef ZBPP_TRY_FIELDS
  // clang-format on
}

/// Sets one field to something else than usual.
template <class Settings>
struct changed_field {
  std::string_view name;
  void (*change)(Settings&);
};

/// Sets the field of that name to a value.
#define ZBPP_FIELD(field, ...)                                                                     \
  {                                                                                                \
    #field, [](auto& settings) { settings.field = __VA_ARGS__; }                                   \
  }

/// @return what `act` gives as text, or how it was refused
template <class Act>
[[nodiscard]] std::string effect_of(Act act) {
  try {
    return act();
  } catch (error const& refused) {
    return "refused: " + std::string(refused.what());
  }
}

/// Checks that each field has an effect.
/// @param fields  all there are
/// @param usual   settings with which each field matters
/// @param effect  gives what settings do as text, or throws an `error`
template <class Settings, std::size_t Count, class Effect>
void check_fields(
    changed_field<Settings> const (&fields)[Count], Settings const& usual, Effect effect) {
  static_assert(
      Count == count_of_fields<Settings>(),
      "the table lacks a field of the settings; add it, and what it does to the effect");
  auto const expected = effect_of([&] { return effect(usual); });
  INFO("usual effect: " << expected.substr(0, 400));
  CHECK(expected.find("refused: ") == std::string::npos);
  CHECK(effect_of([&] { return effect(usual); }) == expected);  // it repeats
  for (auto const& field : fields) {
    auto changed = usual;
    field.change(changed);
    INFO("without effect: " << field.name);
    bool const has_effect = effect_of([&] { return effect(changed); }) != expected;
    CHECK(has_effect);
  }
}

}  // namespace zbpp::test

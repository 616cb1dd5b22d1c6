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
  if constexpr (
      requires {
        Settings{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}};
      })
    return 19;
  else if constexpr (
      requires {
        Settings{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}};
      })
    return 18;
  else if constexpr (requires {
                       Settings{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}};
                     })
    return 17;
  else if constexpr (requires {
                       Settings{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}};
                     })
    return 16;
  else if constexpr (requires {
                       Settings{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}};
                     })
    return 15;
  else if constexpr (requires { Settings{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; })
    return 14;
  else if constexpr (requires { Settings{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; })
    return 13;
  else if constexpr (requires { Settings{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; })
    return 12;
  else if constexpr (requires { Settings{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; })
    return 11;
  else if constexpr (requires { Settings{{}, {}, {}, {}, {}, {}, {}, {}, {}, {}}; })
    return 10;
  else if constexpr (requires { Settings{{}, {}, {}, {}, {}, {}, {}, {}, {}}; })
    return 9;
  else if constexpr (requires { Settings{{}, {}, {}, {}, {}, {}, {}, {}}; })
    return 8;
  else if constexpr (requires { Settings{{}, {}, {}, {}, {}, {}, {}}; })
    return 7;
  else if constexpr (requires { Settings{{}, {}, {}, {}, {}, {}}; })
    return 6;
  else if constexpr (requires { Settings{{}, {}, {}, {}, {}}; })
    return 5;
  else if constexpr (requires { Settings{{}, {}, {}, {}}; })
    return 4;
  else if constexpr (requires { Settings{{}, {}, {}}; })
    return 3;
  else if constexpr (requires { Settings{{}, {}}; })
    return 2;
  else if constexpr (requires { Settings{{}}; })
    return 1;
  else
    return 0;
}

/// Sets one field to something else than usual.
template <class Settings>
struct changed_field {
  std::string_view name;
  void (*change)(Settings&);
};

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

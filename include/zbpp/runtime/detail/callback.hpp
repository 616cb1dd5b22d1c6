// SPDX-License-Identifier: Apache-2.0
//
// A reference to something that can be called, whose type is erased: what runs steps is compiled
// once, whatever a caller hands it.
#pragma once

namespace zbpp::detail {

/// Refers to what takes a `T const&` and gives a `Result`; to nothing when it is made by default.
template <class T, class Result = void>
class callback {
 public:
  callback() = default;
  /// Refers to an object, which must outlive the calls.
  template <class Callable>
  explicit callback(Callable& object)
      : object_(&object), call_([](void* to, T const& given) -> Result {
          return (*static_cast<Callable*>(to))(given);
        }) {}

  [[nodiscard]] explicit operator bool() const noexcept { return call_ != nullptr; }
  Result operator()(T const& given) const { return call_(object_, given); }

 private:
  void* object_ = nullptr;
  Result (*call_)(void*, T const&) = nullptr;
};

}  // namespace zbpp::detail

// SPDX-License-Identifier: Apache-2.0
//
// The call that a pipeline is in. Another one that comes meanwhile, from a callback, a flow or
// another thread, is refused at once instead of waiting for ranks that wait for it.
#pragma once

#include <atomic>

namespace zbpp::detail {

/// Knows which call of a pipeline runs, and which thread may ask for its state meanwhile.
class running_call {
 public:
  /// A call that runs, a callback that it makes, or a pause of it, until the object goes.
  class [[nodiscard]] scope {
   public:
    scope(scope const&) = delete;
    scope& operator=(scope const&) = delete;
    ~scope();

   private:
    friend class running_call;
    scope(running_call& of, char const* name, void const* reader, bool is_pause) noexcept;

    running_call* of_;
    char const* name_;  // what to go back to
    void const* reader_;
    bool is_pause_;
  };

  /// Begins a call.
  /// @param name  as users write it
  /// @throws error (bad_argument) while another one runs
  scope begin(char const* name);
  /// Begins an evaluation, which a run that pauses on this thread makes room for.
  /// @throws as `begin`
  scope begin_evaluation();
  /// Lets this thread ask for what does not change while it is in a callback.
  scope call_back() noexcept;
  /// Lets this thread, which runs the call, also evaluate.
  scope pause() noexcept;

  /// Checks that nothing changes what is asked for: no call runs, or this thread is in a callback.
  /// @throws error (bad_argument) otherwise
  void check_state(char const* name) const;
  /// The same for what changes in a callback, too, as other ranks go on.
  void check_idle(char const* name) const;

 private:
  [[nodiscard]] bool pauses_here() const noexcept;
  [[noreturn]] void refuse(char const* name, char const* cure) const;

  // Each is written by the thread that runs the call, or by that of a callback, which is one at a
  // time; other threads read them to refuse their calls.
  std::atomic<char const*> name_{nullptr};    // null while nothing runs
  std::atomic<void const*> reader_{nullptr};  // of the callback's thread; null outside of one
  std::atomic<bool> is_pause_{false};
};

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/running_call.ipp>
#endif

// SPDX-License-Identifier: Apache-2.0
//
// Which W a rank may run while it waits for a message, and whether it pays: it learns, from step to
// step, when messages arrive and how long W take.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>
#include <zbpp/model/timeline.hpp>
#include <zbpp/runtime/detail/chunk_state.hpp>
#include <zbpp/runtime/detail/rank_code.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zbpp::detail {

/// Chooses W of one rank that run in front of their places in the program.
///
/// A W may move as far forward as it stands after all else of its flow, after the W and BW of its
/// rank in front of it, and after all that has to do with optimizer steps. It sends and receives
/// nothing, so what `verify` has proved of the program stays true: messages leave and arrive in the
/// same order, and no rank waits for one that is not going to be sent. Memory is freed sooner.
class early_w {
 public:
  static constexpr std::size_t none = ~std::size_t{0};

  /// @param overrun  the share of a W by which it may end later than the message is expected
  early_w(rank_code const& code, std::span<chunk_state const> chunks, double overrun);

  /// Begins a step, or the same one again.
  /// @param now    in the clock of the rank
  /// @param times  of the passes of the step, gets them in the order of the program
  void begin_step(ticks now, std::span<timed_pass> times);

  [[nodiscard]] bool needs_message(std::size_t at) const noexcept {
    return expected_[at].channel != ready_instruction::none;
  }
  /// @param waiting  the place of a pass whose message is not there
  /// @return the place of the W to run now, or none
  [[nodiscard]] std::size_t choose(std::size_t waiting, ticks now);
  /// Notes that the W at a place runs in front of it.
  /// @param times  of the passes of the step that have not run yet, gets this one at the front
  void move_to_front(std::size_t at, std::span<timed_pass> times);
  [[nodiscard]] bool has_run(std::size_t at) const noexcept { return has_run_[at] != 0; }

  /// Notes how long a pass took.
  void note_pass(ready_instruction const& i, ticks took);
  /// Notes that the message of a pass is there.
  /// @param arrival  when it arrived; 0 where the transport does not know
  void note_arrival(std::size_t at, ticks now, ticks arrival);

 private:
  static constexpr ticks unknown = -1;

  // A W or BW.
  struct place {
    std::size_t at = 0;
    std::size_t number = 0;       // among the passes
    std::size_t earliest = none;  // the first pass that it may run in front of
    std::int32_t chunk = 0;
  };
  // By which the message of a pass comes, or the first of a pair; and when, from the start of the
  // step, as far as is known.
  struct expectation {
    std::int32_t channel = ready_instruction::none;
    ticks time = unknown;
  };
  // When the message of a pass was found missing for the last time.
  struct look {
    std::size_t at = none;
    ticks time = 0;
    bool has_run_w = false;  // since then
  };

  [[nodiscard]] bool pays(std::size_t waiting, ticks takes, ticks now) const;

  std::vector<pass> passes_;           // in the order of the program
  std::vector<place> places_;          // of all W and BW, in the order of the program
  std::size_t next_ = 0;               // the first of them that has not run
  std::vector<ticks> takes_;           // a W, on average, lately; by chunk
  std::vector<expectation> expected_;  // by place
  std::vector<char> has_run_;          // by place
  std::vector<ticks> lateness_;        // of the last message, by channel
  look missing_;
  double overrun_;
  ticks begin_ = 0;  // of the step
};

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/early_w.ipp>
#endif

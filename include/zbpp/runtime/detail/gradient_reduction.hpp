// SPDX-License-Identifier: Apache-2.0
//
// Adds up the gradients of the stages of a rank over the replicas of its pipeline, beside the
// passes that follow. Each sum is that of the replicas in their order, so all have the same bits,
// and those of a run of any backend.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/model/program.hpp>
#include <zbpp/runtime/group_link.hpp>
#include <zbpp/runtime/optimizer.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/runtime/stage.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zbpp::detail {

/// Takes the part of one rank in the sums of a step.
///
/// Of two replicas each sends all its gradients to the other. Of more, each adds up a part of those
/// of all, and gives the sums to all. What arrives is taken up by `progress`, in any order of
/// stages.
class gradient_reduction {
 public:
  /// @param stages    those of the rank, in the order of the model
  /// @param replicas  of the rank; outlives this
  gradient_reduction(
      int rank,
      program const& program,
      problem const& problem,
      std::span<stage_ref const> stages,
      group_link& replicas);

  /// Begins a step.
  void begin_step() noexcept {
    busy_until_ = 0;
    awaited_ = none;
    auto const rounds = replicas_->size() == 2 ? 1 : 2;
    for (auto& left : left_) left = rounds * static_cast<int>(chunks_.size());
  }

  /// Gives the gradients of a stage to the sum.
  template <class PassObserver>
  void start(int chunk, PassObserver const& observer, pass_context ctx) {
    auto& own = chunks_[index(chunk)];
    busy_until_ = std::max(observer.arrival_of_send(own.takes), busy_until_ + own.takes);
    own.ready = busy_until_;
    send(own, ctx);
  }
  /// @return whether the sum of a stage is begun and has not ended
  [[nodiscard]] bool is_open() const noexcept { return open_ > 0; }
  /// Takes up what the other replicas have sent.
  /// @throws error (no_agreement) when another replica sends gradients that do not fit; the failure
  ///         of the run
  void progress();
  /// Gives a stage its sum, once it is there.
  /// @return false while the rank has to wait for it
  template <class PassObserver>
  bool finish(int chunk, PassObserver& observer, pass_context ctx) {
    auto& own = chunks_[index(chunk)];
    progress();
    awaited_ = chunk;
    if (own.now != phase::done || !observer.has_arrived(own.ready)) return false;
    awaited_ = none;
    static_cast<void>(observer.reach(own.ready));
    write(own, ctx);
    return true;
  }

  /// @return whether the rank waits for a sum
  [[nodiscard]] bool is_awaited() const noexcept { return awaited_ != none; }
  /// @param not_yet  what stands for a time that is not known
  /// @return when the sum that the rank waits for is there
  [[nodiscard]] ticks awaited_until(ticks not_yet) const noexcept {
    if (awaited_ == none || chunks_[index(awaited_)].now != phase::done) return not_yet;
    return chunks_[index(awaited_)].ready;
  }

 private:
  static constexpr int none = -1;

  // How far the sum of a stage is.
  enum class phase : std::uint8_t {
    closed,
    parts,  // waits for what this rank adds up
    sums,   // waits for what the others have added up
    done,
  };
  // Stands in front of what replicas send each other.
  struct header {
    std::uint32_t mark = expected_mark;
    std::int32_t stage = 0;
    std::int32_t are_sums = 0;
    std::int32_t unused = 0;
    std::int64_t count = 0;  // gradients of the stage

    static constexpr std::uint32_t expected_mark = 0x5244434aU;  // no collective call begins so
  };
  struct chunk_sum {
    int stage = 0;
    optimizer_ref optimizer;
    ticks takes = 0;
    ticks ready = 0;
    phase now = phase::closed;
    std::vector<float> gradients;  // of this replica, and then the sums
    // By replica, what it sent; empty before.
    std::vector<std::vector<std::byte>> parts;
    std::vector<std::vector<std::byte>> sums;
  };

  void send(chunk_sum& own, pass_context ctx);
  void send(chunk_sum const& own, int to, bool are_sums, std::span<float const> part);
  void accept(int from);
  void add_up(chunk_sum& own);
  void gather(chunk_sum& own);
  void write(chunk_sum& own, pass_context ctx);

  group_link* replicas_;
  std::vector<chunk_sum> chunks_;
  // By replica: messages of this step that it has still to send. What comes behind them is of its
  // next step, or of its user.
  std::vector<int> left_;
  std::vector<std::byte> bytes_;  // received last
  std::vector<float> share_;      // that this rank adds up, for a moment
  ticks busy_until_ = 0;
  int open_ = 0;
  int awaited_ = none;
};

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/gradient_reduction.ipp>
#endif

// SPDX-License-Identifier: Apache-2.0
//
// Adds up the gradients of the stages of a rank over the replicas of its pipeline, beside the
// passes that follow. Each sum is that of the replicas in their order, so all have the same bits,
// and those of a run of any backend. Where replicas share the steps of a stage, each gets the sums
// of its layers alone, and gives their weights to the others.
#pragma once

#include <zbpp/model/costs.hpp>
#include <zbpp/runtime/detail/rank_setup.hpp>
#include <zbpp/runtime/gradient_state.hpp>
#include <zbpp/runtime/group_link.hpp>
#include <zbpp/runtime/optimizer.hpp>
#include <zbpp/runtime/pass_context.hpp>
#include <zbpp/runtime/run_options.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zbpp::detail {

/// Refuses what a replica sends that is of no sum.
/// @throws error (no_agreement)
[[noreturn]] void refuse_collective_call(int replica);
/// Refuses a replica that steps by another learning rate.
/// @throws error (no_agreement)
[[noreturn]] void refuse_rates(
    group_link const& replicas, double own_rate, int replica, double rate);

/// Takes the part of one rank in the sums of a step.
///
/// Of two replicas each sends all its gradients to the other. Of more, each adds up a share of
/// those of all, and gives the sums to all. Where they share the steps, a share is some layers, and
/// in the place of sums go the states of their gradients, if ranks agree on steps, and their new
/// weights. What arrives is taken up by `progress`, in any order of stages.
class gradient_reduction {
 public:
  /// @param setup  of a rank whose grid has replicas
  explicit gradient_reduction(rank_setup const& setup);

  /// Begins a step.
  void begin_step() noexcept;

  /// Gives the gradients of a stage to the sum.
  /// @param asked  what this rank asks for after the step; the first sum of a step takes it along
  /// @param rate   the learning rate of the step, which all replicas need alike
  template <class PassObserver>
  void start(
      int chunk, after_step asked, double rate, PassObserver const& observer, pass_context ctx) {
    auto& own = chunks_[index(chunk)];
    rate_ = rate;
    if (!has_asked_) asked_ = own_asked_ = std::max(asked_, asked);
    has_asked_ = true;
    begin_exchange(own, own.takes, observer);
    send_gradients(own, ctx);
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
    if (own.now == phase::summed) write_sums(own, ctx);
    if (!has_come(own, chunk, observer)) return false;
    own.now = phase::closed;
    --open_;
    return true;
  }

  /// @return what this rank and its replicas ask for after this step, once all sums are there
  [[nodiscard]] after_step asked() const noexcept { return asked_; }
  [[nodiscard]] bool is_sharded() const noexcept { return is_sharded_; }
  /// @return gradient states of a stage after `finish`, for steps that replicas share; else null
  [[nodiscard]] std::vector<gradient_state> const* states_of(int chunk) const noexcept {
    return shares_states_ ? &chunks_[index(chunk)].states : nullptr;
  }
  /// Gives the weights of a stage that has stepped to the other replicas.
  template <class PassObserver>
  void start_gather(int chunk, PassObserver const& observer, pass_context ctx) {
    auto& own = chunks_[index(chunk)];
    begin_exchange(own, own.gather_takes, observer);
    send_weights(own, ctx);
  }
  /// Gives a stage the weights that the other replicas have stepped, once they are there.
  /// @return false while the rank has to wait for them
  template <class PassObserver>
  bool finish_gather(int chunk, PassObserver& observer, pass_context ctx) {
    auto& own = chunks_[index(chunk)];
    progress();
    if (own.now == phase::weights && has_all(own, message_kind::weights)) own.now = phase::done;
    if (!has_come(own, chunk, observer)) return false;
    write_weights(own, ctx);
    own.now = phase::closed;
    return true;
  }

  /// @return whether the rank waits for a sum, or for weights
  [[nodiscard]] bool is_awaited() const noexcept { return awaited_ != none; }
  /// @return the replica of which something is missing for that; -1 where nothing is
  [[nodiscard]] int awaited_replica() const noexcept;
  /// @param not_yet  what stands for a time that is not known
  /// @return when what the rank waits for is there
  [[nodiscard]] ticks awaited_until(ticks not_yet) const noexcept {
    if (awaited_ == none || chunks_[index(awaited_)].now != phase::done) return not_yet;
    return chunks_[index(awaited_)].ready;
  }

 private:
  static constexpr int none = -1;

  // How far a stage is.
  enum class phase : std::uint8_t {
    closed,
    parts,    // waits for what this rank adds up
    sums,     // waits for what the others have added up
    summed,   // this rank has the sums that it needs
    states,   // waits for those of the layers of others
    weights,  // waits for those of the layers of others
    done,
  };
  enum class message_kind : std::int32_t { parts, sums, states, weights };
  static constexpr std::size_t message_kinds = 4;
  // Stands in front of what replicas send each other.
  struct header {
    std::uint32_t mark = expected_mark;
    std::int32_t stage = 0;
    message_kind kind = message_kind::parts;
    after_step asked = after_step::go_on;  // after the step
    double rate = 0;
    std::int64_t count = 0;  // gradients of the stage

    static constexpr std::uint32_t expected_mark = 0x5244434aU;  // no collective call begins so
  };
  struct chunk_sum {
    int stage = 0;
    zbpp::optimizer* optimizer = nullptr;  // null where the stage is frozen
    ticks takes = 0;
    ticks gather_takes = 0;
    ticks ready = 0;
    phase now = phase::closed;
    std::vector<float> gradients;        // of this replica, and then the sums; or weights
    std::vector<std::size_t> begins;     // of the share of each replica, and the end
    std::vector<int> layers;             // first of each share, and their number; where sharded
    std::vector<gradient_state> states;  // by layer
    // By kind and replica, what it sent; empty before.
    std::array<std::vector<std::vector<std::byte>>, message_kinds> received;
  };

  template <class PassObserver>
  void begin_exchange(chunk_sum& own, ticks takes, PassObserver const& observer) {
    busy_until_ = std::max(observer.arrival_of_send(takes), busy_until_ + takes);
    own.ready = busy_until_;
  }
  template <class PassObserver>
  bool has_come(chunk_sum const& own, int chunk, PassObserver& observer) {
    awaited_ = chunk;
    if (own.now != phase::done || !observer.has_arrived(own.ready)) return false;
    awaited_ = none;
    static_cast<void>(observer.reach(own.ready));
    return true;
  }

  [[nodiscard]] int size() const noexcept { return replicas_->size(); }
  [[nodiscard]] int place() const noexcept { return replicas_->place(); }
  [[nodiscard]] bool exchanges_all() const noexcept { return size() == 2 && !is_sharded_; }
  [[nodiscard]] std::span<float> share_of(chunk_sum& own, int replica) const noexcept;
  [[nodiscard]] std::size_t expected_size(chunk_sum& own, message_kind kind, int from) const;
  [[nodiscard]] int missing(chunk_sum const& own, message_kind kind) const noexcept;
  [[nodiscard]] bool has_all(chunk_sum const& own, message_kind kind) const noexcept {
    return missing(own, kind) == none;
  }
  [[nodiscard]] std::span<std::byte const> part_from(
      chunk_sum const& own, message_kind kind, int from) const;
  [[nodiscard]] static std::size_t weights_of(chunk_sum const& own, int layer);
  void divide(chunk_sum& own) const;
  void send(chunk_sum const& own, int to, message_kind kind, std::span<std::byte const> part);
  void send_to_all(chunk_sum const& own, message_kind kind, std::span<std::byte const> part);
  void send_gradients(chunk_sum& own, pass_context ctx);
  void send_weights(chunk_sum& own, pass_context ctx);
  void accept(int from);
  void check_rates() const;
  void advance(chunk_sum& own);
  void add_up(chunk_sum& own);
  void write_sums(chunk_sum& own, pass_context ctx);
  void write_weights(chunk_sum& own, pass_context ctx);

  group_link* replicas_;
  bool is_sharded_;
  bool shares_states_;
  std::vector<chunk_sum> chunks_;
  // By replica: messages of this step that it has still to send. What comes after them is of its
  // next step, or of its user.
  std::vector<int> left_;
  std::vector<std::byte> bytes_;                // received last
  std::vector<float> share_;                    // that this rank adds up, for a moment
  std::vector<std::array<double, 2>> numbers_;  // of the states of its layers, for a moment
  after_step asked_ = after_step::go_on;
  after_step own_asked_ = after_step::go_on;
  bool has_asked_ = false;  // in this step
  double rate_ = 0;
  std::vector<double> rates_;  // of each replica, of the step whose gradients it sent last
  ticks busy_until_ = 0;
  int open_ = 0;
  int awaited_ = none;
};

}  // namespace zbpp::detail

#if !defined(ZBPP_SEPARATE_COMPILATION)
#include <zbpp/runtime/impl/gradient_reduction.ipp>
#endif

// SPDX-License-Identifier: Apache-2.0
//
// The backend of docs/own_wire.md, which is nobody's here: public headers are all that it takes.
// Ranks are threads in place of processes, and messages wait as bytes in an office that receivers
// poll, as they would poll a network.
// [wire
#include <zbpp/asio/process_executor.hpp>
#include <zbpp/backend.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace post {

using namespace zbpp;

/// Holds a message as bytes.
struct letter {
  std::uint32_t step = 0;
  std::vector<std::uint64_t> sizes;  // of its buffers
  std::vector<std::byte> bytes;
};

/// Stands for the wire: keeps letters until they are fetched, by program and channel.
struct office {
  std::mutex mutex;
  std::map<std::pair<int, int>, std::deque<letter>> letters;
};

/// Moves the messages of one rank.
class transport final : public rank_transport {
 public:
  transport(asio::rank_program const& of, office& by)
      : rank_transport(of.rank, of.messages.channels(), of.largest()),
        by_(&by),
        program_(of.number) {}

  void send(int channel, message&& msg, ticks) {
    push(channel, std::move(msg));
    auto& ring = *sent(channel);
    auto const& next = ring.at(*ring.next());
    auto const sizes = next.msg.sizes();
    letter copy{next.step, {sizes.begin(), sizes.begin() + next.msg.size()}, {}};
    copy.bytes.resize(static_cast<std::size_t>(next.msg.total_size()));
    next.msg.copy_to(copy.bytes.data());
    ring.begin();
    std::lock_guard const lock(by_->mutex);
    by_->letters[{program_, channel}].push_back(std::move(copy));
    ring.deliver();
  }
  [[nodiscard]] message take(int channel, std::int32_t sequence, bytes most) {
    auto const place = close_slot(channel, sequence, most);
    auto const& from = arrived_[{channel, place}];
    auto msg = message::copy_of(from.sizes, from.bytes.data(), memory());
    received(channel)->free(place);
    return msg;
  }

  template <class Wait>  // for the executor, which calls it where the rank must wait
  void wait(Wait const& until) {
    poll_until(*this, until);
  }
  void poll() {
    for (int c = 0; c < channels(); ++c) {
      auto* const ring = received(c);
      std::lock_guard const lock(by_->mutex);
      auto& letters = by_->letters[{program_, c}];
      for (; ring != nullptr && ring->has_room() && !letters.empty(); letters.pop_front()) {
        auto& first = letters.front();
        if (ring->is_over(first.step)) continue;
        arrived_[{c, ring->add(first.step)}] = std::move(first);
        ring->arrive();
        wake();
      }
    }
  }

 private:
  office* by_;
  int program_;
  std::map<std::pair<int, std::size_t>, letter> arrived_;  // by channel and place
};

/// Runs the rank of this process.
class ranks : public asio::process_backend {
 public:
  using transport_type = transport;
  using executor = asio::process_executor<ranks>;

  ranks(asio::rendezvous& run, office& by)
      : process_backend(run, {.share_losses = true}), by_(&by) {}
  [[nodiscard]] std::unique_ptr<transport> make_transport(asio::rank_program const& of) const {
    return std::make_unique<transport>(of, *by_);
  }

 private:
  office* by_;
};

}  // namespace post
// wire]

// The backend ends here; what tests it may use what tests have.
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/checked_model.hpp>

#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

namespace test_asio_own_backend {

using namespace zbpp;
using namespace zbpp::test;

static_assert(multi_step_transport<post::transport>);
static_assert(acknowledging_transport<post::transport>);
static_assert(backend<post::ranks>);

namespace {

constexpr int ranks = 3;
constexpr int steps = 8;

checked::model_settings const settings{.stages = ranks, .tied = {0, ranks - 1}};

// Trains over ranks, and evaluates; `prepare(model)` may set a fault, `then(rank, model, losses)`
// sees what came of it. @return what each rank threw
template <class Prepare, class Then>
std::vector<std::string> train(step_kind kind, Prepare prepare, Then then) {
  auto const problem =
      checked::make_problem(placement::linear(ranks), ranks + 2, 87, settings.tied);
  auto const planned = make_plan(zb_h1{}, problem, {.step = kind});
  post::office office;
  return run_ranks(ranks, patient_settings(), [&](asio::rendezvous& meeting) {
    checked::model all(settings);
    prepare(all);
    std::vector const own{all.stages()[static_cast<std::size_t>(meeting.rank())]};
    pipeline pipe(planned, post::ranks(meeting, office), own, {.clip = 1.35});
    auto const losses = pipe.run(steps).losses;
    pipe.evaluate();
    then(meeting.rank(), all, losses);
  });
}

}  // namespace

TEST_CASE("a backend of public headers alone trains over ranks with the bits of one loop") {
  auto const start = checked::model(settings).bits();
  auto const expected = checked::train_alone(settings, ranks + 2, steps, {.clip = 1.35}).bits;
  for (auto kind : {step_kind::synchronous, step_kind::post_validated}) {
    auto joined = start;
    std::vector<std::vector<double>> losses(ranks);
    std::mutex mutex;
    auto const thrown = train(
        kind,
        [](checked::model&) {},
        [&](int rank, checked::model& own, std::vector<double> const& of_last_step) {
          auto const bits = own.bits();
          std::lock_guard const lock(mutex);
          losses[static_cast<std::size_t>(rank)] = of_last_step;
          for (std::size_t i = 0; i < joined.size(); ++i)
            if (bits[i] != start[i]) joined[i] = bits[i];
        });
    for (auto const& text : thrown) CHECK(text == "");
    CHECK(joined == expected);
    for (auto const& each : losses) CHECK(each == losses.back());
  }
}

TEST_CASE("there a failure on one rank is named on all") {
  for (int failing = 0; failing < ranks; ++failing) {
    auto const thrown = train(
        step_kind::post_validated,
        [&](checked::model& all) { all.maths(failing).throw_in(3, 0); },
        [](int, checked::model&, std::vector<double> const&) {});
    for (auto const& text : thrown) {
      CHECK(text.find("thrown by the test") != std::string::npos);
      CHECK(text.find("rank " + std::to_string(failing)) != std::string::npos);
    }
  }
}

}  // namespace test_asio_own_backend

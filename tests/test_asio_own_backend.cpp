// SPDX-License-Identifier: Apache-2.0
//
// A backend of somebody else's, with one rank per process and messages that go neither by TCP nor
// by NCCL: public headers are all that it takes. Ranks are threads here, and messages wait as bytes
// in a mailbox that receivers poll, as they would poll MPI.
#include <zbpp/asio/one_rank.hpp>
#include <zbpp/backend.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace mailbox {

using namespace zbpp;

/// Holds the messages that were sent and not taken, of all ranks.
class post_office {
 public:
  using address = std::pair<int, int>;  // program and channel
  using letter = std::vector<std::vector<std::byte>>;

  void post(address to, letter one) {
    std::lock_guard const lock(mutex_);
    all_[to].push_back(std::move(one));
  }
  [[nodiscard]] int count(address to) {
    std::lock_guard const lock(mutex_);
    return static_cast<int>(all_[to].size());
  }
  [[nodiscard]] letter take(address to) {
    std::lock_guard const lock(mutex_);
    auto first = std::move(all_[to].front());
    all_[to].pop_front();
    return first;
  }

 private:
  std::mutex mutex_;
  std::map<address, std::deque<letter>> all_;
};

/// Moves the messages of one rank, which are copied when they are sent and when they are taken.
class transport {
 public:
  static constexpr ticks not_yet = -1;

  /// @param number  of the program in the pipeline
  transport(
      post_office& office,
      int number,
      program const& code,
      std::unique_ptr<asio::socket_states> states)
      : office_(&office), number_(number), code_(&code), states_(std::move(states)) {}
  [[nodiscard]] program const& code() const { return *code_; }

  void bind(int, arena& memory, wakeup* wake) {
    memory_ = &memory;
    wake_ = wake;
  }
  void post_receive(int, bytes most) { memory_->count_edge(most); }
  void send(int channel, message&& msg, ticks) {
    post_office::letter copy;
    for (auto const& part : msg.buffers())
      copy.emplace_back(part.data(), part.data() + part.size());
    office_->post({number_, channel}, std::move(copy));
  }
  [[nodiscard]] ticks arrival(int channel, std::int32_t sequence) const {
    return have_arrived(channel, sequence + 1) ? 0 : not_yet;
  }
  [[nodiscard]] message take(int channel, std::int32_t, bytes most) {
    message msg;
    for (auto const& part : next(channel)) {
      auto copy = memory_->allocate(part.size(), purpose::edge);
      std::copy(part.begin(), part.end(), copy.data());
      msg.push_back(std::move(copy));
    }
    memory_->count_edge(-most);
    return msg;
  }
  void retire(int, std::int32_t) {}  // `send` has copied it
  void abort() { notify(wake_); }
  void drain() {
    taken_.clear();
    if (states_ != nullptr) states_->drain();
  }

  [[nodiscard]] asio::socket_states& states() { return *states_; }
  [[nodiscard]] bool have_arrived(int channel, std::int32_t count) const {
    auto const taken = taken_.find(channel);
    return office_->count({number_, channel}) + (taken == taken_.end() ? 0 : taken->second) >=
           count;
  }
  void discard(int channel, std::int32_t count) {
    while (taken_[channel] < count) next(channel);
  }
  void end_step(int) {}
  [[nodiscard]] bool begin_step(int rank) {
    if (!states_->begin_step(rank)) return false;
    taken_.clear();
    return true;
  }

 private:
  post_office::letter next(int channel) {
    ++taken_[channel];
    return office_->take({number_, channel});
  }

  post_office* office_;
  int number_;
  program const* code_;
  std::unique_ptr<asio::socket_states> states_;  // null where ranks exchange none
  std::map<int, std::int32_t> taken_;            // by channel, in this step
  arena* memory_ = nullptr;
  wakeup* wake_ = nullptr;
};

/// Runs the rank of this process.
struct backend {
  using transport_type = transport;
  using pass_observer = asio::progress_observer;
  static constexpr bool reserves_memory = false;

  class executor;

  asio::rendezvous* run;
  post_office* office;
};

class backend::executor : public asio::one_rank {
 public:
  executor(backend by, plan const& planned) : one_rank(*by.run, planned, {}, true), by_(by) {}

  [[nodiscard]] wakeup* wakeup_of(int) { return &wakeup_; }
  [[nodiscard]] std::unique_ptr<transport> make_transport(
      program const& program, traffic const&, problem const& problem) {
    std::unique_ptr<asio::socket_states> states;
    if (exchanges_states(program))
      states = std::make_unique<asio::socket_states>(*by_.run, program, problem, wakeup_);
    return std::make_unique<transport>(*by_.office, made_++, program, std::move(states));
  }
  void connect(transport& messages) {
    asio::call_name const named(control_channel(), supervisor().connecting(made_ == 1));
    if (exchanges_states(messages.code())) messages.states().connect();
  }
  template <class Engine>
  void run(std::vector<Engine>& engines, transport& messages, step_status& status) {
    auto& engine = engines.front();
    bool const has_states = exchanges_states(messages.code());
    supervisor().begin(messages.code(), status);
    supervisor().announce(engine.statement());
    for (;;) {
      auto const reached = engine.advance();
      if (supervisor().look() || status.has_failed()) break;
      bool const is_done = reached == progress::done;
      if (is_done && (!has_states || messages.states().is_flushed())) break;
      note_wait(engine);
      if (has_states) messages.states().poll(is_done ? state_map::none : engine.blocked_by());
      std::this_thread::yield();
    }
    supervisor().report(engine.what_failed());
    supervisor().end();
  }

 private:
  backend by_;
  wakeup wakeup_{0};
  int made_ = 0;  // transports
};

}  // namespace mailbox

// The backend ends here; what tests it may use what tests have.
#include <zbpp/policy/one_chunk.hpp>
#include <zbpp/runtime/pipeline.hpp>

#include <support/asio_ranks.hpp>
#include <support/catch.hpp>
#include <support/checked_model.hpp>

#include <string>

namespace test_asio_own_backend {

using namespace zbpp;
using namespace zbpp::test;

static_assert(multi_step_transport<mailbox::transport>);
static_assert(backend<mailbox::backend>);

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
  mailbox::post_office office;
  return run_ranks(ranks, patient_settings(), [&](asio::rendezvous& meeting) {
    checked::model all(settings);
    prepare(all);
    std::vector const own{all.stages()[static_cast<std::size_t>(meeting.rank())]};
    pipeline pipe(planned, mailbox::backend{&meeting, &office}, own, {.clip = 1.35});
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

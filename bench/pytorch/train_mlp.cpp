// SPDX-License-Identifier: Apache-2.0
//
// Trains an MLP on two ranks, as train_mlp.py does with PyTorch: in a plain loop, in a pipeline on
// threads, and in one over TCP between two processes. compare.py starts both programs, and has them
// take turns.
// usage: RANK=0 WORLD_SIZE=2 ZBPP_TOKEN=... train_mlp [--give-back]    (and one with RANK=1)
//
// It keeps the memory of freed tensors; with --give-back the C library does with it what it does by
// itself. That belongs to a process: once it was set, glibc never adapts to what is freed again.
//
// The first line says the version of LibTorch. Then each line of the standard input,
//   RUNTIME POLICY BLOCKS WIDTH ROWS MICROBATCHES STEPS     (plain -, threads zb_v, tcp zb_h1, ...)
// is answered by the seconds that a step took and the loss of the last step; -1 for what this
// process does not have. The first of the steps is not timed. The same model goes on with each line
// that differs in STEPS alone.
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/asio/tcp.hpp>
#include <zbpp/torch/torch.hpp>
#include <zbpp/zbpp.hpp>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <torch/torch.h>
#include <torch/version.h>
#include <utility>
#include <vector>

namespace {

constexpr int ranks = 2;
constexpr double learning_rate = 0.01;

struct sizes {
  int blocks = 0;
  std::int64_t width = 0;
  std::int64_t rows = 0;
  int microbatches = 0;
};

at::Tensor random_numbers(int seed, at::IntArrayRef shape) {
  return at::randn(
      shape, at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed)), at::kFloat);
}

// One stage of the model: the same weights each time.
struct slice {
  slice(sizes const& of, int stage, int stages) {
    int const count = of.blocks / stages;
    for (int block = stage * count; block < (stage + 1) * count; ++block) {
      torch::nn::Linear linear(of.width, of.width);
      auto const scale = 1 / std::sqrt(static_cast<double>(of.width));
      linear->weight.set_data(random_numbers(block, {of.width, of.width}) * scale);
      linear->bias.set_data(at::zeros({of.width}));
      layers->push_back(linear);
      layers->push_back(torch::nn::GELU());
    }
    sgd = std::make_shared<torch::optim::SGD>(layers->parameters(), learning_rate);
  }

  torch::nn::Sequential layers;
  std::shared_ptr<torch::optim::SGD> sgd;
};

// The microbatches of each step.
struct batches {
  explicit batches(sizes const& of) : microbatches(of.microbatches) {
    for (int mb = 0; mb < of.microbatches; ++mb) {
      inputs.push_back(random_numbers(1000 + mb, {of.rows, of.width}));
      targets.push_back(random_numbers(2000 + mb, {of.rows, of.width}));
    }
  }
  [[nodiscard]] at::Tensor loss(at::Tensor const& y, std::size_t mb) const {
    return at::mse_loss(y, targets[mb]) / microbatches;
  }

  int microbatches;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> targets;
};

// Takes so many steps; gives the loss of the last one.
using trainer = std::function<double(int steps)>;

trainer plain_loop(sizes const& of) {
  return [model = slice(of, 0, 1), from = batches(of)](int steps) mutable {
    double loss = 0;
    for (int step = 0; step < steps; ++step) {
      loss = 0;
      for (std::size_t mb = 0; mb < from.inputs.size(); ++mb) {
        auto const of_one = from.loss(model.layers->forward(from.inputs[mb]), mb);
        of_one.backward();
        loss += of_one.item<double>();
      }
      model.sgd->step();
      model.sgd->zero_grad();
    }
    return loss;
  };
}

zbpp::plan plan_of(std::string const& policy, sizes const& of) {
  zbpp::stage_costs costs{.forward = 10, .backward_input = 10, .backward_weight = 10};
  costs.edge = zbpp::torch::edge_size({at::empty({of.rows, of.width})});
  zbpp::problem const linear(zbpp::placement::linear(ranks), of.microbatches, costs);
  zbpp::problem const v(zbpp::placement::v_shape(ranks), of.microbatches, costs);
  if (policy == "zb_v") return zbpp::make_plan(zbpp::zb_v{}, v);
  if (policy == "zb_h1") return zbpp::make_plan(zbpp::zb_h1{}, linear);
  if (policy == "one_f_one_b") return zbpp::make_plan(zbpp::one_f_one_b{}, linear);
  throw std::runtime_error("no policy " + policy + "; there are zb_v, zb_h1 and one_f_one_b");
}

// A pipeline with its stages: those of this process.
template <class Backend>
class pipelined {
 public:
  pipelined(
      zbpp::plan const& planned, Backend backend, sizes const& of, std::vector<int> const& stages)
      : from_(std::make_unique<batches>(of)),
        stages_(make_stages(*from_, planned, of, stages)),
        pipe_(std::make_unique<zbpp::pipeline<Backend>>(planned, std::move(backend), stages_)) {}

  double operator()(int steps) {
    auto const loss = pipe_->run(steps).loss() * from_->microbatches;
    return std::isnan(loss) ? -1 : loss;  // the last stage is elsewhere
  }

 private:
  using stage = zbpp::torch::module_stage<std::function<void()>>;

  static std::vector<stage> make_stages(
      batches const& from,
      zbpp::plan const& planned,
      sizes const& of,
      std::vector<int> const& which) {
    int const count = planned.problem().stages();
    zbpp::torch::stage_ends const ends{
        .batch = [&from](zbpp::microbatch mb) -> zbpp::torch::tensors {
          return {from.inputs[static_cast<std::size_t>(mb.index())]};
        },
        .loss =
            [&from](zbpp::torch::tensors const& outputs, zbpp::microbatch mb) {
              return from.loss(outputs.front(), static_cast<std::size_t>(mb.index()));
            }};
    std::vector<stage> made;
    for (int const s : which) {
      slice const own(of, s, count);
      made.emplace_back(own.layers, ends, [sgd = own.sgd] {
        sgd->step();
        sgd->zero_grad();
      });
    }
    return made;
  }

  std::unique_ptr<batches> from_;
  std::vector<stage> stages_;
  std::unique_ptr<zbpp::pipeline<Backend>> pipe_;
};

trainer make_trainer(
    std::string const& runtime,
    std::string const& policy,
    sizes const& of,
    zbpp::asio::rendezvous& meeting) {
  if (runtime == "plain") return plain_loop(of);
  auto const planned = plan_of(policy, of);
  auto const& placed = planned.problem().placement();
  auto const share = [](auto made) {  // a std::function copies
    return [kept = std::make_shared<decltype(made)>(std::move(made))](int steps) {
      return (*kept)(steps);
    };
  };
  if (runtime == "threads") {
    std::vector<int> all;
    for (int s = 0; s < placed.stages(); ++s) all.push_back(s);
    zbpp::threads const backend{.on_thread_start = zbpp::torch::intra_op_threads(1)};
    return share(pipelined(planned, backend, of, all));
  }
  if (runtime == "tcp") {
    auto const own = placed.stages_of(meeting.rank());
    return share(
        pipelined(planned, zbpp::asio::tcp(meeting), of, std::vector<int>(own.begin(), own.end())));
  }
  throw std::runtime_error("no runtime " + runtime + "; there are plain, threads and tcp");
}

int answer_lines() {
  at::set_num_threads(1);
  std::cout << TORCH_VERSION << std::endl;
  zbpp::asio::rendezvous meeting(zbpp::asio::find_launch());
  std::map<std::string, trainer> trainers;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string runtime;
    std::string policy;
    sizes of;
    int steps = 0;
    words >> runtime >> policy >> of.blocks >> of.width >> of.rows >> of.microbatches >> steps;
    if (!words || steps < 2 || of.blocks % 4 != 0)
      throw std::runtime_error("cannot read '" + line + "'");
    auto& train = trainers[line.substr(0, line.rfind(' '))];
    if (!train) train = make_trainer(runtime, policy, of, meeting);

    static_cast<void>(train(1));
    auto const start = std::chrono::steady_clock::now();
    auto const loss = train(steps - 1);
    std::chrono::duration<double> const took = std::chrono::steady_clock::now() - start;
    std::cout << took.count() / (steps - 1) << ' ' << loss << std::endl;
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    if (count == 1) {
      zbpp::torch::keep_freed_memory();
    } else if (count > 2 || arguments[1] != std::string("--give-back")) {
      throw std::runtime_error("the only argument is --give-back");
    }
    return answer_lines();
  } catch (std::exception const& failed) {
    std::fprintf(stderr, "train_mlp: %s\n", failed.what());
    return 1;
  }
}

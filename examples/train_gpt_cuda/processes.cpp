// SPDX-License-Identifier: Apache-2.0
//
// One rank of several processes that NCCL connects; docs/launch.md says how they are started. On
// the model of CUDA and NCCL a thread stands for each process, with a device and a rendezvous of
// its own.
#include "ranks_apart.hpp"
#include "train.hpp"

#ifdef ZBPP_CUDA_MODEL
#include <gpu_model/cuda/cuda_model.hpp>
#include <support/asio_ranks.hpp>
#endif

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpt::cuda {

#ifdef ZBPP_CUDA_MODEL

int train_in_processes(options o) {
  check_ranks(o);
  auto const on = read(o);
  // They start at different times; whoever waits on the device waits for all that have not ended.
  std::vector<std::unique_ptr<zbpp::cuda_model::host_thread>> hosts;
  for (int r = 0; r < o.ranks; ++r)
    hosts.push_back(std::make_unique<zbpp::cuda_model::host_thread>());
  auto settings = zbpp::test::patient_settings();
  settings.collective_deadline = std::chrono::seconds(120);  // the references share a processor
  std::vector<int> statuses(hosts.size(), 1);
  auto const thrown =
      zbpp::test::run_ranks(o.ranks, settings, [&](zbpp::asio::rendezvous& meeting) {
        auto const rank = static_cast<std::size_t>(meeting.rank());
        auto const host = std::move(hosts[rank]);
        statuses[rank] = status_of("train_gpt_cuda", meeting.rank(), [&] {
          return take_part(meeting, [&] { return train(o, on, ranks_apart(meeting, o, on)); });
        });
      });
  for (auto const& text : thrown)
    if (!text.empty()) std::fprintf(stderr, "train_gpt_cuda: %s\n", text.c_str());
  return *std::ranges::max_element(statuses);
}

#else

int train_in_processes(options o) {
  auto const start = find_launch("nccl", o.names_ranks ? std::optional(o.ranks) : std::nullopt);
  o.ranks = start.ranks;
  check_ranks(o);
  zbpp::asio::rendezvous_settings settings;
  settings.bind = o.bind;
  settings.advertise = o.advertise;
  // References may take longer on one rank than on others; who dies meanwhile is noticed all the
  // same.
  settings.collective_deadline = std::chrono::hours(1000);
  return status_of("train_gpt_cuda", start.rank, [&] {
    auto meeting = meet(start, settings);
    return take_part(meeting, [&] {
      auto const on = read(o);
      return train(o, on, ranks_apart(meeting, o, on));
    });
  });
}

#endif

}  // namespace gpt::cuda

// SPDX-License-Identifier: Apache-2.0
//
// What a channel over NCCL takes by the size of messages: to oneself, or between the two processes
// of a run, each way on a communicator and a stream of its own, as `nccl::ranks` has them; what a
// message of a pipeline takes; how many multiprocessors a receive holds while it waits; and what
// sums over two replicas take, alone and beside passes. `./run gpu` starts it. Exit status: 0 good,
// 1 something failed, 2 wrong arguments, 3 no device.
#include <zbpp/asio/rendezvous.hpp>
#include <zbpp/model/problem.hpp>
#include <zbpp/nccl/communicator.hpp>
#include <zbpp/nccl/measure_transfers.hpp>
#include <zbpp/nccl/settings.hpp>

#include <algorithm>
#include <bench/cuda/arguments.hpp>
#include <bench/cuda/kernels.hpp>
#include <bench/cuda/measuring.hpp>
#include <bench/cuda/ranks.hpp>
#include <bench/cuda/report.hpp>
#include <bench/cuda/shared_id.hpp>
#include <bench/cuda/work.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <span>
#include <string>
#include <vector>

namespace zbpp::bench {
namespace {

nccl::pause_call patience() {
  return nccl::limited_pause(
      std::chrono::seconds(60), "NCCL does not go on; set NCCL_DEBUG=INFO to see what it does");
}

// One direction between two ranks, or to oneself.
class channel {
 public:
  channel(ncclUniqueId const& id, int ranks, int rank, int ctas)
      : communicator_(id, ranks, rank, {.name = "bench", .most_ctas = ctas}) {
    communicator_.wait(patience());
  }

  [[nodiscard]] cuda::stream_ref on() const { return stream_; }

  void send(device_memory const& from, std::size_t size, int peer) const {
    launch([&] {
      nccl::check(ncclSend(from.get(), size, ncclInt8, peer, communicator_.get(), on()));
    });
  }
  void receive(device_memory const& to, std::size_t size, int peer) const {
    launch(
        [&] { nccl::check(ncclRecv(to.get(), size, ncclInt8, peer, communicator_.get(), on())); });
  }
  // Adds up floats over all ranks, in place.
  void sum(device_memory const& data, std::size_t size) const {
    launch([&] {
      auto* const values = data.get<float>();
      nccl::check(ncclAllReduce(
          values, values, size / sizeof(float), ncclFloat32, ncclSum, communicator_.get(), on()));
    });
  }
  // Send and receive stand in one group, or neither could end.
  void send_to_oneself(device_memory const& from, device_memory const& to, std::size_t size) const {
    launch([&] {
      nccl::check(ncclSend(from.get(), size, ncclInt8, 0, communicator_.get(), on()));
      nccl::check(ncclRecv(to.get(), size, ncclInt8, 0, communicator_.get(), on()));
    });
  }

 private:
  template <class Calls>
  void launch(Calls const& calls) const {
    nccl::detail::group together;
    calls();
    together.end();
    communicator_.wait(patience());  // only then its work is on the stream
  }

  nccl::communicator communicator_;
  cuda::stream stream_{cuda::stream_priority::highest};
};

struct sizes {
  std::vector<std::size_t> bytes;
  std::vector<int> ctas;
  int repeats = 0;

  // Large messages may go over sockets, and take long.
  [[nodiscard]] int repeats_of(std::size_t size) const {
    return size > (std::size_t{4} << 20) ? std::min(repeats, 8) : repeats;
  }
};

sizes sizes_of(bool is_short) {
  if (is_short) return {{256, 65536}, {1}, 4};
  sizes all{{256}, {1, 4, 8}, 30};
  for (std::size_t size = 4096; size <= std::size_t{64} << 20; size *= 4) all.bytes.push_back(size);
  return all;
}

template <class Call>
double microseconds_of(Call const& call) {
  auto const start = wall_seconds();
  call();
  return 1e6 * (wall_seconds() - start);
}

// Of `repeats`, after three that warm up.
template <class Call>
double median_of(int repeats, Call const& call) {
  for (int i = 0; i < 3; ++i) call();
  std::vector<double> all;
  for (int i = 0; i < repeats; ++i) all.push_back(microseconds_of(call));
  return median(all);
}

// What something takes from its calls until its stream is through with it.
template <class Call>
double arrival_of(int repeats, cuda::stream_ref on, Call const& once) {
  return median_of(repeats, [&] {
    once();
    on.synchronize();
  });
}

// What each of many in a row takes, once the stream is through with those before.
template <class Call>
double one_in_a_row(int repeats, cuda::stream_ref on, Call const& once) {
  auto const all = microseconds_of([&] {
    for (int i = 0; i < repeats; ++i) once();
    on.synchronize();
  });
  return all / repeats;
}

double rate(std::size_t size, double microseconds) {
  return static_cast<double>(size) / microseconds * 1e-3;
}

std::vector<std::string> columns(std::string const& latency) {
  return {
      "bytes",
      "most CTAs",
      latency,
      "the calls alone, us",
      "one of many in a row, us",
      "that in GB/s"};
}

void to_oneself(report& into, sizes const& all) {
  table& result = into.begin(
      "NCCL, one rank to itself, on one GPU", columns("from the calls to the arrival, us"));
  for (int const ctas : all.ctas) {
    channel const self(new_id(), 1, 0, ctas);
    for (auto const size : all.bytes) {
      int const repeats = all.repeats_of(size);
      device_memory const from(size);
      device_memory const to(size);
      auto const once = [&] { self.send_to_oneself(from, to, size); };
      auto const arrives = arrival_of(repeats, self.on(), once);
      auto const calls = median_of(repeats, once);
      self.on().synchronize();
      auto const row = one_in_a_row(repeats, self.on(), once);
      result.add(
          {static_cast<std::int64_t>(size),
           std::int64_t{ctas},
           arrives,
           calls,
           row,
           rate(size, row)});
      into.save();
    }
  }
}

// The two directions of a pair, seen from one rank.
struct pair_of_channels {
  pair_of_channels(asio::rendezvous& run, int ctas)
      : there(shared_id(run), 2, run.rank(), ctas), back(shared_id(run), 2, run.rank(), ctas) {}

  channel there;  // from rank 0 to rank 1
  channel back;
};

// There and back; rank 1 answers when the message is there.
void round_trip(
    pair_of_channels const& pair,
    int rank,
    device_memory const& from,
    device_memory const& to,
    std::size_t size) {
  if (rank == 0) {
    pair.there.send(from, size, 1);
    pair.back.receive(to, size, 1);
    pair.back.on().synchronize();
  } else {
    pair.there.receive(to, size, 0);
    pair.there.on().synchronize();
    pair.back.send(from, size, 0);
    pair.back.on().synchronize();
  }
}

void one_way(pair_of_channels const& pair, int rank, device_memory const& data, std::size_t size) {
  if (rank == 0)
    pair.there.send(data, size, 1);
  else
    pair.there.receive(data, size, 0);
}

void between_two(asio::rendezvous& run, report& into, sizes const& all) {
  table& result =
      into.begin("NCCL, from one process to another", columns("half of there and back, us"));
  for (int const ctas : all.ctas) {
    pair_of_channels const pair(run, ctas);
    for (auto const size : all.bytes) {
      int const repeats = all.repeats_of(size);
      device_memory const from(size);
      device_memory const to(size);
      run.barrier();
      auto const there_and_back =
          median_of(repeats, [&] { round_trip(pair, run.rank(), from, to, size); });
      auto const once = [&] { one_way(pair, run.rank(), from, size); };
      auto const calls = median_of(repeats, once);
      pair.there.on().synchronize();
      run.barrier();
      auto const row = one_in_a_row(repeats, pair.there.on(), once);
      result.add(
          {static_cast<std::int64_t>(size),
           std::int64_t{ctas},
           there_and_back / 2,
           calls,
           row,
           rate(size, row)});
      into.save();
    }
  }
}

// Many short blocks on all multiprocessors.
class wide_kernel {
 public:
  wide_kernel() {
    cuda::check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, here()));
  }

  [[nodiscard]] int multiprocessors() const { return multiprocessors_; }
  void run() const {
    cuda::check(burn(computes_.view(), 8 * 64 * multiprocessors_, 500, sink_.get<float>()));
    computes_.view().synchronize();
  }

 private:
  [[nodiscard]] static int here() {
    int device = 0;
    cuda::check(cudaGetDevice(&device));
    return device;
  }

  int multiprocessors_ = 0;
  device_memory sink_{sizeof(float)};
  cuda::stream computes_{cuda::stream_priority::usual};
};

// A kernel alone, and beside a receive that waits: where it takes n / (n - k) of its time, the
// receive holds k of n multiprocessors.
void waiting_receive(asio::rendezvous& run, report& into, sizes const& all) {
  table& result = into.begin(
      "What a receive holds while it waits",
      {"most CTAs",
       "multiprocessors",
       "a kernel on all of them alone, ms",
       "beside the receive, ms",
       "multiprocessors held"});
  device_memory const data(4096);
  wide_kernel const wide;
  auto const kernel = [&] { wide.run(); };
  for (int const ctas : all.ctas) {
    pair_of_channels const pair(run, ctas);
    one_way(pair, run.rank(), data, 4096);  // connects
    pair.there.on().synchronize();
    double times[2] = {};  // alone, and beside the receive
    if (run.rank() == 1) {
      times[0] = median_of(all.repeats, kernel);
      pair.there.receive(data, 4096, 0);
      times[1] = median_of(all.repeats, kernel);
    }
    auto const told = run.broadcast(std::as_bytes(std::span(times)), 1);  // only now rank 0 sends
    std::memcpy(times, told.data(), sizeof times);
    if (run.rank() == 0) pair.there.send(data, 4096, 1);
    pair.there.on().synchronize();
    result.add(
        {std::int64_t{ctas},
         std::int64_t{wide.multiprocessors()},
         1e-3 * times[0],
         1e-3 * times[1],
         wide.multiprocessors() * (1 - times[0] / times[1])});
    into.save();
  }
}

// Sums of gradients as `nccl::ranks` has them, in place on a stream of their own. The first one of
// a size may connect anew, for which the host waits.
void sums(asio::rendezvous& run, report& into, sizes const& all) {
  table& result = into.begin(
      "NCCL, a sum over two replicas",
      {"bytes",
       "most CTAs",
       "the first call alone, us",
       "the calls alone, us",
       "from the call to the sum, us",
       "one of many in a row, us",
       "that in GB/s"});
  for (int const ctas : all.ctas) {
    channel const own(shared_id(run), 2, run.rank(), ctas);
    for (auto const size : all.bytes) {
      int const repeats = all.repeats_of(size);
      device_memory const data(size);
      cuda::check(cudaMemsetAsync(data.get(), 0, size, own.on().get()));
      auto const once = [&] { own.sum(data, size); };
      run.barrier();
      auto const first = microseconds_of(once);
      own.on().synchronize();
      auto const arrives = arrival_of(repeats, own.on(), once);
      auto const calls = median_of(repeats, once);
      own.on().synchronize();
      auto const row = one_in_a_row(repeats, own.on(), once);
      result.add(
          {static_cast<std::int64_t>(size),
           std::int64_t{ctas},
           first,
           calls,
           arrives,
           row,
           rate(size, row)});
      into.save();
    }
  }
}

// What a kernel loses beside sums, and they beside it.
void sums_beside_passes(asio::rendezvous& run, report& into, sizes const& all) {
  table& result = into.begin(
      "Passes beside sums over two replicas",
      {"most CTAs",
       "bytes of a sum",
       "a kernel on all multiprocessors alone, ms",
       "beside sums, ms",
       "a sum alone, us",
       "beside the kernel, us"});
  auto const size = all.bytes.back();
  auto const repeats = all.repeats_of(size);
  device_memory const data(size);
  wide_kernel const wide;
  cuda::event const summed(cuda::event_kind::order);
  for (int const ctas : all.ctas) {
    channel const own(shared_id(run), 2, run.rank(), ctas);
    cuda::check(cudaMemsetAsync(data.get(), 0, size, own.on().get()));
    auto const enqueue = [&] {
      for (int i = 0; i < repeats; ++i) own.sum(data, size);
    };
    enqueue();
    own.on().synchronize();
    double alone = 0;
    for (int turn = 0; turn < 2; ++turn) {  // both ranks may be on one GPU
      if (turn == run.rank()) alone = median_of(repeats, [&] { wide.run(); });
      run.barrier();
    }
    auto const sums_alone = microseconds_of([&] {
      enqueue();
      own.on().synchronize();
    });
    run.barrier();
    double beside = 0;
    auto const sums_beside = microseconds_of([&] {
      enqueue();
      own.on().record(summed);
      beside = microseconds_of([&] { wide.run(); });
      while (!summed.view().is_complete()) wide.run();
    });
    result.add(
        {std::int64_t{ctas},
         static_cast<std::int64_t>(size),
         1e-3 * alone,
         1e-3 * beside,
         sums_alone / repeats,
         sums_beside / repeats});
    into.save();
  }
}

// What a message of a pipeline takes.
void messages_of_pipelines(asio::rendezvous& run, report& into, bool is_short) {
  table& result =
      into.begin("A message of a pipeline, from one process to another", {"bytes", "us"});
  for (bytes const size : {bytes{256}, bytes{is_short ? 65536 : 16 << 20}}) {
    problem const sends(
        placement::linear(2),
        2,
        stage_costs{.forward = 1, .backward_input = 1, .backward_weight = 1, .edge = size});
    auto const costs = nccl::measure_transfers(run, sends);
    result.add({std::int64_t{size}, 1e-3 * static_cast<double>(costs(0, 1, size))});
    into.save();
  }
}

// One of two processes; rank 0 writes for both.
void between_processes(choices const& chosen) {
  run_as_rank({}, false, [&](asio::rendezvous& run) {
    if (run.ranks() != 2)
      throw error(errc::bad_argument) + "there are " + run.ranks() + " ranks; start two";
    bool const writes = run.rank() == 0;
    report into(writes ? chosen.markdown : "", writes ? chosen.json : "");
    auto const all = sizes_of(chosen.is_short);
    if (chosen.act == "sums") {
      sums_beside_passes(run, into, all);
      sums(run, into, all);
    } else {
      messages_of_pipelines(run, into, chosen.is_short);
      waiting_receive(run, into, all);  // the shorter one first
      between_two(run, into, all);
    }
    if (writes) into.write_markdown(std::cout);
  });
}

void run(choices const& chosen) {
  if (chosen.act != "self") return between_processes(chosen);
  report into(chosen.markdown, chosen.json);
  to_oneself(into, sizes_of(chosen.is_short));
  into.write_markdown(std::cout);
}

}  // namespace
}  // namespace zbpp::bench

int main(int count, char** arguments) {
  return zbpp::bench::run_benchmark(
      "bench_nccl", count, arguments, {"self", "pair", "sums"}, zbpp::bench::run);
}

// SPDX-License-Identifier: Apache-2.0
#include <zbpp/runtime/detail/frame_pool.hpp>

#include <support/catch.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace test_frame_pool {

using zbpp::frame_pool;

namespace {

void* make_frame(std::size_t size) {
  auto* frame = frame_pool::allocate(size);
  std::memset(frame, 0x5a, size);
  return frame;
}

}  // namespace

TEST_CASE("a freed frame is used again for one of its size class", "[frame_pool]") {
  frame_pool pool;
  frame_pool::scope const scope(pool);
  auto* first = make_frame(100);
  frame_pool::release(first);
  auto* second = make_frame(128);
  CHECK(second == first);
  auto* third = make_frame(128);
  CHECK(third != second);
  auto* larger = make_frame(129);
  CHECK(pool.made() == 3);
  frame_pool::release(larger);
  frame_pool::release(third);
  frame_pool::release(second);
}

TEST_CASE("frames are aligned as far as any fundamental type needs", "[frame_pool]") {
  frame_pool pool;
  frame_pool::scope const scope(pool);
  std::vector<void*> frames;
  for (std::size_t size = 1; size < 9000; size += 17) {
    frames.push_back(make_frame(size));
    CHECK(reinterpret_cast<std::uintptr_t>(frames.back()) % alignof(std::max_align_t) == 0);
  }
  for (auto* frame : frames) frame_pool::release(frame);
}

TEST_CASE("without a pool in scope frames come from the heap", "[frame_pool]") {
  auto* frame = make_frame(100);
  frame_pool pool;
  {
    frame_pool::scope const scope(pool);
    frame_pool::release(frame);
    frame_pool::release(make_frame(100));
  }
  CHECK(pool.made() == 1);
}

TEST_CASE("a very large frame comes from the heap and goes back there", "[frame_pool]") {
  frame_pool pool;
  frame_pool::scope const scope(pool);
  frame_pool::release(make_frame(8 * 1024));
  CHECK(pool.made() == 1);
  frame_pool::release(make_frame(8 * 1024 + 1));
  frame_pool::release(make_frame(1'000'000));
  CHECK(pool.made() == 1);
}

TEST_CASE("scopes nest, and frames go back to the pool they came from", "[frame_pool]") {
  frame_pool outer;
  frame_pool inner;
  frame_pool::scope const scope(outer);
  auto* first = make_frame(64);
  {
    frame_pool::scope const nested(inner);
    auto* second = make_frame(64);
    frame_pool::release(first);
    frame_pool::release(second);
    auto* third = make_frame(64);
    CHECK(third == second);
    frame_pool::release(third);
  }
  CHECK(make_frame(64) == first);
  frame_pool::release(first);
  CHECK(outer.made() == 1);
  CHECK(inner.made() == 1);
}

TEST_CASE("a frame may be freed on another thread", "[frame_pool]") {
  frame_pool pool;
  std::vector<void*> frames;
  {
    frame_pool::scope const scope(pool);
    for (int i = 0; i < 10; ++i) frames.push_back(make_frame(200));
  }
  std::jthread([&] {
    for (auto* frame : frames) frame_pool::release(frame);
  }).join();
  frame_pool::scope const scope(pool);
  for (int i = 0; i < 10; ++i) frames[static_cast<std::size_t>(i)] = make_frame(200);
  CHECK(pool.made() == 10);
  for (auto* frame : frames) frame_pool::release(frame);
}

TEST_CASE("each thread has a pool of its own in scope", "[frame_pool]") {
  frame_pool pool;
  frame_pool::scope const scope(pool);
  std::jthread([] { frame_pool::release(make_frame(64)); }).join();
  CHECK(pool.made() == 0);
}

}  // namespace test_frame_pool

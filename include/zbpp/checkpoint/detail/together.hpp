// SPDX-License-Identifier: Apache-2.0
//
// Work that processes, or replicas, do together: what fails in one of them fails in all, with one
// text, so that none waits for what will not come.
#pragma once

#include <zbpp/error.hpp>

#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zbpp::checkpoint::detail {

/// Does the part of this process.
/// @param all_gather  gives the bytes of each process, in the same order everywhere
/// @param work        `work(answer)` adds to what this process tells the others
/// @return what each process tells
template <class AllGather, class Work>
std::vector<std::string> together(AllGather const& all_gather, Work const& work) {
  constexpr std::string_view mark = "checkpoint ";  // tells it from other calls
  constexpr char done = -1;                         // no code of an error
  auto const failed = [&](errc code) {
    return std::string(mark) + static_cast<char>(code) +
           zbpp::detail::text_of(std::current_exception());
  };
  auto own = std::string(mark) + done;
  std::exception_ptr thrown;
  try {
    work(own);
  } catch (error const& known) {
    own = failed(known.code());
    thrown = std::current_exception();
  } catch (...) {
    own = failed(errc::peer_failed);
    thrown = std::current_exception();
  }
  std::vector<std::vector<std::byte>> const parts = all_gather(std::as_bytes(std::span(own)));
  if (thrown) std::rethrow_exception(thrown);
  std::vector<std::string> all;
  for (auto const& part : parts) {
    auto& text = all.emplace_back(reinterpret_cast<char const*>(part.data()), part.size());
    if (!text.starts_with(mark) || text.size() == mark.size())
      throw error(
          errc::no_agreement,
          "others make another call where this one saves or loads a checkpoint; let all do so "
          "behind the same step");
    auto const code = text[mark.size()];
    text.erase(0, mark.size() + 1);
    if (code != done) throw error(static_cast<errc>(code), text);
  }
  return all;
}

}  // namespace zbpp::checkpoint::detail

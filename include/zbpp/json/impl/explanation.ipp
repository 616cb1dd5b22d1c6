// SPDX-License-Identifier: Apache-2.0
//
// How an explanation becomes JSON.
#pragma once

#include <zbpp/config.hpp>
#include <zbpp/error.hpp>
#include <zbpp/json/explanation.hpp>
#include <zbpp/model/pass.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace zbpp::json {

namespace detail {

/// Writes an explanation with all its times in one unit.
class explanation_writer {
 public:
  explicit explanation_writer(time_unit unit) : unit_(unit) {}

  [[nodiscard]] std::string write(explanation const& step) const {
    fields top(unit_);
    top.add("time_unit", zbpp::detail::joined('"', to_string(unit_), '"'));
    top.add("planned", step.planned);
    top.add("measured", step.measured);
    top.add("ranks", array(step.ranks, [&](auto const& rank) { return account(rank); }));
    top.add("critical", array(step.critical, [&](auto const& p) { return critical(p); }));
    top.add("worst", array(step.worst, [&](auto const& d) { return delayed(d); }));
    top.add("message_gain", step.message_gain);
    top.add("send_gain", step.send_gain);
    top.add("host_gain", step.host_gain);
    top.add_flag("has_messages", step.has_messages);
    top.add("clock_error", step.clock_error);
    return top.text("{\n  ", ",\n  ", "\n}\n");
  }

 private:
  /// Collects the members of an object.
  class fields {
   public:
    explicit fields(time_unit unit) : unit_(unit) {}

    void add(std::string_view key, std::string const& text) {
      members_.push_back(zbpp::detail::joined('"', key, "\": ", text));
    }
    void add(std::string_view key, ticks time) { add(key, time_of(time, unit_)); }
    void add_flag(std::string_view key, bool flag) { add(key, flag ? "true" : "false"); }
    void add_pass(int rank, pass const& p) {
      add("rank", std::to_string(rank));
      add("pass", zbpp::detail::joined('"', to_string(p.kind), '"'));
      add("stage", std::to_string(p.stage));
      add("microbatch", std::to_string(p.microbatch));
    }

    [[nodiscard]] std::string text(
        std::string_view open = "{",
        std::string_view separator = ", ",
        std::string_view close = "}") const {
      std::string text(open);
      for (std::size_t i = 0; i < members_.size(); ++i)
        text.append(i == 0 ? "" : separator).append(members_[i]);
      return text.append(close);
    }

   private:
    time_unit unit_;
    std::vector<std::string> members_;
  };

  [[nodiscard]] static std::string time_of(ticks time, time_unit unit) {
    zbpp::detail::require(time >= 0, "times of an explanation are at least 0");
    return number_text(time, unit);
  }

  // One value a line.
  template <class Values, class Text>
  [[nodiscard]] static std::string array(Values const& values, Text text_of) {
    std::string text = "[";
    for (auto const& value : values)
      text.append(text.size() > 1 ? ",\n    " : "\n    ").append(text_of(value));
    return text + (values.empty() ? "]" : "\n  ]");
  }

  [[nodiscard]] std::string account(rank_account const& rank) const {
    std::string others;
    for (auto const wait : rank.for_rank)
      others.append(others.empty() ? "" : ", ").append(time_of(wait, unit_));
    fields object(unit_);
    object.add("work", rank.work);
    object.add("longer", rank.longer);
    object.add("bubble", rank.bubble);
    object.add("imbalance", rank.imbalance);
    object.add("for_rank", "[" + others + "]");
    object.add("sent_late", rank.sent_late);
    object.add("messages", rank.messages);
    object.add("taken_late", rank.taken_late);
    object.add("host", rank.host);
    object.add("optimizer", rank.optimizer);
    object.add("gain", rank.gain);
    return object.text();
  }

  [[nodiscard]] std::string critical(critical_pass const& p) const {
    fields object(unit_);
    object.add_pass(p.rank, p.pass);
    object.add_flag("is_pair", p.is_pair);
    object.add("start", p.start);
    object.add("end", p.end);
    object.add("planned", p.planned);
    object.add("waited", p.waited);
    object.add("cause", zbpp::detail::joined('"', to_string(p.cause), '"'));
    object.add("sent_late", p.sent_late);
    object.add("taken_late", p.taken_late);
    return object.text();
  }

  [[nodiscard]] std::string delayed(delay const& d) const {
    fields object(unit_);
    object.add_pass(d.rank, d.pass);
    object.add("kind", zbpp::detail::joined('"', to_string(d.kind), '"'));
    object.add("planned", d.planned);
    object.add("took", d.took);
    object.add("gain", d.gain);
    return object.text();
  }

  time_unit unit_;
};

}  // namespace detail

ZBPP_INLINE std::string write_explanation(explanation const& step, time_unit unit) {
  return detail::explanation_writer(unit).write(step);
}

}  // namespace zbpp::json

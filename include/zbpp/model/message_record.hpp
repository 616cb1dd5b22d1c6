// SPDX-License-Identifier: Apache-2.0
//
// A record of the messages of a step: when each was sent, when it arrived, and when it was taken.
#pragma once

#include <zbpp/model/containers.hpp>
#include <zbpp/model/costs.hpp>
#include <zbpp/model/pass.hpp>

#include <limits>
#include <string>

namespace zbpp {

/// Says when one message between ranks travelled, in ticks of the timeline's clock.
struct timed_message {
  /// A time that is not known: in another process, or not yet.
  static constexpr ticks unknown = std::numeric_limits<ticks>::min();

  zbpp::pass pass = {};  ///< that needs it
  int from = 0;          ///< the rank that sends it
  int to = 0;            ///< the rank that runs the pass
  ticks sent = unknown;  ///< handed to the transport, by the clock of `from`
  /// All of it was there, by the clock of `to`, as far as the transport knows: between threads that
  /// is when it was sent.
  ticks arrived = unknown;
  ticks taken = unknown;  ///< the rank had it in its own memory, by the clock of `to`

  friend bool operator==(timed_message const&, timed_message const&) = default;
};

/// Writes a message as the pass that needs it, the ranks and its times, in nanoseconds:
/// `1F0 from rank 0 to 1: sent 100, arrived 105, taken 110`.
[[nodiscard]] inline std::string to_string(timed_message const& m) {
  auto const time = [](ticks t) {
    return t == timed_message::unknown ? std::string("?") : std::to_string(t);
  };
  return detail::joined(to_string(m.pass)) + " from rank " + m.from + " to " + m.to + ": sent " +
         time(m.sent) + ", arrived " + time(m.arrived) + ", taken " + time(m.taken);
}

/// Holds the messages of a step: a row for each channel, as `channel_map` numbers them, in the
/// order in which they are sent. `all()` gives the messages of all channels.
using message_record = rows<timed_message>;

}  // namespace zbpp

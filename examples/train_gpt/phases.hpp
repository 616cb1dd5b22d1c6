// SPDX-License-Identifier: Apache-2.0
//
// The phases that training on threads and in processes share: what comes before, the reference, and
// what is told in the end.
#pragma once

#include "options.hpp"
#include "report.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace gpt {

/// Prints a paragraph now, also into a pipe.
void say(std::string const& text);

/// Reads the text to learn.
/// @throws setting_error
[[nodiscard]] text read(options const& o);

/// Finds a placement for every policy.
/// @throws setting_error when the user asked for one that finds none
[[nodiscard]] std::vector<choice> choose_all(options const& o);

/// Plans for the policies that found a placement, with each kind of steps.
/// @param measured  the problem of each placement, once
[[nodiscard]] std::vector<contender> plan_all(
    options const& o,
    std::vector<choice> const& choices,
    std::vector<zbpp::problem> const& measured);

/// Tells what was measured, and what the plans are expected to cost.
void tell_plans(
    options const& o,
    std::vector<zbpp::problem> const& measured,
    std::vector<contender> const& all);

/// Measures every placement once, in this process.
[[nodiscard]] std::vector<zbpp::problem> measure_all(
    options const& o, text const& on, std::vector<choice> const& choices);

/// Tells what is trained.
[[nodiscard]] std::string headline(
    options const& o, text const& on, std::optional<sequential_trainer> const& trainer);

/// Runs the reference.
/// @param between  called before each microbatch; what it throws ends the run
[[nodiscard]] run_record run_sequential(
    sequential_trainer& trainer, training const& how, interruption const& between = [] {});

/// Tells how training went, and writes the pictures.
/// @param last        the run whose parameters count
/// @param checkpoint  the newest one; empty where there is none
/// @return the exit status, but for an interrupt
/// @throws zbpp::error (io_failed)
[[nodiscard]] int conclude(
    options const& o,
    text const& on,
    std::optional<run_record> const& sequential,
    std::vector<contender> const& all,
    run_record const& last,
    std::filesystem::path const& checkpoint);

}  // namespace gpt

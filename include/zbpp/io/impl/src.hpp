// SPDX-License-Identifier: Apache-2.0
//
// All definitions of this folder, for the one source file that compiles them.
#pragma once

#include <zbpp/io/impl/ascii.ipp>
#include <zbpp/io/impl/chrome_trace.ipp>
#include <zbpp/io/impl/csv.ipp>
#include <zbpp/io/impl/durable.ipp>
#include <zbpp/io/impl/explanation_drawing.ipp>
#include <zbpp/io/impl/explanation_text.ipp>
#include <zbpp/io/impl/file.ipp>
#include <zbpp/io/impl/line_chart.ipp>
#include <zbpp/io/impl/profile_text.ipp>
#include <zbpp/io/impl/run_progress.ipp>
#include <zbpp/io/impl/svg.ipp>
#include <zbpp/io/impl/sweep_svg.ipp>
#include <zbpp/io/impl/terminal.ipp>
#include <zbpp/io/impl/text.ipp>
#include <zbpp/io/impl/text_table.ipp>

// SPDX-License-Identifier: Apache-2.0
//
// The planner for other languages: a C interface in which problems and plans are text, in the JSON
// of docs/formats.md. The Python package calls it.
//
// Every function that returns a `zbpp_status` writes a text to `*out`: the answer where it returns
// ZBPP_OK, else one line that says what is wrong. The text is UTF-8 and ends with a NUL; the caller
// gives it back with `zbpp_free`. `*out` is NULL where there was no memory for a text. No function
// throws, keeps what it was given, or has state of its own; all may run on any number of threads at
// the same time.
#ifndef ZBPP_C_H
#define ZBPP_C_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define ZBPP_C_EXPORT __attribute__((visibility("default")))
#else
#define ZBPP_C_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

/// Says how a call ended.
typedef enum zbpp_status {
  ZBPP_OK = 0,
  ZBPP_BAD_ARGUMENT = 1,         ///< a value is out of range, or there is no such policy
  ZBPP_BAD_FORMAT = 2,           ///< a text is no problem, plan or schedule
  ZBPP_UNSUPPORTED_PROBLEM = 3,  ///< the policy cannot schedule it, or nothing fits the memory
  ZBPP_REFUSED_PROGRAM = 4,      ///< the order could not run
  ZBPP_OUT_OF_MEMORY = 5,
  ZBPP_UNEXPECTED = 6  ///< a fault of the library
} zbpp_status;

/// Is a text of `size` bytes; it may have no NUL at its end.
typedef struct zbpp_text {
  char const* data;
  size_t size;
} zbpp_text;

/// Says how far a search has come; all 0 before it first tells. Times are nanoseconds.
typedef struct zbpp_progress {
  int64_t cost;         ///< the least so far
  int64_t lower_bound;  ///< no schedule that runs microbatches in order costs less
  double spent;         ///< share of the budget, from 0 to 1
} zbpp_progress;

/// Controls a search from another thread.
typedef struct zbpp_search zbpp_search;

/// Makes the control of one search. Returns NULL where there is no memory.
ZBPP_C_EXPORT zbpp_search* zbpp_search_new(void);
/// Ends the search, which answers with the best so far. May be called again, and before it begins.
ZBPP_C_EXPORT void zbpp_search_stop(zbpp_search* search);
/// Writes how far the search is.
ZBPP_C_EXPORT void zbpp_search_progress(zbpp_search* search, zbpp_progress* out);
/// Frees the control; no search may use it any more. NULL is allowed.
ZBPP_C_EXPORT void zbpp_search_free(zbpp_search* search);

/// Orders the passes of a problem on its own placement and cut: `policy` is the name or title of a
/// policy, `seconds` and `seed` are the budget and the seed of one that searches. `search` may be
/// NULL. The answer is a plan.
ZBPP_C_EXPORT zbpp_status zbpp_plan(
    zbpp_text problem,
    zbpp_text policy,
    double seconds,
    uint64_t seed,
    zbpp_search* search,
    char** out);

/// Finds the cheapest plan within every memory limit: placement, cut, stages that recompute, and
/// order, but for what `choices` fixes. That is a JSON object, or empty, with the names of
/// `plan_choices` in zbpp/planner/find_plan.hpp, each optional: `placement` and `chunks` as in a
/// problem, `first_layer`, `recompute`, `policy` by its name or title, `most_chunks`, `most_cuts`,
/// `most_memory_for`, `seconds` and `seed`. `search` may be NULL. The answer is a plan.
ZBPP_C_EXPORT zbpp_status
zbpp_find_plan(zbpp_text problem, zbpp_text choices, zbpp_search* search, char** out);

/// Finds the cheapest plan for each of `count` memory limits, which take the place of the problem's
/// own; each gets the whole budget. The answer is a JSON array of plans, one for each limit that
/// fits, ascending.
ZBPP_C_EXPORT zbpp_status zbpp_find_plans(
    zbpp_text problem,
    int64_t const* limits,
    size_t count,
    zbpp_text choices,
    zbpp_search* search,
    char** out);

/// Lists the policies: a JSON array of {"name", "title", "summary"}.
ZBPP_C_EXPORT zbpp_status zbpp_policies(char** out);

/// Works out what an order takes: `schedule` is CSV, passes only; `title` is the policy that the
/// plan then names. Memory limits are not applied. The answer is a plan.
ZBPP_C_EXPORT zbpp_status
zbpp_simulate(zbpp_text schedule, zbpp_text problem, zbpp_text title, char** out);

/// Computes what no schedule that runs the microbatches of a stage in order can cost less than. The
/// answer is a number, in the unit of the problem.
ZBPP_C_EXPORT zbpp_status zbpp_lower_bound(zbpp_text problem, char** out);

/// Checks a schedule or a program in CSV; a schedule gets its transfers first. `problem` may be
/// empty; else the order must also be one of that problem and keep its memory limits. The answer is
/// a JSON array of {"kind", "rank", "position", "stage", "microbatch", "text"}, where -1 stands for
/// "does not apply". It is empty when there is no fault.
ZBPP_C_EXPORT zbpp_status zbpp_verify(zbpp_text csv, zbpp_text problem, char** out);

/// Checks a plan: first its order, then, if that may run, all that the plan says of it. The answer
/// is as above; wrong claims are of the kind "claim".
ZBPP_C_EXPORT zbpp_status zbpp_verify_plan(zbpp_text plan, char** out);

/// Reads a problem, of stages or of layers, or a plan strictly and writes it in full. Whether what
/// a plan says is true is for `zbpp_verify_plan`.
ZBPP_C_EXPORT zbpp_status zbpp_read_problem(zbpp_text problem, char** out);
ZBPP_C_EXPORT zbpp_status zbpp_read_plan(zbpp_text plan, char** out);

/// Writes the schedule of a plan as CSV; with `overlap`, pairs such as (0F7;7B3)OVERLAP_F_B.
ZBPP_C_EXPORT zbpp_status zbpp_csv(zbpp_text plan, int overlap, char** out);

/// Draws the timelines of `count` plans on one scale, as SVG of `width` pixels.
ZBPP_C_EXPORT zbpp_status zbpp_svg(zbpp_text const* plans, size_t count, int width, char** out);

/// Frees a text. NULL is allowed.
ZBPP_C_EXPORT void zbpp_free(char* text);

/// Returns the version of zbpp, as in "0.1.0". It is not to be freed.
ZBPP_C_EXPORT char const* zbpp_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // ZBPP_C_H

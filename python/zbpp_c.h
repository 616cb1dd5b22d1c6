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

/// Plans a problem as `zbpp-plan --policy` does: `policy` is the name or title of a policy, or
/// auto_placement. `seconds` and `seed` are the budget and the seed of every policy that searches.
/// `search` may be NULL. The answer is a plan.
ZBPP_C_EXPORT zbpp_status zbpp_plan(
    zbpp_text problem,
    zbpp_text policy,
    double seconds,
    uint64_t seed,
    zbpp_search* search,
    char** out);

/// Cuts layers into stages for a policy as `zbpp-plan --policy` does: `layers` is a problem of
/// layers, `policy` the name or title of a policy. The policy is asked for `schedules` orders at
/// most, 0 for the default. The answer is a plan with the first layer of each stage.
ZBPP_C_EXPORT zbpp_status zbpp_partition(
    zbpp_text layers,
    zbpp_text policy,
    int schedules,
    double seconds,
    uint64_t seed,
    zbpp_search* search,
    char** out);

/// Searches placement, layers of each stage, stages that recompute and order at once, over looped
/// placements of up to `most_chunks` stages per rank. The answer is as above.
ZBPP_C_EXPORT zbpp_status zbpp_auto_plan(
    zbpp_text layers,
    int most_chunks,
    double seconds,
    uint64_t seed,
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
ZBPP_C_EXPORT zbpp_status zbpp_read_layers(zbpp_text layers, char** out);
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

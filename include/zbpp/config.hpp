// SPDX-License-Identifier: Apache-2.0
//
// Version, compiler floor and the few macros of zbpp.
//
// This is the only header that defines macros that a user may see; all begin with ZBPP_.
// CMake reads the version from here.
#pragma once

/// Major version: grows when a user's program has to change, from 1.0 on.
#define ZBPP_VERSION_MAJOR 0
/// Minor version: grows with features; while the major version is 0 it may break users.
#define ZBPP_VERSION_MINOR 1
/// Patch version: fixes only.
#define ZBPP_VERSION_PATCH 0
/// The version as one number that grows: 10000 * major + 100 * minor + patch.
#define ZBPP_VERSION (ZBPP_VERSION_MAJOR * 10000 + ZBPP_VERSION_MINOR * 100 + ZBPP_VERSION_PATCH)

// The version of C++ comes first: a compiler that is new enough still needs its flag.
#if __cplusplus < 202002L
#error "zbpp needs C++20: compile with -std=c++20, or link the CMake target zbpp::zbpp"
#endif

#if defined(__clang__)
#if __clang_major__ < 14
#error "zbpp needs clang 14 or newer (16 or newer is recommended)"
#endif
#elif defined(__GNUC__)
#if __GNUC__ < 12
#error "zbpp needs g++ 12 or newer"
#endif
#else
#error "zbpp needs g++ 12 or newer, or clang 14 or newer"
#endif

#if !defined(__cpp_impl_coroutine)
#error "zbpp needs C++20 coroutines, which this compiler has switched off"
#endif

#if !defined(__cpp_exceptions)
#error "zbpp needs exceptions, which all of its errors are: compile without -fno-exceptions"
#endif

#include <version>
// Without <version>, somebody only looks at what is included.
#if __has_include(<version>) && !defined(__cpp_lib_jthread)
#error "zbpp needs std::stop_token, which libc++ before 20 lacks: use libstdc++ 12 or newer"
#endif

/// Marks functions that stand in `impl/*.ipp`. Header-only they are inline. With
/// ZBPP_SEPARATE_COMPILATION defined, headers only declare them, and one source file of the program
/// includes `<component>/impl/src.hpp`; targets such as `zbpp::compiled` do both.
#if defined(ZBPP_SEPARATE_COMPILATION)
#define ZBPP_INLINE
#else
#define ZBPP_INLINE inline
#endif

/// Stands before a function that computes the same bits wherever it is called, because a step and
/// what makes it final compute some numbers twice: it is not inlined, and every product and sum is
/// rounded. ZBPP_EXACT_BODY is its first line.
#if defined(__clang__)
#define ZBPP_EXACT [[gnu::noinline]]
#define ZBPP_EXACT_BODY _Pragma("clang fp contract(off)")
#else
#define ZBPP_EXACT [[gnu::noinline, gnu::optimize("fp-contract=off")]]
#define ZBPP_EXACT_BODY
#endif

/// Stands before a function that kernels call, too.
#if defined(__CUDACC__)
#define ZBPP_HOST_DEVICE __host__ __device__
#else
#define ZBPP_HOST_DEVICE
#endif

/// Stands before every `await_suspend`: keeps it out of line.
///
/// An inlined await_suspend may go on using the coroutine's frame after another thread resumed
/// it (LLVM issue 56301), and crashes the optimizer of clang 14 on a loop that can leave between
/// two awaits. The call costs less than a nanosecond.
#define ZBPP_SUSPEND [[gnu::noinline]]

/// 1 where the compiler destroys temporaries of a co_await expression twice, else 0.
///
/// g++ 12 does so, also as the host compiler of nvcc, with temporaries whose destructor is not
/// trivial, such as a closure that captures a shared_ptr. Name the object in front of the
/// expression: `auto work = [p] { ... }; co_await F(work);`
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ == 12
#define ZBPP_BROKEN_TEMPORARY_CLOSURES 1
#else
#define ZBPP_BROKEN_TEMPORARY_CLOSURES 0
#endif

// Defined under AddressSanitizer: arenas then mark freed memory, so that a stale pointer is caught.
#if defined(__SANITIZE_ADDRESS__)
#define ZBPP_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ZBPP_ADDRESS_SANITIZER
#endif
#endif

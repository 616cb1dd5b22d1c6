// SPDX-License-Identifier: Apache-2.0
//
// What MPI says of GPU memory, in one process, which MPI starts alone.
#include <zbpp/mpi/cuda_aware.hpp>
#include <zbpp/mpi/rendezvous.hpp>

#include <support/catch.hpp>
#include <support/refusal.hpp>

#include <mpi.h>

namespace test_mpi_cuda_aware {

namespace {

// Open MPI has a variable for what it was built with, besides the call; -1 where there is none.
int built_with_cuda() {
  int level = 0;
  int found = 0;
  int at = 0;
  if (MPI_T_init_thread(MPI_THREAD_SINGLE, &level) != MPI_SUCCESS) return -1;
  bool value = false;
  if (MPI_T_cvar_get_index("opal_built_with_cuda_support", &at) == MPI_SUCCESS) {
    MPI_T_cvar_handle handle{};
    int count = 0;
    found = MPI_T_cvar_handle_alloc(at, nullptr, &handle, &count) == MPI_SUCCESS && count == 1 &&
            MPI_T_cvar_read(handle, &value) == MPI_SUCCESS;
  }
  MPI_T_finalize();
  return found != 0 ? int{value} : -1;
}

}  // namespace

TEST_CASE("MPI says the same of GPU memory whichever way it is asked", "[mpi]") {
  int is_initialized = 0;
  MPI_Initialized(&is_initialized);
  if (is_initialized == 0)
    CHECK(
        zbpp::test::refusal([] { static_cast<void>(zbpp::mpi::is_cuda_aware()); }) ==
        "is_cuda_aware asks MPI, which is not initialized or is finalized; make a rendezvous "
        "first");
  zbpp::mpi::detail::own_communicator const initialized(MPI_COMM_SELF);
  bool const is_aware = zbpp::mpi::is_cuda_aware();
  CHECK(zbpp::mpi::is_cuda_aware() == is_aware);
  if (auto const built = built_with_cuda(); built >= 0) CHECK((built != 0) == is_aware);
}

}  // namespace test_mpi_cuda_aware

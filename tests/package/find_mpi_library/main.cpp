// SPDX-License-Identifier: Apache-2.0
#include <mpi.h>

int main() { return OMPI_MAJOR_VERSION == 4 ? 0 : 1; }

// SPDX-License-Identifier: Apache-2.0
//
// NCCL whose calls do nothing and succeed, linked instead of the library.
#include <nccl.h>

#include <cstring>

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id->internal, 0, sizeof(id->internal));
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int, ncclUniqueId, int, ncclConfig_t*) {
  static char one = 0;
  *made = reinterpret_cast<ncclComm_t>(&one);
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t) { return ncclSuccess; }
#if NCCL_VERSION_CODE >= 22807
ncclResult_t ncclCommRevoke(ncclComm_t, int) { return ncclSuccess; }
#endif
ncclResult_t ncclCommCount(ncclComm_t const, int*) { return ncclSuccess; }
ncclResult_t ncclCommUserRank(ncclComm_t const, int*) { return ncclSuccess; }
ncclResult_t ncclCommCuDevice(ncclComm_t const, int*) { return ncclSuccess; }
ncclResult_t ncclGroupStart() { return ncclSuccess; }
ncclResult_t ncclGroupEnd() { return ncclSuccess; }
ncclResult_t ncclSend(void const*, std::size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return ncclSuccess;
}
ncclResult_t ncclRecv(void*, std::size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return ncclSuccess;
}
ncclResult_t ncclAllReduce(
    void const*, void*, std::size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) {
  return ncclSuccess;
}
char const* ncclGetErrorString(ncclResult_t) { return "no error"; }
char const* ncclGetLastError(ncclComm_t) { return ""; }

}  // extern "C"

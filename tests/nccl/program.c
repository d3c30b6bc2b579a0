/* A program that uses NCCL's API and is valid C99 and C++11. header_test.sh compiles it in both languages, with and
 * without CUDA's headers. library_test.sh links it to libnccl.so.2 and runs it. It needs no GPU. */
#include <stdio.h>
#include <string.h>

#include "nccl.h"

static ncclConfig_t changed_config(void) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.CTAPolicy = NCCL_CTA_POLICY_ZERO | NCCL_CTA_POLICY_EFFICIENCY;
  config.commName = "a name";
  config.graphStreamOrdering = NCCL_CONFIG_UNDEF_INT;
  config.netName = (const char*)NCCL_CONFIG_UNDEF_PTR;
  return config;
}

/* Never called. It only has to compile. */
static ncclResult_t work(const float* from, float* to, ncclUniqueId id, cudaStream_t stream) {
  ncclComm_t comm = NCCL_COMM_NULL, child = NULL;
  ncclConfig_t config = changed_config();
  ncclSimInfo_t estimate = NCCL_SIM_INFO_INITIALIZER;
  ncclWaitSignalDesc_t signal = {1, 0, 0, 0};
  ncclParamHandle_t parameter;
  ncclWindow_t window;
  ncclRedOp_t scaled;
  float half = 0.5f;
  uint64_t bytes = 0;
  int32_t value = 0;
  ncclResult_t result = ncclCommInitRankConfig(&comm, 2, id, 0, &config);
  if (result == ncclInProgress) result = ncclCommGetAsyncError(comm, &result);
  ncclGroupStart();
  ncclAllReduce(from, to, 4, ncclFloat32, ncclSum, comm, stream);
  ncclSend(from, 4, ncclBfloat16, 1, comm, stream);
  pncclRecv(to, 4, ncclFloat8e5m2, 1, comm, stream);
  ncclGroupSimulateEnd(&estimate);
  ncclRedOpCreatePreMulSum(&scaled, &half, ncclFloat, ncclScalarHostImmediate, comm);
  ncclRedOpDestroy(scaled, comm);
  ncclCommWindowRegister(comm, to, NCCL_WIN_REQUIRED_ALIGNMENT, &window, NCCL_WIN_COLL_SYMMETRIC);
  ncclPutSignal(from, 4, ncclInt8, 1, window, 0, 0, 0, 0, comm, stream);
  ncclWaitSignal(1, &signal, comm, stream);
  ncclCommSplit(comm, NCCL_SPLIT_NOCOLOR, 0, &child, NULL);
  ncclCommMemStats(comm, ncclStatGpuMemTotal, &bytes);
  ncclParamBind(&parameter, "NCCL_DEBUG");
  ncclParamGetI32(parameter, &value);
  ncclParamDumpAll();
  ncclResetDebugInit();
  return ncclCommDestroy(comm);
}

int main(void) {
  int version = 0, count = 0;
  ncclResult_t (*never)(const float*, float*, ncclUniqueId, cudaStream_t) = work;
  if (never == NULL || ncclGetVersion(&version) != ncclSuccess || version != NCCL_VERSION(2, 32, 3)) return 1;
  if (strlen(ncclGetErrorString(ncclRemoteError)) == 0) return 2;
  if (ncclCommCount(NULL, &count) != ncclInvalidArgument || strlen(ncclGetLastError(NULL)) == 0) return 3;
  printf("version %d\n", version);
  return 0;
}

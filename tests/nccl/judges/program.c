/* A C program for NVIDIA's nccl.h of any version from 2.18 on: judges.py compiles it with the headers of several
 * versions, links it to libnccl.so.2 and runs it. Two processes are the ranks, and all buffers are host memory. It
 * makes about 30 calls, those of them that the header declares, with the structures of that header. It prints a line
 * for each group of calls: "ok NAME", or "not ok NAME: REASON", which also ends it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nccl.h"

enum { kCount = 1000, kRanks = 2 };

static int rank;

static void report(const char* name, int right) {
  if (right) {
    if (rank == 0) printf("ok %s\n", name);
    return;
  }
  printf("not ok %s: rank %d: wrong values, or: %s\n", name, rank, ncclGetLastError(NULL));
  exit(1);
}

static void must(const char* name, ncclResult_t result) {
  if (result != ncclSuccess) report(name, 0);
}

/* Element `at` of the input of rank `of`. */
static float input_of(int of, int at) { return (float)(at % 7 + 10 * of); }

static void fill(float* values, int count) {
  int at;
  for (at = 0; at < count; ++at) values[at] = input_of(rank, at);
}

/* A call that writes nothing must not find the values of an earlier call. */
static float* cleared(float* values) {
  int at;
  for (at = 0; at < kRanks * kCount; ++at) values[at] = -1;
  return values;
}

static int equal_sums(const float* values, int first, int count) {
  int at;
  for (at = 0; at < count; ++at) {
    if (values[at] != input_of(0, first + at) + input_of(1, first + at)) return 0;
  }
  return 1;
}

static int equal_inputs(const float* values, int of, int first, int count) {
  int at;
  for (at = 0; at < count; ++at) {
    if (values[at] != input_of(of, first + at)) return 0;
  }
  return 1;
}

static void reductions(ncclComm_t comm, const float* in, float* out) {
  must("ncclAllReduce", ncclAllReduce(in, cleared(out), kCount, ncclFloat, ncclSum, comm, NULL));
  report("ncclAllReduce", equal_sums(out, 0, kCount));
  must("ncclReduce", ncclReduce(in, cleared(out), kCount, ncclFloat, ncclSum, 1, comm, NULL));
  report("ncclReduce", rank == 0 || equal_sums(out, 0, kCount));
  must("ncclReduceScatter", ncclReduceScatter(in, cleared(out), kCount / kRanks, ncclFloat, ncclSum, comm, NULL));
  report("ncclReduceScatter", equal_sums(out, rank * kCount / kRanks, kCount / kRanks));
}

static void movements(ncclComm_t comm, const float* in, float* out) {
  must("ncclBroadcast", ncclBroadcast(in, cleared(out), kCount, ncclFloat, 1, comm, NULL));
  report("ncclBroadcast", equal_inputs(out, 1, 0, kCount));
  must("ncclAllGather", ncclAllGather(in, cleared(out), kCount, ncclFloat, comm, NULL));
  report("ncclAllGather", equal_inputs(out, 0, 0, kCount) && equal_inputs(out + kCount, 1, 0, kCount));
  must("ncclGroupStart", ncclGroupStart());
  must("ncclSend", ncclSend(in, kCount, ncclFloat, 1 - rank, comm, NULL));
  must("ncclRecv", ncclRecv(cleared(out), kCount, ncclFloat, 1 - rank, comm, NULL));
  must("ncclGroupEnd", ncclGroupEnd());
  report("ncclSend, ncclRecv in a group", equal_inputs(out, 1 - rank, 0, kCount));
}

static void scaled(ncclComm_t comm, const float* in, float* out) {
  const float two = 2;
  ncclRedOp_t op;
  int at, right = 1;
  must("ncclRedOpCreatePreMulSum",
       ncclRedOpCreatePreMulSum(&op, (void*)&two, ncclFloat, ncclScalarHostImmediate, comm));
  must("ncclAllReduce", ncclAllReduce(in, cleared(out), kCount, ncclFloat, op, comm, NULL));
  for (at = 0; at < kCount; ++at) right &= out[at] == 2 * input_of(0, at) + 2 * input_of(1, at);
  must("ncclRedOpDestroy", ncclRedOpDestroy(op, comm));
  report("ncclRedOpCreatePreMulSum", right);
}

/* Both ranks in one child communicator, in the opposite order. */
static void split(ncclComm_t comm, const float* in, float* out) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t child;
  int number = -1;
  config.splitShare = 1;
  must("ncclCommSplit", ncclCommSplit(comm, 3, kRanks - rank, &child, &config));
  must("ncclCommUserRank", ncclCommUserRank(child, &number));
  must("ncclAllReduce", ncclAllReduce(in, cleared(out), kCount, ncclFloat, ncclSum, child, NULL));
  report("ncclCommSplit", number == 1 - rank && equal_sums(out, 0, kCount));
  must("ncclCommDestroy", ncclCommDestroy(child));
}

static void since_2_19(ncclComm_t comm) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
  void *memory = NULL, *handle = NULL;
  float* values;
  must("ncclMemAlloc", ncclMemAlloc(&memory, sizeof(float) * kCount));
  must("ncclCommRegister", ncclCommRegister(comm, memory, sizeof(float) * kCount, &handle));
  values = (float*)memory;
  fill(values, kCount);
  must("ncclAllReduce", ncclAllReduce(values, values, kCount, ncclFloat, ncclSum, comm, NULL));
  report("ncclMemAlloc, ncclCommRegister", equal_sums(values, 0, kCount));
  must("ncclCommDeregister", ncclCommDeregister(comm, handle));
  must("ncclMemFree", ncclMemFree(memory));
#else
  (void)comm;
#endif
}

static void since_2_22(ncclComm_t comm, const float* in, float* out) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 22, 0)
  ncclSimInfo_t estimate = NCCL_SIM_INFO_INITIALIZER;
  must("ncclGroupStart", ncclGroupStart());
  must("ncclAllReduce", ncclAllReduce(in, cleared(out), kCount, ncclFloat, ncclSum, comm, NULL));
  must("ncclGroupSimulateEnd", ncclGroupSimulateEnd(&estimate));
  report("ncclGroupSimulateEnd", estimate.estimatedTime > 0 && out[0] == -1 && out[kCount - 1] == -1);
#else
  (void)comm, (void)in, (void)out;
#endif
}

static void since_2_27(ncclComm_t comm, const float* in, float* out) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t child = NULL;
  ncclWindow_t window;
  void* memory = NULL;
  int excluded = 1, count = 0;
  must("ncclMemAlloc", ncclMemAlloc(&memory, sizeof(float) * 4096));
  must("ncclCommWindowRegister", ncclCommWindowRegister(comm, memory, sizeof(float) * 4096, &window, NCCL_WIN_DEFAULT));
  must("ncclCommWindowDeregister", ncclCommWindowDeregister(comm, window));
  must("ncclMemFree", ncclMemFree(memory));
  report("ncclCommWindowRegister", 1);
  if (rank == 0) {
    must("ncclCommShrink", ncclCommShrink(comm, &excluded, 1, &child, &config, NCCL_SHRINK_DEFAULT));
    must("ncclCommCount", ncclCommCount(child, &count));
    must("ncclAllReduce", ncclAllReduce(in, cleared(out), kCount, ncclFloat, ncclSum, child, NULL));
    report("ncclCommShrink", count == 1 && equal_inputs(out, 0, 0, kCount));
    must("ncclCommDestroy", ncclCommDestroy(child));
  }
#else
  (void)comm, (void)in, (void)out;
#endif
}

static void since_2_28(ncclComm_t comm, const float* in, float* out) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
  const int half = kCount / kRanks;
  must("ncclAlltoAll", ncclAlltoAll(in, cleared(out), (size_t)half, ncclFloat, comm, NULL));
  report("ncclAlltoAll", equal_inputs(out, 0, rank * half, half) && equal_inputs(out + half, 1, rank * half, half));
  must("ncclGather", ncclGather(in, cleared(out), kCount, ncclFloat, 0, comm, NULL));
  report("ncclGather", rank == 1 || (equal_inputs(out, 0, 0, kCount) && equal_inputs(out + kCount, 1, 0, kCount)));
  must("ncclScatter", ncclScatter(in, cleared(out), (size_t)half, ncclFloat, 0, comm, NULL));
  report("ncclScatter", equal_inputs(out, 0, rank * half, half));
#else
  (void)comm, (void)in, (void)out;
#endif
}

static void since_2_31(ncclComm_t comm, const float* in, float* out) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 31, 0)
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  config.algSelection = "ring";
  config.userProfilerTag = 7;
  must("ncclAllReduceConfig", ncclAllReduceConfig(in, cleared(out), kCount, ncclFloat, ncclSum, comm, NULL, &config));
  report("ncclAllReduceConfig", equal_sums(out, 0, kCount));
#else
  (void)comm, (void)in, (void)out;
#endif
}

static int work(ncclUniqueId id) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t comm;
  static float in[kCount], out[kRanks * kCount];
  fill(in, kCount);
  config.blocking = 1;
  config.maxCTAs = 8;
  must("ncclCommInitRankConfig", ncclCommInitRankConfig(&comm, kRanks, id, rank, &config));
  report("ncclCommInitRankConfig", 1);
  reductions(comm, in, out);
  movements(comm, in, out);
  scaled(comm, in, out);
  split(comm, in, out);
  since_2_19(comm);
  since_2_22(comm, in, out);
  since_2_28(comm, in, out);
  since_2_31(comm, in, out);
  since_2_27(comm, in, out); /* last, because only rank 0 makes the shrink */
  must("ncclCommFinalize", ncclCommFinalize(comm));
  must("ncclCommDestroy", ncclCommDestroy(comm));
  report("ncclCommFinalize, ncclCommDestroy", 1);
  return 0;
}

int main(void) {
  int pipes[2], status = 0, result;
  ncclUniqueId id;
  pid_t child;
  if (pipe(pipes) != 0 || (child = fork()) < 0) return 2;
  if (child == 0) {
    rank = 1;
    close(pipes[1]); /* so that read() ends if the parent ends */
    if (read(pipes[0], &id, sizeof(id)) != (ssize_t)sizeof(id)) return 2;
    return work(id);
  }
  close(pipes[0]);
  setvbuf(stdout, NULL, _IOLBF, 0);
  must("ncclGetUniqueId", ncclGetUniqueId(&id));
  if (write(pipes[1], &id, sizeof(id)) != (ssize_t)sizeof(id)) return 2;
  result = work(id);
  waitpid(child, &status, 0);
  return result != 0 || status != 0;
}

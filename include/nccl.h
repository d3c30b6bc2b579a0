// The NCCL interface of Tutti: it has the names, numbers and layouts of NCCL 2.32.3, so that programs written for NCCL
// compile and run on Tutti without changes, except for the uses that are refused. docs/nccl.md lists these, and
// describes the effect of every function.
//
// The CUDA headers are optional. If <cuda_runtime.h> does not exist, or if NCCL_NO_CUDA or TUTTI_NCCL_NO_CUDA is
// defined, this header declares cudaStream_t and cudaEvent_t in the same way as CUDA does, and CUDA's own headers may
// be included after it. Works with C99, C++11 and later.
//
// Every function exists as nccl* and as pnccl*, so that a profiling tool can define the nccl* name itself and call the
// pnccl* function. If a function returns neither ncclSuccess nor ncclInProgress, ncclGetLastError() returns a message.
// A new handle or pointer is then NULL or unchanged, and other output parameters are unchanged. After a failed
// collective or receive, the contents of recvbuff are unspecified. Any thread may call any function, but only one
// thread at a time may be in a call on a communicator, except for ncclCommAbort, ncclCommGetAsyncError,
// ncclGetLastError and the queries of rank, count and device. A `count` is in elements; a `size` and a length are in
// bytes.
#ifndef NCCL_H_
#define NCCL_H_

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#if defined(NCCL_NO_CUDA) || defined(TUTTI_NCCL_NO_CUDA)
#define TUTTI_NCCL_WITHOUT_CUDA 1
#elif defined(__has_include)
#if !__has_include(<cuda_runtime.h>)
#define TUTTI_NCCL_WITHOUT_CUDA 1
#endif
#endif

#ifndef TUTTI_NCCL_WITHOUT_CUDA
// Programs expect that this header provides CUDA's types, also the 16-bit and 8-bit ones.
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#if CUDART_VERSION >= 11000
#include <cuda_bf16.h>
#endif
#if defined(__cplusplus) && CUDART_VERSION >= 11080
#include <cuda_fp8.h>
#endif
#elif !defined(__DRIVER_TYPES_H__)
typedef struct CUstream_st* cudaStream_t;  // NOLINT(bugprone-forward-declaration-namespace): CUDA's own name
typedef struct CUevent_st* cudaEvent_t;    // NOLINT(bugprone-forward-declaration-namespace): CUDA's own name
#endif

// The version of the interface that this header declares. ncclGetVersion() returns the version of the loaded library.
#define NCCL_MAJOR 2
#define NCCL_MINOR 32
#define NCCL_PATCH 3
#define NCCL_SUFFIX ""
#define NCCL_VERSION_CODE 23203
// NCCL's number for version X.Y.Z. The minor version Y has one digit in it up to NCCL 2.8 (2804 is 2.8.4), and two
// digits from 2.9 on (21003 is 2.10.3).
#define NCCL_VERSION(X, Y, Z) (((X) <= 2 && (Y) <= 8) ? (X)*1000 + (Y)*100 + (Z) : (X)*10000 + (Y)*100 + (Z))

#ifdef __cplusplus
extern "C" {
#endif

// ---- Types ----------------------------------------------------------------------------------------------------------

typedef struct ncclComm* ncclComm_t;
typedef struct ncclWindow_vidmem* ncclWindow_t;
#define NCCL_COMM_NULL NULL

// One process creates an ncclUniqueId with ncclGetUniqueId(). The program itself distributes it to the ranks.
#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  // A rank ended, left, aborted or was refused, or a message was damaged. Also a timeout, if TUTTI_NCCL_VERSION makes
  // the library report a version before 2.30, because programs for that version do not have ncclTimeout.
  ncclRemoteError = 6,
  ncclInProgress = 7,  // a call on a non-blocking communicator is not complete yet; not an error
  ncclTimeout = 8,
  ncclNumResults = 9
} ncclResult_t;

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_SPLIT_NOCOLOR -1
#define NCCL_UNDEF_FLOAT -1.0f
#define NCCL_API_MAGIC 0xcafebeef

// Flags of ncclCommWindowRegister().
#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_STRICT_ORDERING 0x02
#define NCCL_WIN_GIN_ONLY 0x04            // no effect
#define NCCL_WIN_CFT_COUNTED 0x08         // no effect
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096  // in bytes; the address of every window must be aligned to it

// Flags of ncclConfig_t::CTAPolicy, which can be combined.
#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO 0x02

// Flags of ncclCommShrink(). With NCCL_SHRINK_ABORT, ncclCommShrink() first ends the operations in progress on the
// parent communicator, so that it can be called after an error.
#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01

// The only value that ncclCommRevoke() takes.
#define NCCL_REVOKE_DEFAULT 0x00

// Flag of ncclCommSuspend(): free device memory.
#define NCCL_SUSPEND_MEM 0x01

// Values of ncclConfig_t::hostCftMode. Tutti accepts them, and they have no effect: it has no compute fabric transport.
typedef enum {
  ncclHostCftDefault = NCCL_CONFIG_UNDEF_INT,
  ncclHostCftEnable = 1,
  ncclHostCftDisable = 2,
  ncclHostCftFallback = 3
} ncclHostCftMode_t;

// Values of ncclConfig_t::nvlsHostMode. The flags can be combined. Tutti accepts them, and they have no effect: no
// reduction is made inside a switch.
typedef enum {
  ncclNvlsHostModeDefault = NCCL_CONFIG_UNDEF_INT,
  ncclNvlsHostModeEnable = 0,
  ncclNvlsHostModeDisableTransport = 1 << 0,
  ncclNvlsHostModeDisableSymmetricMultimem = 1 << 1,
  ncclNvlsHostModeDisable = INT_MAX
} ncclNvlsHostMode_t;

// A program must initialize this with NCCL_CONFIG_INITIALIZER. The library reads only the first `size` bytes and uses
// defaults for the other fields, so that a program may be compiled with the header of another version.
typedef struct ncclConfig_v23100 {
  size_t size;
  unsigned int magic;
  unsigned int version;

  int blocking;  // 0: calls may return ncclInProgress; 1 (default): they do not. NCCL_COMM_BLOCKING takes precedence
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char* netName;
  int splitShare;
  int trafficClass;
  const char* commName;
  int collnetEnable;
  int CTAPolicy;  // NCCL_CTA_POLICY_*
  int shrinkShare;
  int nvlsCTAs;
  int nChannelsPerNetPeer;
  int nvlinkCentricSched;
  int graphUsageMode;
  int numRmaCtx;
  int maxP2pPeers;
  int graphStreamOrdering;
  int launchOrderImplicit;
  int numRmaSig;
  int rmaEagerInit;
  int hostCftMode;   // ncclHostCftMode_t
  int nvlsHostMode;  // ncclNvlsHostMode_t
} ncclConfig_t;

// One value for each field of ncclConfig_t, in order. netName and commName are pointers, so they get
// NCCL_CONFIG_UNDEF_PTR.
#define NCCL_CONFIG_INITIALIZER                                                                            \
  {                                                                                                        \
    sizeof(ncclConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT,        \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,        \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,        \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,        \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,        \
        NCCL_CONFIG_UNDEF_INT                                                                              \
  }

// An option of one call that only one vendor's library knows. The options of a call form a list, in any order and
// without a cycle; `next` of the last one is NULL. A library ignores the options of other vendors. For the options of
// Tutti, key.vendorId is TUTTI_NCCL_VENDOR_ID and key.optionId one of tuttiNcclOption_t.
typedef struct ncclConfigExt {
  struct ncclConfigExt* next;
  struct {
    int vendorId;  // 1 to 2^24 - 1
    int optionId;  // a number of the vendor; each key may occur once in a list
  } key;
  union {
    int i;
    const char* s;
    void* raw;
  } val;
} ncclConfigExt_t;

#define TUTTI_NCCL_VENDOR_ID 0x545554  // the letters TUT

// The options of Tutti for one call. An unknown option of Tutti and a value that is out of range are refused with
// ncclInvalidArgument.
typedef enum {
  // val.s: the algorithm by its name in Tutti (docs/algorithms.md), for example "halving_doubling" or "auto". If the
  // collective does not have it, the call is refused. It takes the place of algSelection.
  tuttiNcclAlgorithm = 1,
  // val.i: the longest time without progress in milliseconds, at least 1. Without this option: TUTTI_TIMEOUT_MS.
  tuttiNcclDeadlineMs = 2,
  // val.i: 1: the call has the same outcome, success or an error, on all live ranks; 0: as without this option. Only
  // for a call on host memory of a blocking communicator, outside of a group or the only call in it, and only if
  // TUTTI_UNIFORM is "calls" or "1".
  tuttiNcclUniform = 3,
  // val.i: 1: every message of the call carries a checksum, which the receiver verifies; 0: as without this option.
  // Only for a call on host memory of a blocking communicator, outside of a group or the only call in it.
  tuttiNcclChecksum = 4
} tuttiNcclOption_t;

// The configuration of one call. A program must initialize it with NCCL_COLLCONFIG_INITIALIZER, and pass the same
// values on all ranks, except launchCompletionEvent, userProfilerTag and the option tuttiNcclDeadlineMs. The library
// does not use the structure, the texts and the options in it after the call has returned.
typedef struct ncclCollConfig_v23200 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  ncclConfigExt_t* ext;  // NULL, or options of vendors
  int minCTAs;           // no effect
  int maxCTAs;           // no effect; the limit of the communicator counts
  int nvlsCTAs;          // no effect
  int cgaClusterSize;    // no effect
  // Algorithms that the call may use: names of NCCL, separated by commas, or after "^" those that it may not use. The
  // names are those of NCCL_ALGO, alone or with a protocol ("ring", "tree_ll128"), and the symmetric kernels ("symk").
  // Upper and lower case are equal. NULL or "": any.
  const char* algSelection;
  // 1: an algSelection without an algorithm of Tutti is refused; 0: the call then runs as without algSelection
  int forceAlgSelection;
  int CTAPolicy;             // NCCL_CTA_POLICY_*; no effect
  uint64_t userProfilerTag;  // a number that the recording of this call shows; 0: none
  // NULL, or an event that is recorded in the stream of the call immediately before its work. At most one in a group
  // for each communicator. Only on device memory. Not recorded if the count is 0.
  cudaEvent_t launchCompletionEvent;
} ncclCollConfig_t;

#define NCCL_COLLCONFIG_INITIALIZER                                                                            \
  {                                                                                                            \
    sizeof(ncclCollConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT, \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, 1,         \
        NCCL_CONFIG_UNDEF_INT, 0, NCCL_CONFIG_UNDEF_PTR                                                        \
  }

// A program must initialize this with NCCL_SIM_INFO_INITIALIZER.
typedef struct ncclSimInfo_v22200 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  float estimatedTime;  // microseconds
} ncclSimInfo_t;

#define NCCL_SIM_INFO_INITIALIZER \
  { sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION_CODE, NCCL_UNDEF_FLOAT }

typedef enum { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t;
// Values from ncclNumOps on are created by ncclRedOpCreatePreMulSum().
typedef enum {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,  // the sum, divided by the number of ranks
  ncclNumOps = 5,
  ncclMaxRedOp = 0x7fffffff >> (32 - 8 * sizeof(ncclRedOp_dummy_t))
} ncclRedOp_t;

typedef enum {
  ncclInt8 = 0,
  ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclHalf = 6,
  ncclFloat32 = 7,
  ncclFloat = 7,
  ncclFloat64 = 8,
  ncclDouble = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12
} ncclDataType_t;

// Location of the scalar of ncclRedOpCreatePreMulSum(): device memory (each call that uses the operation reads the
// scalar when the call is enqueued), or host memory (ncclRedOpCreatePreMulSum() itself reads the scalar).
typedef enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 } ncclScalarResidence_t;

// The statistics of ncclCommMemStats(). All are in bytes of device memory, except ncclStatGpuMemSuspended.
typedef enum {
  ncclStatGpuMemSuspend = 0,    // memory of the connections, which ncclCommSuspend() frees
  ncclStatGpuMemSuspended = 1,  // 1 while the communicator is suspended, otherwise 0
  ncclStatGpuMemPersist = 2,    // memory that ncclCommSuspend() cannot free: always 0
  ncclStatGpuMemTotal = 3       // sum of ncclStatGpuMemSuspend and ncclStatGpuMemPersist
} ncclCommMemStat_t;

// Describes signals that ncclWaitSignal() waits for: opCnt signals from rank `peer` with this index and context.
typedef struct {
  int opCnt;
  int peer;
  int sigIdx;
  int ctx;
} ncclWaitSignalDesc_t;

typedef struct ncclParamHandle* ncclParamHandle_t;

// ---- The library ----------------------------------------------------------------------------------------------------
// The version of NCCL that the loaded library implements or, if TUTTI_NCCL_VERSION is set, that version. A number like
// NCCL_VERSION_CODE.
ncclResult_t ncclGetVersion(int* version);
ncclResult_t pncclGetVersion(int* version);
// Returns a constant string, also for a value that is not a result code.
const char* ncclGetErrorString(ncclResult_t result);
const char* pncclGetErrorString(ncclResult_t result);

// The last error of this thread or, if this thread has had no error, of this process: the cause and, if known, rank,
// peer and remedy. The argument is ignored. The text is valid until this thread's next call of the library.
const char* ncclGetLastError(ncclComm_t comm);
const char* pncclGetLastError(ncclComm_t comm);

// ncclResetDebugInit() is deprecated by NCCL, and has no effect. As in NCCL's header, it is a macro unless
// NCCL_OS_LINUX is defined.
#ifdef NCCL_OS_LINUX
void ncclResetDebugInit(void)
    __attribute__((deprecated("it will leave the interface; set NCCL_DEBUG before the start")));
void pncclResetDebugInit(void)
    __attribute__((deprecated("it will leave the interface; set NCCL_DEBUG before the start")));
#else
#define ncclResetDebugInit()
#define pncclResetDebugInit()
#endif

// ---- Communicators: creation ----------------------------------------------------------------------------------------
// All ranks of the new communicator make the call, each from its own thread or process, or all inside one group. (One
// call of ncclCommInitAll() makes all ranks, with the devices of its list.) In a split, shrink or grow, each present
// rank keeps its device. Otherwise, and for the new ranks of ncclCommGrow(), the current device of the calling thread
// (device 0 if it has selected none) becomes the rank's device. A rank without a device works on host memory.

// The process that creates the id (usually rank 0) must not exit before the communicator is complete.
ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId);
ncclResult_t pncclGetUniqueId(ncclUniqueId* uniqueId);

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank);
ncclResult_t pncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank);

// If config is NULL, the settings are those of the environment or, if a variable is not set, the defaults.
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t* config);
ncclResult_t pncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t* config);

// commIds: an array of nId ids, 1 <= nId <= nranks. All ranks must pass the same ids in the same order.
ncclResult_t ncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId, ncclUniqueId* commIds,
                                      ncclConfig_t* config);
ncclResult_t pncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId, ncclUniqueId* commIds,
                                       ncclConfig_t* config);

// Creates all ndev ranks by one call of one thread. comm[i] is rank i. Its device is devlist[i], or i if devlist is
// NULL. If there is no CUDA driver, no rank has a device.
ncclResult_t ncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist);
ncclResult_t pncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist);

// All ranks of comm make the call. The ranks that pass the same color form a communicator, ordered by key and then by
// rank. A rank that passes NCCL_SPLIT_NOCOLOR gets NULL. If config is NULL, the settings of comm are used.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config);
ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config);

// Creates a communicator of the ranks that are not in excludeRanksList, an array of excludeRanksCount ranks. The
// remaining ranks keep their order. All of them must make the call, with the same list; the excluded ranks must not.
ncclResult_t ncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount, ncclComm_t* newcomm,
                            ncclConfig_t* config, int shrinkFlags);
ncclResult_t pncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount, ncclComm_t* newcomm,
                             ncclConfig_t* config, int shrinkFlags);

// Creates an id for one ncclCommGrow() of comm. Another id may be created only after that ncclCommGrow() has ended.
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* uniqueId);
ncclResult_t pncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* uniqueId);

// Creates a communicator of nRanks ranks: the ranks of comm and new ranks. Each rank of comm passes comm and rank -1.
// The rank that created the id with ncclCommGetUniqueId() also passes the id, and the other ranks of comm pass NULL for
// it. A new rank passes NULL for comm, the id, and its rank in the new communicator.
ncclResult_t ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId* uniqueId, int rank, ncclComm_t* newcomm,
                          ncclConfig_t* config);
ncclResult_t pncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId* uniqueId, int rank, ncclComm_t* newcomm,
                           ncclConfig_t* config);

// ---- Communicators: queries and destruction -------------------------------------------------------------------------

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count);
ncclResult_t pncclCommCount(const ncclComm_t comm, int* count);
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank);
ncclResult_t pncclCommUserRank(const ncclComm_t comm, int* rank);

// The CUDA device number of the rank's device in this process, or -1 if the rank has no device.
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device);
ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int* device);

// Never blocks. asyncError is ncclInProgress while comm is being created or a function that waits for other ranks (for
// example ncclCommSplit) runs; otherwise ncclSuccess if comm was revoked; otherwise the first error that broke comm or
// that no call has returned; if there is none, ncclInProgress while a call on host memory runs; otherwise ncclSuccess.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError);
ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError);

// All ranks make the call, which completes all issued operations. comm then refuses new ones, but can be queried.
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t pncclCommFinalize(ncclComm_t comm);
// Frees comm, after finalizing it if that was not done. But if comm has an error, was revoked, suspended or aborted
// (NCCL_SHRINK_ABORT), or its creation has not ended or has failed, it is aborted. Refused, instead of finalized, while
// a function on comm that waits for other ranks (for example ncclCommSplit) runs. NULL is ignored.
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t pncclCommDestroy(ncclComm_t comm);

// Ends the operations in progress and frees the communicator. Waits for peers only briefly, and only if they may still
// use this rank's memory. May be called from any thread, also while another thread is in a call on the communicator.
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t pncclCommAbort(ncclComm_t comm);

// Ends the operations in progress but keeps the communicator, so that it can be destroyed, split or shrunk.
ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags);
ncclResult_t pncclCommRevoke(ncclComm_t comm, int revokeFlags);

// flags: NCCL_SUSPEND_MEM. Until ncclCommResume(), comm refuses operations, but can be queried, revoked or destroyed.
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
ncclResult_t pncclCommSuspend(ncclComm_t comm, int flags);

ncclResult_t ncclCommResume(ncclComm_t comm);
ncclResult_t pncclCommResume(ncclComm_t comm);
ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value);
ncclResult_t pncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value);
// ---- Memory ---------------------------------------------------------------------------------------------------------
// Allocates memory of the calling thread's current device or, if the thread has no current device, of the host. The
// memory must be freed with ncclMemFree().
ncclResult_t ncclMemAlloc(void** ptr, size_t size);
ncclResult_t pncclMemAlloc(void** ptr, size_t size);
ncclResult_t ncclMemFree(void* ptr);
ncclResult_t pncclMemFree(void* ptr);
// A hint that many calls will use the size bytes at buff. A local call, unlike ncclCommWindowRegister().
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buff, size_t size, void** handle);
ncclResult_t pncclCommRegister(const ncclComm_t comm, void* buff, size_t size, void** handle);
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle);
ncclResult_t pncclCommDeregister(const ncclComm_t comm, void* handle);

// All ranks make the call. Peers may then write to the size bytes at buff with ncclPutSignal().
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win, int winFlags);
ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win, int winFlags);
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);
ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);

// Returns the address that this rank passed as buff when it registered the window.
ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void** outUserPtr);
ncclResult_t pncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void** outUserPtr);

// ---- Collectives ----------------------------------------------------------------------------------------------------
// All ranks make the same calls in the same order, with the same count, datatype, op and root. A call on device memory
// normally returns when its work is queued on the stream. Buffers may overlap only in the way that is stated for each
// function ("in place"). n is the number of ranks; buff [n][count] is an array of n blocks of count elements.

// Creates an operation that adds scalar * input of all ranks. Each rank passes its own scalar, one element of datatype.
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                       ncclScalarResidence_t residence, ncclComm_t comm);

// Allowed as soon as the last call that uses op has returned.
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);
ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);

// op over all ranks' sendbuff [count] -> recvbuff [count] of root. The other ranks do not use recvbuff. In place at
// root: equal buffers.
ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                         int root, ncclComm_t comm, cudaStream_t stream);

// Like ncclBroadcast() with sendbuff and recvbuff equal to buff.
ncclResult_t ncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       cudaStream_t stream);
ncclResult_t pncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                        cudaStream_t stream);

// sendbuff [count] of root -> recvbuff [count] of all ranks. In place at root: equal buffers.
ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                            ncclComm_t comm, cudaStream_t stream);

// op over all ranks' sendbuff [count] -> recvbuff [count], the same bits on every rank. In place: equal buffers.
ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                            ncclComm_t comm, cudaStream_t stream);

// op over block i of all ranks' sendbuff [n][recvcount] -> recvbuff [recvcount] of rank i. In place: recvbuff of rank i
// is block i of its sendbuff.
ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype,
                                ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);

// sendbuff [sendcount] of rank i -> block i of all ranks' recvbuff [n][sendcount]. In place: sendbuff of rank i is
// block i of its recvbuff.
ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype,
                            ncclComm_t comm, cudaStream_t stream);

// Block j of rank i's sendbuff [n][count] -> block i of rank j's recvbuff [n][count]. In place: equal buffers.
ncclResult_t ncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                          cudaStream_t stream);
ncclResult_t pncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                           cudaStream_t stream);

// sendbuff [count] of rank i -> block i of root's recvbuff [n][count]. In place at root: sendbuff is block `root` of
// recvbuff.
ncclResult_t ncclGather(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                        ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclGather(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                         ncclComm_t comm, cudaStream_t stream);

// Block i of root's sendbuff [n][count] -> recvbuff [count] of rank i. In place at root: recvbuff is block `root` of
// sendbuff.
ncclResult_t ncclScatter(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                         ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclScatter(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                          ncclComm_t comm, cudaStream_t stream);

// The same collectives with a configuration of the call (NULL: none).
ncclResult_t ncclAllReduceConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t pncclAllReduceConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                  ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t ncclBroadcastConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t pncclBroadcastConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                                  ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t ncclReduceConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                              ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream,
                              const ncclCollConfig_t* config);
ncclResult_t pncclReduceConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                               ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream,
                               const ncclCollConfig_t* config);
ncclResult_t ncclAllGatherConfig(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t pncclAllGatherConfig(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype,
                                  ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t ncclReduceScatterConfig(const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype,
                                     ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                     const ncclCollConfig_t* config);
ncclResult_t pncclReduceScatterConfig(const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype,
                                      ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                      const ncclCollConfig_t* config);
ncclResult_t ncclAlltoAllConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t pncclAlltoAllConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t ncclGatherConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                              ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t pncclGatherConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                               ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t ncclScatterConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                               ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t pncclScatterConfig(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                                ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config);

// ---- Between two ranks ----------------------------------------------------------------------------------------------
// Matches the peer's ncclRecv() with the same count and datatype. Sends and receives that wait for each other (for
// example two ranks that exchange buffers) must be in one group.
ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t pncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                       cudaStream_t stream);

ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t pncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                       cudaStream_t stream);

// Writes localbuff [count] to the peer's window at peerWinOffset (bytes), then sends a signal. flags must be 0.
ncclResult_t ncclPutSignal(const void* localbuff, size_t count, ncclDataType_t datatype, int peer, ncclWindow_t peerWin,
                           size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t pncclPutSignal(const void* localbuff, size_t count, ncclDataType_t datatype, int peer,
                            ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags,
                            ncclComm_t comm, cudaStream_t stream);

// Sends a signal without data. The signal arrives after all earlier puts to that peer. flags must be 0.
ncclResult_t ncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream);

// Waits until all signals of signalDescs [nDesc] have arrived. A signal satisfies one wait only.
ncclResult_t ncclWaitSignal(int nDesc, ncclWaitSignalDesc_t* signalDescs, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclWaitSignal(int nDesc, ncclWaitSignalDesc_t* signalDescs, ncclComm_t comm, cudaStream_t stream);

// ---- Groups ---------------------------------------------------------------------------------------------------------
// Each thread has a group of its own. Between ncclGroupStart() and ncclGroupEnd() it collects the thread's collectives,
// sends, receives and one-sided calls, and its calls that register windows or that create, finalize, suspend or resume
// communicators (but not ncclCommInitAll()). If ncclCommDestroy() must finalize, the group collects this step, too. In
// nested groups the outermost ncclGroupEnd() runs the collected calls.

ncclResult_t ncclGroupStart(void);
ncclResult_t pncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t pncclGroupEnd(void);
// Ends the group without running it, and returns an estimate of its run time. In a nested group it only ends the inner
// group.
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* simInfo);
ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t* simInfo);

// ---- Encryption -----------------------------------------------------------------------------------------------------

typedef enum { NCCL_ENCRYPTION_MODE_NONE = 0, NCCL_ENCRYPTION_MODE_PSK = 1 } ncclEncryptionMode_t;

// A program must initialize this with NCCL_ENCRYPTION_CONFIG_INITIALIZER.
typedef struct ncclEncryptionConfig_v23200 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int mode;         // ncclEncryptionMode_t
  const char* psk;  // NCCL_ENCRYPTION_MODE_PSK: a secret text of 16 to 4096 characters, the same on all ranks
} ncclEncryptionConfig_t;

#define NCCL_ENCRYPTION_CONFIG_INITIALIZER                                                        \
  {                                                                                               \
    sizeof(ncclEncryptionConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, NCCL_ENCRYPTION_MODE_NONE, \
        NCCL_CONFIG_UNDEF_PTR                                                                     \
  }

// For the unique ids that this process creates afterwards, and for the communicators, except those that are made from
// an existing one (ncclCommSplit, ncclCommShrink, ncclCommGrow), which keep its encryption. With
// NCCL_ENCRYPTION_MODE_PSK, only ranks with the same key can join, and everything that they send over a network is
// encrypted (TLS 1.3). A communicator whose data cannot be encrypted is not created: ncclInvalidUsage. With
// NCCL_ENCRYPTION_MODE_NONE, the environment decides again (TUTTI_ENCRYPT, TUTTI_JOB_KEY). Refused (ncclInvalidUsage)
// if this machine has no TLS library. The library copies the key.
ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t* config);
ncclResult_t pncclSetEncryption(const ncclEncryptionConfig_t* config);

// ---- Parameters -----------------------------------------------------------------------------------------------------
// Access by name to the settings of the library: the NCCL_* variables that it uses, and all TUTTI_* variables, with the
// values in effect. (ncclInvalidArgument instead of the value of a secret.) The library owns all returned pointers.

// The handle is valid until the process exits.
ncclResult_t ncclParamBind(ncclParamHandle_t* out, const char* key);
ncclResult_t pncclParamBind(ncclParamHandle_t* out, const char* key);

// Return the value as a number of the type in the name: a signed (I) or unsigned (U) number of 8, 16, 32 or 64 bits.
// ncclInvalidArgument if the setting has no value, or if the value is not a number or is out of the range of that type.
ncclResult_t ncclParamGetI8(ncclParamHandle_t h, int8_t* out);
ncclResult_t pncclParamGetI8(ncclParamHandle_t h, int8_t* out);
ncclResult_t ncclParamGetI16(ncclParamHandle_t h, int16_t* out);
ncclResult_t pncclParamGetI16(ncclParamHandle_t h, int16_t* out);
ncclResult_t ncclParamGetI32(ncclParamHandle_t h, int32_t* out);
ncclResult_t pncclParamGetI32(ncclParamHandle_t h, int32_t* out);
ncclResult_t ncclParamGetI64(ncclParamHandle_t h, int64_t* out);
ncclResult_t pncclParamGetI64(ncclParamHandle_t h, int64_t* out);
ncclResult_t ncclParamGetU8(ncclParamHandle_t h, uint8_t* out);
ncclResult_t pncclParamGetU8(ncclParamHandle_t h, uint8_t* out);
ncclResult_t ncclParamGetU16(ncclParamHandle_t h, uint16_t* out);
ncclResult_t pncclParamGetU16(ncclParamHandle_t h, uint16_t* out);
ncclResult_t ncclParamGetU32(ncclParamHandle_t h, uint32_t* out);
ncclResult_t pncclParamGetU32(ncclParamHandle_t h, uint32_t* out);
ncclResult_t ncclParamGetU64(ncclParamHandle_t h, uint64_t* out);
ncclResult_t pncclParamGetU64(ncclParamHandle_t h, uint64_t* out);

// The string is valid until this thread calls the same function again or ends.
ncclResult_t ncclParamGetStr(ncclParamHandle_t h, const char** out);
ncclResult_t pncclParamGetStr(ncclParamHandle_t h, const char** out);

// Copies the value to out, and its length in bytes to len: an 8-byte signed integer if the value is a number, otherwise
// a zero-terminated text. ncclInvalidArgument if the value is longer than maxLen bytes.
ncclResult_t ncclParamGet(ncclParamHandle_t h, void* out, int maxLen, int* len);
ncclResult_t pncclParamGet(ncclParamHandle_t h, void* out, int maxLen, int* len);

// Returns the value of the setting with the name `key`, as a text of valueLen bytes. The text is valid until this
// thread calls the same function again or ends.
ncclResult_t ncclParamGetParameter(const char* key, const char** value, int* valueLen);
ncclResult_t pncclParamGetParameter(const char* key, const char** value, int* valueLen);

// Returns an array of tableLen names: those of the NCCL_* variables, and with NCCL_PARAM_DUMP_ALL=1 also those of the
// TUTTI_* variables. The array is valid until this thread calls the same function again or ends.
ncclResult_t ncclParamGetAllParameterKeys(const char*** table, int* tableLen);
ncclResult_t pncclParamGetAllParameterKeys(const char*** table, int* tableLen);

// Writes the names that ncclParamGetAllParameterKeys() returns, and their values, to stderr.
void ncclParamDumpAll(void);
void pncclParamDumpAll(void);

#ifdef __cplusplus
}
#endif

#endif  // NCCL_H_

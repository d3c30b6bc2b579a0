// The types of the CUDA driver's ABI that Tutti uses: handles, results, flags and structures. They are declared here so
// that Tutti builds without CUDA headers. Types that begin with CU have the driver's names; the other types, and all
// enumerators, are named in this project's style. If the toolkit is installed, tests/device/unit/abi_test.cc compares
// them with the toolkit's cuda.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tutti::cuda {

// This declaration is needed in a file that includes nccl.h before this header. Without it, CUstream would refer to the
// global CUstream_st of nccl.h, and calls of functions that take a CUstream would not link.
struct CUstream_st;  // NOLINT(bugprone-forward-declaration-namespace): nccl.h has the name, too

using CUdevice = int;
using CUdeviceptr = std::uint64_t;
using CUcontext = struct CUctx_st*;
using CUstream = CUstream_st*;
using CUevent = struct CUevent_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphNode = struct CUgraphNode_st*;
using CUgraphExec = struct CUgraphExec_st*;
using CUmemGenericAllocationHandle = std::uint64_t;
using CUhostFn = void (*)(void* user_data);
static_assert(sizeof(void*) == sizeof(CUdeviceptr), "Tutti's device code is for 64-bit hosts");

enum class CUresult : std::int32_t {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,  // the process is exiting, and the driver has shut down
  kStubLibrary = 34,   // the library is the toolkit's empty libcuda.so, which is only for linking
  kCallRequiresNewerDriver = 36,
  kDeviceUnavailable = 46,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kMapFailed = 205,
  kNoBinaryForGpu = 209,
  kEccUncorrectable = 214,
  kPeerAccessUnsupported = 217,
  kNvlinkUncorrectable = 220,
  kUnsupportedPtxVersion = 222,
  kContained = 226,
  kOperatingSystem = 304,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchOutOfResources = 701,
  kLaunchTimeout = 702,
  kPeerAccessAlreadyEnabled = 704,
  kPeerAccessNotEnabled = 705,
  kContextIsDestroyed = 709,
  kAssert = 710,
  kHostMemoryAlreadyRegistered = 712,
  kHostMemoryNotRegistered = 713,
  kHardwareStackError = 714,
  kIllegalInstruction = 715,
  kMisalignedAddress = 716,
  kInvalidAddressSpace = 717,
  kInvalidPc = 718,
  kLaunchFailed = 719,
  kCooperativeLaunchTooLarge = 720,
  kNotPermitted = 800,
  kNotSupported = 801,
  kSystemDriverMismatch = 803,
  kStreamCaptureUnsupported = 900,
  kStreamCaptureInvalidated = 901,
  kStreamCaptureMerge = 902,
  kStreamCaptureUnmatched = 903,
  kStreamCaptureUnjoined = 904,
  kStreamCaptureIsolation = 905,
  kStreamCaptureImplicit = 906,
  kCapturedEvent = 907,
  kStreamCaptureWrongThread = 908,
  kUnknown = 999,
};

enum class DeviceAttribute : std::int32_t {
  kMaxThreadsPerBlock = 1,
  kMaxSharedMemoryPerBlock = 8,
  kWarpSize = 10,
  kMultiprocessorCount = 16,
  kIntegrated = 18,
  kPciBusId = 33,
  kPciDeviceId = 34,
  kMaxThreadsPerMultiprocessor = 39,
  kAsyncEngineCount = 40,
  kUnifiedAddressing = 41,
  kPciDomainId = 50,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kMaxSharedMemoryPerMultiprocessor = 81,
  kComputePreemptionSupported = 90,
  kCooperativeLaunch = 95,
  kMaxSharedMemoryPerBlockOptin = 97,
  kVirtualMemoryManagementSupported = 102,
  kPosixFdHandleSupported = 103,
  kMaxBlocksPerMultiprocessor = 106,
  kGpuDirectRdmaWithVirtualMemorySupported = 110,
  kGpuDirectRdmaSupported = 116,
  kCan64BitStreamMemOps = 122,
  kDmaBufSupported = 124,
  kMulticastSupported = 132,
};

enum class PointerAttribute : std::int32_t {
  kContext = 1,
  kMemoryType = 2,
  kDevicePointer = 3,
  kHostPointer = 4,
  kBufferId = 7,
  kIsManaged = 8,
  kDeviceOrdinal = 9,
  kIsLegacyIpcCapable = 10,
  kRangeStart = 11,
  kRangeBytes = 12,
  kMapped = 13,
  kMemoryPool = 17,
};

// The values of PointerAttribute::kMemoryType. 0 has no name in the driver; it means memory that the driver has not
// allocated or registered.
enum class MemoryType : std::uint32_t { kUnknown = 0, kHost = 1, kDevice = 2, kArray = 3, kUnified = 4 };

enum class FunctionAttribute : std::int32_t {
  kMaxThreadsPerBlock = 0,
  kSharedBytes = 1,
  kLocalBytes = 3,
  kRegisters = 4,
  kBinaryVersion = 6,
  kMaxDynamicSharedBytes = 8,
};

enum class P2pAttribute : std::int32_t {
  kPerformanceRank = 1,  // of the link between two devices: lower numbers mean faster links
  kAccessSupported = 2,
  kNativeAtomicSupported = 3,
};

enum class CaptureStatus : std::int32_t { kNone = 0, kActive = 1, kInvalidated = 2 };
enum class CaptureMode : std::int32_t { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };

inline constexpr unsigned kStreamDefault = 0;      // synchronizes with the legacy default stream
inline constexpr unsigned kStreamNonBlocking = 1;  // does not synchronize with the legacy default stream
inline constexpr std::uintptr_t kLegacyStream = 1;
inline constexpr std::uintptr_t kPerThreadStream = 2;

inline constexpr unsigned kEventDefault = 0;
inline constexpr unsigned kEventBlockingSync = 1;
inline constexpr unsigned kEventDisableTiming = 2;
// A flag for recording an event and for waiting for one, not for creating one: in a graph capture, the record or the
// wait becomes a node of the graph instead of a dependency.
inline constexpr unsigned kEventExternal = 1;

// the wait ends when the value in memory minus the wanted value, as a signed number, is not negative
inline constexpr unsigned kWaitGreaterEqual = 0;
inline constexpr unsigned kWaitEqual = 1;
inline constexpr unsigned kWaitAnd = 2;
inline constexpr unsigned kWaitNor = 3;
inline constexpr unsigned kWriteDefault = 0;  // the write follows all earlier memory operations of the stream

inline constexpr unsigned kHostPortable = 1;   // pinned for all contexts
inline constexpr unsigned kHostDeviceMap = 2;  // mapped into the device's address space
inline constexpr unsigned kManagedGlobal = 1;
inline constexpr unsigned kIpcLazyPeerAccess = 1;

inline constexpr std::uint64_t kProcAddressDefault = 0;

struct CUuuid {
  std::array<std::uint8_t, 16> bytes{};
  bool operator==(const CUuuid&) const = default;
};

struct CUipcMemHandle {
  std::array<std::byte, 64> reserved{};
  bool operator==(const CUipcMemHandle&) const = default;
};

static_assert(sizeof(CUuuid) == 16 && sizeof(CUipcMemHandle) == 64);

enum class MemLocationType : std::int32_t { kInvalid = 0, kDevice = 1 };
enum class MemAllocationType : std::int32_t { kInvalid = 0, kPinned = 1 };
enum class MemHandleType : std::int32_t { kNone = 0, kPosixFd = 1 };
enum class MemAccess : std::int32_t { kNone = 0, kRead = 1, kReadWrite = 3 };
enum class MemGranularity : std::int32_t { kMinimum = 0, kRecommended = 1 };

struct CUmemLocation {
  MemLocationType type = MemLocationType::kDevice;
  std::int32_t id = 0;  // device number
};

struct CUmemAllocationProp {
  MemAllocationType type = MemAllocationType::kPinned;
  MemHandleType requested_handle_types = MemHandleType::kPosixFd;
  CUmemLocation location;
  void* win32_metadata = nullptr;
  std::uint8_t compression_type = 0;
  std::uint8_t gpu_direct_rdma_capable = 0;
  std::uint16_t usage = 0;
  std::array<std::uint8_t, 4> reserved{};
};
static_assert(sizeof(CUmemAllocationProp) == 32 && offsetof(CUmemAllocationProp, compression_type) == 24);

struct CUmemAccessDesc {
  CUmemLocation location;
  MemAccess flags = MemAccess::kReadWrite;
};
static_assert(sizeof(CUmemAccessDesc) == 12);

}  // namespace tutti::cuda

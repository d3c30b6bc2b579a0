// Compares our prototypes, structures and enumerators of the CUDA driver with those in the toolkit's cuda.h. This file
// is compiled only if the toolkit is installed. The compiler makes all checks (static_assert), except for the handles
// of the special streams, which the test compares at run time.
#include <cuda.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

#include "cuda/driver_api.h"

namespace tutti::cuda {
namespace {

// Whether arguments of the two types are passed in the same way. That holds for two pointers, for two integers or
// enumerations of the same size, for the same floating-point type, and for two structures of the same size and
// alignment.
template <class A, class B>
constexpr bool same_argument() {
  if constexpr (std::is_pointer_v<A> || std::is_pointer_v<B>) {
    return std::is_pointer_v<A> && std::is_pointer_v<B>;
  } else {
    constexpr bool kIntegers = !std::is_class_v<A> && !std::is_class_v<B> && !std::is_floating_point_v<A>;
    constexpr bool kClasses = std::is_class_v<A> && std::is_class_v<B>;
    return sizeof(A) == sizeof(B) && alignof(A) == alignof(B) && (kIntegers || kClasses || std::is_same_v<A, B>);
  }
}

template <class A, class B>
struct SameCall : std::false_type {};

template <class... A, class... B>
requires(sizeof...(A) == sizeof...(B)) struct SameCall<CUresult (*)(A...), ::CUresult (*)(B...)> {
  static constexpr bool value = (same_argument<A, B>() && ...);
};

template <class A, class B>
constexpr bool same_call() {
  return SameCall<A, B>::value;
}

// The prototype of cuStreamGetCaptureInfo in version 11.3, copied from cudaTypedefs.h. The header cuda.h no longer
// declares this version.
using CaptureInfo = ::CUresult (*)(::CUstream, ::CUstreamCaptureStatus*, cuuint64_t*, ::CUgraph*, const ::CUgraphNode**,
                                   std::size_t*);

static_assert(same_call<decltype(DriverApi::init), decltype(&::cuInit)>());
static_assert(same_call<decltype(DriverApi::driver_get_version), decltype(&::cuDriverGetVersion)>());
static_assert(same_call<decltype(DriverApi::get_error_name), decltype(&::cuGetErrorName)>());
static_assert(same_call<decltype(DriverApi::get_error_string), decltype(&::cuGetErrorString)>());
static_assert(same_call<decltype(DriverApi::device_get), decltype(&::cuDeviceGet)>());
static_assert(same_call<decltype(DriverApi::device_get_count), decltype(&::cuDeviceGetCount)>());
static_assert(same_call<decltype(DriverApi::device_get_name), decltype(&::cuDeviceGetName)>());
static_assert(same_call<decltype(DriverApi::device_get_attribute), decltype(&::cuDeviceGetAttribute)>());
static_assert(same_call<decltype(DriverApi::device_get_uuid), decltype(&::cuDeviceGetUuid)>());
static_assert(same_call<decltype(DriverApi::device_get_pci_bus_id), decltype(&::cuDeviceGetPCIBusId)>());
static_assert(same_call<decltype(DriverApi::device_total_mem), decltype(&::cuDeviceTotalMem)>());
static_assert(same_call<decltype(DriverApi::device_can_access_peer), decltype(&::cuDeviceCanAccessPeer)>());
static_assert(same_call<decltype(DriverApi::device_get_p2p_attribute), decltype(&::cuDeviceGetP2PAttribute)>());
static_assert(same_call<decltype(DriverApi::device_primary_ctx_retain), decltype(&::cuDevicePrimaryCtxRetain)>());
static_assert(same_call<decltype(DriverApi::device_primary_ctx_release), decltype(&::cuDevicePrimaryCtxRelease)>());
static_assert(same_call<decltype(DriverApi::device_primary_ctx_get_state), decltype(&::cuDevicePrimaryCtxGetState)>());
static_assert(same_call<decltype(DriverApi::ctx_get_current), decltype(&::cuCtxGetCurrent)>());
static_assert(same_call<decltype(DriverApi::ctx_set_current), decltype(&::cuCtxSetCurrent)>());
static_assert(same_call<decltype(DriverApi::ctx_push_current), decltype(&::cuCtxPushCurrent)>());
static_assert(same_call<decltype(DriverApi::ctx_pop_current), decltype(&::cuCtxPopCurrent)>());
static_assert(same_call<decltype(DriverApi::ctx_get_device), decltype(&::cuCtxGetDevice)>());
static_assert(same_call<decltype(DriverApi::ctx_get_id), decltype(&::cuCtxGetId)>());
static_assert(same_call<decltype(DriverApi::ctx_synchronize), decltype(&::cuCtxSynchronize)>());
static_assert(
    same_call<decltype(DriverApi::ctx_get_stream_priority_range), decltype(&::cuCtxGetStreamPriorityRange)>());
static_assert(same_call<decltype(DriverApi::ctx_enable_peer_access), decltype(&::cuCtxEnablePeerAccess)>());
static_assert(same_call<decltype(DriverApi::mem_alloc), decltype(&::cuMemAlloc)>());
static_assert(same_call<decltype(DriverApi::mem_alloc_managed), decltype(&::cuMemAllocManaged)>());
static_assert(same_call<decltype(DriverApi::mem_free), decltype(&::cuMemFree)>());
static_assert(same_call<decltype(DriverApi::mem_get_info), decltype(&::cuMemGetInfo)>());
static_assert(same_call<decltype(DriverApi::mem_host_alloc), decltype(&::cuMemHostAlloc)>());
static_assert(same_call<decltype(DriverApi::mem_free_host), decltype(&::cuMemFreeHost)>());
static_assert(same_call<decltype(DriverApi::mem_host_register), decltype(&::cuMemHostRegister)>());
static_assert(same_call<decltype(DriverApi::mem_host_unregister), decltype(&::cuMemHostUnregister)>());
static_assert(same_call<decltype(DriverApi::mem_host_get_device_pointer), decltype(&::cuMemHostGetDevicePointer)>());
static_assert(same_call<decltype(DriverApi::mem_get_address_range), decltype(&::cuMemGetAddressRange)>());
static_assert(same_call<decltype(DriverApi::pointer_get_attributes), decltype(&::cuPointerGetAttributes)>());
static_assert(same_call<decltype(DriverApi::memcpy_async), decltype(&::cuMemcpyAsync)>());
static_assert(same_call<decltype(DriverApi::memcpy_htod_async), decltype(&::cuMemcpyHtoDAsync)>());
static_assert(same_call<decltype(DriverApi::memcpy_dtoh_async), decltype(&::cuMemcpyDtoHAsync)>());
static_assert(same_call<decltype(DriverApi::memcpy_dtod_async), decltype(&::cuMemcpyDtoDAsync)>());
static_assert(same_call<decltype(DriverApi::memset_d8_async), decltype(&::cuMemsetD8Async)>());
static_assert(same_call<decltype(DriverApi::stream_create), decltype(&::cuStreamCreate)>());
static_assert(same_call<decltype(DriverApi::stream_create_with_priority), decltype(&::cuStreamCreateWithPriority)>());
static_assert(same_call<decltype(DriverApi::stream_destroy), decltype(&::cuStreamDestroy)>());
static_assert(same_call<decltype(DriverApi::stream_synchronize), decltype(&::cuStreamSynchronize)>());
static_assert(same_call<decltype(DriverApi::stream_query), decltype(&::cuStreamQuery)>());
static_assert(same_call<decltype(DriverApi::stream_get_ctx), decltype(&::cuStreamGetCtx)>());
static_assert(same_call<decltype(DriverApi::stream_get_flags), decltype(&::cuStreamGetFlags)>());
static_assert(same_call<decltype(DriverApi::launch_cooperative_kernel), decltype(&::cuLaunchCooperativeKernel)>());
static_assert(same_call<decltype(DriverApi::stream_wait_event), decltype(&::cuStreamWaitEvent)>());
static_assert(same_call<decltype(DriverApi::stream_wait_value32), decltype(&::cuStreamWaitValue32)>());
static_assert(same_call<decltype(DriverApi::stream_wait_value64), decltype(&::cuStreamWaitValue64)>());
static_assert(same_call<decltype(DriverApi::stream_write_value32), decltype(&::cuStreamWriteValue32)>());
static_assert(same_call<decltype(DriverApi::stream_write_value64), decltype(&::cuStreamWriteValue64)>());
static_assert(same_call<decltype(DriverApi::event_create), decltype(&::cuEventCreate)>());
static_assert(same_call<decltype(DriverApi::event_record), decltype(&::cuEventRecord)>());
static_assert(same_call<decltype(DriverApi::event_record_with_flags), decltype(&::cuEventRecordWithFlags)>());
static_assert(same_call<decltype(DriverApi::event_query), decltype(&::cuEventQuery)>());
static_assert(same_call<decltype(DriverApi::event_synchronize), decltype(&::cuEventSynchronize)>());
static_assert(same_call<decltype(DriverApi::event_elapsed_time), decltype(&::cuEventElapsedTime)>());
static_assert(same_call<decltype(DriverApi::event_destroy), decltype(&::cuEventDestroy)>());
static_assert(same_call<decltype(DriverApi::module_load_data), decltype(&::cuModuleLoadData)>());
static_assert(same_call<decltype(DriverApi::module_unload), decltype(&::cuModuleUnload)>());
static_assert(same_call<decltype(DriverApi::module_get_function), decltype(&::cuModuleGetFunction)>());
static_assert(same_call<decltype(DriverApi::func_get_attribute), decltype(&::cuFuncGetAttribute)>());
static_assert(same_call<decltype(DriverApi::func_set_attribute), decltype(&::cuFuncSetAttribute)>());
static_assert(same_call<decltype(DriverApi::occupancy_max_active_blocks),
                        decltype(&::cuOccupancyMaxActiveBlocksPerMultiprocessor)>());
static_assert(same_call<decltype(DriverApi::launch_kernel), decltype(&::cuLaunchKernel)>());
static_assert(same_call<decltype(DriverApi::launch_host_func), decltype(&::cuLaunchHostFunc)>());
static_assert(same_call<decltype(DriverApi::stream_begin_capture), decltype(&::cuStreamBeginCapture)>());
static_assert(same_call<decltype(DriverApi::stream_end_capture), decltype(&::cuStreamEndCapture)>());
static_assert(same_call<decltype(DriverApi::stream_is_capturing), decltype(&::cuStreamIsCapturing)>());
static_assert(same_call<decltype(DriverApi::stream_get_capture_info), CaptureInfo>());
static_assert(
    same_call<decltype(DriverApi::thread_exchange_capture_mode), decltype(&::cuThreadExchangeStreamCaptureMode)>());
static_assert(same_call<decltype(DriverApi::graph_instantiate), decltype(&::cuGraphInstantiateWithFlags)>());
static_assert(same_call<decltype(DriverApi::graph_launch), decltype(&::cuGraphLaunch)>());
static_assert(same_call<decltype(DriverApi::graph_get_nodes), decltype(&::cuGraphGetNodes)>());
static_assert(same_call<decltype(DriverApi::graph_exec_destroy), decltype(&::cuGraphExecDestroy)>());
static_assert(same_call<decltype(DriverApi::graph_destroy), decltype(&::cuGraphDestroy)>());
static_assert(same_call<decltype(DriverApi::ipc_get_mem_handle), decltype(&::cuIpcGetMemHandle)>());
static_assert(same_call<decltype(DriverApi::ipc_open_mem_handle), decltype(&::cuIpcOpenMemHandle)>());
static_assert(same_call<decltype(DriverApi::ipc_close_mem_handle), decltype(&::cuIpcCloseMemHandle)>());
static_assert(
    same_call<decltype(DriverApi::mem_get_allocation_granularity), decltype(&::cuMemGetAllocationGranularity)>());
static_assert(same_call<decltype(DriverApi::mem_create), decltype(&::cuMemCreate)>());
static_assert(same_call<decltype(DriverApi::mem_release), decltype(&::cuMemRelease)>());
static_assert(same_call<decltype(DriverApi::mem_address_reserve), decltype(&::cuMemAddressReserve)>());
static_assert(same_call<decltype(DriverApi::mem_address_free), decltype(&::cuMemAddressFree)>());
static_assert(same_call<decltype(DriverApi::mem_retain_allocation_handle), decltype(&::cuMemRetainAllocationHandle)>());
static_assert(same_call<decltype(DriverApi::mem_get_allocation_properties),
                        decltype(&::cuMemGetAllocationPropertiesFromHandle)>());
static_assert(same_call<decltype(DriverApi::mem_map), decltype(&::cuMemMap)>());
static_assert(same_call<decltype(DriverApi::mem_unmap), decltype(&::cuMemUnmap)>());
static_assert(same_call<decltype(DriverApi::mem_set_access), decltype(&::cuMemSetAccess)>());
static_assert(
    same_call<decltype(DriverApi::mem_export_to_shareable_handle), decltype(&::cuMemExportToShareableHandle)>());
static_assert(
    same_call<decltype(DriverApi::mem_import_from_shareable_handle), decltype(&::cuMemImportFromShareableHandle)>());

static_assert(sizeof(CUipcMemHandle) == sizeof(::CUipcMemHandle) &&
              alignof(CUipcMemHandle) == alignof(::CUipcMemHandle));
static_assert(sizeof(CUipcEventHandle) == sizeof(::CUipcEventHandle));
static_assert(sizeof(CUuuid) == sizeof(::CUuuid));
static_assert(sizeof(CUmemAllocationProp) == sizeof(::CUmemAllocationProp));
static_assert(offsetof(CUmemAllocationProp, requested_handle_types) ==
              offsetof(::CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(CUmemAllocationProp, location) == offsetof(::CUmemAllocationProp, location));
static_assert(offsetof(CUmemAllocationProp, win32_metadata) == offsetof(::CUmemAllocationProp, win32HandleMetaData));
static_assert(offsetof(CUmemAllocationProp, gpu_direct_rdma_capable) ==
              offsetof(::CUmemAllocationProp, allocFlags.gpuDirectRDMACapable));
static_assert(sizeof(CUmemAccessDesc) == sizeof(::CUmemAccessDesc));
static_assert(offsetof(CUmemAccessDesc, flags) == offsetof(::CUmemAccessDesc, flags));

template <class A, class B>
constexpr bool same_value(A ours, B theirs) {
  return static_cast<long long>(ours) == static_cast<long long>(theirs);
}

static_assert(same_value(CUresult::kSuccess, CUDA_SUCCESS));
static_assert(same_value(CUresult::kInvalidValue, CUDA_ERROR_INVALID_VALUE));
static_assert(same_value(CUresult::kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY));
static_assert(same_value(CUresult::kNotInitialized, CUDA_ERROR_NOT_INITIALIZED));
static_assert(same_value(CUresult::kDeinitialized, CUDA_ERROR_DEINITIALIZED));
static_assert(same_value(CUresult::kStubLibrary, CUDA_ERROR_STUB_LIBRARY));
static_assert(same_value(CUresult::kCallRequiresNewerDriver, CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER));
static_assert(same_value(CUresult::kDeviceUnavailable, CUDA_ERROR_DEVICE_UNAVAILABLE));
static_assert(same_value(CUresult::kNoDevice, CUDA_ERROR_NO_DEVICE));
static_assert(same_value(CUresult::kInvalidDevice, CUDA_ERROR_INVALID_DEVICE));
static_assert(same_value(CUresult::kInvalidImage, CUDA_ERROR_INVALID_IMAGE));
static_assert(same_value(CUresult::kInvalidContext, CUDA_ERROR_INVALID_CONTEXT));
static_assert(same_value(CUresult::kMapFailed, CUDA_ERROR_MAP_FAILED));
static_assert(same_value(CUresult::kNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU));
static_assert(same_value(CUresult::kPeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED));
static_assert(same_value(CUresult::kUnsupportedPtxVersion, CUDA_ERROR_UNSUPPORTED_PTX_VERSION));
static_assert(same_value(CUresult::kOperatingSystem, CUDA_ERROR_OPERATING_SYSTEM));
static_assert(same_value(CUresult::kInvalidHandle, CUDA_ERROR_INVALID_HANDLE));
static_assert(same_value(CUresult::kNotFound, CUDA_ERROR_NOT_FOUND));
static_assert(same_value(CUresult::kNotReady, CUDA_ERROR_NOT_READY));
static_assert(same_value(CUresult::kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS));
static_assert(same_value(CUresult::kLaunchOutOfResources, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES));
static_assert(same_value(CUresult::kLaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT));
static_assert(same_value(CUresult::kPeerAccessAlreadyEnabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED));
static_assert(same_value(CUresult::kPeerAccessNotEnabled, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED));
static_assert(same_value(CUresult::kContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED));
static_assert(same_value(CUresult::kHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED));
static_assert(same_value(CUresult::kHostMemoryNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED));
static_assert(same_value(CUresult::kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED));
static_assert(same_value(CUresult::kCooperativeLaunchTooLarge, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE));
static_assert(same_value(CUresult::kNotPermitted, CUDA_ERROR_NOT_PERMITTED));
static_assert(same_value(CUresult::kNotSupported, CUDA_ERROR_NOT_SUPPORTED));
static_assert(same_value(CUresult::kSystemDriverMismatch, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH));
static_assert(same_value(CUresult::kStreamCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
static_assert(same_value(CUresult::kStreamCaptureInvalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
static_assert(same_value(CUresult::kStreamCaptureMerge, CUDA_ERROR_STREAM_CAPTURE_MERGE));
static_assert(same_value(CUresult::kStreamCaptureUnmatched, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED));
static_assert(same_value(CUresult::kStreamCaptureUnjoined, CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
static_assert(same_value(CUresult::kStreamCaptureIsolation, CUDA_ERROR_STREAM_CAPTURE_ISOLATION));
static_assert(same_value(CUresult::kStreamCaptureImplicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT));
static_assert(same_value(CUresult::kCapturedEvent, CUDA_ERROR_CAPTURED_EVENT));
static_assert(same_value(CUresult::kStreamCaptureWrongThread, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD));
static_assert(same_value(CUresult::kEccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE));
static_assert(same_value(CUresult::kNvlinkUncorrectable, CUDA_ERROR_NVLINK_UNCORRECTABLE));
static_assert(same_value(CUresult::kContained, CUDA_ERROR_CONTAINED));
static_assert(same_value(CUresult::kAssert, CUDA_ERROR_ASSERT));
static_assert(same_value(CUresult::kHardwareStackError, CUDA_ERROR_HARDWARE_STACK_ERROR));
static_assert(same_value(CUresult::kIllegalInstruction, CUDA_ERROR_ILLEGAL_INSTRUCTION));
static_assert(same_value(CUresult::kMisalignedAddress, CUDA_ERROR_MISALIGNED_ADDRESS));
static_assert(same_value(CUresult::kInvalidAddressSpace, CUDA_ERROR_INVALID_ADDRESS_SPACE));
static_assert(same_value(CUresult::kInvalidPc, CUDA_ERROR_INVALID_PC));
static_assert(same_value(CUresult::kUnknown, CUDA_ERROR_UNKNOWN));
static_assert(same_value(DeviceAttribute::kMaxThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
static_assert(same_value(DeviceAttribute::kMaxSharedMemoryPerBlock, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK));
static_assert(same_value(DeviceAttribute::kWarpSize, CU_DEVICE_ATTRIBUTE_WARP_SIZE));
static_assert(same_value(DeviceAttribute::kMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
static_assert(same_value(DeviceAttribute::kIntegrated, CU_DEVICE_ATTRIBUTE_INTEGRATED));
static_assert(same_value(DeviceAttribute::kPciBusId, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID));
static_assert(same_value(DeviceAttribute::kPciDeviceId, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID));
static_assert(same_value(DeviceAttribute::kMaxThreadsPerMultiprocessor,
                         CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR));
static_assert(same_value(DeviceAttribute::kAsyncEngineCount, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT));
static_assert(same_value(DeviceAttribute::kUnifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING));
static_assert(same_value(DeviceAttribute::kPciDomainId, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID));
static_assert(same_value(DeviceAttribute::kComputeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
static_assert(same_value(DeviceAttribute::kComputeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
static_assert(same_value(DeviceAttribute::kMaxSharedMemoryPerMultiprocessor,
                         CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR));
static_assert(same_value(DeviceAttribute::kComputePreemptionSupported,
                         CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED));
static_assert(same_value(DeviceAttribute::kCooperativeLaunch, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH));
static_assert(same_value(DeviceAttribute::kMaxSharedMemoryPerBlockOptin,
                         CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
static_assert(same_value(DeviceAttribute::kVirtualMemoryManagementSupported,
                         CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
static_assert(same_value(DeviceAttribute::kPosixFdHandleSupported,
                         CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED));
static_assert(same_value(DeviceAttribute::kMaxBlocksPerMultiprocessor,
                         CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR));
static_assert(same_value(DeviceAttribute::kGpuDirectRdmaWithVirtualMemorySupported,
                         CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED));
static_assert(same_value(DeviceAttribute::kGpuDirectRdmaSupported, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED));
static_assert(same_value(DeviceAttribute::kCan64BitStreamMemOps, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS));
static_assert(same_value(DeviceAttribute::kDmaBufSupported, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED));
static_assert(same_value(DeviceAttribute::kMulticastSupported, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED));
static_assert(same_value(PointerAttribute::kContext, CU_POINTER_ATTRIBUTE_CONTEXT));
static_assert(same_value(PointerAttribute::kMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE));
static_assert(same_value(PointerAttribute::kDevicePointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER));
static_assert(same_value(PointerAttribute::kHostPointer, CU_POINTER_ATTRIBUTE_HOST_POINTER));
static_assert(same_value(PointerAttribute::kBufferId, CU_POINTER_ATTRIBUTE_BUFFER_ID));
static_assert(same_value(PointerAttribute::kIsManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED));
static_assert(same_value(PointerAttribute::kDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL));
static_assert(same_value(PointerAttribute::kIsLegacyIpcCapable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE));
static_assert(same_value(PointerAttribute::kRangeStart, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR));
static_assert(same_value(PointerAttribute::kRangeBytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE));
static_assert(same_value(PointerAttribute::kMapped, CU_POINTER_ATTRIBUTE_MAPPED));
static_assert(same_value(PointerAttribute::kMemoryPool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE));
static_assert(same_value(FunctionAttribute::kMaxThreadsPerBlock, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
static_assert(same_value(FunctionAttribute::kSharedBytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
static_assert(same_value(FunctionAttribute::kLocalBytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES));
static_assert(same_value(FunctionAttribute::kRegisters, CU_FUNC_ATTRIBUTE_NUM_REGS));
static_assert(same_value(FunctionAttribute::kBinaryVersion, CU_FUNC_ATTRIBUTE_BINARY_VERSION));
static_assert(same_value(FunctionAttribute::kMaxDynamicSharedBytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES));
static_assert(same_value(P2pAttribute::kPerformanceRank, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK));
static_assert(same_value(P2pAttribute::kAccessSupported, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED));
static_assert(same_value(P2pAttribute::kNativeAtomicSupported, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED));
static_assert(same_value(CaptureStatus::kNone, CU_STREAM_CAPTURE_STATUS_NONE));
static_assert(same_value(CaptureStatus::kActive, CU_STREAM_CAPTURE_STATUS_ACTIVE));
static_assert(same_value(CaptureStatus::kInvalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED));
static_assert(same_value(CaptureMode::kGlobal, CU_STREAM_CAPTURE_MODE_GLOBAL));
static_assert(same_value(CaptureMode::kThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
static_assert(same_value(CaptureMode::kRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED));
static_assert(same_value(MemoryType::kHost, CU_MEMORYTYPE_HOST));
static_assert(same_value(MemoryType::kDevice, CU_MEMORYTYPE_DEVICE));
static_assert(same_value(MemoryType::kArray, CU_MEMORYTYPE_ARRAY));
static_assert(same_value(MemoryType::kUnified, CU_MEMORYTYPE_UNIFIED));
static_assert(same_value(MemAccess::kNone, CU_MEM_ACCESS_FLAGS_PROT_NONE));
static_assert(same_value(MemAccess::kRead, CU_MEM_ACCESS_FLAGS_PROT_READ));
static_assert(same_value(MemAccess::kReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
static_assert(same_value(MemGranularity::kMinimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
static_assert(same_value(MemGranularity::kRecommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
static_assert(same_value(MemLocationType::kInvalid, CU_MEM_LOCATION_TYPE_INVALID));
static_assert(same_value(MemLocationType::kDevice, CU_MEM_LOCATION_TYPE_DEVICE));
static_assert(same_value(MemAllocationType::kInvalid, CU_MEM_ALLOCATION_TYPE_INVALID));
static_assert(same_value(MemAllocationType::kPinned, CU_MEM_ALLOCATION_TYPE_PINNED));
static_assert(same_value(MemHandleType::kNone, CU_MEM_HANDLE_TYPE_NONE));
static_assert(same_value(MemHandleType::kPosixFd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
static_assert(same_value(kStreamDefault, CU_STREAM_DEFAULT));
static_assert(same_value(kStreamNonBlocking, CU_STREAM_NON_BLOCKING));
static_assert(same_value(kEventDefault, CU_EVENT_DEFAULT));
static_assert(same_value(kEventBlockingSync, CU_EVENT_BLOCKING_SYNC));
static_assert(same_value(kEventDisableTiming, CU_EVENT_DISABLE_TIMING));
static_assert(same_value(kEventExternal, CU_EVENT_RECORD_EXTERNAL));
static_assert(same_value(kEventExternal, CU_EVENT_WAIT_EXTERNAL));
static_assert(same_value(kWaitGreaterEqual, CU_STREAM_WAIT_VALUE_GEQ));
static_assert(same_value(kWaitEqual, CU_STREAM_WAIT_VALUE_EQ));
static_assert(same_value(kWaitAnd, CU_STREAM_WAIT_VALUE_AND));
static_assert(same_value(kWaitNor, CU_STREAM_WAIT_VALUE_NOR));
static_assert(same_value(kWriteDefault, CU_STREAM_WRITE_VALUE_DEFAULT));
static_assert(same_value(kHostPortable, CU_MEMHOSTALLOC_PORTABLE));
static_assert(same_value(kHostDeviceMap, CU_MEMHOSTALLOC_DEVICEMAP));
static_assert(same_value(kHostPortable, CU_MEMHOSTREGISTER_PORTABLE));
static_assert(same_value(kHostDeviceMap, CU_MEMHOSTREGISTER_DEVICEMAP));
static_assert(same_value(kManagedGlobal, CU_MEM_ATTACH_GLOBAL));
static_assert(same_value(kIpcLazyPeerAccess, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
static_assert(same_value(kProcAddressDefault, CU_GET_PROC_ADDRESS_DEFAULT));

TEST(CudaAbi, TheHandlesOfTheSpecialStreamsAreThoseOfTheHeader) {
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(CU_STREAM_LEGACY), kLegacyStream);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(CU_STREAM_PER_THREAD), kPerThreadStream);
}

}  // namespace
}  // namespace tutti::cuda

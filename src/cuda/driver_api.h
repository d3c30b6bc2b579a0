// DriverApi: the functions of the CUDA driver as a table of pointers, and the names and versions with which they are
// looked up. Driver::open() or Driver::loaded() (driver.h) fills the table; in tests the fake driver
// (tests/device/fake_driver) provides the functions. The table is constant afterwards, so any thread may use it.
// NVIDIA's documentation of the driver API describes the functions.
//
// Each function is looked up with the version of CUDA that introduced the prototype below, because a driver supports
// all old versions of a function. The struct has about a hundred members, because it is a plain table with one member
// for each function that Tutti calls.
#pragma once

#include "cuda/driver_types.h"

namespace tutti::cuda {

// The type of cuGetProcAddress_v2. This function is looked up by its symbol in the library, and it then looks up all
// others. (If a driver is so old that it lacks the function, cuDriverGetVersion is looked up by its symbol as well, for
// the error message.)
using ProcAddress = CUresult (*)(const char* name, void** function, int version, std::uint64_t flags, int* status);

struct DriverApi {
  // Functions for the driver and its devices.
  CUresult (*init)(unsigned flags) = nullptr;
  CUresult (*driver_get_version)(int* version) = nullptr;
  CUresult (*get_error_name)(CUresult result, const char** name) = nullptr;
  CUresult (*get_error_string)(CUresult result, const char** text) = nullptr;
  CUresult (*device_get)(CUdevice* device, int ordinal) = nullptr;
  CUresult (*device_get_count)(int* count) = nullptr;
  CUresult (*device_get_name)(char* name, int bytes, CUdevice device) = nullptr;
  CUresult (*device_get_attribute)(int* value, DeviceAttribute attribute, CUdevice device) = nullptr;
  CUresult (*device_get_uuid)(CUuuid* uuid, CUdevice device) = nullptr;
  CUresult (*device_get_pci_bus_id)(char* id, int bytes, CUdevice device) = nullptr;
  CUresult (*device_total_mem)(std::size_t* bytes, CUdevice device) = nullptr;
  CUresult (*device_can_access_peer)(int* can, CUdevice device, CUdevice peer) = nullptr;
  CUresult (*device_get_p2p_attribute)(int* value, P2pAttribute attribute, CUdevice source, CUdevice target) = nullptr;

  // Functions for contexts.
  CUresult (*device_primary_ctx_retain)(CUcontext* context, CUdevice device) = nullptr;
  CUresult (*device_primary_ctx_release)(CUdevice device) = nullptr;
  CUresult (*device_primary_ctx_get_state)(CUdevice device, unsigned* flags, int* active) = nullptr;
  CUresult (*ctx_get_current)(CUcontext* context) = nullptr;
  CUresult (*ctx_set_current)(CUcontext context) = nullptr;
  CUresult (*ctx_push_current)(CUcontext context) = nullptr;
  CUresult (*ctx_pop_current)(CUcontext* context) = nullptr;
  CUresult (*ctx_get_device)(CUdevice* device) = nullptr;
  // the id of the context, which no other context of the process has or had
  CUresult (*ctx_get_id)(CUcontext context, unsigned long long* id) = nullptr;
  CUresult (*ctx_synchronize)() = nullptr;
  CUresult (*ctx_get_stream_priority_range)(int* least, int* greatest) = nullptr;
  CUresult (*ctx_enable_peer_access)(CUcontext peer, unsigned flags) = nullptr;

  // Functions for memory.
  CUresult (*mem_alloc)(CUdeviceptr* address, std::size_t bytes) = nullptr;
  CUresult (*mem_alloc_managed)(CUdeviceptr* address, std::size_t bytes, unsigned flags) = nullptr;
  CUresult (*mem_free)(CUdeviceptr address) = nullptr;
  CUresult (*mem_get_info)(std::size_t* free_bytes, std::size_t* total_bytes) = nullptr;
  CUresult (*mem_host_alloc)(void** memory, std::size_t bytes, unsigned flags) = nullptr;
  CUresult (*mem_free_host)(void* memory) = nullptr;
  CUresult (*mem_host_register)(void* memory, std::size_t bytes, unsigned flags) = nullptr;
  CUresult (*mem_host_unregister)(void* memory) = nullptr;
  CUresult (*mem_host_get_device_pointer)(CUdeviceptr* address, void* memory, unsigned flags) = nullptr;
  CUresult (*mem_get_address_range)(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) = nullptr;
  CUresult (*pointer_get_attributes)(unsigned count, PointerAttribute* attributes, void** values,
                                     CUdeviceptr address) = nullptr;
  CUresult (*memcpy_async)(CUdeviceptr target, CUdeviceptr source, std::size_t bytes, CUstream stream) = nullptr;
  CUresult (*memcpy_htod_async)(CUdeviceptr target, const void* source, std::size_t bytes, CUstream stream) = nullptr;
  CUresult (*memcpy_dtoh_async)(void* target, CUdeviceptr source, std::size_t bytes, CUstream stream) = nullptr;
  CUresult (*memcpy_dtod_async)(CUdeviceptr target, CUdeviceptr source, std::size_t bytes, CUstream stream) = nullptr;
  CUresult (*memset_d8_async)(CUdeviceptr target, unsigned char value, std::size_t bytes, CUstream stream) = nullptr;

  // Functions for streams and events.
  CUresult (*stream_create)(CUstream* stream, unsigned flags) = nullptr;
  CUresult (*stream_create_with_priority)(CUstream* stream, unsigned flags, int priority) = nullptr;
  CUresult (*stream_destroy)(CUstream stream) = nullptr;
  CUresult (*stream_synchronize)(CUstream stream) = nullptr;
  CUresult (*stream_query)(CUstream stream) = nullptr;
  CUresult (*stream_get_ctx)(CUstream stream, CUcontext* context) = nullptr;
  CUresult (*stream_get_flags)(CUstream stream, unsigned* flags) = nullptr;
  CUresult (*stream_wait_event)(CUstream stream, CUevent event, unsigned flags) = nullptr;
  CUresult (*stream_wait_value32)(CUstream stream, CUdeviceptr address, std::uint32_t value, unsigned flags) = nullptr;
  CUresult (*stream_wait_value64)(CUstream stream, CUdeviceptr address, std::uint64_t value, unsigned flags) = nullptr;
  CUresult (*stream_write_value32)(CUstream stream, CUdeviceptr address, std::uint32_t value, unsigned flags) = nullptr;
  CUresult (*stream_write_value64)(CUstream stream, CUdeviceptr address, std::uint64_t value, unsigned flags) = nullptr;
  CUresult (*event_create)(CUevent* event, unsigned flags) = nullptr;
  CUresult (*event_record)(CUevent event, CUstream stream) = nullptr;
  CUresult (*event_record_with_flags)(CUevent event, CUstream stream, unsigned flags) = nullptr;
  CUresult (*event_query)(CUevent event) = nullptr;
  CUresult (*event_synchronize)(CUevent event) = nullptr;
  CUresult (*event_elapsed_time)(float* milliseconds, CUevent start, CUevent end) = nullptr;
  CUresult (*event_destroy)(CUevent event) = nullptr;

  // Functions for kernels and host functions.
  CUresult (*module_load_data)(CUmodule* module, const void* image) = nullptr;
  CUresult (*module_unload)(CUmodule module) = nullptr;
  CUresult (*module_get_function)(CUfunction* function, CUmodule module, const char* name) = nullptr;
  CUresult (*func_get_attribute)(int* value, FunctionAttribute attribute, CUfunction function) = nullptr;
  CUresult (*func_set_attribute)(CUfunction function, FunctionAttribute attribute, int value) = nullptr;
  CUresult (*occupancy_max_active_blocks)(int* blocks, CUfunction function, int block_threads,
                                          std::size_t dynamic_shared_bytes) = nullptr;
  CUresult (*launch_kernel)(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,
                            void** parameters, void** extra) = nullptr;
  // Like launch_kernel, but all blocks run at the same time; it fails if they do not fit on the device.
  CUresult (*launch_cooperative_kernel)(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                        CUstream stream, void** parameters) = nullptr;
  CUresult (*launch_host_func)(CUstream stream, CUhostFn function, void* user_data) = nullptr;

  // Functions for capture and graphs.
  CUresult (*stream_begin_capture)(CUstream stream, CaptureMode mode) = nullptr;
  CUresult (*stream_end_capture)(CUstream stream, CUgraph* graph) = nullptr;
  CUresult (*stream_is_capturing)(CUstream stream, CaptureStatus* status) = nullptr;
  CUresult (*stream_get_capture_info)(CUstream stream, CaptureStatus* status, std::uint64_t* id, CUgraph* graph,
                                      const CUgraphNode** dependencies, std::size_t* dependency_count) = nullptr;
  CUresult (*thread_exchange_capture_mode)(CaptureMode* mode) = nullptr;
  CUresult (*graph_instantiate)(CUgraphExec* executable, CUgraph graph, unsigned long long flags) = nullptr;
  CUresult (*graph_launch)(CUgraphExec executable, CUstream stream) = nullptr;
  CUresult (*graph_get_nodes)(CUgraph graph, CUgraphNode* nodes, std::size_t* count) = nullptr;
  CUresult (*graph_exec_destroy)(CUgraphExec executable) = nullptr;
  CUresult (*graph_destroy)(CUgraph graph) = nullptr;

  // Functions for memory that processes share (CUDA IPC).
  CUresult (*ipc_get_mem_handle)(CUipcMemHandle* handle, CUdeviceptr address) = nullptr;
  CUresult (*ipc_open_mem_handle)(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) = nullptr;
  CUresult (*ipc_close_mem_handle)(CUdeviceptr address) = nullptr;

  // Functions for virtual memory: physical memory and address ranges are allocated separately, and then mapped.
  CUresult (*mem_get_allocation_granularity)(std::size_t* bytes, const CUmemAllocationProp* properties,
                                             MemGranularity option) = nullptr;
  CUresult (*mem_create)(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp* properties,
                         unsigned long long flags) = nullptr;
  CUresult (*mem_release)(CUmemGenericAllocationHandle handle) = nullptr;
  CUresult (*mem_retain_allocation_handle)(CUmemGenericAllocationHandle* handle, void* address) = nullptr;
  CUresult (*mem_get_allocation_properties)(CUmemAllocationProp* properties,
                                            CUmemGenericAllocationHandle handle) = nullptr;
  CUresult (*mem_address_reserve)(CUdeviceptr* address, std::size_t bytes, std::size_t alignment, CUdeviceptr wanted,
                                  unsigned long long flags) = nullptr;
  CUresult (*mem_address_free)(CUdeviceptr address, std::size_t bytes) = nullptr;
  CUresult (*mem_map)(CUdeviceptr address, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle,
                      unsigned long long flags) = nullptr;
  CUresult (*mem_unmap)(CUdeviceptr address, std::size_t bytes) = nullptr;
  CUresult (*mem_set_access)(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* accesses,
                             std::size_t count) = nullptr;
  CUresult (*mem_export_to_shareable_handle)(void* shareable, CUmemGenericAllocationHandle handle, MemHandleType type,
                                             unsigned long long flags) = nullptr;
  CUresult (*mem_import_from_shareable_handle)(CUmemGenericAllocationHandle* handle, void* shareable,
                                               MemHandleType type) = nullptr;
};

// The oldest driver that has all of these functions; cuGetProcAddress_v2 needs this version.
inline constexpr int kOldestDriver = 12000;

namespace detail {

template <class Api, class Visitor>
void visit_devices(Api& api, Visitor& visit) {
  visit("cuInit", 2000, api.init);
  visit("cuDriverGetVersion", 2020, api.driver_get_version);
  visit("cuGetErrorName", 6000, api.get_error_name);
  visit("cuGetErrorString", 6000, api.get_error_string);
  visit("cuDeviceGet", 2000, api.device_get);
  visit("cuDeviceGetCount", 2000, api.device_get_count);
  visit("cuDeviceGetName", 2000, api.device_get_name);
  visit("cuDeviceGetAttribute", 2000, api.device_get_attribute);
  visit("cuDeviceGetUuid", 11040, api.device_get_uuid);
  visit("cuDeviceGetPCIBusId", 4010, api.device_get_pci_bus_id);
  visit("cuDeviceTotalMem", 3020, api.device_total_mem);
  visit("cuDeviceCanAccessPeer", 4000, api.device_can_access_peer);
  visit("cuDeviceGetP2PAttribute", 8000, api.device_get_p2p_attribute);
}

template <class Api, class Visitor>
void visit_contexts(Api& api, Visitor& visit) {
  visit("cuDevicePrimaryCtxRetain", 7000, api.device_primary_ctx_retain);
  visit("cuDevicePrimaryCtxRelease", 11000, api.device_primary_ctx_release);
  visit("cuDevicePrimaryCtxGetState", 7000, api.device_primary_ctx_get_state);
  visit("cuCtxGetCurrent", 4000, api.ctx_get_current);
  visit("cuCtxSetCurrent", 4000, api.ctx_set_current);
  visit("cuCtxPushCurrent", 4000, api.ctx_push_current);
  visit("cuCtxPopCurrent", 4000, api.ctx_pop_current);
  visit("cuCtxGetDevice", 2000, api.ctx_get_device);
  visit("cuCtxGetId", 12000, api.ctx_get_id);
  visit("cuCtxSynchronize", 2000, api.ctx_synchronize);
  visit("cuCtxGetStreamPriorityRange", 5050, api.ctx_get_stream_priority_range);
  visit("cuCtxEnablePeerAccess", 4000, api.ctx_enable_peer_access);
}

template <class Api, class Visitor>
void visit_memory(Api& api, Visitor& visit) {
  visit("cuMemAlloc", 3020, api.mem_alloc);
  visit("cuMemAllocManaged", 6000, api.mem_alloc_managed);
  visit("cuMemFree", 3020, api.mem_free);
  visit("cuMemGetInfo", 3020, api.mem_get_info);
  visit("cuMemHostAlloc", 2020, api.mem_host_alloc);
  visit("cuMemFreeHost", 2000, api.mem_free_host);
  visit("cuMemHostRegister", 6050, api.mem_host_register);
  visit("cuMemHostUnregister", 4000, api.mem_host_unregister);
  visit("cuMemHostGetDevicePointer", 3020, api.mem_host_get_device_pointer);
  visit("cuMemGetAddressRange", 3020, api.mem_get_address_range);
  visit("cuPointerGetAttributes", 7000, api.pointer_get_attributes);
  visit("cuMemcpyAsync", 4000, api.memcpy_async);
  visit("cuMemcpyHtoDAsync", 3020, api.memcpy_htod_async);
  visit("cuMemcpyDtoHAsync", 3020, api.memcpy_dtoh_async);
  visit("cuMemcpyDtoDAsync", 3020, api.memcpy_dtod_async);
  visit("cuMemsetD8Async", 3020, api.memset_d8_async);
}

template <class Api, class Visitor>
void visit_streams(Api& api, Visitor& visit) {
  visit("cuStreamCreate", 2000, api.stream_create);
  visit("cuStreamCreateWithPriority", 5050, api.stream_create_with_priority);
  visit("cuStreamDestroy", 4000, api.stream_destroy);
  visit("cuStreamSynchronize", 2000, api.stream_synchronize);
  visit("cuStreamQuery", 2000, api.stream_query);
  visit("cuStreamGetCtx", 9020, api.stream_get_ctx);
  visit("cuStreamGetFlags", 7000, api.stream_get_flags);
  visit("cuStreamWaitEvent", 3020, api.stream_wait_event);
  visit("cuStreamWaitValue32", 11070, api.stream_wait_value32);
  visit("cuStreamWaitValue64", 11070, api.stream_wait_value64);
  visit("cuStreamWriteValue32", 11070, api.stream_write_value32);
  visit("cuStreamWriteValue64", 11070, api.stream_write_value64);
  visit("cuEventCreate", 2000, api.event_create);
  visit("cuEventRecord", 2000, api.event_record);
  visit("cuEventRecordWithFlags", 11010, api.event_record_with_flags);
  visit("cuEventQuery", 2000, api.event_query);
  visit("cuEventSynchronize", 2000, api.event_synchronize);
  visit("cuEventElapsedTime", 2000, api.event_elapsed_time);
  visit("cuEventDestroy", 4000, api.event_destroy);
}

template <class Api, class Visitor>
void visit_kernels(Api& api, Visitor& visit) {
  visit("cuModuleLoadData", 2000, api.module_load_data);
  visit("cuModuleUnload", 2000, api.module_unload);
  visit("cuModuleGetFunction", 2000, api.module_get_function);
  visit("cuFuncGetAttribute", 2020, api.func_get_attribute);
  visit("cuFuncSetAttribute", 9000, api.func_set_attribute);
  visit("cuOccupancyMaxActiveBlocksPerMultiprocessor", 6050, api.occupancy_max_active_blocks);
  visit("cuLaunchKernel", 4000, api.launch_kernel);
  visit("cuLaunchCooperativeKernel", 9000, api.launch_cooperative_kernel);
  visit("cuLaunchHostFunc", 10000, api.launch_host_func);
}

template <class Api, class Visitor>
void visit_graphs(Api& api, Visitor& visit) {
  visit("cuStreamBeginCapture", 10010, api.stream_begin_capture);
  visit("cuStreamEndCapture", 10000, api.stream_end_capture);
  visit("cuStreamIsCapturing", 10000, api.stream_is_capturing);
  visit("cuStreamGetCaptureInfo", 11030, api.stream_get_capture_info);
  visit("cuThreadExchangeStreamCaptureMode", 10010, api.thread_exchange_capture_mode);
  visit("cuGraphInstantiateWithFlags", 11040, api.graph_instantiate);
  visit("cuGraphLaunch", 10000, api.graph_launch);
  visit("cuGraphGetNodes", 10000, api.graph_get_nodes);
  visit("cuGraphExecDestroy", 10000, api.graph_exec_destroy);
  visit("cuGraphDestroy", 10000, api.graph_destroy);
}

template <class Api, class Visitor>
void visit_handles(Api& api, Visitor& visit) {
  visit("cuIpcGetMemHandle", 4010, api.ipc_get_mem_handle);
  visit("cuIpcOpenMemHandle", 11000, api.ipc_open_mem_handle);
  visit("cuIpcCloseMemHandle", 4010, api.ipc_close_mem_handle);
}

template <class Api, class Visitor>
void visit_mappings(Api& api, Visitor& visit) {
  visit("cuMemGetAllocationGranularity", 10020, api.mem_get_allocation_granularity);
  visit("cuMemCreate", 10020, api.mem_create);
  visit("cuMemRelease", 10020, api.mem_release);
  visit("cuMemRetainAllocationHandle", 11000, api.mem_retain_allocation_handle);
  visit("cuMemGetAllocationPropertiesFromHandle", 10020, api.mem_get_allocation_properties);
  visit("cuMemAddressReserve", 10020, api.mem_address_reserve);
  visit("cuMemAddressFree", 10020, api.mem_address_free);
  visit("cuMemMap", 10020, api.mem_map);
  visit("cuMemUnmap", 10020, api.mem_unmap);
  visit("cuMemSetAccess", 10020, api.mem_set_access);
  visit("cuMemExportToShareableHandle", 10020, api.mem_export_to_shareable_handle);
  visit("cuMemImportFromShareableHandle", 10020, api.mem_import_from_shareable_handle);
}

}  // namespace detail

// Calls visit(name, version, function) for every function of the table; `function` is a reference to its pointer.
template <class Api, class Visitor>
void for_each_function(Api& api, Visitor visit) {
  detail::visit_devices(api, visit);
  detail::visit_contexts(api, visit);
  detail::visit_memory(api, visit);
  detail::visit_streams(api, visit);
  detail::visit_kernels(api, visit);
  detail::visit_graphs(api, visit);
  detail::visit_handles(api, visit);
  detail::visit_mappings(api, visit);
}

}  // namespace tutti::cuda

// Owners of the CUDA driver's resources: contexts, streams, events, memory and modules. Each object is unique. Its
// destructor frees the resource in the context in which it was created. Static functions such as create() make the
// objects, which can be moved, and return errors; but a RelaxedCapture has a public constructor, and cannot be moved.
// Nothing throws except std::bad_alloc. A destructor cannot return an error. It ignores a failure if the context is
// lost (is_lost()), for example because it was destroyed, a kernel failed or the driver has shut down, because nothing
// is left to free then. It also ignores a failure in a forked child, because the resource belongs to the parent. Any
// other failure is a bug, and an assertion fails.
//
// Threads: any thread may use these classes, but an object is used by one thread at a time. The functions that create
// an object need a current context (ContextScope), except those of ContextScope, RelaxedCapture and PrimaryContext. The
// other functions of an object and its destructor need no current context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "cuda/driver.h"

namespace tutti::cuda {

// Makes a context the current context of this thread until the ContextScope is destroyed. Scopes are destroyed in
// reverse order of their creation, by the same thread.
class [[nodiscard]] ContextScope {
 public:
  static Result<ContextScope> enter(const Driver& driver, CUcontext context);
  // Like enter(), but if the context is current already, which is usual, it makes only one call of the driver, and the
  // scope does nothing. Use it only for a scope that ends before its caller can make another context current.
  static Result<ContextScope> enter_unless_current(const Driver& driver, CUcontext context);
  // Like enter(), but for use in destructors: returns nothing if the driver returns an error, and allocates no
  // memory.
  static std::optional<ContextScope> try_enter(const Driver& driver, CUcontext context) noexcept;
  ContextScope(ContextScope&& other) noexcept : driver_(std::exchange(other.driver_, nullptr)) {}
  ContextScope& operator=(ContextScope&&) = delete;
  ~ContextScope();

 private:
  ContextScope() = default;
  explicit ContextScope(const Driver& driver) : driver_(&driver) {}
  const Driver* driver_ = nullptr;
};

// While a thread captures a graph, the driver forbids some calls, for example allocating memory or querying an event.
// They can be forbidden in other threads as well, and a forbidden call invalidates the capture. While a RelaxedCapture
// exists, its thread may make these calls. The same thread must create and destroy the RelaxedCapture.
class [[nodiscard]] RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) { exchange(); }
  ~RelaxedCapture() { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void exchange() { static_cast<void>(driver_.api().thread_exchange_capture_mode(&mode_)); }
  const Driver& driver_;
  CaptureMode mode_ = CaptureMode::kRelaxed;
};

// The primary context of a device: the context that the CUDA runtime, and so most programs, use.
class PrimaryContext {
 public:
  static Result<PrimaryContext> retain(const Driver& driver, int device);
  PrimaryContext(PrimaryContext&& other) noexcept;
  PrimaryContext& operator=(PrimaryContext&& other) noexcept;
  ~PrimaryContext();

  CUcontext context() const { return context_; }
  int device() const { return device_; }

 private:
  PrimaryContext(const Driver& driver, CUcontext context, int device)
      : driver_(&driver), context_(context), device_(device) {}
  void release();

  const Driver* driver_ = nullptr;
  CUcontext context_ = nullptr;
  int device_ = -1;
};

namespace detail {
CUresult current_context(const Driver& driver, CUcontext& context);
void end_in_context(const Driver& driver, CUcontext context, std::string_view call,
                    CUresult (*end)(const DriverApi&, void*), void* argument);

// Owns one handle of the driver. kEnd is the function of the driver that frees it.
template <class Handle, CUresult (*DriverApi::*kEnd)(Handle)>
class Owned {
 public:
  Owned(const Driver& driver, CUcontext context, Handle handle)
      : driver_(&driver), context_(context), handle_(handle) {}
  Owned(Owned&& other) noexcept
      : driver_(other.driver_), context_(other.context_), handle_(std::exchange(other.handle_, Handle{})) {}
  Owned& operator=(Owned&& other) noexcept {
    if (this != &other) {
      end();
      driver_ = other.driver_;
      context_ = other.context_;
      handle_ = std::exchange(other.handle_, Handle{});
    }
    return *this;
  }
  ~Owned() { end(); }

  const Driver& driver() const { return *driver_; }
  CUcontext context() const { return context_; }
  Handle handle() const { return handle_; }

 private:
  void end() {
    Handle handle = std::exchange(handle_, Handle{});
    if (handle == Handle{}) return;
    const auto call = [](const DriverApi& api, void* argument) { return (api.*kEnd)(*static_cast<Handle*>(argument)); };
    end_in_context(*driver_, context_, "giving back what the CUDA driver had handed out", call, &handle);
  }

  const Driver* driver_;
  CUcontext context_;
  Handle handle_;
};
}  // namespace detail

class Event;

struct StreamOptions {
  unsigned flags = kStreamNonBlocking;
  int priority = 0;  // lower numbers have higher priority; the driver limits the value to the device's range
};

class Stream {
 public:
  static Result<Stream> create(const Driver& driver, StreamOptions options = {});

  CUstream handle() const { return owned_.handle(); }
  CUcontext context() const { return owned_.context(); }
  Status synchronize() const;     // blocks until all queued work has run; has no deadline, unlike polling finished()
  Result<bool> finished() const;  // whether all queued work has run
  Status wait(const Event& event) const;  // makes later work of this stream wait for the event

 private:
  explicit Stream(detail::Owned<CUstream, &DriverApi::stream_destroy> owned) : owned_(std::move(owned)) {}
  detail::Owned<CUstream, &DriverApi::stream_destroy> owned_;
};

struct EventOptions {
  unsigned flags = kEventDisableTiming;
};

class Event {
 public:
  static Result<Event> create(const Driver& driver, EventOptions options = {});

  CUevent handle() const { return owned_.handle(); }
  Status record(CUstream stream) const;
  Result<bool> finished() const;  // also true if the event was never recorded
  Status synchronize() const;     // blocks until the event has happened; has no deadline, unlike polling finished()

 private:
  explicit Event(detail::Owned<CUevent, &DriverApi::event_destroy> owned) : owned_(std::move(owned)) {}
  detail::Owned<CUevent, &DriverApi::event_destroy> owned_;
};

// Milliseconds between two events. Both must have been recorded and have happened, and must have been created with
// timing (flags kEventDefault).
Result<double> elapsed_ms(const Driver& driver, const Event& start, const Event& end);

// Device memory, aligned to at least 256 bytes. Its destructor waits for all work of the device, because cuMemFree
// does. So it must not run while a kernel waits for an action of this thread, because that would be a deadlock.
class DeviceMemory {
 public:
  static Result<DeviceMemory> allocate(const Driver& driver, std::size_t bytes);  // bytes > 0

  CUdeviceptr address() const { return owned_.handle(); }
  std::size_t bytes() const { return bytes_; }
  Result<CUipcMemHandle> share() const;

 private:
  DeviceMemory(detail::Owned<CUdeviceptr, &DriverApi::mem_free> owned, std::size_t bytes)
      : owned_(std::move(owned)), bytes_(bytes) {}
  detail::Owned<CUdeviceptr, &DriverApi::mem_free> owned_;
  std::size_t bytes_;
};

// Device memory of another process, mapped into this one. The other process must not free it before this object is
// destroyed.
class PeerMemory {
 public:
  static Result<PeerMemory> open(const Driver& driver, const CUipcMemHandle& handle);
  CUdeviceptr address() const { return owned_.handle(); }  // the first byte of the allocation

 private:
  explicit PeerMemory(detail::Owned<CUdeviceptr, &DriverApi::ipc_close_mem_handle> owned) : owned_(std::move(owned)) {}
  detail::Owned<CUdeviceptr, &DriverApi::ipc_close_mem_handle> owned_;
};

// Page-locked host memory that every device of the process can read and write. device_address() is valid on all
// devices.
class PinnedMemory {
 public:
  static Result<PinnedMemory> allocate(const Driver& driver, std::size_t bytes);  // bytes > 0

  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(owned_.handle()), size_}; }
  CUdeviceptr device_address() const { return device_address_; }

 private:
  PinnedMemory(detail::Owned<void*, &DriverApi::mem_free_host> owned, std::size_t size, CUdeviceptr address)
      : owned_(std::move(owned)), size_(size), device_address_(address) {}
  detail::Owned<void*, &DriverApi::mem_free_host> owned_;
  std::size_t size_;
  CUdeviceptr device_address_;
};

// Page-locks host memory of the caller until this object is destroyed. The memory must stay allocated until then.
class RegisteredMemory {
 public:
  // `memory` must have at least 1 byte.
  static Result<RegisteredMemory> add(const Driver& driver, std::span<std::byte> memory);
  CUdeviceptr device_address() const { return device_address_; }

 private:
  RegisteredMemory(detail::Owned<void*, &DriverApi::mem_host_unregister> owned, CUdeviceptr address)
      : owned_(std::move(owned)), device_address_(address) {}
  detail::Owned<void*, &DriverApi::mem_host_unregister> owned_;
  CUdeviceptr device_address_;
};

// Device code, loaded into a context.
class Module {
 public:
  static Result<Module> load(const Driver& driver, const void* image);  // a fatbin, cubin or PTX
  Result<CUfunction> function(const char* name) const;                  // valid until the module is destroyed

 private:
  explicit Module(detail::Owned<CUmodule, &DriverApi::module_unload> owned) : owned_(std::move(owned)) {}
  detail::Owned<CUmodule, &DriverApi::module_unload> owned_;
};

}  // namespace tutti::cuda

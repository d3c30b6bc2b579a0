// Control of the fake driver by tests: see control.h.
#include "control.h"

#include "driver_state.h"
#include "hooks.h"

namespace tutti::cuda::fake {
namespace {

void register_kernel(FakeKernel kernel) {
  const std::lock_guard lock(driver_state().mutex);
  std::string name = kernel.name;
  driver_state().kernels.insert_or_assign(std::move(name), std::move(kernel));
}

void set_memory_limit(int device, std::size_t bytes) {
  const std::lock_guard lock(driver_state().mutex);
  driver_state().devices.at(static_cast<std::size_t>(device)).limit_bytes = bytes;
}

void set_peer_access(int device, int peer, bool can) {
  const std::lock_guard lock(driver_state().mutex);
  if (can) {
    driver_state().unreachable.erase({device, peer});
  } else {
    driver_state().unreachable.insert({device, peer});
  }
}

CUcontext create_context(int device) {
  const std::lock_guard lock(driver_state().mutex);
  return as_handle<CUcontext>(driver_state().contexts.handle_of(make_context(device).get()));
}

void destroy_context(CUcontext handle) {
  std::shared_ptr<Context> context;
  {
    const std::lock_guard lock(driver_state().mutex);
    context = driver_state().contexts.find(handle);
    if (context == nullptr || !context->alive) return;
    if (context->primary) {
      Device& device = driver_state().devices[static_cast<std::size_t>(context->device)];
      device.primary.reset();
      device.retained = 0;
    }
  }
  CUresult alive = CUresult::kSuccess;
  context->lost->compare_exchange_strong(alive, CUresult::kContextIsDestroyed);  // work that has not started never runs
  wait_for_device(context->device, context.get(), "the end of a context");
  const std::lock_guard lock(driver_state().mutex);
  end_context(context);
}

void set_deinitialized(bool deinitialized) { driver_state().deinitialized = deinitialized; }

}  // namespace
}  // namespace tutti::cuda::fake

extern "C" __attribute__((visibility("default"))) const tutti::cuda::fake::Control* fake_cuda_control() {
  using namespace tutti::cuda::fake;
  static const Control control = {
      .register_kernel = register_kernel,
      .fail = inject_fault,
      .fail_here = inject_fault_here,
      .forget_faults = forget_faults,
      .calls = calls_of,
      .hold_copy = hold_copy,
      .release = release_copy,
      .copies_done = copies_done,
      .set_memory_limit = set_memory_limit,
      .set_peer_access = set_peer_access,
      .set_stuck_ms = set_stuck_ms,
      .create_context = create_context,
      .destroy_context = destroy_context,
      .set_deinitialized = set_deinitialized,
      .allocate_from_pool = allocate_from_pool,
      .leaks = leaks,
      .watch_threads = [](void (*watcher)(int by)) { DriverScope::watcher = watcher; },
  };
  return &control;
}

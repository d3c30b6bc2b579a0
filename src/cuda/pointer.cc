#include "cuda/pointer.h"

#include <array>
#include <bit>

#include "base/assert.h"

namespace tutti::cuda {

Result<PointerInfo> classify(const Driver& driver, const void* pointer) {
  MemoryType type = MemoryType::kUnknown;
  CUcontext context = nullptr;
  std::uint32_t managed = 0;
  std::uint32_t has_old_ipc = 0;  // true of memory of cuMemAlloc only
  int device = -1;
  std::array attributes = {PointerAttribute::kMemoryType, PointerAttribute::kContext, PointerAttribute::kIsManaged,
                           PointerAttribute::kDeviceOrdinal, PointerAttribute::kIsLegacyIpcCapable};
  std::array<void*, 5> values = {&type, &context, &managed, &device, &has_old_ipc};
  // Unlike cuPointerGetAttribute, this function succeeds for memory that the driver does not know, and returns zeros.
  TUTTI_TRY(driver.check(driver.api().pointer_get_attributes(attributes.size(), attributes.data(), values.data(),
                                                             std::bit_cast<CUdeviceptr>(pointer)),
                         "cuPointerGetAttributes"));
  if (type == MemoryType::kUnknown) return PointerInfo{};
  if (managed != 0) return PointerInfo{MemoryKind::kManaged, device, context, false};
  if (type == MemoryType::kHost) return PointerInfo{MemoryKind::kPinned, device, context, false};
  return PointerInfo{MemoryKind::kDevice, device, context, context != nullptr && has_old_ipc != 0};
}

Result<PointerInfo> classify(const void* pointer) {
  const Driver* driver = Driver::loaded();
  if (driver == nullptr) return PointerInfo{};
  return classify(*driver, pointer);
}

Result<bool> is_pool_memory(const Driver& driver, const void* pointer) {
  void* pool = nullptr;
  std::array attributes = {PointerAttribute::kMemoryPool};
  std::array<void*, 1> values = {&pool};
  TUTTI_TRY(driver.check(driver.api().pointer_get_attributes(attributes.size(), attributes.data(), values.data(),
                                                             std::bit_cast<CUdeviceptr>(pointer)),
                         "cuPointerGetAttributes"));
  return pool != nullptr;
}

}  // namespace tutti::cuda
